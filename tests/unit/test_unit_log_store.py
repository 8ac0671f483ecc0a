"""The log of a unit as objects: unknown outcomes, missing and damaged entries, and how the end is found."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.proof.unit_log.stored import UNIT, closed, group, head
from tests.proof.unit_log.stores import Holder, claimed, groups_of

from crosscut.errors import AuthenticityError, InternalError, StoreError
from crosscut.foundation.ids import Epoch, LogIndex
from crosscut.protocol.events import EntryAppended, EntryRefused, EntryTaken, EntryUncertain
from crosscut.protocol.unit_log.appending import EntryLogged, LogLost
from crosscut.protocol.unit_log.events import UnitTailRead
from crosscut.store.files import LocalFiles
from crosscut.store.log_key import LogKey
from crosscut.store.unit_log import ObjectUnitLog
from crosscut.store.unit_log_format import UnitName
from crosscut.testing.simulator.memory_files import Fault, MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def path_of(segment: int, number: int) -> str:
    return f"units/1/{segment:020d}/{number:020d}"


def filled(files: MemoryFiles, count: int = 3) -> Holder:
    holder, _ = claimed(ObjectUnitLog(files, UNIT), 1)
    for position in range(1, count + 1):
        assert isinstance(holder.append(position), EntryLogged)
    return holder


# The four outcomes.


def test_each_outcome_of_an_append_has_its_answer(files: MemoryFiles) -> None:
    log = filled(files).store
    index, entry = LogIndex(1, 4), group(1, 4)
    files.fail_next("put_if_absent", Fault.REFUSED)
    answer = log.append(index, entry)
    assert isinstance(answer, EntryRefused) and "no space left on device; free space there" in answer.reason
    assert path_of(1, 4) not in files.content
    for fault in (Fault.NOT_APPLIED, Fault.APPLIED):
        files.fail_next("put_if_absent", fault)
        answer = log.append(index, entry)
        assert isinstance(answer, EntryUncertain) and "no answer" in answer.reason
    assert log.append(index, entry) == EntryTaken(index)
    assert log.read(index).entry == entry
    assert log.append(LogIndex(1, 5), group(1, 5)) == EntryAppended(LogIndex(1, 5))


@pytest.mark.parametrize("fault", [Fault.APPLIED, Fault.NOT_APPLIED, Fault.LATE, Fault.REFUSED])
@pytest.mark.parametrize("step", ["head", "group", "closing", "next head"])
def test_an_unknown_outcome_is_read_back_and_the_entry_is_there_once(
    files: MemoryFiles, fault: Fault, step: str
) -> None:
    """B4."""
    first = Holder(ObjectUnitLog(files, UNIT), 1)
    if step == "head":
        files.fail_next("put_if_absent", fault)
    first.claim()
    if step == "group":
        files.fail_next("put_if_absent", fault)
    first.append(1)
    files.arrive()
    first.append(2)
    assert len(first.logged) == 2
    if step == "closing":
        files.fail_next("put_if_absent", fault)
    second = Holder(ObjectUnitLog(files, UNIT), 2)
    if step == "next head":
        claimed(second.store, 2)
        files.fail_next("put_if_absent", fault)
        second = Holder(ObjectUnitLog(files, UNIT), 3)
    verdict = second.claim()
    files.arrive()
    assert not isinstance(verdict, LogLost)
    second.append(3)
    assert isinstance(first.append(4), LogLost)
    entries = ObjectUnitLog(files, UNIT).read_tail().entries
    assert groups_of(entries) == [*first.logged, *second.logged]
    assert len({index for index, _ in entries}) == len(entries)


def test_a_head_is_put_into_a_directory_that_is_durable(tmp_path: Path) -> None:
    """D2: also if the directory existed, since its maker may have died."""
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        os.fsync(descriptor)

    log = ObjectUnitLog(LocalFiles(str(tmp_path), fsync=fsync), UNIT)
    (tmp_path / path_of(1, 0)).parent.mkdir(parents=True)
    log.read_tail()
    assert log.append(LogIndex(1, 0), head(1)) == EntryAppended(LogIndex(1, 0))
    assert synced[:3] == [".", "units", "units/1"]
    assert synced[-1] == os.path.dirname(path_of(1, 0))
    synced.clear()
    ObjectUnitLog(LocalFiles(str(tmp_path), fsync=fsync), UNIT).read_tail()
    assert synced == ["units/1", os.path.dirname(path_of(1, 0))], "what was read is durable"


# Damage.


def test_no_byte_of_a_log_can_be_damaged_or_cut_off_unnoticed(files: MemoryFiles) -> None:
    filled(files, 1)
    claimed(ObjectUnitLog(files, UNIT), 2)
    reader = ObjectUnitLog(files, UNIT)
    for path, content in list(files.content.items()):
        for position in range(len(content)):
            for damaged in (
                content[:position],
                content[:position] + bytes((content[position] ^ 4,)) + content[position + 1 :],
            ):
                files.content[path] = damaged
                with pytest.raises(StoreError, match=r"log of unit 1 of job lineage, in-memory/units/1/"):
                    reader.read_tail()
        files.content[path] = content
    reader.read_tail()


@pytest.mark.parametrize("missing", [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (3, 1)])
def test_an_entry_that_is_missing_between_others_is_a_named_error(
    files: MemoryFiles, missing: tuple[int, int]
) -> None:
    filled(files, 2)
    for number in (2, 3):
        holder, _ = claimed(ObjectUnitLog(files, UNIT), number)
    for position in (3, 4, 5):
        holder.append(position)
    segment, number = missing
    del files.content[path_of(segment, number)]
    with pytest.raises(StoreError, match=r"is missing|does not follow") as caught:
        ObjectUnitLog(files, UNIT).read_tail()
    assert caught.value.ids["damaged"]


def test_an_entry_that_was_replaced_by_another_whole_one_is_a_named_error(files: MemoryFiles) -> None:
    filled(files)
    other = MemoryFiles()
    holder, _ = claimed(ObjectUnitLog(other, UNIT), 1)
    for position in (7, 8, 9):
        holder.append(position)
    for number in (1, 2):
        content = files.content[path_of(1, number)]
        files.content[path_of(1, number)] = other.content[path_of(1, number)]
        with pytest.raises(StoreError, match="it does not follow entry 1/"):
            ObjectUnitLog(files, UNIT).read_tail()
        files.content[path_of(1, number)] = content


def test_a_head_among_groups_or_a_group_in_place_of_a_head_is_a_named_error(files: MemoryFiles) -> None:
    """Whole, signed by the right key, at its place: only a bug writes it, and it is not believed."""
    log = ObjectUnitLog(files, UNIT)
    log.read_tail()
    assert isinstance(log.append(LogIndex(1, 0), group(1, 1)), EntryAppended)
    with pytest.raises(StoreError, match="expected a head, found GroupCommitted"):
        log.read_tail()
    files.content.clear()
    log = ObjectUnitLog(files, UNIT)
    for number, entry in enumerate((head(1), closed(2), group(1, 1))):
        assert isinstance(log.append(LogIndex(1, number), entry), EntryAppended)
    with pytest.raises(StoreError, match="found UnitSegmentClosed among groups"):
        log.read_tail()


def test_an_entry_that_the_key_has_not_signed_is_named_as_such(files: MemoryFiles) -> None:
    key = LogKey("k" * 32)
    own = key.unit_key(UNIT.lineage, UNIT.number, [Epoch(1)])
    holder, _ = claimed(ObjectUnitLog(files, UNIT, own), 1)
    holder.append(1)
    for wrong in (None, key.unit_key(UNIT.lineage, UNIT.number, [Epoch(2)])):
        with pytest.raises(
            AuthenticityError, match=r"entry 1/0 of the log of unit 1 of job lineage, in-memory/"
        ):
            ObjectUnitLog(files, UNIT, wrong).read_tail()


def test_an_entry_of_a_later_release_says_which_release_to_use(files: MemoryFiles) -> None:
    filled(files)
    content = files.content[path_of(1, 2)]
    files.content[path_of(1, 2)] = content[:4] + b"\0\7" + content[6:]
    with pytest.raises(
        StoreError, match="is of format 7, and this release of Crosscut has format 1"
    ) as caught:
        ObjectUnitLog(files, UNIT).read_tail()
    assert not caught.value.ids["damaged"]


def test_a_store_that_can_not_be_read_is_not_taken_for_an_empty_log(files: MemoryFiles) -> None:
    filled(files)
    for count in range(1, 4):
        files.fail_next("read", *[Fault.REFUSED] * count)
        with pytest.raises(StoreError, match="can't read in-memory/units/1/") as caught:
            ObjectUnitLog(files, UNIT).read_tail()
        assert not caught.value.ids["damaged"]
        files._faults.clear()


# Where the log is, and where it ends.


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
def test_the_end_is_found_wherever_it_is(files: MemoryFiles, count: int) -> None:
    holder = filled(files, count)
    assert groups_of(ObjectUnitLog(files, UNIT).read_tail().entries) == holder.logged


def test_entries_that_were_appended_while_the_log_was_read_are_read_too(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claimant that is behind can't close the segment, and would read all of it again."""
    holder = filled(files, 2)
    read, late = files.read, [3, 4, 5]

    def read_and_append(path: str) -> bytes:
        try:
            return read(path)
        finally:
            if late and path == path_of(1, late[0]):
                holder.append(late.pop(0))

    monkeypatch.setattr(files, "read", read_and_append)
    found = groups_of(ObjectUnitLog(files, UNIT).read_tail().entries)
    assert len(holder.logged) >= 3 and found == holder.logged[: len(found)] and len(found) >= 3


@pytest.mark.parametrize("first", [1, 5, 1 << 40])
@pytest.mark.parametrize("takeovers", [0, 1, 4])
def test_a_log_begins_where_it_was_told_to(files: MemoryFiles, first: int, takeovers: int) -> None:
    log = ObjectUnitLog(files, UNIT, first_segment=first)
    assert log.read_tail() == UnitTailRead(())
    assert isinstance(log.append(LogIndex(first, 0), head(1, LogIndex(first - 1, 0))), EntryAppended)
    for number in range(takeovers):
        holder, _ = claimed(ObjectUnitLog(files, UNIT, first_segment=first), number + 2)
        holder.append(number + 1)
    entries = ObjectUnitLog(files, UNIT, first_segment=first).read_tail().entries
    assert entries[0][0] == LogIndex(first, 0) and entries[-1][0].segment == first + takeovers
    assert len(groups_of(entries)) == takeovers


def test_units_do_not_see_each_other(files: MemoryFiles) -> None:
    filled(files)
    other = ObjectUnitLog(files, UnitName(UNIT.lineage, 11))
    assert other.read_tail() == UnitTailRead(())
    assert other.append(LogIndex(1, 0), head(1)) == EntryAppended(LogIndex(1, 0))
    assert len(ObjectUnitLog(files, UNIT).read_tail().entries) == 4


def test_a_read_does_not_list_a_directory(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """D5: a listing may miss some."""

    def walk(path: str) -> list[str]:
        raise AssertionError("listed")

    monkeypatch.setattr(files, "walk", walk)
    holder = filled(files)
    assert groups_of(claimed(ObjectUnitLog(files, UNIT), 2)[1].tail) == holder.logged


def test_an_append_without_the_entry_before_is_an_internal_error(files: MemoryFiles) -> None:
    log = filled(files).store
    for index in (LogIndex(1, 5), LogIndex(1, 6), LogIndex(3, 0)):
        with pytest.raises(InternalError, match=f"entry {index} of unit 1 of job lineage was to follow"):
            log.append(index, group(1, 9))


def test_a_call_that_returns_late_changes_nothing(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine has given it up, read the entry back and gone on."""
    log = filled(files, 1).store
    put = files.put_if_absent
    late: list[Callable[[], object]] = []

    def hanging(path: str, data: bytes) -> object:
        # The entry is there, and meanwhile the caller of another thread goes on.
        created = put(path, data)
        for go_on in late:
            late.remove(go_on)
            go_on()
        return created

    def go_on() -> None:
        assert log.read(LogIndex(1, 2)).entry == group(1, 2)
        assert log.append(LogIndex(1, 3), group(1, 3)) == EntryAppended(LogIndex(1, 3))

    late.append(go_on)
    monkeypatch.setattr(files, "put_if_absent", hanging)
    assert log.append(LogIndex(1, 2), group(1, 2)) == EntryAppended(LogIndex(1, 2))
    assert log.append(LogIndex(1, 4), group(1, 4)) == EntryAppended(LogIndex(1, 4))
    assert len(ObjectUnitLog(files, UNIT).read_tail().entries) == 5


def test_a_call_that_begins_late_finds_its_place_taken(files: MemoryFiles) -> None:
    """It was given up before its thread came to it. Another call has put the entry."""
    holder = filled(files)
    before = dict(files.content)
    assert holder.store.append(LogIndex(1, 2), group(1, 2)) == EntryTaken(LogIndex(1, 2))
    assert files.content == before
    assert isinstance(holder.append(4), EntryLogged)


def test_the_entries_of_a_tail_are_read_many_at_once(tmp_path: Path) -> None:
    """One by one, a long tail in a slow store takes longer than a claim may."""
    directory = str(tmp_path / "log")
    under_way, most = 0, 0
    lock, gate = threading.Lock(), threading.Barrier(8)

    class Slow(LocalFiles):
        def read(self, path: str) -> bytes:
            nonlocal under_way, most
            with lock:
                under_way += 1
                most = max(most, under_way)
            if is_slow and threading.current_thread().name == "crosscut-reader":
                # Those at the end of a tail are alone.
                with suppress(threading.BrokenBarrierError):
                    gate.wait(10)
            try:
                return super().read(path)
            finally:
                with lock:
                    under_way -= 1

    is_slow = False
    paths = [f"entry-{number}" for number in range(16)]
    files = Slow(directory)
    for path in paths:
        files.put_if_absent(path, path.encode())
    is_slow = True
    assert files.read_each(paths) == [path.encode() for path in paths]
    assert most >= 8
    is_slow = False
    assert files.read_each(["missing", paths[0]]) == [None, paths[0].encode()]
