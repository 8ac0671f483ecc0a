"""The store over files that fail: unknown outcomes, torn and damaged content, long logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.proof.stores import at, checkpoint, claim, numbered, opened, refused

from crosscut.errors import StateError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry
from crosscut.protocol.log.writer import Appended, Taken, Unknown
from crosscut.protocol.snapshots import Part, PendingTransaction, Snapshot, TaskSnapshot
from crosscut.store import CheckpointStore
from crosscut.testing.simulator.memory_files import Fault, MemoryFiles

TASK = TaskId(VertexId("vertex"), 3)
CONTENT = bytes(range(256)) * 20


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def store(files: MemoryFiles) -> CheckpointStore:
    return CheckpointStore(files)


HEAD, HEAD_PATH = at(0), f"log/{1:020d}.json"


def entry_path(number: int) -> str:
    return f"log/{1:020d}/{number:020d}.json"


def fill(store: CheckpointStore, *entries: LogEntry) -> None:
    for index, entry in numbered(entries):
        assert store.append(index, entry) == Appended(index)


def write(store: CheckpointStore, content: bytes = CONTENT) -> Part:
    return store.write_part(CheckpointId(1), TASK, Epoch(2), (content,))


# Outcomes of an append


@pytest.mark.parametrize(
    ("fault", "found"), [(Fault.APPLIED, opened(1)), (Fault.NOT_APPLIED, None), (Fault.LATE, None)]
)
def test_an_append_without_an_answer_is_unknown_and_reading_back_decides(
    store: CheckpointStore, files: MemoryFiles, fault: Fault, found: LogEntry | None
) -> None:
    """B4."""
    files.fail_next("put_if_absent", fault)
    assert store.append(HEAD, opened(1)) == Unknown(HEAD, f"in-memory/{HEAD_PATH}: [Errno 110] no answer")
    assert store.read(HEAD) == found
    assert store.append(HEAD, opened(1)) == (Taken(HEAD) if found else Appended(HEAD))
    assert store.read(HEAD) == opened(1)


def test_an_unknown_append_may_be_applied_after_it_was_found_absent(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """B4."""
    files.fail_next("put_if_absent", Fault.LATE)
    assert isinstance(store.append(HEAD, opened(1, "slow")), Unknown)
    assert store.read(HEAD) is None
    files.arrive()
    assert store.append(HEAD, opened(1, "fast")) == Taken(HEAD)
    assert store.read(HEAD) == opened(1, "slow")


def test_an_append_that_was_refused_is_an_error_and_may_be_repeated(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """D4."""
    files.fail_next("put_if_absent", Fault.REFUSED)
    error = refused(partial(store.append, HEAD, opened(1)))
    assert "no space left on device; free space there" in str(error) and not error.ids["damaged"]
    assert store.append(HEAD, opened(1)) == Appended(HEAD)


def test_an_entry_that_json_cannot_hold_is_refused_before_anything_is_written(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    pending = PendingTransaction(CheckpointId(1), (1, 2))  # type: ignore[arg-type]
    entry = CheckpointCompleted(
        Epoch(1), CheckpointId(1), (TaskSnapshot(TASK, Snapshot(pending=(pending,))),)
    )
    fill(store, opened(1))
    files.calls.clear()
    with pytest.raises(StateError):
        store.append(at(1), entry)
    assert files.calls == []


# Reading the log


def test_a_torn_entry_is_refused_by_name_wherever_it_is_read(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """D1."""
    fill(store, opened(1), claim(2), checkpoint(2, 1))
    files.fail_next("put_if_absent", Fault.TORN)
    assert store.append(at(3), checkpoint(2, 2)) == Appended(at(3))
    calls: list[Callable[[], object]] = [
        partial(store.read, at(3)),
        store.tail,
        partial(list, store.entries()),
    ]
    for call in calls:
        error = refused(call)
        assert error.ids["damaged"] and entry_path(3) in str(error) and "backup" in str(error)


def test_an_entry_file_in_the_place_of_another_is_refused_by_name(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """D6."""
    fill(store, opened(1), claim(2), checkpoint(2, 1))
    files.content[entry_path(2)] = files.content[entry_path(1)]
    assert f"{entry_path(2)}, is damaged: it holds entry 1/1" in str(refused(store.tail))


def test_an_older_version_of_an_entry_in_its_place_is_refused_by_what_comes_after_it(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """M6: each entry holds the digest of the one before."""
    fill(store, opened(1), checkpoint(1, 1), checkpoint(1, 2))
    other = MemoryFiles()
    fill(CheckpointStore(other), opened(1), checkpoint(1, 7))
    files.content[entry_path(1)] = other.content[entry_path(1)]
    error = refused(partial(store.tail, 2))
    assert error.ids["damaged"] and "it does not follow entry 1/1: one of the two was replaced" in str(error)


def test_a_log_of_another_format_is_refused_as_such_and_by_its_release(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """H3: 0.1.0 had its first entry where this release has the head of the first segment."""
    files.content[HEAD_PATH] = b'{"format":1,"index":1,"sha256":"' + b"0" * 64 + b'","entry":{}}\n'
    error = refused(store.tail)
    assert not error.ids["damaged"]
    assert "in in-memory is of format 1, and this release of Crosscut has format 2" in str(error)


def test_the_end_and_the_claim_of_a_long_log_are_found_with_few_reads(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """100,000 entries, of which the newest segments are left."""
    segments = 100
    for segment in range(1, segments + 1):
        head = opened(1, previous=at(1_000, segment - 1) if segment > 1 else None)
        if segment > 1:
            # The driver that has written it knows the digest of the entry before.
            store._log._newest = replace(known(store), index=at(1_000, segment - 1))
        assert store.append(at(0, segment), head) == Appended(at(0, segment))
    for number in range(1, 901):
        since = at(number - 1, segments) if number % 20 != 1 else None
        assert store.append(at(number, segments), checkpoint(1, number), since) == Appended(
            at(number, segments)
        )
    files.calls.clear()
    tail = CheckpointStore(files).tail(3)
    assert tail[0] == (at(0, segments), opened(1, previous=at(1_000, segments - 1)))
    assert tail[1:] == [(at(number, segments), checkpoint(1, number)) for number in (898, 899, 900)]
    reads = [path for operation, path in files.calls if operation == "read"]
    assert len(reads) < 80, "twice the logarithm of both numbers, and what the newest entries are changes of"


def known(store: CheckpointStore) -> Any:
    found = store._log._newest
    assert found is not None
    return found


def test_a_missing_entry_between_others_is_refused_by_name(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """D2: a lost write is never taken for the end of the log."""
    fill(store, opened(1), *(checkpoint(1, n) for n in range(1, 13)))
    for index in (8, 9, 11):
        content = dict(files.content)
        del files.content[entry_path(index)]
        assert f"{entry_path(index)}, is missing" in str(refused(partial(store.tail, 5)))
        files.content = content


def test_a_log_whose_epoch_has_no_claim_is_refused(store: CheckpointStore) -> None:
    fill(store, opened(1), checkpoint(2, 1), checkpoint(2, 2))
    assert "expected the claim of epoch 2" in str(refused(store.tail))


def test_a_log_that_cannot_be_read_is_not_an_empty_log(store: CheckpointStore, files: MemoryFiles) -> None:
    """D4."""
    fill(store, opened(1))
    for operation in ("read", "settle"):
        files.fail_next(operation, Fault.REFUSED)
        assert not refused(partial(store.read, HEAD)).ids["damaged"]
    files.fail_next("read", Fault.REFUSED, Fault.REFUSED)
    assert not refused(store.tail).ids["damaged"]


# The parts


def test_a_part_is_named_after_its_checkpoint_task_and_epoch(store: CheckpointStore) -> None:
    """C4: a zombie never writes to the path of its successor."""
    path = write(store).path
    assert path.startswith("parts/1/vertex-3-2-") and len(path) == len("parts/1/vertex-3-2-") + 16


def test_a_part_cut_at_any_length_or_zero_filled_is_refused_by_name(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """D1."""
    part = write(store)
    for length in range(len(CONTENT)):
        for content in (CONTENT[:length], CONTENT[:length] + bytes(len(CONTENT) - length)):
            files.content[part.path] = content
            if content != CONTENT:
                error = refused(partial(store.read_part, part))
                assert error.ids["damaged"] and part.path in str(error)
    files.content[part.path] = CONTENT + b"\0"
    refused(partial(store.read_part, part))


def test_a_part_that_was_torn_while_written_is_refused_when_read(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """D1."""
    files.fail_next("write_new", Fault.TORN)
    part = write(store)
    assert f"expected {len(CONTENT)} bytes, found {len(CONTENT) // 2}" in str(
        refused(partial(store.read_part, part))
    )


def test_a_bit_that_flips_in_one_read_is_read_again_and_in_two_is_refused(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """D6."""
    part = write(store)
    files.fail_next("read", Fault.FLIPPED)
    assert store.read_part(part) == CONTENT
    files.fail_next("read", Fault.FLIPPED, Fault.FLIPPED)
    assert f"expected sha256 {part.sha256}, found" in str(refused(partial(store.read_part, part)))


def test_a_damaged_inline_part_is_refused(store: CheckpointStore) -> None:
    """D1."""
    part = write(store, b"small")
    for inline in ("", part.inline[:-4], "****", "c21hbGw", "U21hbGw=", "é"):
        error = refused(partial(store.read_part, Part("", part.size_bytes, part.sha256, inline)))
        assert error.ids["damaged"]


def test_a_part_that_could_not_be_stored_says_where_and_how_much(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """D4."""
    files.fail_next("write_new", Fault.REFUSED)
    error = refused(partial(write, store))
    assert "after 5120 bytes" in str(error) and "in-memory/parts/1/vertex-3-2-" in str(error)
    assert "no space left on device; free space there" in str(error) and not error.ids["damaged"]


def test_an_error_while_deleting_is_reported_and_the_others_are_deleted(
    store: CheckpointStore, files: MemoryFiles
) -> None:
    """D4: delete errors never fail a job."""
    parts = [write(store).path for _ in range(3)]
    files.fail_next("delete", Fault.REFUSED)
    (error,) = store.delete_parts(parts)
    assert parts[0] in error and "no space" in error
    assert store.list_parts() == [parts[0]]


def test_what_is_not_ours_is_not_listed_as_a_part(store: CheckpointStore, files: MemoryFiles) -> None:
    part = write(store)
    files.content["parts/readme"] = files.content["parts/x/y"] = files.content["parts/1/a/b"] = b""
    assert store.list_parts() == [part.path]
