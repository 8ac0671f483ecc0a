"""A process dies, or the host loses its power, at each system call that changes the log of a unit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.proof.unit_log.stored import UNIT
from tests.proof.unit_log.stores import Holder, Store, claimed, groups_of

from crosscut.foundation.ids import LogIndex
from crosscut.protocol.unit_log.appending import EntryLogged, UnitClaimed
from crosscut.protocol.unit_log.entries import GroupCommitted
from crosscut.protocol.unit_log.replay import replayed
from crosscut.store.files import LocalFiles
from crosscut.store.segment_files import FileUnitLog
from crosscut.store.unit_log import ObjectUnitLog

CALLS = ("open", "mkdir", "write", "pwrite", "link", "unlink", "rmdir")


class Crashed(BaseException):
    """The process is dead: no code of it runs any more."""


class Machine:
    """The system calls of a process, up to the one at which it dies, and what is not durable by then.

    Args:
        dies_at: The number of that call.
        is_done: It is carried out, and then the process dies; a write is carried out in part otherwise.
    """

    def __init__(self, dies_at: int, *, is_done: bool) -> None:
        self._dies_at = dies_at
        self._is_done = is_done
        self.count = 0
        self._synced_bytes: dict[str, int] = {}
        self._new_names: list[str] = []

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            monkeypatch.setattr(os, name, partial(self._call, name, getattr(os, name)))

    def fsync(self, descriptor: int) -> None:
        self._call("fsync", os.fsync, descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self._new_names = [name for name in self._new_names if os.path.dirname(name) != path]

    def fdatasync(self, descriptor: int) -> None:
        self._call("fdatasync", os.fdatasync, descriptor)
        self._synced_bytes[os.readlink(f"/proc/self/fd/{descriptor}")] = os.fstat(descriptor).st_size

    def lose_power(self, *, keeps: str) -> None:
        """Take away what no fsync had made durable.

        Args:
            keeps: What is left of bytes at the end of a segment file: "nothing", "half" or "zeros".
        """
        for path in self._new_names:
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.unlink(path)
        for path, durable in self._synced_bytes.items():
            if not os.path.exists(path):
                continue
            size = os.path.getsize(path)
            left = {"nothing": durable, "half": (durable + size) // 2, "zeros": durable}[keeps]
            os.truncate(path, left)
            if keeps == "zeros":
                os.truncate(path, size)

    def _call(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.count += 1
        if self.count > self._dies_at:
            raise Crashed
        if name == "pwrite":
            path, size = os.readlink(f"/proc/self/fd/{arguments[0]}"), os.fstat(arguments[0]).st_size
            self._synced_bytes.setdefault(path, size)
        dies = self.count == self._dies_at
        if dies and not self._is_done:
            if name in ("write", "pwrite"):
                descriptor, data, *rest = arguments
                call(descriptor, data[: len(data) // 2], *rest)
            raise Crashed
        result = call(*arguments, **options)
        if name == "link":
            self._new_names.append(arguments[1])
        elif name == "mkdir":
            self._new_names.append(arguments[0])
        elif name == "open" and arguments[1] & os.O_CREAT and "dir_fd" in options:
            self._new_names.append(os.readlink(f"/proc/self/fd/{result}"))
        if dies:
            raise Crashed
        return result


OPEN: list[FileUnitLog] = []


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    close_all()


def close_all() -> None:
    while OPEN:
        OPEN.pop().close()


def opened(kind: str, root: Path, machine: Machine | None = None) -> Store:
    fsync = machine.fsync if machine is not None else os.fsync
    if kind == "objects":
        return ObjectUnitLog(LocalFiles(str(root), fsync=fsync), UNIT)
    fdatasync = machine.fdatasync if machine is not None else os.fdatasync
    log = FileUnitLog(str(root), UNIT, fsync=fsync, fdatasync=fdatasync)
    OPEN.append(log)
    return log


class Life:
    """The second incarnation: it takes over, appends, compacts and appends, until it dies."""

    def __init__(self) -> None:
        self.logged: list[tuple[LogIndex, GroupCommitted]] = []
        self.snapshot = LogIndex(0, 0)

    def live(self, kind: str, root: Path, machine: Machine) -> None:
        holder = Holder(opened(kind, root, machine), 2)
        holder.logged = self.logged
        assert isinstance(holder.claim(), UnitClaimed)
        for position in (10, 11, 12):
            assert isinstance(holder.append(position), EntryLogged)
        kept, _ = self.logged[-2]
        assert isinstance(holder.compact(kept), EntryLogged)
        self.snapshot = kept
        replaced = [index for index, _ in self.logged if index <= kept]
        assert holder.store.delete(replaced[::-1]) == []
        assert isinstance(holder.append(13, 5_000), EntryLogged)


def lived(
    kind: str, root: Path, dies_at: int, monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> tuple[Life, Machine]:
    first, _ = claimed(opened(kind, root), 1)
    for position in (1, 2):
        first.append(position)
    life, machine = Life(), Machine(dies_at, is_done=is_done)
    life.logged += first.logged
    with monkeypatch.context() as patch:
        machine.patch(patch)
        with suppress(Crashed):
            life.live(kind, root, machine)
    return life, machine


def check(kind: str, root: Path, life: Life) -> None:
    """Require that the next incarnation finds all that was logged, and at most one group more."""
    third, found = claimed(opened(kind, root), 3)
    base = replayed(found.tail).base
    since = base.index if base is not None else LogIndex(0, 0)
    assert since >= life.snapshot
    groups, logged = groups_of(found.tail), [one for one in life.logged if one[0] > since]
    assert groups[: len(logged)] == logged
    assert len(groups) <= len(logged) + 1
    assert third.store.delete(found.leftover[::-1]) == []
    assert isinstance(third.append(20), EntryLogged)
    _, after = claimed(opened(kind, root), 4)
    assert groups_of(after.tail) == [*groups, *third.logged]
    close_all()


def call_count(kind: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    life, machine = lived(kind, root, 10**9, monkeypatch, is_done=True)
    assert len(life.logged) == 6
    check(kind, root, life)
    assert machine.count > 40
    return machine.count


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["objects", "segment files"])
def test_a_process_that_dies_at_any_system_call_loses_no_logged_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_done: bool
) -> None:
    """D1, D2."""
    for dies_at in range(1, call_count(kind, tmp_path / "whole", monkeypatch) + 1):
        root = tmp_path / str(dies_at)
        life, _ = lived(kind, root, dies_at, monkeypatch, is_done=is_done)
        check(kind, root, life)


@pytest.mark.parametrize(
    ("kind", "keeps"),
    [("objects", "nothing"), *(("segment files", keeps) for keeps in ("nothing", "half", "zeros"))],
)
def test_a_host_that_loses_its_power_at_any_system_call_loses_no_logged_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, keeps: str
) -> None:
    """D2: whatever no fsync had made durable is gone, or torn, or reads as zeros."""
    for dies_at in range(1, call_count(kind, tmp_path / "whole", monkeypatch) + 1):
        root = tmp_path / str(dies_at)
        life, machine = lived(kind, root, dies_at, monkeypatch, is_done=True)
        machine.lose_power(keeps=keeps)
        check(kind, root, life)
