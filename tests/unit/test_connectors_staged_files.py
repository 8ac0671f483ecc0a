"""Staged files: every place where a process can die, and everything that can be in the way."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.files.committed_output import committed_output
from crosscut.connectors.files.file_encoders import Plain
from crosscut.connectors.files.object_stage import Objects
from crosscut.connectors.files.partitions import Layout
from crosscut.connectors.files.staged_files import StagedFiles
from crosscut.connectors.files.targets import LocalTarget
from crosscut.contracts.connectors import JSON, SinkContext
from crosscut.errors import ConnectorError, FlowError, InternalError, RefusedRecordError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.testing.sinks import permit, prepare, stage

LINEAGE = "lineage-of-this-job"


def text_of(records: list[str]) -> bytes:
    return "".join(f"{record}\n" for record in records).encode()


def writer_of(
    directory: Path,
    epoch: int = 1,
    index: int = 0,
    vertex: str = "v",
    lineage: str = LINEAGE,
    uid: str = "out",
    driver: str = "driver-1",
) -> StagedFiles:
    """A writer that has not recovered yet."""
    context = SinkContext(Lineage(lineage), Epoch(epoch), TaskId(VertexId(vertex), index), uid, driver=driver)
    return StagedFiles(str(directory), "txt", partial(Plain, text_of), context)


def begun(directory: Path, **who: Any) -> StagedFiles:
    """A writer that has begun with nothing."""
    writer = writer_of(directory, **who)
    writer.recover(None, [])
    return writer


def visible(directory: Path) -> list[str]:
    """What somebody sees who lists the directory as everybody does."""
    return [line for path in sorted(directory.glob("**/*.txt")) for line in path.read_text().split()]


def staged_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob(".crosscut/**/*.staged"))


def staged_paths(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.glob(".crosscut/**/*.staged"))


def paths(directory: Path, handle: JSON) -> tuple[Path, Path]:
    assert isinstance(handle, dict)
    return directory / str(handle["staged"]), directory / str(handle["final"])


def test_a_handle_names_the_file_its_size_and_its_records(tmp_path: Path) -> None:
    writer = begun(tmp_path, epoch=2, index=3)
    handle = stage(writer, ["one", "two"], 17)
    staged, final = paths(tmp_path, handle)
    assert staged.parent == tmp_path / ".crosscut" / LINEAGE / "out" / "v-3"
    assert staged.name.startswith("2-")
    assert final.name.startswith("part-00003-000000000017-00000002-out-")
    assert isinstance(handle, dict)
    assert (handle["bytes"], handle["records"]) == (8, 2)
    writer.close()


def test_final_names_sort_by_task_then_checkpoint_and_differ_for_everybody(tmp_path: Path) -> None:
    names = []
    for index, checkpoint_id in ((2, 9), (2, 10), (10, 1)):
        writer = begun(tmp_path, index=index)
        names.append(paths(tmp_path, stage(writer, ["x"], checkpoint_id))[1].name)
        writer.close()
    assert names == sorted(names)
    for other in ({"epoch": 2}, {"vertex": "w"}, {"lineage": "another"}, {"uid": "out2"}):
        writer = begun(tmp_path, **({"index": 2} | other))
        names.append(paths(tmp_path, stage(writer, ["x"], 9))[1].name)
        writer.close()
    assert len(set(names)) == len(names)


def test_of_a_task_that_has_published_only_its_ledger_is_left_and_of_others_nothing(tmp_path: Path) -> None:
    """I11: what is staged goes, what is known to be committed stays."""
    first, second = begun(tmp_path), begun(tmp_path, index=1)
    first.commit(permit(1), [stage(first, ["a"], 1)])
    stage(second, ["b"], 1)
    first.close()
    second.write(["c"])
    second.close()
    third = begun(tmp_path, epoch=2, index=1)
    third.close()
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    committed, ledger = left[1], left[0]
    assert committed.startswith("part-00000-") and len(left) == 2
    assert ledger == f".crosscut/{LINEAGE}/out/v-0/1-driver-1.ledger"
    assert not (tmp_path / ".crosscut" / LINEAGE / "out" / "v-1").exists()


def test_a_job_that_publishes_nothing_leaves_no_trace(tmp_path: Path) -> None:
    writer, other = begun(tmp_path / "out"), begun(tmp_path / "out", index=1)
    writer.write(["a"])
    for one in (writer, other):
        one.close()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_stage_that_somebody_removes_while_it_is_empty_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    real = os.listdir

    def listdir(directory: int) -> list[str]:
        if not made:
            made.append(Path(os.readlink(f"/proc/self/fd/{directory}")))
            made[0].rmdir()
        return real(directory)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        writer = begun(tmp_path)
    writer.commit(permit(1), [stage(writer, ["a"], 1)])
    writer.close()
    assert visible(tmp_path) == ["a"]


def test_a_file_with_both_names_loses_the_staged_one_at_the_next_commit(tmp_path: Path) -> None:
    """F1: some file systems show both after a crash."""
    handle = stage(begun(tmp_path), ["a", "b"], 1)
    staged, final = paths(tmp_path, handle)
    os.link(staged, final)
    successor = writer_of(tmp_path, epoch=2)
    successor.recover(permit(1, 2), [handle])
    assert visible(tmp_path) == ["a", "b"]
    assert staged_names(tmp_path) == []
    successor.commit(permit(1, 2), [handle])
    successor.close()
    assert visible(tmp_path) == ["a", "b"]


def test_a_zombie_that_commits_again_is_not_even_an_error(tmp_path: Path) -> None:
    """C1."""
    zombie = begun(tmp_path)
    handle = stage(zombie, ["a"], 1)
    successor = writer_of(tmp_path, epoch=2)
    successor.recover(permit(1, 2), [handle])
    zombie.commit(permit(1), [handle])
    # What it stages from now on nobody will ever commit; the next start removes it.
    stage(zombie, ["never"], 2)
    assert visible(tmp_path) == ["a"]
    writer_of(tmp_path, epoch=3).recover(permit(1, 3), [handle])
    assert visible(tmp_path) == ["a"]
    assert staged_names(tmp_path) == []


def test_two_commits_at_the_same_time_both_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C1, F1: the other one publishes between our look and our rename."""
    writer = begun(tmp_path)
    handle = stage(writer, ["a"], 1)
    real = os.rename

    def rename(*args: Any, **directories: Any) -> None:
        real(*args, **directories)
        real(*args, **directories)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        writer.commit(permit(1), [handle])
    assert visible(tmp_path) == ["a"]
    writer.close()


def test_recovery_sweeps_older_epochs_of_this_task_only(tmp_path: Path) -> None:
    """F6: the owner rule, on the disk."""
    for identity in (
        {"epoch": 1},
        {"epoch": 4},
        {"index": 1},
        {"index": 10},
        {"vertex": "v-0"},
        {"vertex": "w"},
        {"uid": "other"},
        {"lineage": "another"},
    ):
        stage(begun(tmp_path, **identity), ["x"], 1)
    strange = tmp_path / ".crosscut" / LINEAGE / "out" / "v-0" / "1-not-ours.txt"
    strange.touch()
    # Digits of another script are no numbers of ours.
    odd = strange.with_name("\u0661-0123456789abcdef.txt.staged")
    odd.touch()
    before = staged_paths(tmp_path)
    writer_of(tmp_path, epoch=5, driver="driver-5").recover(None, [])
    gone = [name for name in before if name not in staged_paths(tmp_path)]
    # What the first epoch had left was swept by the fourth.
    assert [name.rsplit("-", 1)[0] for name in gone] == [f".crosscut/{LINEAGE}/out/v-0/4"]
    assert strange.exists() and odd.exists()


def test_a_file_in_the_way_is_never_replaced(tmp_path: Path) -> None:
    writer = begun(tmp_path)
    handle = stage(writer, ["a"], 1)
    staged, final = paths(tmp_path, handle)
    final.write_text("b\n")
    with pytest.raises(ConnectorError, match="exists and is another file; move it away"):
        writer.commit(permit(1), [handle])
    assert final.read_text() == "b\n"
    assert staged.exists()
    final.unlink()
    writer.commit(permit(1), [handle])
    assert visible(tmp_path) == ["a"]
    writer.close()


def test_lost_output_is_an_error_that_says_how_much_and_the_rest_is_committed(tmp_path: Path) -> None:
    """F3: never warn and go on. Try all, then raise."""
    writer = begun(tmp_path)
    handles = [stage(writer, [word] * 3, n) for n, word in ((7, "a"), (8, "b"), (9, "c"))]
    paths(tmp_path, handles[1])[0].unlink()
    with pytest.raises(ConnectorError, match=r"lost: 3 records \(6 bytes\) of checkpoint 8") as caught:
        writer.commit(permit(9), handles)
    assert caught.value.ids["checkpoint_id"] == 8
    assert visible(tmp_path) == ["a", "a", "a", "c", "c", "c"]
    writer.close()


def by_first_letter(words: list[str]) -> list[tuple[str, list[str]]]:
    return [(f"letter={word[0]}", [word]) for word in words]


def divided(directory: Path, epoch: int = 1, **layout: Any) -> StagedFiles:
    """A writer of many files a transaction, that has not recovered yet."""
    context = SinkContext(Lineage(LINEAGE), Epoch(epoch), TaskId(VertexId("v"), 0), "out", driver="driver-1")
    return StagedFiles(
        str(directory),
        "txt",
        partial(Plain, text_of),
        context,
        Layout(("letter",), **layout),
        by_first_letter,
    )


def test_a_transaction_that_has_lost_a_file_shows_none_of_them_until_it_is_whole(tmp_path: Path) -> None:
    """F3: the others might be taken away, and then nobody could tell which had been there."""
    writer = divided(tmp_path)
    writer.recover(None, [])
    handle = stage(writer, ["ab", "b", "ac"], 1)
    names = [directory.name for directory in tmp_path.glob("letter=*")]
    assert names == [], "nothing is made before the commit"
    first, second = tmp_path.glob(".crosscut/**/*.staged")
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(ConnectorError, match=r"output is lost: 3 records \(8 bytes\) of checkpoint 1"):
        writer.commit(permit(1), [handle])
    assert visible(tmp_path) == []
    assert first.exists()
    second.write_bytes(kept)
    writer.commit(permit(1), [handle])
    assert sorted(visible(tmp_path)) == ["ab", "ac", "b"]
    assert sorted(path.name for path in tmp_path.glob("letter=*")) == ["letter=a", "letter=b"]
    writer.close()


def test_a_file_of_many_that_a_reader_takes_is_not_missed_when_the_rest_is_committed(tmp_path: Path) -> None:
    """N3, F1: the worker dies between two of the renames of one transaction."""
    writer = divided(tmp_path)
    writer.recover(None, [])
    handle = stage(writer, ["a", "b", "c"], 1)
    renames: list[str] = []
    publish = LocalTarget.publish

    def dies_before_the_second(*arguments: Any) -> None:
        if renames:
            raise KeyboardInterrupt
        renames.append("one")
        publish(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalTarget, "publish", dies_before_the_second)
        with pytest.raises(KeyboardInterrupt):
            writer.commit(permit(1), [handle])
    (seen,) = tmp_path.glob("letter=*/*.txt")
    taken = seen.read_text().split()
    seen.unlink()
    seen.parent.rmdir()
    successor = divided(tmp_path, epoch=2)
    successor.recover(permit(1), [handle])
    assert sorted(taken + visible(tmp_path)) == ["a", "b", "c"]
    for one in (writer, successor):
        one.close()


def test_names_of_directories_are_durable_before_the_commit_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2: the file's own directory, and each above it down from the sink's."""
    synced: list[str] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    writer = divided(tmp_path)
    monkeypatch.setattr(writer, "_divide", lambda words: [("a=1/b=2/c=3", words)])
    writer.recover(None, [])
    handle = stage(writer, ["x"], 1)
    monkeypatch.setattr(os, "fsync", fsync)
    writer.commit(permit(1), [handle])
    below = [str(tmp_path / path) for path in ("a=1/b=2/c=3", "a=1/b=2", "a=1")]
    assert synced[1:] == [*below, str(tmp_path)], "after the ledger"
    writer.close()


def test_a_handle_that_leads_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    """M5."""
    writer = divided(tmp_path / "out")
    writer.recover(None, [])
    handle = stage(writer, ["a", "b"], 1)
    assert isinstance(handle, dict)
    (other,) = handle["more"]  # type: ignore[misc, union-attr]
    name = str(other["final"]).rpartition("/")[2]  # type: ignore[call-overload, index]
    for folder in ("..", "a=1/..", "a=1/../../b=1", ".a=1", "/a=1", "a=1/", "a", "a=", "a=\0"):
        changed = {**handle, "more": [{**other, "final": f"{folder}/{name}"}]}  # type: ignore[dict-item]
        with pytest.raises(ConnectorError, match="is not a transaction of sink 'out'"):
            writer.commit(permit(1), [changed])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "letter=b").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConnectorError, match="replace the symbolic link"):
        writer.commit(permit(1), [handle])
    assert list((tmp_path / "elsewhere").iterdir()) == []
    writer.close()


def test_a_task_that_writes_to_too_many_directories_is_told_what_to_do(tmp_path: Path) -> None:
    writer = divided(tmp_path, partitions_max=3)
    writer.recover(None, [])
    writer.write(["a", "b", "c", "b"])
    with pytest.raises(ConnectorError, match="rows for 4 directories by letter, and at most 3"):
        writer.write(["a", "d"])
    handle = prepare(writer, writer.rotate(CheckpointId(1)))
    writer.write(["d"])
    writer.commit(permit(1), [handle])
    assert sorted(visible(tmp_path)) == ["a", "b", "b", "c"], "nothing of the refused ones was added"
    writer.close()


def test_a_file_that_is_large_enough_is_followed_by_another_of_the_same_checkpoint(tmp_path: Path) -> None:
    writer = divided(tmp_path, roll_bytes=4)
    writer.recover(None, [])
    for words in (["aa"], ["ab", "b"], ["ac"], ["ad"]):
        writer.write(words)
    handle = prepare(writer, writer.rotate(CheckpointId(1)))
    assert visible(tmp_path) == []
    writer.commit(permit(1), [handle])
    files = [path.read_text().split() for path in tmp_path.glob("letter=a/*.txt")]
    assert sorted(files) == [["aa", "ab"], ["ac", "ad"]]
    assert staged_names(tmp_path) == []
    writer.close()


@pytest.mark.parametrize("size", range(6))
def test_a_staged_file_that_was_cut_is_not_committed(size: int, tmp_path: Path) -> None:
    """D1."""
    writer = begun(tmp_path)
    handle = stage(writer, ["abcde"], 1)
    os.truncate(paths(tmp_path, handle)[0], size)
    with pytest.raises(ConnectorError, match=f"has {size} bytes, expected 6"):
        writer.commit(permit(1), [handle])
    assert visible(tmp_path) == []
    writer.close()


def test_a_committed_file_that_was_changed_is_not_taken_for_ours(tmp_path: Path) -> None:
    writer = begun(tmp_path)
    handle = stage(writer, ["abcde"], 1)
    writer.commit(permit(1), [handle])
    paths(tmp_path, handle)[1].write_text("abcdefg\n")
    with pytest.raises(ConnectorError, match="has 8 bytes, expected 6"):
        writer.commit(permit(1), [handle])
    writer.close()


def test_a_stage_behind_a_symbolic_link_is_refused_by_everybody(tmp_path: Path) -> None:
    """M5: neither to write, nor to publish, nor to sweep."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    writer = begun(outside)
    handle = stage(writer, ["secret"], 1)
    writer.close()
    before = staged_paths(outside)
    for level in range(4):
        link = inside.joinpath(*Path(before[0]).parts[: level + 1])
        link.parent.mkdir(parents=True)
        link.symlink_to(outside.joinpath(*link.relative_to(inside).parts), target_is_directory=True)
        for begin in ((None, []), (permit(1, 2), [handle])):
            with pytest.raises(ConnectorError, match="symbolic link in the stage; replace the symbolic link"):
                writer_of(inside, epoch=2).recover(*begin)
        with pytest.raises(ConnectorError, match="symbolic link in the stage"):
            committed_output(str(inside), "txt")
        assert (visible(inside), visible(outside), staged_paths(outside)) == ([], [], before)
        shutil.rmtree(inside)


@pytest.mark.parametrize("made", ["link", "fifo", "directory"])
@pytest.mark.parametrize("which", [0, 1], ids=["staged", "final"])
def test_what_is_no_regular_file_is_not_published_and_keeps_nobody_waiting(
    tmp_path: Path, made: str, which: int
) -> None:
    """M5."""
    (tmp_path / "secret").write_text("secret\n")
    writer = begun(tmp_path / "out")
    handle = stage(writer, ["secret"], 1)
    path = paths(tmp_path / "out", handle)[which]
    path.unlink(missing_ok=True)
    match made:
        case "link":
            path.symlink_to(tmp_path / "secret")
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()
    with pytest.raises(ConnectorError, match="is not a regular file; move it away"):
        writer.commit(permit(1), [handle])
    assert (tmp_path / "secret").read_text() == "secret\n"
    writer.close()


@pytest.mark.parametrize("made", ["link", "fifo"])
def test_a_ledger_that_is_no_regular_file_is_refused_and_keeps_nobody_waiting(
    tmp_path: Path, made: str
) -> None:
    """M5."""
    writer = begun(tmp_path)
    writer.commit(permit(1), [stage(writer, ["a"], 1)])
    (ledger,) = (tmp_path / ".crosscut").rglob("*.ledger")
    ledger.unlink()
    if made == "fifo":
        os.mkfifo(ledger)
    else:
        ledger.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConnectorError, match="file sink could not begin in"):
        writer_of(tmp_path, epoch=2).recover(None, [])
    writer.close()


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "a\0"])
def test_names_that_could_leave_the_directory_are_refused_when_the_writer_is_made(
    name: str, tmp_path: Path
) -> None:
    """M5."""
    for identity in ({"lineage": name}, {"uid": name}, {"vertex": name}):
        with pytest.raises(FlowError, match="is not usable"):
            begun(tmp_path, **identity)  # type: ignore[arg-type]


def test_a_permit_must_be_of_this_lineage_and_cover_the_transaction(tmp_path: Path) -> None:
    """I3."""
    writer = begun(tmp_path)
    handle = stage(writer, ["a"], 5)
    with pytest.raises(InternalError):
        writer.commit(permit(5, lineage="another"), [handle])
    with pytest.raises(ConnectorError, match="only what is at or below checkpoint 4 may become visible"):
        writer.commit(permit(4), [handle])
    with pytest.raises(ConnectorError, match="only what is at or below checkpoint 4"):
        writer_of(tmp_path, epoch=2).recover(permit(4, 2), [handle])
    with pytest.raises(InternalError, match="no permit"):
        writer_of(tmp_path, epoch=2).recover(None, [handle])
    assert visible(tmp_path) == []
    writer.close()


def test_a_writer_that_has_not_recovered_writes_and_commits_nothing(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "out")
    with pytest.raises(InternalError, match="writes before it has begun"):
        writer.write(["a"])
    with pytest.raises(InternalError, match="used before `recover`"):
        writer.commit(permit(1), [])
    writer.close()
    assert not (tmp_path / "out").exists()


def test_close_removes_what_was_never_prepared_and_keeps_the_rest(tmp_path: Path) -> None:
    """I11."""
    writer = begun(tmp_path)
    handle = stage(writer, ["a"], 1)
    writer.write(["b"])
    writer.rotate(CheckpointId(2))
    writer.write(["c"])
    assert len(staged_names(tmp_path)) == 3
    writer.close()
    assert staged_names(tmp_path) == [paths(tmp_path, handle)[0].name]


def test_data_and_names_are_on_disk_before_anything_builds_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2: file, then its directory entry, then (the first time) the directories above; and in commit,
    the ledger before the final name. Rotate does none of it."""
    synced: list[tuple[str, int, int]] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((path, len(staged_names(tmp_path / "out")), len(visible(tmp_path / "out"))))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    writer = begun(tmp_path / "out")
    stage_path = tmp_path / "out" / ".crosscut" / LINEAGE / "out" / "v-0"
    ledger = stage_path / "1-driver-1.ledger"
    assert [Path(path) for path, *_ in synced] == [ledger, stage_path]
    synced.clear()
    writer.write(["a"])
    transaction = writer.rotate(CheckpointId(1))
    assert synced == []
    handle = prepare(writer, transaction)
    staged = paths(tmp_path / "out", handle)[0]
    assert [Path(path) for path, *_ in synced][:7] == [
        staged,
        staged.parent,
        *list(staged.parent.parents)[:5],
    ]
    assert staged.parents[5] == tmp_path
    synced.clear()
    writer.commit(permit(1), [handle])
    assert synced == [(str(ledger), 1, 0), (str(tmp_path / "out"), 0, 1)]
    synced.clear()
    writer.commit(permit(1), [handle])
    assert synced == [(str(tmp_path / "out"), 0, 1)], "whoever published it may have died before"
    synced.clear()
    stage(writer, ["b"], 2)
    assert [Path(path).suffix for path, *_ in synced] == [".staged", ""]
    writer.close()


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """A full disk, for files of this process above `size_bytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_prepare_may_be_repeated_when_there_is_space_again(tmp_path: Path) -> None:
    """D4: the checkpoint is aborted, the transaction waits for the next one and loses nothing."""
    writer = begun(tmp_path)
    words = [f"word{i}" for i in range(20_000)]
    writer.write(words)
    transaction = writer.rotate(CheckpointId(1))
    with file_size_limit(50_000), pytest.raises(ConnectorError, match=r"File too large; raise the file size"):
        writer.prepare(transaction)
    handle = prepare(writer, transaction)
    writer.commit(permit(2), [handle])
    writer.close()
    assert visible(tmp_path) == words


def test_a_transaction_with_a_failed_write_is_never_prepared(tmp_path: Path) -> None:
    """D4, D1: half of the records are in the file; it does not become part of a checkpoint."""
    writer = begun(tmp_path)
    writer.write(["before"])
    with file_size_limit(50_000), pytest.raises(ConnectorError, match="file sink could not write to"):
        writer.write(["x" * 99] * 10_000)
    transaction = writer.rotate(CheckpointId(1))
    for _ in range(2):
        with pytest.raises(ConnectorError, match="restart from the last checkpoint"):
            writer.prepare(transaction)
    writer.close()
    assert staged_names(tmp_path) == []


def test_a_failed_fsync_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D2: the kernel may have dropped the data and would report success the second time."""
    writer = begun(tmp_path)
    writer.write(["a"])
    transaction = writer.rotate(CheckpointId(1))

    def fsync(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(ConnectorError, match="could not make durable"):
            writer.prepare(transaction)
    with pytest.raises(ConnectorError, match="an earlier fsync of it failed"):
        writer.prepare(transaction)
    writer.close()


def test_a_commit_that_failed_for_want_of_space_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4: ENOSPC only at commit."""
    writer = begun(tmp_path)
    handle = stage(writer, ["a"], 1)

    def rename(*_: Any, **directories: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(ConnectorError, match=r"No space left on device; free space") as caught:
            writer.commit(permit(1), [handle])
    assert caught.value.ids["errno"] == errno.ENOSPC
    assert visible(tmp_path) == []
    writer.commit(permit(1), [handle])
    assert visible(tmp_path) == ["a"]
    writer.close()


def test_a_failed_delete_fails_nothing_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D4: only at delete."""
    writer = begun(tmp_path)
    handle = stage(writer, ["a"], 1)
    stage(writer, ["of no checkpoint"], 2)

    def unlink(*_: Any, **directory: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    successor = writer_of(tmp_path, epoch=2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        successor.recover(permit(1, 2), [handle])
    assert "could not remove" in caplog.text
    assert visible(tmp_path) == ["a"]
    successor.close()
    writer_of(tmp_path, epoch=3).recover(permit(1, 3), [handle])
    assert visible(tmp_path) == ["a"]
    assert staged_names(tmp_path) == []


def test_records_that_cannot_be_encoded_leave_the_transaction_as_it_was(tmp_path: Path) -> None:
    def refuse(records: list[Any]) -> bytes:
        if "bad" in records:
            raise ConnectorError("bad record")
        return text_of(records)

    context = SinkContext(Lineage(LINEAGE), Epoch(1), TaskId(VertexId("v"), 0), "out")
    writer = StagedFiles(str(tmp_path), "txt", partial(Plain, refuse), context)
    writer.recover(None, [])
    writer.write(["a"])
    with pytest.raises(ConnectorError, match="bad record"):
        writer.write(["b", "bad"])
    writer.write(["c"])
    writer.commit(permit(1), [prepare(writer, writer.rotate(CheckpointId(1)))])
    assert visible(tmp_path) == ["a", "c"]
    writer.close()


@pytest.mark.parametrize("takes_letters", [False, True])
def test_of_a_divided_batch_only_what_can_not_be_written_is_refused(
    tmp_path: Path, takes_letters: bool
) -> None:
    """P6. Also where another directory has its records of the batch already."""

    def encode(records: list[Any]) -> bytes:
        if "bad" in records:
            raise ConnectorError("bad record")
        return text_of(records)

    def divide(records: list[str]) -> list[tuple[str, list[str]]]:
        if "nowhere" in records:
            raise ConnectorError("no directory")
        return by_first_letter(records)

    context = SinkContext(Lineage(LINEAGE), Epoch(1), TaskId(VertexId("v"), 0), "out")
    layout = Layout(("letter",))
    writer = StagedFiles(str(tmp_path), "txt", partial(Plain, encode), context, layout, divide)
    letters: list[Any] = []
    if takes_letters:
        writer.set_aside = lambda record, reason: letters.append((record, reason))
    writer.recover(None, [])
    writer.write(["a"])
    batch = ["ab", "bad", "nowhere", "b", "c"]
    if takes_letters:
        writer.write(batch)
        writer.write(["bad", "bad"])
        writer.commit(permit(1), [prepare(writer, writer.rotate(CheckpointId(1)))])
        assert sorted(visible(tmp_path)) == ["a", "ab", "b", "c"]
        assert letters == [("nowhere", "no directory"), *[("bad", "bad record")] * 3]
        writer.write(["bad"])
        assert writer.rotate(CheckpointId(2)) is None
    else:
        with pytest.raises(RefusedRecordError, match="record 'nowhere' is refused: no directory"):
            writer.write(batch)
    writer.close()


def test_a_directory_whose_path_no_commit_could_give_is_refused_with_its_record(tmp_path: Path) -> None:
    """P6. Each level fits; all of them together do not."""
    names = [f"c{index}" for index in range(20)]
    sink = cc.files.write_jsonl(tmp_path, partition_by=names)
    writer = sink.writer(SinkContext(Lineage(LINEAGE), Epoch(1), TaskId(VertexId("v"), 0), "out"))
    writer.recover(None, [])
    with pytest.raises(RefusedRecordError, match=r"the directory .* has \d+ bytes"):
        writer.write([dict.fromkeys(names, "x" * 240) | {"n": 1}])
    writer.write([dict.fromkeys(names, "x") | {"n": 1}])
    writer.close()


def test_an_object_whose_staged_one_stays_is_not_committed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1, I2: the store refuses the delete after the copy; a reader takes objects away, all this time."""
    pytest.importorskip("fsspec", reason="pip install fsspec")
    objects = Objects("memory://staged-stays")
    taken: list[bytes] = []

    def take() -> None:
        for name in objects.names(""):
            if name.startswith("part-"):
                taken.append(objects.read(name))
                objects.delete(name)

    def recovered(epoch: int, *handles: JSON) -> StagedFiles:
        writer = writer_of("memory://staged-stays", epoch=epoch)  # type: ignore[arg-type]
        writer.recover(permit(1, epoch) if handles else None, handles)
        return writer

    def refused(*_: Any) -> None:
        raise OSError(errno.EIO, "Please reduce your request rate")

    writer = recovered(1)
    handle = stage(writer, ["a"], 1)
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "delete", refused)
        # Neither the commit nor its repetition has come to its end.
        with pytest.raises(ConnectorError, match="reduce your request rate"):
            writer.commit(permit(1), [handle])
        with pytest.raises(ConnectorError, match="reduce your request rate"):
            writer.commit(permit(1), [handle])
    recovered(2, handle)
    take()
    recovered(3, handle)
    take()
    assert taken == [b"a\n"]
