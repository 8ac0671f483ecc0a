"""Conformance of sinks to their history: output that was taken away, checkpoints that are older than what is
visible, and two drivers at once. Part of `crosscut.testing.sinks.SINK_CHECKS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from crosscut.contracts.connectors import JSON, CommitPermit, SinkWriter
from crosscut.errors import ConnectorError, HistoryError
from crosscut.testing.sink_targets import (
    LINEAGE,
    SINK_UID,
    TASK,
    SinkTarget,
    open_writer,
    permit,
    require,
    require_visible,
    stage,
)

COMMIT_ATTEMPTS = 3
"""A commit may fail, and is tried again, as in a job: a writer whose connection somebody has taken over
connects anew."""


def check_output_may_be_taken_away(target: SinkTarget) -> None:
    """N3: readers take what is visible; commits are repeated, the job restarts, and goes on."""
    if target.take is None:
        return
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 10), 1)]
    writer.commit(permit(1), handles)
    taken = target.take()
    # The reply was lost, so the next checkpoint holds both of them.
    handles.append(stage(writer, target.records(10, 20), 2))
    writer.commit(permit(2), handles)
    taken += target.take()
    writer.commit(permit(2), handles)
    writer.close()
    for epoch in (2, 3):
        open_writer(target.sink, epoch, restore=2, handles=handles).close()
        require_visible(target, [], f"after restart {epoch - 1}")
    writer = open_writer(target.sink, 4, restore=2, handles=handles)
    last = stage(writer, target.records(20, 30), 3)
    writer.commit(permit(3, 4), [last])
    writer.close()
    taken += target.take()
    open_writer(target.sink, 5, restore=3, handles=[last]).close()
    require_visible(target, [])
    require(taken == target.records(0, 30), f"readers have taken {taken!r}, expected records 0 to 30")


def check_newer_output_is_refused(target: SinkTarget) -> None:
    """N1: log entries are lost, or a backup or a copy is run. The refusal leaves no trace."""
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 10), 1), stage(writer, target.records(10, 20), 2)]
    writer.commit(permit(2), handles)
    writer.close()
    _require_refused(lambda: open_writer(target.sink, 2, driver="b").close(), "with nothing restored")
    older = {"restore": 1, "handles": handles[:1]}
    _require_refused(lambda: open_writer(target.sink, 7, driver="c", **older).close(), "with 1 restored")  # type: ignore[arg-type]
    require_visible(target, target.records(0, 20))
    # Another lineage, sink or task has nothing to do with it.
    open_writer(target.sink, 1, lineage="another-lineage").close()
    writer = open_writer(target.sink, 2, restore=2, handles=handles)
    writer.commit(permit(3, 2), [stage(writer, target.records(20, 30), 3)])
    writer.close()
    require_visible(target, target.records(0, 30))


def check_two_drivers_of_one_epoch_exclude_each_other(target: SinkTarget) -> None:
    """N1: two copies of a checkpoint directory are started at once, and both claim the same epoch."""
    writer = open_writer(target.sink, 1)
    first = stage(writer, target.records(0, 10), 1)
    writer.commit(permit(1), [first])
    writer.close()
    writer = open_writer(target.sink, 2, driver="a", restore=1, handles=[first])
    _require_refused(
        lambda: open_writer(target.sink, 2, driver="b", restore=1, handles=[first]).close(),
        "with the epoch of another driver",
    )
    # The one that came first goes on, and may begin again.
    second = stage(writer, target.records(10, 20), 2)
    _commit(writer, permit(2, 2), [second])
    writer.close()
    writer = open_writer(target.sink, 3, driver="a", restore=2, handles=[second])
    writer.commit(permit(3, 3), [stage(writer, target.records(20, 30), 3)])
    writer.close()
    require_visible(target, target.records(0, 30))


def check_a_driver_that_was_overtaken_is_refused(target: SinkTarget) -> None:
    """N1: a copy is started beside the original, which does not hear of it from its own job log."""
    original = open_writer(target.sink, 1, driver="a")
    first = stage(original, target.records(0, 10), 1)
    original.commit(permit(1), [first])
    copy = open_writer(target.sink, 2, driver="b", restore=1, handles=[first])
    # To be refused earlier is as good.
    with suppress(ConnectorError):
        second = stage(original, target.records(10, 20), 2)
        _require_refused(lambda: original.commit(permit(2, 1), [second]), "after a newer epoch has begun")
    require_visible(target, target.records(0, 10))
    _commit(copy, permit(3, 2), [stage(copy, target.records(10, 20), 3)])
    require_visible(target, target.records(0, 20))
    for writer in (original, copy):
        writer.close()
    _require_refused(
        lambda: open_writer(target.sink, 2, driver="a", restore=1, handles=[first]).close(),
        "after the one that has overtaken it",
    )
    require_visible(target, target.records(0, 20))


def check_what_is_committed_is_listed(target: SinkTarget) -> None:
    """N1, N3: a driver that is about to start hears what there is, before anything is claimed.

    A sink whose `committed` never returns anything can't tell, and is let be.
    """
    require(
        not [one for one in target.sink.committed() if one.checkpoint_id],
        "something is said to be committed where nothing has been written",
    )
    writer = open_writer(target.sink, 1, driver="a")
    handles = [stage(writer, target.records(0, 10), 1), stage(writer, target.records(10, 20), 2)]
    _require_listed(target, 0, "before a commit")
    writer.commit(permit(1), handles[:1])
    if not target.sink.committed():
        writer.close()
        return
    _require_listed(target, 1, "after the first commit")
    writer.commit(permit(2), handles)
    writer.close()
    _require_listed(target, 2, "after the second commit")
    if target.take is not None:
        target.take()
        _require_listed(target, 2, "when readers have taken it away")
    open_writer(target.sink, 2, driver="b", restore=2, handles=handles).close()
    _require_listed(target, 2, "after a restart")
    newest = max(target.sink.committed(), key=lambda one: one.epoch)
    require(
        newest.epoch <= 2 and newest.driver in ("", "a", "b"),
        f"epoch {newest.epoch} of driver {newest.driver!r} is said to have written",
    )


def check_a_system_that_was_set_back_is_refused(target: SinkTarget) -> None:
    """P7: a backup is restored, or a replica that was behind takes over: the sink remembers less than it has
    confirmed. Nothing is written after that; what is complete and not confirmed is no reason to refuse."""
    if target.backup is None:
        return
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 10), 1)]
    writer.commit(permit(1), handles)
    set_back = target.backup()
    second = stage(writer, target.records(10, 20), 2)
    writer.commit(permit(2, committed=1), [second])
    require_visible(target, target.records(0, 20))
    writer.close()
    # Restarts with nothing lost are let be: the confirmation may be known, or not yet.
    open_writer(target.sink, 2, restore=2, handles=[second], committed=1).close()
    running = open_writer(target.sink, 3, restore=2, handles=[], committed=2)
    require_visible(target, target.records(0, 20))
    third = stage(running, target.records(20, 30), 3)
    set_back()
    require_visible(target, target.records(0, 10), "after the system was set back")
    _require_refused(lambda: _commit(running, permit(3, 3, committed=2), [third]), "of a running job")
    running.close()
    require_visible(target, target.records(0, 10), "after a commit that was refused")
    for epoch, pending in ((4, []), (5, [third])):
        _require_refused(
            lambda epoch=epoch, pending=pending: open_writer(  # type: ignore[misc]
                target.sink, epoch, restore=3, handles=pending, committed=2
            ).close(),
            f"that restarts with {len(pending)} transactions pending",
        )
    require_visible(target, target.records(0, 10), "after restarts that were refused")


def _require_listed(target: SinkTarget, expected: int, when: str) -> None:
    found = target.sink.committed()
    ours = [one for one in found if (one.lineage, one.sink_uid, one.task) == (LINEAGE, SINK_UID, TASK)]
    newest = max((one.checkpoint_id for one in ours), default=0)
    require(newest == expected, f"{when}, checkpoint {newest} is told, expected {expected}: {found}")


def _commit(writer: SinkWriter, permit: CommitPermit, handles: Sequence[JSON]) -> None:
    for left in reversed(range(COMMIT_ATTEMPTS)):
        try:
            writer.commit(permit, handles)
        except HistoryError:
            raise
        except ConnectorError:
            if not left:
                raise
        else:
            return


def _require_refused(call: Callable[[], None], why: str) -> None:
    try:
        call()
    except HistoryError:
        return
    raise AssertionError(f"a writer {why} was not refused with HistoryError")
