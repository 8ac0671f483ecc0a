"""The content of a checkpoint store as tables, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from crosscut.contracts.connectors import JSON
from crosscut.errors import StoreError
from crosscut.foundation.ids import Lineage
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import JobGraph
from crosscut.monitoring.status import checkpoint_status
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed, JobFinished, LogEntry
from crosscut.protocol.log.identity import shown
from crosscut.protocol.log.recovery import AlreadyFinished, Claim, JobIdentity, NotThisJob, claim, refusal
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.snapshots import Snapshot
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.task.splits import splits_from_json

_POSITIONS_SHOWN = 2


def listing(store: CheckpointStore, last: int) -> RenderableType:
    """Return the newest `last` completed checkpoints, with the epochs claimed meanwhile.

    Raises:
        StoreError: There is no job in this directory, or its job log is damaged.
    """
    entries, claims, completed = _newest(store, last)
    return Group(_summary(entries, claims[-1]), "", _epochs(claims), "", _checkpoints(completed))


def checkpoint_lines(store: CheckpointStore, last: int) -> Iterator[str]:
    """Yield the newest `last` completed checkpoints as lines of JSON; see `listing`."""
    for entry in _newest(store, last)[2]:
        yield json.dumps(_checkpoint_fields(entry))


def _newest(
    store: CheckpointStore, last: int
) -> tuple[list[LogEntry], list[EpochClaimed], list[CheckpointCompleted]]:
    entries = [entry for _, entry in store.tail(last)]
    claims = claims_in(entries)
    if not claims:
        raise _no_job()
    return entries, claims, [entry for entry in entries if isinstance(entry, CheckpointCompleted)]


def details(store: CheckpointStore, checkpoint_id: int | None) -> RenderableType:
    """Return all there is to say of one completed checkpoint, by default the newest.

    Raises:
        StoreError: There is no such checkpoint, or the job log is damaged.
    """
    found = _completed(store, checkpoint_id)
    return Group(_checkpoints([found]), "", _snapshots(found))


def details_line(store: CheckpointStore, checkpoint_id: int | None) -> str:
    """Return a completed checkpoint with its snapshots as a line of JSON; see `details`."""
    found = _completed(store, checkpoint_id)
    snapshots = [
        {
            "task": str(one.task),
            "parts": len(one.snapshot.parts),
            "state_bytes": sum(part.size_bytes for part in one.snapshot.parts),
            "rows": one.snapshot.state_keys,
            "positions": one.snapshot.positions,
            "pending_transactions": [pending.checkpoint_id for pending in one.snapshot.pending],
            "is_drained": one.snapshot.drained,
        }
        for one in found.snapshots
    ]
    return json.dumps({**_checkpoint_fields(found), "snapshots": snapshots})


def _completed(store: CheckpointStore, checkpoint_id: int | None) -> CheckpointCompleted:
    if checkpoint_id is None:
        found = [entry for _, entry in store.tail(1) if isinstance(entry, CheckpointCompleted)]
    else:
        found = [
            entry
            for _, entry in store.entries()
            if isinstance(entry, CheckpointCompleted) and entry.checkpoint_id == checkpoint_id
        ]
    if not found:
        name = "no completed checkpoint" if checkpoint_id is None else f"no checkpoint {checkpoint_id}"
        raise StoreError(f"{name} in this directory; see `crosscut checkpoints ls`")
    return found[0]


def next_start(store: CheckpointStore, graph: JobGraph) -> str:
    """Return what a start of `graph` would go on from.

    Raises:
        StoreError: It can't go on from what is there: the message says what is different.
    """
    ours = JobIdentity(
        driver="",
        new_lineage=Lineage(""),
        fingerprint=graph.fingerprint,
        parallelism=graph.parallelism,
        max_parallelism=graph.max_parallelism,
        flow=identity_of(graph),
    )
    match claim(store.tail(1), ours):
        case NotThisJob() as refused:
            raise StoreError(f"can't use this checkpoint directory: {refusal(refused)}")
        case AlreadyFinished(entry):
            return f"the job has finished, with checkpoint {entry.checkpoint_id}: there is nothing to do"
        case Claim(restored=CheckpointCompleted() as restored):
            return f"the job goes on from checkpoint {restored.checkpoint_id}"
        case Claim(before=before):
            why = "there is nothing in it" if before is None else "no checkpoint is complete yet"
            return f"{why}: the job starts from the beginning"


def _no_job() -> StoreError:
    return StoreError("no job in this directory; expected the checkpoint_dir of a job that was started")


def _summary(entries: list[LogEntry], newest: EpochClaimed) -> Text:
    is_finished = isinstance(entries[-1], JobFinished)
    state = "finished" if is_finished else "not finished: the next start resumes it"
    return Text(
        f"lineage {newest.lineage}, parallelism {newest.parallelism}, {newest.max_parallelism} key groups, "
        f"graph {newest.fingerprint[:12]}; {state}"
    )


def _epochs(claims: list[EpochClaimed]) -> Table:
    table = plain_table("epoch", "claimed by", "first checkpoint", numbers=(0, 2))
    for one in claims:
        who = Text(f"{one.flow.name}, {shown(one.claimant)}")
        table.add_row(str(one.epoch), who, str(one.first_checkpoint_id))
    return table


def _checkpoint_fields(entry: CheckpointCompleted) -> dict[str, Any]:
    one = checkpoint_status(entry)
    return {
        "checkpoint": one.checkpoint_id,
        "epoch": one.epoch,
        "completed": one.wall_clock,
        "duration_ms": one.duration_ms,
        "parts": sum(len(each.snapshot.parts) for each in entry.snapshots),
        "state_bytes": one.state_bytes,
        "new_bytes": one.new_bytes,
        "freeze_us": one.freeze_us,
        "is_final": one.is_final,
    }


def _checkpoints(entries: list[CheckpointCompleted]) -> Table:
    titles = ("checkpoint", "epoch", "completed", "duration", "parts", "state", "written", "freeze", "final")
    table = plain_table(*titles, numbers=(0, 1, 3, 4, 5, 6, 7))
    for entry in entries:
        one = checkpoint_status(entry)
        parts = sum(len(each.snapshot.parts) for each in entry.snapshots)
        table.add_row(
            str(one.checkpoint_id),
            str(one.epoch),
            one.wall_clock[:19].replace("T", " "),
            f"{one.duration_ms} ms",
            str(parts),
            decimal(one.state_bytes),
            decimal(one.new_bytes),
            f"{one.freeze_us / 1_000:.1f} ms",
            "yes" if one.is_final else "",
        )
    return table


def _snapshots(entry: CheckpointCompleted) -> Table:
    titles = ("task", "parts", "state", "rows", "bytes a row", "positions", "pending transactions", "")
    table = plain_table(*titles, numbers=(1, 2, 3, 4, 6))
    for one in entry.snapshots:
        snapshot = one.snapshot
        size = sum(part.size_bytes for part in snapshot.parts)
        rows = snapshot.state_keys
        table.add_row(
            str(one.task),
            str(len(snapshot.parts)),
            decimal(size),
            f"{rows:,}" if rows else "",
            f"{size / rows:,.0f}" if rows else "",
            Text(_positions(snapshot)),
            str(len(snapshot.pending)),
            "drained" if snapshot.drained else "",
        )
    return table


def _positions(snapshot: Snapshot) -> str:
    if snapshot.positions is None:
        return ""
    found = splits_from_json(snapshot.positions)
    if not found:
        return "all read"
    shown = ", ".join(
        f"{split.split_id} at {_short(position)}" for split, position in found[:_POSITIONS_SHOWN]
    )
    return f"{len(found)} left: {shown}" + (", ..." if len(found) > _POSITIONS_SHOWN else "")


def _short(position: JSON) -> str:
    text = str(position)
    return text if len(text) <= 40 else f"{text[:37]}..."


def plain_table(*titles: str, numbers: tuple[int, ...] = ()) -> Table:
    """Return an empty table without lines; `numbers` are the columns that align to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index in numbers else "left", overflow="fold")
    return table
