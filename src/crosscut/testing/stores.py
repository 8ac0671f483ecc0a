"""Test kit of the checkpoint store: files in memory with faults, and a suite that every store passes."""

from __future__ import annotations

import errno
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Literal

from crosscut.errors import StoreError
from crosscut.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.protocol.log import Appended, AppendOutcome, Taken
from crosscut.protocol.messages import (
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    LogEntry,
    Part,
    PendingTransaction,
    Snapshot,
    TaskSnapshot,
)
from crosscut.store.checkpoint_store import HINT_EVERY, CheckpointStore
from crosscut.store.files import Files, Put, UncertainError, checked_path

Operation = Literal["put_if_absent", "write_new", "overwrite", "read", "delete", "settle"]


class Fault(Enum):
    """What goes wrong in one operation."""

    REFUSED = "an error, certainly not applied (the disk is full)"
    NOT_APPLIED = "an error after which nothing is known; it was not applied"
    APPLIED = "an error after which nothing is known; it was applied"
    LATE = "an error after which nothing is known; it is applied when `arrive` is called"
    TORN = "a write reports success, but only its first half is stored (a broken promise of the disk)"
    FLIPPED = "a read returns one wrong bit; what is stored is right"


class MemoryFiles(Files):
    """Files in memory. Give one instance to several stores to have them share a place.

    Attributes:
        content: What is stored, by path; tests may damage it.
        calls: Every operation that was carried out, with its path, in order.
    """

    root = "in-memory"

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.calls: list[tuple[Operation, str]] = []
        self._faults: dict[Operation, deque[Fault]] = defaultdict(deque)
        self._late: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()

    def fail_next(self, operation: Operation, *faults: Fault) -> None:
        """Let the next calls of `operation` fail, one for each of `faults`."""
        self._faults[operation].extend(faults)

    def arrive(self) -> None:
        """Apply the late puts, where nobody else was faster."""
        with self._lock:
            for path, data in self._late:
                self.content.setdefault(path, data)
            self._late.clear()

    def make_directory(self, path: str) -> None:
        """Nothing to do."""

    def put_if_absent(self, path: str, data: bytes) -> Put:
        with self._lock:
            fault = self._begin("put_if_absent", path)
            if fault is Fault.LATE:
                self._late.append((path, data))
            if fault in (Fault.LATE, Fault.NOT_APPLIED):
                raise UncertainError(errno.ETIMEDOUT, "no answer")
            if path in self.content:
                return Put.EXISTS
            self.content[path] = data[: len(data) // 2] if fault is Fault.TORN else data
            if fault is Fault.APPLIED:
                raise UncertainError(errno.ETIMEDOUT, "no answer")
            return Put.CREATED

    def write_new(self, path: str, chunks: Iterable[bytes]) -> None:
        data = b"".join(chunks)
        with self._lock:
            fault = self._begin("write_new", path)
            if path in self.content:
                raise FileExistsError(errno.EEXIST, "written twice", path)
            if fault is not Fault.NOT_APPLIED:
                self.content[path] = data[: len(data) // 2] if fault is Fault.TORN else data
            if fault in (Fault.APPLIED, Fault.NOT_APPLIED):
                raise OSError(errno.EIO, "no answer")

    def overwrite(self, path: str, data: bytes) -> None:
        with self._lock:
            self._begin("overwrite", path)
            self.content[path] = data

    def read(self, path: str) -> bytes:
        with self._lock:
            fault = self._begin("read", path)
            if path not in self.content:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            data = self.content[path]
            if fault is Fault.FLIPPED:
                return bytes((data[0] ^ 1,)) + data[1:]
            return data

    def delete(self, path: str) -> None:
        with self._lock:
            self._begin("delete", path)
            if self.content.pop(path, None) is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def delete_directory(self, path: str) -> None:
        """Nothing to do: there are no directories."""

    def walk(self, path: str) -> Iterator[str]:
        with self._lock:
            return iter([name for name in self.content if name.startswith(f"{path}/")])

    def settle(self, path: str) -> None:
        with self._lock:
            self._begin("settle", path)

    def _begin(self, operation: Operation, path: str) -> Fault | None:
        checked_path(path)
        self.calls.append((operation, path))
        faults = self._faults[operation]
        fault = faults.popleft() if faults else None
        if fault is Fault.REFUSED:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return fault


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


def checkpoint(epoch: int, checkpoint_id: int, parts: tuple[Part, ...] = ()) -> CheckpointCompleted:
    """Return an entry that completes checkpoint `checkpoint_id`, with one task's snapshot in it."""
    pending = PendingTransaction(CheckpointId(checkpoint_id), {"name": "out", "bytes": 7})
    snapshot = Snapshot(parts=parts, positions={"split": [1, None, 2.5]}, pending=(pending,))
    task = TaskSnapshot(TaskId(VertexId("vertex"), 0), snapshot)
    return CheckpointCompleted(Epoch(epoch), CheckpointId(checkpoint_id), (task,))


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
    """What every checkpoint store has to pass. Subclass it as a pytest class and say how to open one."""

    def open(self) -> CheckpointStore:
        """Open the store of this test, empty at the beginning; further calls open the same place."""
        raise NotImplementedError

    def fill(self, *entries: LogEntry) -> CheckpointStore:
        """Return the store with `entries` appended from 1 on."""
        store = self.open()
        for index, entry in enumerate(entries, 1):
            assert store.append(index, entry) == Appended(index)
        return store

    # The job log

    def test_an_appended_entry_is_read_back_equal_by_another_handle(self) -> None:
        entries = (claim(1), checkpoint(1, 1), JobFinished(Epoch(1), CheckpointId(1)))
        self.fill(*entries)
        assert [self.open().read(index) for index in (1, 2, 3)] == list(entries)

    def test_an_absent_entry_is_none(self) -> None:
        assert self.open().read(1) is None
        assert self.fill(claim(1)).read(2) is None

    def test_an_index_is_taken_once_and_its_entry_never_changes(self) -> None:
        self.fill(claim(1, "first"))
        assert self.open().append(1, claim(1, "second")) == Taken(1)
        assert self.open().append(1, claim(1, "first")) == Taken(1)
        assert self.open().read(1) == claim(1, "first")

    def test_of_many_threads_that_append_at_one_index_exactly_one_wins(self) -> None:
        thread_count, rounds = 6, 20
        outcomes: list[list[AppendOutcome]] = [[] for _ in range(thread_count)]
        gate = threading.Barrier(thread_count)

        def race(number: int) -> None:
            store = self.open()
            for index in range(1, rounds + 1):
                gate.wait(timeout=60)
                outcomes[number].append(store.append(index, claim(index, f"driver-{number}")))

        threads = [threading.Thread(target=race, args=(number,)) for number in range(thread_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index in range(1, rounds + 1):
            won = [number for number in range(thread_count) if outcomes[number][index - 1] == Appended(index)]
            lost = [number for number in range(thread_count) if outcomes[number][index - 1] == Taken(index)]
            assert len(won) == 1 and len(lost) == thread_count - 1
            assert self.open().read(index) == claim(index, f"driver-{won[0]}")

    def test_entries_are_yielded_from_the_first_to_the_last(self) -> None:
        entries: list[LogEntry] = [claim(1), *(checkpoint(1, n) for n in range(1, 12))]
        store = self.fill(*entries)
        assert list(store.entries()) == list(enumerate(entries, 1))

    def test_the_tail_of_an_empty_log_is_empty(self) -> None:
        assert self.open().tail() == []

    def test_the_tail_has_the_newest_claim_and_as_many_checkpoints_as_asked(self) -> None:
        entries: list[LogEntry] = [claim(1), checkpoint(1, 1), claim(2)]
        entries += [checkpoint(2, n) for n in range(2, 31)]
        store = self.fill(*entries)
        assert store.tail() == [(3, claim(2)), (32, checkpoint(2, 30))]
        assert store.tail(3) == [(3, claim(2)), *((n + 2, checkpoint(2, n)) for n in (28, 29, 30))]
        assert store.tail(100) == list(enumerate(entries, 1))

    def test_the_tail_has_every_entry_behind_its_oldest_checkpoint(self) -> None:
        end: list[LogEntry] = [checkpoint(1, 2), claim(2), claim(3), JobFinished(Epoch(3), CheckpointId(2))]
        store = self.fill(claim(1), checkpoint(1, 1), *end)
        assert store.tail() == list(enumerate(end, 3))

    def test_the_tail_without_a_checkpoint_is_the_whole_log(self) -> None:
        assert self.fill(claim(1), claim(2)).tail() == [(1, claim(1)), (2, claim(2))]

    def test_the_tail_is_right_whatever_the_hint_says(self) -> None:
        for length in range(1, 2 * HINT_EVERY + 3):
            entry: LogEntry = claim(1) if length == 1 else checkpoint(1, length - 1)
            store = self.open()
            assert store.append(length, entry) == Appended(length)
            for hint in (0, 1, length, length + 1, 2 * length, 10**15, 10**19):
                store.write_hint(hint)
                assert self.open().tail()[-1] == (length, entry)

    def test_a_hint_is_remembered(self) -> None:
        assert self.open().hint() == 0
        self.open().write_hint(17)
        assert self.open().hint() == 17
        self.open().write_hint(3)
        assert self.open().hint() == 3

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
    "parts/1/../../log/hint",
    "parts/../log/hint",
    "log/hint",
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
