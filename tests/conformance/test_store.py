"""Every kind of checkpoint store passes the same suite, the fake of the simulator included."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from tests.proof.stores import StoreConformance

from crosscut.store import CheckpointStore, open_store
from crosscut.store.log_key import LogKey
from crosscut.store.objects import ObjectFiles
from crosscut.testing.s3 import S3Server
from crosscut.testing.simulator.memory_files import MemoryFiles


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


class TestS3(StoreConformance):
    @pytest.fixture(autouse=True)
    def _place(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        # One for all handles: each would prove by some forty requests that conditional puts are atomic.
        self._files = ObjectFiles(f"{s3.bucket()}/checkpoints")

    def open(self) -> CheckpointStore:
        return CheckpointStore(self._files)


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
