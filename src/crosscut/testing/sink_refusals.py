"""Checks of sinks: records that the system refuses, and prepared records that people look at (P6)."""

from __future__ import annotations

from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.errors import RefusedRecordError
from crosscut.foundation.ids import CheckpointId
from crosscut.testing.sink_targets import (
    SinkTarget,
    open_writer,
    permit,
    prepare,
    require,
    require_visible,
    stage,
    unrecovered_writer,
)


def check_a_refused_record_never_gets_past_prepare(target: SinkTarget) -> None:
    """Without dead letters it is an error that names it, also if there are others behind it, and nothing of
    its transaction is ever visible.
    """
    if target.refused is None:
        return
    writer = open_writer(target.sink, 1)
    first = stage(writer, target.records(0, 2), 1)
    refused = target.refused(0)
    try:
        writer.write([refused, *target.records(2, 3), target.refused(1)])
        prepare(writer, writer.rotate(CheckpointId(2)))
    except RefusedRecordError as error:
        require(bool(error.record) and bool(error.reason), f"{error!r} names no record, or no reason")
    else:
        raise AssertionError(f"prepare() accepted {refused!r}: expected RefusedRecordError, from refuse()")
    writer.close()
    successor = open_writer(target.sink, 2, restore=1, handles=[first])
    require_visible(target, target.records(0, 2))
    successor.close()


def check_the_others_are_written_if_refused_records_are_set_aside(target: SinkTarget) -> None:
    """With dead letters each refused record is set aside once, and all others are written, in order."""
    if target.refused is None:
        return
    dead_letters: list[Any] = []
    writer = open_writer(target.sink, 1)
    writer.set_aside = lambda record, reason: dead_letters.append((record, reason))
    refused = [target.refused(index) for index in range(3)]
    writer.write([refused[0], *target.records(0, 2), refused[1]])
    writer.write([*target.records(2, 3), refused[2]])
    writer.commit(permit(1), [prepare(writer, writer.rotate(CheckpointId(1)))])
    require_visible(target, target.records(0, 3))
    require(
        len(dead_letters) == len(refused),
        f"{len(dead_letters)} set aside, expected {len(refused)}",
    )
    require(all(reason for _, reason in dead_letters), f"set aside without a reason: {dead_letters}")
    writer.close()


def check_prepared_records_can_be_shown(target: SinkTarget) -> None:
    """`pending_records` gives what was prepared, in order, and changes nothing: it may be committed still."""
    if target.shown is None:
        return
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 3), 1), stage(writer, target.records(3, 5), 2)]
    writer.close()
    for _ in range(2):
        looking = unrecovered_writer(target.sink, 1)
        found = [target.shown(record) for record in looking.pending_records(handles)]
        looking.close()
        require(found == target.records(0, 5), f"shown: {found}, expected {target.records(0, 5)}")
    require_visible(target, [])
    open_writer(target.sink, 2, restore=2, handles=handles).close()
    require_visible(target, target.records(0, 5))


def check_dropped_output_is_never_visible_and_all_other_is(target: SinkTarget) -> None:
    """Any of several pending transactions may be dropped: they don't come again, and the job goes on."""
    writer = open_writer(target.sink, 1)
    expected: list[Any] = []
    checkpoint_id = written = 0
    epoch = 1
    # The oldest, one in between, the newest, several; each beside others that are kept.
    for drops in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)):
        checkpoint_id += 1
        known = checkpoint_id
        handle = stage(writer, target.records(written, written + 2), known)
        writer.commit(permit(known, epoch), [handle])
        expected += target.records(written, written + 2)
        written += 2
        handles: list[JSON] = []
        for number in range(3):
            checkpoint_id += 1
            records = target.records(written, written + 2)
            handle = stage(writer, records, checkpoint_id)
            written += 2
            if number not in drops:
                handles.append(handle)
                expected += records
        for _ in range(2):
            writer.close()
            epoch += 1
            writer = open_writer(target.sink, epoch, restore=checkpoint_id, handles=handles, committed=known)
            require_visible(target, expected, f"with {drops} of three dropped")
    writer.close()
