"""Segment files: what is durable when, what a seal does, and what is no group."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.proof.unit_log.stored import UNIT, group, head, incarnation
from tests.proof.unit_log.stores import Holder, claimed, groups_of

from crosscut.errors import AuthenticityError, SettingsError, StoreError
from crosscut.foundation.ids import Epoch, LogIndex
from crosscut.protocol.events import EntryAppended, EntryRefused, EntryUncertain
from crosscut.protocol.unit_log.appending import EntryLogged, LogLost
from crosscut.protocol.unit_log.events import NewestHeadRead, SealFound, SegmentSealed
from crosscut.store import mounts
from crosscut.store.log_key import LogKey
from crosscut.store.segment_files import FileUnitLog
from crosscut.store.unit_log_format import MAGIC

FIRST = f"{1:020d}"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., FileUnitLog]]:
    logs: list[FileUnitLog] = []

    def opened(**options: Any) -> FileUnitLog:
        logs.append(FileUnitLog(str(tmp_path / "root"), UNIT, **options))
        return logs[-1]

    yield opened
    for one in logs:
        one.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "root" / "units" / "1"


Opened = Callable[..., FileUnitLog]


def with_groups(opened: Opened, count: int) -> Holder:
    holder, _ = claimed(opened(), 1)
    for position in range(1, count + 1):
        assert isinstance(holder.append(position), EntryLogged)
    return holder


# Durability.


class Recorded:
    """The calls that make something durable, in order, with the length of the file."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []

    def fsync(self, descriptor: int) -> None:
        self._record("fsync", descriptor)
        os.fsync(descriptor)

    def fdatasync(self, descriptor: int) -> None:
        self._record("fdatasync", descriptor)
        os.fdatasync(descriptor)

    def _record(self, name: str, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        size = os.fstat(descriptor).st_size if os.path.isfile(path) else 0
        self.calls.append((name, os.path.basename(path), size))


def test_a_group_is_durable_before_it_is_reported_and_costs_one_fsync(
    opened: Opened, directory: Path
) -> None:
    recorded = Recorded()
    holder, _ = claimed(opened(fsync=recorded.fsync, fdatasync=recorded.fdatasync), 1)
    recorded.calls.clear()
    path = directory / f"{FIRST}.groups"
    holder.append(1)
    # The first one makes the file, and so its name must be durable, too.
    assert recorded.calls == [("fsync", "1", 0), ("fdatasync", path.name, path.stat().st_size)]
    for position in (2, 3):
        recorded.calls.clear()
        holder.append(position)
        assert recorded.calls == [("fdatasync", path.name, path.stat().st_size)]


def test_what_a_claimant_has_read_is_written_again_and_durable_before_it_is_returned(
    opened: Opened, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last fsync of its writer may have failed: then the kernel takes the pages for clean."""
    first = with_groups(opened, 3)
    path = directory / f"{FIRST}.groups"
    content, written = path.read_bytes(), []
    pwrite = os.pwrite

    def recorded_pwrite(descriptor: int, data: bytes, offset: int) -> int:
        written.append((bytes(data), offset))
        return pwrite(descriptor, data, offset)

    recorded = Recorded()
    monkeypatch.setattr(os, "pwrite", recorded_pwrite)
    log = opened(fsync=recorded.fsync, fdatasync=recorded.fdatasync)
    recorded.calls.clear()
    assert groups_of(log.read_tail().entries) == first.logged
    ((last, offset),) = written
    assert content[offset:] == last and path.read_bytes() == content
    assert recorded.calls == [("fsync", "1", 0), ("fdatasync", path.name, len(content))]


def test_an_error_of_fsync_is_final_for_the_segment(opened: Opened, directory: Path) -> None:
    """The next fsync may call a success what is lost."""
    is_broken = False

    def fdatasync(descriptor: int) -> None:
        if is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(descriptor)

    log = opened(fdatasync=fdatasync)
    holder, _ = claimed(log, 1)
    holder.append(1)
    is_broken = True
    verdict = holder.append(2)
    assert isinstance(verdict, LogLost) and not verdict.is_fenced
    assert "can't make durable" in verdict.reason and "Input/output error" in verdict.reason
    is_broken = False
    content = (directory / f"{FIRST}.groups").read_bytes()
    again = log.append(LogIndex(1, 2), group(1, 2))
    assert isinstance(again, EntryUncertain) and again.reason in verdict.reason
    assert (directory / f"{FIRST}.groups").read_bytes() == content
    # It is in the file, and the next one makes it durable: it counts.
    _, found = claimed(opened(), 2)
    assert [one for _, one in groups_of(found.tail)] == [group(1, 1), group(1, 2)]


def test_a_segment_whose_file_has_no_durable_name_is_never_written(opened: Opened, directory: Path) -> None:
    is_broken = False

    def fsync(descriptor: int) -> None:
        if is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(descriptor)

    log = opened(fsync=fsync)
    claimed(log, 1)
    is_broken = True
    for _ in range(2):
        assert isinstance(log.append(LogIndex(1, 1), group(1, 1)), EntryUncertain)
        is_broken = False
    assert (directory / f"{FIRST}.groups").stat().st_size == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_a_group_and_a_later_attempt_puts_it_there_once(
    opened: Opened, directory: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """D4: a part of it is written, and then there is no space."""
    log = opened()
    holder, _ = claimed(log, 1)
    holder.append(1)
    size = (directory / f"{FIRST}.groups").stat().st_size
    pwrite = os.pwrite

    def nearly_full(descriptor: int, data: memoryview, offset: int) -> int:
        left = size + 50 - offset
        if left <= 0:
            raise OSError(code, os.strerror(code))
        return pwrite(descriptor, data[:left], offset)

    monkeypatch.setattr(os, "pwrite", nearly_full)
    answer = log.append(LogIndex(1, 2), group(1, 2))
    assert isinstance(answer, EntryRefused) and "free space there" in answer.reason
    assert log.read(LogIndex(1, 2)).entry is None
    monkeypatch.undo()
    verdict = holder.append(2)
    assert isinstance(verdict, EntryLogged) and verdict.index == LogIndex(1, 2)
    assert groups_of(claimed(opened(), 2)[1].tail) == holder.logged


def test_a_full_disk_does_not_end_an_incarnation(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, _ = claimed(opened(), 1)
    pwrite, refusals = os.pwrite, [0]

    def full_for_a_while(descriptor: int, data: memoryview, offset: int) -> int:
        refusals[0] += 1
        if refusals[0] < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full_for_a_while)
    assert isinstance(holder.append(1), EntryLogged) and refusals[0] == 100
    assert isinstance(holder.append(2), EntryLogged)
    assert groups_of(claimed(opened(), 2)[1].tail) == holder.logged


def test_any_other_error_of_a_write_is_final(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened()
    claimed(log, 1)

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", pwrite)
    assert isinstance(log.append(LogIndex(1, 1), group(1, 1)), EntryUncertain)
    monkeypatch.undo()
    assert isinstance(log.append(LogIndex(1, 1), group(1, 1)), EntryUncertain)


# Seals.


def test_a_log_without_a_segment_has_nothing_to_seal(opened: Opened, directory: Path) -> None:
    assert opened().newest_head() == NewestHeadRead(0, None)
    assert os.listdir(directory) == []


def test_a_segment_is_sealed_once(opened: Opened, directory: Path) -> None:
    with_groups(opened, 1)
    for _ in range(2):
        assert opened().newest_head() == NewestHeadRead(1, incarnation(1))
        assert opened().seal(1) == SegmentSealed(1)
    assert (directory / f"{FIRST}.sealed").read_bytes() == b""


@pytest.mark.parametrize("when", ["before the write", "before the fsync", "after the fsync"])
def test_a_seal_that_is_there_when_the_group_is_durable_is_found(opened: Opened, when: str) -> None:
    """Whether the group counts is for the claimant to say: it may have read before or after the write."""
    seals: list[Callable[[], object]] = []

    def fdatasync(descriptor: int) -> None:
        if when == "before the fsync":
            seals.pop()()
        os.fdatasync(descriptor)
        if when == "after the fsync":
            seals.pop()()

    log = opened(fdatasync=fdatasync)
    seals.append(lambda: None)
    claimed(log, 1)
    claimant = opened()
    seals.append(partial(claimant.seal, 1))
    if when == "before the write":
        seals.pop()()
    assert log.append(LogIndex(1, 1), group(1, 1)) == SealFound(LogIndex(1, 1))
    assert log.append(LogIndex(1, 2), group(1, 2)) == SealFound(LogIndex(1, 2)), "nothing more is written"
    assert [one for _, one in groups_of(claimant.read_tail().entries)] == [group(1, 1)]


def test_a_group_that_was_reported_before_the_seal_is_read(opened: Opened) -> None:
    log = opened()
    claimed(log, 1)
    assert log.append(LogIndex(1, 1), group(1, 1)) == EntryAppended(LogIndex(1, 1))
    claimant = opened()
    claimant.seal(1)
    assert [one for _, one in groups_of(claimant.read_tail().entries)] == [group(1, 1)]


def test_what_a_zombie_appends_after_the_cut_is_void_for_ever(opened: Opened, directory: Path) -> None:
    first = with_groups(opened, 2)
    second, _ = claimed(opened(), 2)
    assert isinstance(first.append(3), LogLost)
    second.append(4)
    expected = [*first.logged, *second.logged]
    assert groups_of(claimed(opened(), 3)[1].tail) == expected
    # Also if it is torn, or is none at all.
    path = directory / f"{FIRST}.groups"
    for content in (path.read_bytes()[:-7], path.read_bytes()[:-7] + b"garbage"):
        path.write_bytes(content)
        assert groups_of(opened().read_tail().entries) == expected


def test_a_seal_that_can_not_be_looked_for_is_no_success(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened()
    claimed(log, 1)

    def failing(*arguments: object, **options: object) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "stat", failing)
    answer = log.append(LogIndex(1, 1), group(1, 1))
    monkeypatch.undo()
    assert isinstance(answer, EntryUncertain)


# Tails that are torn, and damage that is not.


@pytest.mark.parametrize("rest", ["cut", "zeros", "garbage"])
def test_a_tail_torn_at_any_byte_ends_the_log_before_it(opened: Opened, directory: Path, rest: str) -> None:
    first = with_groups(opened, 2)
    path = directory / f"{FIRST}.groups"
    content = path.read_bytes()
    size = len(content) // 2
    reader = opened()
    for length in range(size, len(content)):
        left = len(content) - length
        tail = {"cut": b"", "zeros": bytes(left), "garbage": (b"\0\0" + MAGIC * left)[:left]}[rest]
        path.write_bytes(content[:length] + tail)
        whole = first.logged[:1]
        assert groups_of(reader.read_tail().entries) == whole, f"torn at {length} of {len(content)}"
    second, found = claimed(opened(), 2)
    assert groups_of(found.tail) == first.logged[:1]
    second.append(5)
    assert groups_of(claimed(opened(), 3)[1].tail) == [*first.logged[:1], *second.logged]


def test_a_damaged_group_with_a_whole_one_after_it_is_a_named_error(opened: Opened, directory: Path) -> None:
    """It was durable before the next one began: it is no torn tail."""
    with_groups(opened, 3)
    path = directory / f"{FIRST}.groups"
    content = path.read_bytes()
    reader = opened()
    for position in range(2 * len(content) // 3):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        path.write_bytes(bytes(damaged))
        with pytest.raises(StoreError, match=r"groups, is (damaged|of format)"):
            reader.read_tail()


def test_in_a_segment_that_was_cut_no_byte_can_be_damaged_unnoticed(opened: Opened, directory: Path) -> None:
    with_groups(opened, 2)
    claimed(opened(), 2)
    reader = opened()
    for name in (f"{FIRST}.groups", f"{FIRST}.head", f"{2:020d}.head"):
        path = directory / name
        content = path.read_bytes()
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= 0x10
            path.write_bytes(bytes(damaged))
            with pytest.raises(StoreError):
                reader.read_tail()
            path.write_bytes(content[:position])
            with pytest.raises(StoreError):
                reader.read_tail()
        path.write_bytes(content)
    path = directory / f"{FIRST}.groups"
    path.unlink()
    with pytest.raises(StoreError, match=r"entry 1/1 of the log of unit 1 .* is missing") as caught:
        reader.read_tail()
    assert caught.value.ids["damaged"]


def test_a_group_that_was_replaced_by_another_whole_one_is_a_named_error(
    opened: Opened, directory: Path, tmp_path: Path
) -> None:
    """As after a backup of one file was put back."""
    with_groups(opened, 2)
    claimed(opened(), 2)
    other = FileUnitLog(str(tmp_path / "other"), UNIT)
    holder, _ = claimed(other, 1)
    for position in (7, 8):
        holder.append(position)
    other.close()
    source = tmp_path / "other" / "units" / "1" / f"{FIRST}.groups"
    (directory / f"{FIRST}.groups").write_bytes(source.read_bytes())
    with pytest.raises(StoreError, match=r"it does not follow entry 1/2: one of the two was replaced"):
        opened().read_tail()


def test_groups_without_the_key_are_refused_and_not_taken_for_a_torn_tail(opened: Opened) -> None:
    key = LogKey("k" * 32).unit_key(UNIT.lineage, UNIT.number, [Epoch(1)])
    holder, _ = claimed(opened(key=key), 1)
    holder.append(1)
    other = LogKey("o" * 32).unit_key(UNIT.lineage, UNIT.number, [Epoch(1)])
    for wrong in (None, other):
        with pytest.raises(
            AuthenticityError, match=r"entry 1/0 of the log of unit 1 of job lineage, .*\.head"
        ):
            opened(key=wrong).read_tail()
    assert groups_of(opened(key=key).read_tail().entries) == holder.logged


def test_a_file_of_groups_that_is_there_before_its_head_is_a_named_error(
    opened: Opened, directory: Path
) -> None:
    log = opened()
    (directory / f"{FIRST}.groups").write_bytes(b"")
    claimed(log, 1)
    with pytest.raises(StoreError, match=r"groups exists, and the segment is new: find out") as caught:
        log.append(LogIndex(1, 1), group(1, 1))
    assert caught.value.ids["damaged"]


def test_a_file_goes_with_its_last_group_and_not_before(opened: Opened, directory: Path) -> None:
    holder = with_groups(opened, 3)
    path = directory / f"{FIRST}.groups"
    holder.compact(LogIndex(1, 2))
    assert holder.store.delete([LogIndex(1, 2), LogIndex(1, 1)]) == []
    assert path.exists()
    assert holder.store.delete([LogIndex(1, 3)]) == []
    assert not path.exists() and (directory / f"{FIRST}.head").exists()
    (error,) = holder.store.delete([LogIndex(2, 1)])
    assert "is missing" in error, "its segment is open"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_log_that_is_compacted_while_it_is_read_is_read_again(
    opened: Opened, directory: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Without its file, the segment that was the newest looks as if it had no group."""
    holder = with_groups(opened, 3)
    reader = opened()
    os_open, has_compacted = os.open, [False]

    def compact() -> None:
        has_compacted[0] = True
        holder.compact(LogIndex(1, 3))
        assert holder.store.delete([LogIndex(1, 3)]) == []
        holder.append(4)

    def open_and_compact(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        is_now = path == f"{FIRST}.groups" and not has_compacted[0]
        if is_now and when == "before":
            compact()
        descriptor = os_open(path, flags, mode, dir_fd=dir_fd)
        if is_now and when == "after":
            compact()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_compact)
    tail = reader.read_tail().entries
    assert has_compacted[0] and not (directory / f"{FIRST}.groups").exists()
    assert groups_of(tail) == holder.logged[3:]


# Who may lead where.


def test_files_and_directories_are_for_the_owner_only(opened: Opened, tmp_path: Path) -> None:
    """S8."""
    with_groups(opened, 2)
    claimed(opened(), 2)
    paths = [*(tmp_path / "root").rglob("*"), tmp_path / "root"]
    assert len(paths) == 7
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("link", ["units", "units/1"])
def test_a_directory_that_is_a_link_is_refused(tmp_path: Path, link: str) -> None:
    (tmp_path / "elsewhere" / "1").mkdir(parents=True)
    (tmp_path / "root").mkdir(mode=0o700)
    if link == "units/1":
        (tmp_path / "root" / "units").mkdir(mode=0o700)
    (tmp_path / "root" / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        FileUnitLog(str(tmp_path / "root"), UNIT)


def test_a_link_or_fifo_in_the_place_of_groups_is_refused(
    opened: Opened, directory: Path, tmp_path: Path
) -> None:
    with_groups(opened, 1)
    path = directory / f"{FIRST}.groups"
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(StoreError, match="can't read"):
        opened().read_tail()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="not a regular file"):
        opened().read_tail()


@pytest.mark.parametrize("below", ["", "units", "units/1"])
def test_a_directory_where_others_can_write_is_refused(opened: Opened, tmp_path: Path, below: str) -> None:
    with_groups(opened, 1)
    os.chmod(tmp_path / "root" / below, 0o777)
    with pytest.raises(StoreError, match="no write permission for others; its entries are loaded as code"):
        opened()


# Where segment files may be.

MOUNTS = r"""sysfs /sys sysfs rw 0 0
overlay / overlay rw,lowerdir=/x 0 0
/dev/sda1 /data ext4 rw 0 0
server:/export /data/shared nfs4 rw 0 0
tmpfs /data/with\040blank tmpfs rw 0 0
/dev/sdb1 /twice xfs rw 0 0
fuse /twice fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("overlay", "/")),
        ("/database", ("overlay", "/")),
        ("/data", ("ext4", "/data")),
        ("/data/sharedness", ("ext4", "/data")),
        ("/data/shared/a", ("nfs4", "/data/shared")),
        ("/data/with blank/a", ("tmpfs", "/data/with blank")),
        ("/twice/a", ("fuse.sshfs", "/twice")),
    ],
)
def test_a_directory_is_on_the_mount_with_the_longest_path(path: str, expected: tuple[str, str]) -> None:
    assert mounts.mounted_at(path, MOUNTS) == expected


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "overlay", "fuse.sshfs", "9p", "zfs"])
def test_a_file_system_that_is_not_known_to_be_local_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(mounts, "_proc_mounts", lambda: f"x / {kind} rw 0 0\n")
    with pytest.raises(
        SettingsError,
        match=rf"found {kind} \(/\), expected a local file system, one of btrfs, ext4, tmpfs, xfs, .*"
        rf"or choose log='objects'",
    ):
        FileUnitLog(str(tmp_path), UNIT)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs"])
def test_a_local_file_system_is_used(opened: Opened, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(mounts, "_proc_mounts", lambda: f"x / {kind} rw 0 0\n")
    with_groups(opened, 1)


def test_a_host_that_does_not_say_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/proc/mounts")

    for answer in (missing, str):
        monkeypatch.setattr(mounts, "_proc_mounts", answer)
        with pytest.raises(SettingsError, match="found an unknown file system"):
            FileUnitLog(str(tmp_path), UNIT)


def test_a_head_is_no_group(opened: Opened) -> None:
    log = opened()
    log.read_tail()
    with pytest.raises(Exception, match="was to be entry 1/3 of segment files"):
        log.append(LogIndex(1, 3), head(1))
