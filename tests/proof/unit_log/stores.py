"""A suite that every store of unit logs passes: the real machine of an incarnation on top of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import pytest
from tests.proof.unit_log.stored import closed, group, head, incarnation, snapshot

from crosscut.errors import StoreError
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.effects import CancelTimer, StartTimer
from crosscut.protocol.events import EntryAppended, EntryTaken, Timer, TimerFired
from crosscut.protocol.unit_log import effects as do
from crosscut.protocol.unit_log.appending import EntryLogged, LogLost, LogVerdict, UnitClaimed, UnitLog
from crosscut.protocol.unit_log.entries import GroupCommitted, UnitEntry, UnitSegmentOpened, UnitSnapshot
from crosscut.protocol.unit_log.events import UnitEntryRead, UnitLogEvent, UnitTailRead
from crosscut.protocol.unit_log.replay import replayed
from crosscut.store.segment_files import FileUnitLog
from crosscut.store.unit_log import ObjectUnitLog

Store = ObjectUnitLog | FileUnitLog


class Holder:
    """One incarnation with its log: the machine, and what performs its effects at once.

    Attributes:
        logged: The groups that are in the log as far as it knows, with their indices.
    """

    def __init__(self, store: Store, number: int) -> None:
        self.store = store
        self.number = number
        kind = "segment files" if isinstance(store, FileUnitLog) else "objects"
        self.machine = UnitLog(incarnation(number), 60_000, kind)  # type: ignore[arg-type]
        self.logged: list[tuple[LogIndex, GroupCommitted]] = []

    def claim(self) -> UnitClaimed | LogLost:
        """Claim the log."""
        verdict = self._perform(self.machine.start())
        assert isinstance(verdict, UnitClaimed | LogLost)
        return verdict

    def append(self, position: int, size: int = 20) -> LogVerdict:
        """Append a group."""
        entry = group(self.number, position, size)
        verdict = self._perform(self.machine.append(entry))
        if isinstance(verdict, EntryLogged):
            self.logged.append((verdict.index, entry))
        return verdict

    def compact(self, index: LogIndex) -> LogVerdict:
        """Go on in a new segment, with a snapshot at the end of group `index`."""
        return self._perform(self.machine.open_segment(snapshot(index)))

    def _perform(self, effects: Sequence[do.UnitLogEffect]) -> LogVerdict:
        todo = deque(effects)
        retry: Timer | None = None
        while True:
            if todo:
                asked = todo.popleft()
                if isinstance(asked, CancelTimer):
                    continue
                if isinstance(asked, StartTimer):
                    if asked.timer.kind == "retry-append":
                        retry = asked.timer
                    continue
                event = self._answer(asked)
            else:
                assert retry is not None, "the machine waits for nothing"
                event, retry = TimerFired(retry), None
            more, verdict = self.machine.handle(event)
            todo += more
            if verdict is not None:
                assert all(isinstance(one, CancelTimer | StartTimer) for one in todo), todo
                return verdict

    def _answer(self, asked: do.UnitLogEffect) -> UnitLogEvent:
        match asked:
            case do.ReadNewestHead():
                assert isinstance(self.store, FileUnitLog)
                return self.store.newest_head()
            case do.SealSegment(segment):
                assert isinstance(self.store, FileUnitLog)
                return self.store.seal(segment)
            case do.ReadUnitTail():
                return self.store.read_tail()
            case do.AppendUnitEntry(index, entry):
                return self.store.append(index, entry)
            case do.ReadUnitEntry(index):
                return self.store.read(index)
            case _:
                raise AssertionError(asked)


def claimed(store: Store, number: int) -> tuple[Holder, UnitClaimed]:
    """Return an incarnation that has claimed its log, and what it has found."""
    holder = Holder(store, number)
    verdict = holder.claim()
    assert isinstance(verdict, UnitClaimed), verdict
    return holder, verdict


def groups_of(tail: Sequence[tuple[LogIndex, UnitEntry]]) -> list[tuple[LogIndex, GroupCommitted]]:
    """Return the groups of a tail."""
    return [(index, one) for index, one in tail if isinstance(one, GroupCommitted)]


def snapshot_of(tail: Sequence[tuple[LogIndex, UnitEntry]]) -> UnitSnapshot | None:
    """Return the newest snapshot of a tail."""
    return replayed(tail).base


class UnitLogConformance:
    """Every store of unit logs must pass this. Subclass it, and say how to open one."""

    def open(self) -> Store:
        """Open the log of this test, empty at the beginning; further calls open the same place."""
        raise NotImplementedError

    # One owner.

    def test_a_new_log_is_empty(self) -> None:
        assert self.open().read_tail() == UnitTailRead(())
        assert self.open().read(LogIndex(1, 0)) == UnitEntryRead(LogIndex(1, 0), None)

    def test_what_was_appended_is_read_back_equal_by_another_handle(self) -> None:
        first, _ = claimed(self.open(), 1)
        for position in range(1, 12):
            assert isinstance(first.append(position), EntryLogged)
        entries = self.open().read_tail().entries
        assert entries == ((LogIndex(1, 0), head(1)), *first.logged)
        for index, entry in entries:
            assert self.open().read(index) == UnitEntryRead(index, entry)
        absent = LogIndex(1, 12)
        assert self.open().read(absent) == UnitEntryRead(absent, None)

    def test_groups_of_any_size_are_read_back(self) -> None:
        first, _ = claimed(self.open(), 1)
        for size in (0, 1, 70_000, 3, 1_200_000):
            first.append(size + 1, size)
        assert groups_of(self.open().read_tail().entries) == first.logged

    def test_a_head_is_taken_once_and_never_changes(self) -> None:
        first, second = self.open(), self.open()
        first.read_tail()
        second.read_tail()
        assert first.append(LogIndex(1, 0), head(1)) == EntryAppended(LogIndex(1, 0))
        for handle in (first, second, self.open()):
            assert handle.append(LogIndex(1, 0), head(2)) == EntryTaken(LogIndex(1, 0))
        assert second.read(LogIndex(1, 0)) == UnitEntryRead(LogIndex(1, 0), head(1))

    # Taking over.

    def test_the_next_incarnation_finds_all_groups_and_goes_on(self) -> None:
        logged: list[tuple[LogIndex, GroupCommitted]] = []
        for number in range(1, 5):
            holder, found = claimed(self.open(), number)
            assert groups_of(found.tail) == logged
            for position in range(number):
                holder.append(10 * number + position + 1)
            logged += holder.logged
        assert [index.segment for index, _ in logged] == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]

    def test_an_incarnation_that_has_appended_nothing_leaves_nothing(self) -> None:
        for number in (1, 2, 3):
            _, found = claimed(self.open(), number)
            assert groups_of(found.tail) == []
        entries = [entry for _, entry in self.open().read_tail().entries]
        assert [one.incarnation.number for one in entries if isinstance(one, UnitSegmentOpened)] == [1, 2, 3]

    def test_a_zombie_appends_nothing_that_counts(self) -> None:
        first, _ = claimed(self.open(), 1)
        first.append(1)
        second, found = claimed(self.open(), 2)
        assert groups_of(found.tail) == first.logged
        verdict = first.append(2)
        assert isinstance(verdict, LogLost) and verdict.is_fenced
        second.append(3)
        _, after = claimed(self.open(), 3)
        assert groups_of(after.tail) == [*first.logged, *second.logged]

    def test_a_zombie_that_has_never_appended_is_fenced_too(self) -> None:
        first, _ = claimed(self.open(), 1)
        second, _ = claimed(self.open(), 2)
        verdict = first.append(1)
        assert isinstance(verdict, LogLost) and verdict.is_fenced
        second.append(2)
        assert groups_of(claimed(self.open(), 3)[1].tail) == second.logged

    def test_an_old_incarnation_gives_way_to_a_newer_one(self) -> None:
        claimed(self.open(), 2)
        verdict = Holder(self.open(), 1).claim()
        assert isinstance(verdict, LogLost) and "1.2 of this unit owns the log" in verdict.reason

    def test_of_claimants_that_race_one_owns_the_log_and_no_logged_group_is_lost(self) -> None:
        """All at once: seal, close, read, claim, append; in real threads, with handles of their own."""
        holders = [Holder(self.open(), number) for number in range(1, 5)]
        tails: dict[int, UnitClaimed] = {}
        errors: list[BaseException] = []
        gate = threading.Barrier(len(holders))

        def race(holder: Holder) -> None:
            try:
                gate.wait(timeout=60)
                verdict: LogVerdict = holder.claim()
                if isinstance(verdict, UnitClaimed):
                    tails[holder.number] = verdict
                    for position in range(1, 15):
                        if isinstance(holder.append(position), LogLost):
                            return
            except BaseException as error:  # noqa: BLE001 - shown by the test, in its own thread
                errors.append(error)

        threads = [threading.Thread(target=race, args=(one,), daemon=True) for one in holders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=300)
        assert errors == [] and not any(thread.is_alive() for thread in threads)
        assert 4 in tails, "the newest incarnation gives way to none"
        _, last = claimed(self.open(), 9)
        final = groups_of(last.tail)
        by_number = {
            one.number: [entry for _, entry in final if entry.incarnation == incarnation(one.number)]
            for one in holders
        }
        for one in holders:
            logged = [entry for _, entry in one.logged]
            # At most one more: it was in the log, and its owner has not learnt that.
            assert by_number[one.number][: len(logged)] == logged
            assert len(by_number[one.number]) <= len(logged) + 1
        assert [index for index, _ in final] == sorted(index for index, _ in final)
        for number, found in tails.items():
            before = groups_of(found.tail)
            assert final[: len(before)] == before, f"what {number} had read has changed"
        numbers = [entry.incarnation.number for _, entry in final]
        assert numbers == sorted(numbers), "a group of an older incarnation is after one of a newer"

    def test_each_takeover_from_an_owner_that_is_appending_reads_all_that_it_has_logged(self) -> None:
        owner, _ = claimed(self.open(), 1)
        expected: list[tuple[LogIndex, GroupCommitted]] = []
        for number in range(2, 8):
            has_logged, errors = threading.Event(), list[BaseException]()

            def go_on(
                owner: Holder = owner,
                has_logged: threading.Event = has_logged,
                errors: list[BaseException] = errors,
            ) -> None:
                try:
                    # Not for ever: who appends objects in no time is faster than any claimant.
                    for position in range(1, 200):
                        if isinstance(owner.append(position), LogLost):
                            return
                        if position == owner.number:
                            has_logged.set()
                except BaseException as error:  # noqa: BLE001 - shown by the test, in its own thread
                    errors.append(error)

            thread = threading.Thread(target=go_on, daemon=True)
            thread.start()
            assert has_logged.wait(timeout=300), errors
            verdict: UnitClaimed | LogLost | None = None
            while not isinstance(verdict, UnitClaimed):
                claimant = Holder(self.open(), number)
                verdict = claimant.claim()
                assert isinstance(verdict, UnitClaimed) or "could not be claimed" in verdict.reason
            found = verdict
            thread.join(timeout=300)
            assert errors == [] and not thread.is_alive()
            groups = groups_of(found.tail)
            logged = [*expected, *owner.logged]
            assert groups[: len(logged)] == logged and len(groups) <= len(logged) + 1
            owner, expected = claimant, groups

    # Compaction.

    def test_after_compaction_the_log_begins_with_the_snapshot(self) -> None:
        first, _ = claimed(self.open(), 1)
        for position in (1, 2, 3):
            first.append(position)
        assert isinstance(first.compact(LogIndex(1, 2)), EntryLogged)
        first.append(4)
        assert first.store.delete([LogIndex(1, 2), LogIndex(1, 1)]) == []
        for number in (2, 3):
            _, found = claimed(self.open(), number)
            assert snapshot_of(found.tail) == snapshot(LogIndex(1, 2))
            assert groups_of(found.tail) == first.logged[2:]
            assert replayed(found.tail).indices == (LogIndex(1, 3), LogIndex(2, 1))

    def test_a_zombie_from_before_a_compaction_changes_nothing(self) -> None:
        first, _ = claimed(self.open(), 1)
        first.append(1)
        second, _ = claimed(self.open(), 2)
        second.append(2)
        assert isinstance(second.compact(LogIndex(2, 1)), EntryLogged)
        assert second.store.delete([LogIndex(2, 1), LogIndex(1, 1)]) == []
        assert isinstance(first.append(3), LogLost)
        second.append(4)
        _, found = claimed(self.open(), 3)
        assert groups_of(found.tail) == second.logged[1:]

    def test_a_reader_that_has_slept_claims_nothing_that_was_compacted(self) -> None:
        """What the explorer taught: the index it wants must not be free again."""
        first, _ = claimed(self.open(), 1)
        first.append(1)
        sleeper = Holder(self.open(), 2)
        asked = sleeper.machine.start()
        events = [sleeper._answer(one) for one in asked if not isinstance(one, StartTimer)]
        if isinstance(sleeper.store, FileUnitLog):
            more, _ = sleeper.machine.handle(events[0])
            events = [sleeper._answer(one) for one in more]
        # A newer incarnation takes over, compacts and deletes while it sleeps.
        third, _ = claimed(self.open(), 3)
        third.append(2)
        third.compact(LogIndex(2, 1))
        assert third.store.delete([LogIndex(2, 1), LogIndex(1, 1)]) == []
        more, _ = sleeper.machine.handle(events[0])
        verdict = sleeper._perform(more)
        assert isinstance(verdict, LogLost)
        # It has sealed the segment that it has looked at, and that one alone.
        assert isinstance(third.append(5), EntryLogged)
        _, found = claimed(self.open(), 4)
        assert groups_of(found.tail) == third.logged[1:]

    def test_groups_that_a_deletion_has_left_behind_are_found_and_deleted_by_the_next(self) -> None:
        first, _ = claimed(self.open(), 1)
        for position in (1, 2, 3):
            first.append(position)
        first.compact(LogIndex(1, 3))
        first.append(4)
        second, found = claimed(self.open(), 2)
        assert found.leftover and all(index <= LogIndex(1, 3) for index in found.leftover)
        assert second.store.delete(found.leftover[::-1]) == []
        assert second.store.delete(found.leftover[::-1]) == [], "those that are gone are fine"
        _, after = claimed(self.open(), 3)
        assert after.leftover == () and groups_of(after.tail) == first.logged[3:]

    def test_what_has_closed_a_segment_is_no_group_that_was_left_behind(self) -> None:
        first, _ = claimed(self.open(), 1)
        for position in (1, 2, 3):
            first.append(position)
        second, _ = claimed(self.open(), 2)
        second.append(4)
        second.compact(LogIndex(2, 1))
        third, found = claimed(self.open(), 3)
        assert {index.segment for index in found.leftover} == {1, 2}
        assert third.store.delete(found.leftover[::-1]) == []
        assert [third.store.read(index).entry for index, _ in first.logged] == [None, None, None]
        if isinstance(third.store, ObjectUnitLog):
            assert third.store.read(LogIndex(1, 4)) == UnitEntryRead(LogIndex(1, 4), closed(2))
            assert third.store.read(LogIndex(2, 2)) == UnitEntryRead(LogIndex(2, 2), closed(2))

    def test_a_head_is_never_deleted(self) -> None:
        holder, _ = claimed(self.open(), 1)
        with pytest.raises(Exception, match="the head of segment 1 was to be deleted"):
            holder.store.delete([LogIndex(1, 0)])

    def test_what_reads_while_the_owner_compacts_reads_a_whole_log(self) -> None:
        owner, _ = claimed(self.open(), 1)
        owner.append(1)
        errors: list[BaseException] = []
        is_over = threading.Event()
        reader = self.open()

        def read() -> None:
            try:
                while not is_over.is_set():
                    try:
                        tail = reader.read_tail().entries
                    except StoreError as error:
                        assert "written faster than it can be read" in str(error), error
                        continue
                    replay = replayed(tail)
                    # A gap of one group: it was deleted, or is missing.
                    since = replay.base.index if replay.base is not None else LogIndex(1, 0)
                    indices = [since, *replay.indices]
                    for one, next_one in pairwise(indices):
                        assert next_one in (
                            LogIndex(one.segment, one.number + 1),
                            LogIndex(one.segment + 1, 1),
                        ), indices
            except BaseException as error:  # noqa: BLE001 - shown by the test, in its own thread
                errors.append(error)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            for position in range(2, 30):
                index, _ = owner.logged[-1]
                assert isinstance(owner.compact(index), EntryLogged)
                assert owner.store.delete([index]) == []
                assert isinstance(owner.append(position), EntryLogged)
        finally:
            is_over.set()
            thread.join(timeout=300)
        assert errors == []

    # What does not belong there.

    def test_garbage_beside_the_log_is_no_part_of_it(self) -> None:
        first, _ = claimed(self.open(), 1)
        first.append(1)
        first.compact(LogIndex(1, 1))
        self.add_garbage()
        first.append(2)
        _, found = claimed(self.open(), 2)
        assert groups_of(found.tail) == first.logged[1:]
        assert found.leftover == (LogIndex(1, 1),)

    def add_garbage(self) -> None:
        """Put files that are none of a log into its directory."""
        raise NotImplementedError
