"""Every store of unit logs passes the same suite, under the real machine that claims and appends."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from tests.proof.unit_log.stored import UNIT
from tests.proof.unit_log.stores import UnitLogConformance

from crosscut.foundation.ids import Epoch
from crosscut.store.files import LocalFiles
from crosscut.store.log_key import LogKey
from crosscut.store.objects import ObjectFiles
from crosscut.store.segment_files import FileUnitLog
from crosscut.store.unit_log import ObjectUnitLog
from crosscut.testing.simulator.memory_files import MemoryFiles


def add_garbage(directory: Path) -> None:
    for name in ("temporary-" + "ab" * 8, "7", "x.groups", f"{3:020d}.bak", f"{9:020d}.groups", "README"):
        (directory / name).write_bytes(b"garbage")


class TestObjectsInMemory(UnitLogConformance):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self._files = MemoryFiles()

    def open(self) -> ObjectUnitLog:
        return ObjectUnitLog(self._files, UNIT)

    def add_garbage(self) -> None:
        for name in ("7", "temporary-" + "ab" * 8, f"{1:020d}/7", f"{9:020d}/{1:020d}"):
            self._files.content[f"units/1/{name}"] = b"garbage"


class TestObjectsThroughFsspec(UnitLogConformance):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        # One for all handles: each would prove that its puts are conditional.
        self._files = ObjectFiles(f"memory://{secrets.token_hex(8)}/log")

    def open(self) -> ObjectUnitLog:
        return ObjectUnitLog(self._files, UNIT)

    def add_garbage(self) -> None:
        for name in ("7", f"{1:020d}/7", f"{9:020d}/{1:020d}"):
            self._files.replace(f"units/1/{name}", b"garbage")


class TestObjectsInALocalDirectory(UnitLogConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._root = tmp_path / "made on demand"

    def open(self) -> ObjectUnitLog:
        key = LogKey("k" * 32).unit_key(UNIT.lineage, UNIT.number, [Epoch(1)])
        return ObjectUnitLog(LocalFiles(str(self._root)), UNIT, key)

    def add_garbage(self) -> None:
        add_garbage(self._root / "units" / "1")
        add_garbage(self._root / "units" / "1" / f"{1:020d}")


class TestSegmentFiles(UnitLogConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        self._root = tmp_path / "made on demand"
        self._request = request

    def open(self) -> FileUnitLog:
        log = FileUnitLog(str(self._root), UNIT)
        self._request.addfinalizer(log.close)
        return log

    def add_garbage(self) -> None:
        add_garbage(self._root / "units" / "1")


class TestSegmentFilesWithAKey(TestSegmentFiles):
    def open(self) -> FileUnitLog:
        key = LogKey("k" * 32).unit_key(UNIT.lineage, UNIT.number, [Epoch(1)])
        log = FileUnitLog(str(self._root), UNIT, key)
        self._request.addfinalizer(log.close)
        return log
