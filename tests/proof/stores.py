"""A suite that every checkpoint store passes, and what log entries for tests are made with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from crosscut.errors import StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.protocol.log.entries import (
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    LogEntry,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.log.identity import Claimant
from crosscut.protocol.log.writer import Appended, AppendOutcome, Taken
from crosscut.protocol.snapshots import Part, PendingTransaction, Snapshot, TaskSnapshot
from crosscut.store.checkpoint_store import CheckpointStore


def claim(epoch: int, driver: str = "driver") -> EpochClaimed:
    """Return an entry that claims `epoch`."""
    return EpochClaimed(
        epoch=Epoch(epoch),
        lineage=Lineage("lineage"),
        driver=driver,
        fingerprint="fingerprint",
        parallelism=2,
        max_parallelism=128,
        first_checkpoint_id=CheckpointId(1),
    )


def at(number: int, segment: int = 1) -> LogIndex:
    """Return the index of entry `number` of a segment of the job log; 0 is its head."""
    return LogIndex(segment, number)


def opened(epoch: int, driver: str = "driver", previous: LogIndex | None = None) -> SegmentOpened:
    """Return the head of a segment with a claim of `epoch`, after entry `previous`."""
    return SegmentOpened(claim(epoch, driver), previous)


def closed(epoch: int, driver: str = "driver") -> SegmentClosed:
    """Return the entry that closes a segment for the claim of `epoch`."""
    return SegmentClosed(Epoch(epoch), driver, Claimant("host", 1))


def numbered(entries: Iterable[LogEntry]) -> Iterator[tuple[LogIndex, LogEntry]]:
    """Yield `entries`, the first of them a head, with the indices that they have in a job log."""
    segment, number = 0, 0
    for entry in entries:
        segment, number = (segment + 1, 0) if isinstance(entry, SegmentOpened) else (segment, number + 1)
        yield LogIndex(segment, number), entry


def checkpoint(epoch: int, checkpoint_id: int, parts: tuple[Part, ...] = ()) -> CheckpointCompleted:
    """Return an entry that completes checkpoint `checkpoint_id`, with one task's snapshot in it."""
    pending = PendingTransaction(CheckpointId(checkpoint_id), {"name": "out", "bytes": 7})
    snapshot = Snapshot(parts=parts, positions={"split": [1, None, 2.5]}, pending=(pending,))
    task = TaskSnapshot(TaskId(VertexId("vertex"), 0), snapshot)
    return CheckpointCompleted(Epoch(epoch), CheckpointId(checkpoint_id), (task,))


def _of_first(entry: LogEntry) -> dict[str, Any]:
    return {"claim": claim(1, "first")} if isinstance(entry, SegmentOpened) else {"driver": "first"}


def refused(call: Callable[[], object]) -> StoreError:
    """Return the StoreError that `call` raises.

    Raises:
        AssertionError: It raises none.
    """
    try:
        call()
    except StoreError as error:
        return error
    raise AssertionError("expected a StoreError")


class StoreConformance:
    """Every checkpoint store must pass this. Subclass it as a pytest class and say how to open one."""

    def open(self) -> CheckpointStore:
        """Open the store of this test, empty at the beginning; further calls open the same place."""
        raise NotImplementedError

    def fill(self, *entries: LogEntry) -> CheckpointStore:
        """Return the store with `entries` appended, the first of which is a head."""
        store = self.open()
        for index, entry in numbered(entries):
            assert store.append(index, entry) == Appended(index)
        return store

    # The job log

    def test_an_appended_entry_is_read_back_equal_by_another_handle(self) -> None:
        entries: list[LogEntry] = [opened(1), claim(2), checkpoint(2, 1)]
        entries += [JobFinished(Epoch(2), CheckpointId(1)), closed(3), opened(3, "driver 2", at(4))]
        self.fill(*entries)
        for index, entry in numbered(entries):
            assert self.open().read(index) == entry

    def test_an_absent_entry_is_none(self) -> None:
        assert self.open().read(at(0)) is None
        store = self.fill(opened(1))
        assert store.read(at(1)) is None
        assert store.read(at(0, segment=2)) is None

    def test_an_index_is_taken_once_and_its_entry_never_changes(self) -> None:
        self.fill(opened(1, "first"), claim(2, "first"))
        for index, entry in ((at(0), opened(1, "second")), (at(1), claim(2, "second"))):
            assert self.open().append(index, entry) == Taken(index)
            assert self.open().append(index, replace(entry, **_of_first(entry))) == Taken(index)
            assert self.open().read(index) == replace(entry, **_of_first(entry))

    def test_of_many_threads_that_append_at_one_index_exactly_one_wins(self) -> None:
        thread_count, rounds = 6, 20
        self.fill(opened(1))
        outcomes: list[list[AppendOutcome]] = [[] for _ in range(thread_count)]
        gate = threading.Barrier(thread_count)

        def race(number: int) -> None:
            store = self.open()
            for index in range(1, rounds + 1):
                gate.wait(timeout=60)
                outcomes[number].append(store.append(at(index), claim(index, f"driver-{number}")))

        threads = [threading.Thread(target=race, args=(number,)) for number in range(thread_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index in map(at, range(1, rounds + 1)):
            found = [outcomes[number][index.number - 1] for number in range(thread_count)]
            assert found.count(Appended(index)) == 1 and found.count(Taken(index)) == thread_count - 1
            winner = found.index(Appended(index))
            assert self.open().read(index) == claim(index.number, f"driver-{winner}")

    def test_entries_are_yielded_from_the_first_to_the_last(self) -> None:
        entries: list[LogEntry] = [opened(1), *(checkpoint(1, n) for n in range(1, 12)), closed(2)]
        entries += [opened(2, previous=at(12)), checkpoint(2, 12)]
        store = self.fill(*entries)
        assert list(store.entries()) == list(numbered(entries))

    def test_the_tail_of_an_empty_log_is_empty(self) -> None:
        assert self.open().tail() == []

    def test_the_tail_has_the_newest_claim_and_as_many_checkpoints_as_asked(self) -> None:
        entries: list[LogEntry] = [opened(1), checkpoint(1, 1), claim(2)]
        entries += [checkpoint(2, n) for n in range(2, 31)]
        store = self.fill(*entries)
        assert store.tail() == [(at(2), claim(2)), (at(31), checkpoint(2, 30))]
        assert store.tail(3) == [(at(2), claim(2)), *((at(n + 1), checkpoint(2, n)) for n in (28, 29, 30))]
        assert store.tail(100) == list(numbered(entries))

    def test_the_newest_claim_may_be_the_head_of_the_segment(self) -> None:
        entries: list[LogEntry] = [opened(1), checkpoint(1, 1), checkpoint(1, 2)]
        assert self.fill(*entries).tail() == [(at(0), opened(1)), (at(2), checkpoint(1, 2))]

    def test_the_tail_has_every_entry_behind_its_oldest_checkpoint(self) -> None:
        end: list[LogEntry] = [checkpoint(1, 2), claim(2), claim(3), JobFinished(Epoch(3), CheckpointId(2))]
        store = self.fill(opened(1), checkpoint(1, 1), *end)
        assert store.tail() == [(at(number), entry) for number, entry in enumerate(end, 2)]

    def test_the_tail_without_a_checkpoint_is_the_whole_log(self) -> None:
        entries = (opened(1), claim(2), closed(3), opened(3, previous=at(2)))
        assert self.fill(*entries).tail() == list(numbered(entries))

    def test_the_tail_goes_back_over_segments_as_far_as_it_needs(self) -> None:
        entries: list[LogEntry] = [opened(1), checkpoint(1, 1), checkpoint(1, 2), closed(2)]
        entries += [opened(2, previous=at(3)), checkpoint(2, 3), opened(2, previous=at(1, 2))]
        everything = list(numbered(entries))
        store = self.fill(*entries)
        assert store.tail(1) == everything[5:]
        assert store.tail(2) == everything[2:]
        assert store.tail(3) == everything[1:]
        assert store.tail(9) == everything

    def test_the_end_is_found_however_long_the_log_is(self) -> None:
        store = self.open()
        assert store.append(at(0), opened(1)) == Appended(at(0))
        for number in range(1, 36):
            entry = checkpoint(1, number)
            assert store.append(at(number), entry) == Appended(at(number))
            assert self.open().tail()[-1] == (at(number), entry)
        for segment in range(2, 20):
            head = opened(1, previous=at(35 if segment == 2 else 0, segment - 1))
            assert store.append(at(0, segment), head) == Appended(at(0, segment))
            assert self.open().tail()[-1] == (at(0, segment), head)

    def test_an_entry_may_be_written_as_what_has_changed(self) -> None:
        entries = [checkpoint(1, n) for n in range(1, 9)]
        store = self.fill(opened(1), entries[0])
        for number, entry in enumerate(entries[1:], 2):
            assert store.append(at(number), entry, at(number - 1)) == Appended(at(number))
        for number, entry in enumerate(entries, 1):
            assert self.open().read(at(number)) == entry
        assert self.open().tail(2)[-2:] == [(at(7), entries[6]), (at(8), entries[7])]
        assert [entry for _, entry in self.open().entries()][1:] == entries

    def test_what_has_changed_since_an_entry_that_is_not_there_can_not_be_written(self) -> None:
        store = self.fill(opened(1), checkpoint(1, 1))
        refused(partial(store.append, at(3), checkpoint(1, 2), at(2)))
        assert self.open().read(at(3)) is None

    def test_entries_of_an_old_segment_are_deleted_and_the_rest_of_the_log_is_as_it_was(self) -> None:
        entries: list[LogEntry] = [opened(1), checkpoint(1, 1), checkpoint(1, 2), closed(2)]
        entries += [opened(2, previous=at(3)), checkpoint(2, 3), checkpoint(2, 4)]
        everything = list(numbered(entries))
        self.fill(*entries)
        for _ in range(2):
            assert self.open().delete_entries([at(1), at(2)]) == []
            assert self.open().list_log()[0] == [at(3), at(1, 2), at(2, 2)]
            assert self.open().tail(2) == everything[4:]
            assert self.open().tail(9) == everything[3:], "as far as it goes"
        assert self.open().read(at(1)) is None
        assert self.open().append(at(3), checkpoint(1, 3)) == Taken(at(3)), "its driver is fenced"
        assert self.open().append(at(0, 2), opened(9)) == Taken(at(0, 2)), "so is whoever wanted it next"

    def test_a_segment_of_which_everything_is_deleted_leaves_its_head(self) -> None:
        entries = (opened(1), checkpoint(1, 1), opened(1, previous=at(1)), checkpoint(1, 2))
        store = self.fill(*entries)
        assert store.delete_entries([at(1)]) == []
        assert self.open().list_log()[0] == [at(1, 2)]
        assert [index for index, _ in self.open().entries()] == [at(0, 2), at(1, 2)]
        assert self.open().append(at(0), opened(7)) == Taken(at(0))

    def test_an_entry_that_is_missing_where_it_is_needed_is_an_error_and_no_shorter_log(self) -> None:
        """D5, I12: nothing may be missing that was not deleted on purpose."""
        entries: list[LogEntry] = [opened(1), checkpoint(1, 1), checkpoint(1, 2), closed(2)]
        entries += [opened(2, previous=at(3)), claim(3)]
        store = self.fill(*entries)
        store.delete_entries([at(2)])
        error = refused(self.open().tail)
        assert error.ids["damaged"] and "is missing, but newer ones exist" in str(error)

    # The parts

    def write(self, content: bytes, checkpoint_id: int = 1) -> Part:
        """Store `content`, in chunks of odd size, as a part of task vertex[0] in epoch 1."""
        chunks = (content[start : start + 1_000] for start in range(0, len(content), 1_000))
        task = TaskId(VertexId("vertex"), 0)
        return self.open().write_part(CheckpointId(checkpoint_id), task, Epoch(1), chunks)

    def test_a_part_is_read_back_whatever_its_size(self) -> None:
        for size in (0, 1, 4095, 4096, 4097, 100_001):
            content = bytes(index % 251 for index in range(size))
            part = self.write(content)
            assert part.size_bytes == size
            assert self.open().read_part(part) == content

    def test_a_part_below_the_limit_is_inline_and_makes_no_file(self) -> None:
        part = self.write(b"x" * 4095)
        assert part.path == "" and part.inline != ""
        assert self.open().list_parts() == []
        part = self.write(b"x" * 4096)
        assert part.inline == ""
        assert self.open().list_parts() == [part.path]

    def test_two_parts_never_share_a_name(self) -> None:
        paths = {self.write(b"x" * 5_000).path for _ in range(5)}
        assert len(paths) == 5
        assert self.open().list_parts() == sorted(paths)

    def test_what_the_chunks_raise_is_passed_on_and_nothing_stays_behind(self) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"x" * 10_000
            raise KeyError("the user's own")

        try:
            self.open().write_part(CheckpointId(1), TaskId(VertexId("vertex"), 0), Epoch(1), chunks())
        except KeyError:
            assert self.open().list_parts() == []
        else:
            raise AssertionError("expected a KeyError")

    def test_a_part_that_is_missing_or_not_what_was_written_is_refused_by_name(self) -> None:
        part, other = self.write(b"x" * 5_000), self.write(b"y" * 5_000)
        for broken in (
            Part(part.path, part.size_bytes, other.sha256),
            Part(part.path, part.size_bytes + 1, part.sha256),
            Part("parts/1/vertex-0-1-0000", part.size_bytes, part.sha256),
        ):
            error = refused(partial(self.open().read_part, broken))
            assert error.ids["damaged"] and broken.path in str(error) and "backup" in str(error)
        assert self.open().read_part(part) == b"x" * 5_000

    def test_deleting_parts_deletes_these_only_and_may_be_repeated(self) -> None:
        gone, kept = self.write(b"x" * 5_000), self.write(b"y" * 5_000)
        last = self.write(b"z" * 5_000, checkpoint_id=2)
        for _ in range(2):
            assert self.open().delete_parts(["", gone.path, last.path]) == []
            assert self.open().list_parts() == [kept.path]
        assert self.open().read_part(kept) == b"y" * 5_000

    def test_a_path_that_leads_out_of_the_store_is_refused(self) -> None:
        """M5."""
        for path in BAD_PART_PATHS:
            assert repr(path) in str(refused(partial(self.open().read_part, Part(path, 1, "00"))))
            assert len(self.open().delete_parts([path])) == 1

    def test_a_vertex_id_that_is_no_plain_name_is_refused(self) -> None:
        """M5."""
        for vertex in ("", ".", "..", "../x", "/etc", "a/b", "a\0b", "a%2fb", ".hidden", "x" * 65):
            task = TaskId(VertexId(vertex), 0)
            write = self.open().write_part
            refused(partial(write, CheckpointId(1), task, Epoch(1), (b"x" * 5_000,)))
        assert self.open().list_parts() == []


BAD_PART_PATHS = (
    "/etc/passwd",
    "../parts/1/x",
    "parts/1/../../log/1",
    "parts/../log/1",
    "log/1",
    "parts/1",
    "parts/1/.",
    "parts/1/..",
    "parts/1/a/b",
    "parts/1/a\0b",
    "parts/1/a%2fb",
    "parts/1/.hidden",
    "parts//x",
    "parts/x/y",
    "parts/1/x\n",
    "parts/1/" + "x" * 256,
)
"""Paths that a forged manifest could hold."""
