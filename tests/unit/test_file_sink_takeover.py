"""File sinks: who has taken over, what is torn, and what others have published (P11)."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_connectors_staged_files import begun, staged_names, visible, writer_of

from crosscut.connectors.files.ledger import SLOT_BYTES
from crosscut.connectors.files.stage import Stage
from crosscut.contracts.connectors import JSON
from crosscut.errors import ConnectorError, HistoryError
from crosscut.testing.sinks import permit, stage


def taken(directory: Path) -> list[str]:
    """Take everything visible away, as a reader does."""
    found = visible(directory)
    for path in directory.glob("*.txt"):
        path.unlink()
    return found


def ledgers_of(directory: Path) -> list[Path]:
    return sorted(directory.glob(".crosscut/**/*.ledger"))


@pytest.mark.parametrize("has_committed", [False, True])
@pytest.mark.parametrize("with_handle", [False, True])
def test_a_zombie_that_recovers_after_its_successor_has_staged_touches_nothing(
    tmp_path: Path, has_committed: bool, with_handle: bool
) -> None:
    """P11. Its process was held up before `recover`, all the time that the successor needed to stage."""
    first = begun(tmp_path, epoch=1)
    handles = [stage(first, ["a"], 1)] if with_handle else []
    first.close()
    zombie, successor = writer_of(tmp_path, epoch=2), writer_of(tmp_path, epoch=3)
    restored = [permit(1, epoch) if with_handle else None for epoch in (2, 3)]
    successor.recover(restored[1], handles)
    if has_committed:
        successor.commit(permit(2, 3), [stage(successor, ["b"], 2)])
    pending = stage(successor, ["c"], 3)
    successor.write(["d"])
    before = staged_names(tmp_path), visible(tmp_path), [path.read_bytes() for path in ledgers_of(tmp_path)]
    with pytest.raises((HistoryError, ConnectorError), match=r"epoch 3|written a second time"):
        zombie.recover(restored[0], handles)
    zombie.close()
    assert before == (
        staged_names(tmp_path), visible(tmp_path), [path.read_bytes() for path in ledgers_of(tmp_path)]
    )  # fmt: skip
    successor.commit(permit(3, 3), [pending])
    assert visible(tmp_path) == ["a"] * with_handle + ["b"] * has_committed + ["c"]
    successor.close()


def test_a_writer_that_recovers_leaves_what_it_has_staged_itself(tmp_path: Path) -> None:
    """An epoch may begin a second time in another process, as a driver that was not answered asks again."""
    first = begun(tmp_path, epoch=2)
    handle = stage(first, ["a"], 1)
    second = begun(tmp_path, epoch=2)
    second.commit(permit(1, 2), [handle])
    assert visible(tmp_path) == ["a"]


SIZES = [1, SLOT_BYTES // 10, SLOT_BYTES - 1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("taken_away", [False, True])
@pytest.mark.parametrize("commit_count", [1, 2, 3])
def test_a_torn_newest_state_of_a_ledger_was_never_durable_and_the_one_before_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, taken_away: bool, commit_count: int
) -> None:
    """P11. The process dies while it notes what it is about to publish."""
    writer = begun(tmp_path)
    read: list[str] = []
    for n in range(1, commit_count + 1):
        writer.commit(permit(n), [stage(writer, [f"r{n}"], n)])
        read += taken(tmp_path) if taken_away else []
    handle = stage(writer, ["last"], commit_count + 1)
    write = os.pwrite

    def dies(descriptor: int, data: bytes, offset: int) -> int:
        write(descriptor, data[:size], offset)
        raise OSError(errno.EIO, "died")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", dies)
        with pytest.raises(ConnectorError, match="died"):
            writer.commit(permit(commit_count + 1), [handle])
    assert "last" not in visible(tmp_path)
    successor = writer_of(tmp_path, epoch=2)
    successor.recover(permit(commit_count + 1, 2), [handle])
    assert read + visible(tmp_path) == [*(f"r{n}" for n in range(1, commit_count + 1)), "last"]
    # The successor knows all of it, whatever is taken away now.
    taken(tmp_path)
    successor.commit(permit(commit_count + 1, 2), [handle])
    assert visible(tmp_path) == []
    successor.close()


def test_of_two_whole_states_of_a_ledger_the_newer_one_counts(tmp_path: Path) -> None:
    """The older one does not know of the last transaction, which a reader has taken away."""
    for count in (1, 2, 3, 4):
        directory = tmp_path / str(count)
        writer = begun(directory)
        handles = [stage(writer, [f"r{n}"], n) for n in range(1, count + 1)]
        for n, handle in enumerate(handles, 1):
            writer.commit(permit(n), [handle])
        assert taken(directory) == [f"r{n}" for n in range(1, count + 1)]
        successor = writer_of(directory, epoch=2)
        successor.recover(permit(count, 2), handles[-1:])
        assert visible(directory) == []
        successor.close()


def test_a_ledger_of_which_no_state_is_whole_stops_the_job(tmp_path: Path) -> None:
    """I12: what is committed is not known any more."""
    writer = begun(tmp_path)
    handle = stage(writer, ["a"], 1)
    writer.commit(permit(1), [handle])
    (ledger,) = ledgers_of(tmp_path)
    ledger.write_bytes(b"x" * 2 * SLOT_BYTES)
    with pytest.raises(ConnectorError, match="is damaged: it says which output of this task is committed"):
        writer_of(tmp_path, epoch=2).recover(permit(1, 2), [handle])


def test_an_epoch_that_begins_a_second_time_knows_what_it_has_published(tmp_path: Path) -> None:
    """P11. A reader has taken the files away since; what the first process noted is in its ledger alone."""
    first = begun(tmp_path)
    handles: list[JSON] = [stage(first, ["a"], 1), stage(first, ["b"], 2)]
    first.commit(permit(2), handles)
    assert taken(tmp_path) == ["a", "b"]
    first.close()
    second = writer_of(tmp_path)
    second.recover(permit(2), handles)
    second.commit(permit(2), handles)
    assert visible(tmp_path) == []
    second.close()


def test_what_a_zombie_has_published_and_its_ledger_says_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11. Its ledger could not be removed, and it goes on although it has been overtaken."""
    zombie = begun(tmp_path)
    handle = stage(zombie, ["a"], 1)
    successor = writer_of(tmp_path, epoch=2)
    keep = Stage.remove

    def keeps_ledgers(here: Stage, name: str) -> None:
        if not name.endswith(".ledger"):
            keep(here, name)

    look = Stage.look

    def publishes_first(here: Stage, name: str) -> Any:
        """The zombie goes on in the moment in which its successor looks for the file."""
        monkeypatch.setattr(Stage, "look", look)
        monkeypatch.setattr(zombie, "_check_history", lambda *_: None)
        zombie.commit(permit(1), [handle])
        assert taken(tmp_path) == ["a"]
        return look(here, name)

    monkeypatch.setattr(Stage, "remove", keeps_ledgers)
    monkeypatch.setattr(Stage, "look", publishes_first)
    successor.recover(permit(1, 2), [handle])
    assert visible(tmp_path) == []
    successor.close()


def held_up(monkeypatch: pytest.MonkeyPatch, at: Any, name: str, meanwhile: Any, *, before: bool) -> None:
    """Let something happen once when `at.name` is called: before it, or after it."""
    call = getattr(at, name)

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(at, name, call)
        if before:
            meanwhile()
        found = call(*arguments)
        if not before:
            meanwhile()
        return found

    monkeypatch.setattr(at, name, slow)


def test_a_zombie_that_sweeps_after_its_successor_has_staged_removes_older_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11. It was the owner when it began to recover."""
    first = begun(tmp_path, epoch=1)
    handle = stage(first, ["a"], 1)
    orphan = stage(first, ["orphan"], 2)
    assert orphan
    zombie, successor = writer_of(tmp_path, epoch=2), writer_of(tmp_path, epoch=3)
    pending: list[JSON] = []

    def overtaken() -> None:
        successor.recover(permit(1, 3), [handle])
        pending.append(stage(successor, ["b"], 2))

    held_up(monkeypatch, zombie, "_publish", overtaken, before=False)
    zombie.recover(permit(1, 2), [handle])
    assert len(staged_names(tmp_path)) == 1
    successor.commit(permit(2, 3), pending)
    assert visible(tmp_path) == ["a", "b"]
    for writer in (zombie, successor):
        writer.close()


def test_a_zombie_that_is_overtaken_between_its_two_looks_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11. Its ledger is not there yet when the successor looks."""
    zombie, successor = writer_of(tmp_path, epoch=2), writer_of(tmp_path, epoch=3)
    held_up(
        monkeypatch, zombie._storage, "ledger", lambda: successor.recover(None, []), before=True
    )  # fmt: skip
    with pytest.raises(HistoryError, match="epoch 3"):
        zombie.recover(None, [])
    zombie.close()
    successor.commit(permit(1, 3), [stage(successor, ["a"], 1)])
    assert visible(tmp_path) == ["a"]
    assert len(ledgers_of(tmp_path)) == 1
    successor.close()


def test_a_state_that_is_torn_between_two_fields_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11. Its beginning and the end of an older one are JSON together; only the checksum tells."""
    writer = begun(tmp_path)
    for n in (1, 2, 3):
        writer.commit(permit(n), [stage(writer, [f"r{n}"], n)])
    handle = stage(writer, ["r4"], 4)
    write = os.pwrite

    def dies(descriptor: int, data: bytes, offset: int) -> int:
        write(descriptor, data[: data.index(b', "missing"')], offset)
        raise OSError(errno.EIO, "died")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", dies)
        with pytest.raises(ConnectorError, match="died"):
            writer.commit(permit(4), [handle])
    (staged,) = tmp_path.glob(".crosscut/**/*.staged")
    staged.unlink()
    with pytest.raises(ConnectorError, match="output is lost: 1 records"):
        writer_of(tmp_path, epoch=2).recover(permit(4, 2), [handle])
