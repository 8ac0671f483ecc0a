"""Every kind of checkpoint store passes the same suite, the fake of the simulator included."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from crosscut.store import CheckpointStore, open_store
from crosscut.store.log_key import LogKey
from crosscut.testing.stores import MemoryFiles, StoreConformance


class TestLocalDirectory(StoreConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._root = str(tmp_path / "made" / "on" / "demand")

    def open(self) -> CheckpointStore:
        return open_store(self._root)


class TestObjectsThroughFsspec(StoreConformance):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self._url = f"memory://{secrets.token_hex(8)}/checkpoints"

    def open(self) -> CheckpointStore:
        return open_store(self._url)


class TestLocalDirectoryWithAKey(StoreConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._root = str(tmp_path)

    def open(self) -> CheckpointStore:
        return open_store(self._root, key=LogKey("k" * 32))


class TestMemoryFiles(StoreConformance):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self._files = MemoryFiles()

    def open(self) -> CheckpointStore:
        return CheckpointStore(self._files)
