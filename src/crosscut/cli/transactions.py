"""The prepared transactions of a job that has stopped: list, export, drop."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.text import Text

from crosscut.cli.checkpoints import plain_table
from crosscut.contracts.connectors import HeldData, SinkContext
from crosscut.contracts.refused_records import dead_letters_uid, is_of_dead_letters_alone
from crosscut.driver.dropping import drop_output
from crosscut.errors import ConnectorError, FlowError, StoreError
from crosscut.flow.flow import Flow
from crosscut.foundation.ids import CheckpointId, LogIndex, TaskId
from crosscut.host.clock import SystemClock
from crosscut.protocol.job.pending_output import restored
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed, LogEntry, OpenOutput
from crosscut.protocol.log.identity import Claimant, shown
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.snapshots import PendingTransaction
from crosscut.store.checkpoint_store import CheckpointStore

_HANDLE_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Pending:
    """A prepared transaction of a task, in the checkpoint that the next start restores."""

    task: TaskId
    transaction: PendingTransaction

    @property
    def output(self) -> OpenOutput:
        """What a claim lists if it is dropped."""
        return OpenOutput(self.task, self.transaction.checkpoint_id)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What the end of a job log says of pending output."""

    claims: Sequence[EpochClaimed]
    checkpoint: CheckpointCompleted
    pending: Sequence[Pending]


def unfinished(store: CheckpointStore) -> Unfinished:
    """Read the pending transactions of the job in `store`.

    Raises:
        StoreError: There is no job, or no complete checkpoint, in this directory; or its log is damaged; or
            its workers have logs of their own.
    """
    tail: list[tuple[LogIndex, LogEntry]] = store.tail(1)
    checkpoint, claims = restored(tail), claims_in([entry for _, entry in tail])
    if claims and claims[-1].unit_log:
        raise StoreError(
            "the workers of this job have logs of their own (snapshots='logged'), and only these say which "
            "output is not committed yet; this command can't read them, and the next start commits it"
        )
    if checkpoint is None or not claims:
        raise StoreError("no complete checkpoint in this directory, so no transaction is pending")
    found = [Pending(one.task, each) for one in checkpoint.snapshots for each in one.snapshot.pending]
    return Unfinished(claims, checkpoint, found)


def listing(found: Unfinished, flow: Flow | None = None) -> RenderableType:
    """Return the pending transactions as a table, and what was dropped since the newest checkpoint.

    Args:
        flow: Its sinks are asked which of them they have committed.
    """
    titles = ("task", "checkpoint", "held", "state", "transaction")
    table = plain_table(*titles, numbers=(1, 2))
    for one, state in _with_states(found, flow):
        held = one.transaction.held
        table.add_row(
            Text(str(one.task)),
            str(one.transaction.checkpoint_id),
            decimal(held.size_bytes) if held is not None else "",
            state,
            Text(_short(json.dumps(one.transaction.handle))),
        )
    head = Text(
        f"checkpoint {found.checkpoint.checkpoint_id}: {len(found.pending)} prepared transactions; the next "
        f"start commits those that are not committed yet"
    )
    dropped = [
        Text(
            f"dropped by {shown(claim.claimant)}: {claim.reason}: "
            f"{', '.join(f'{one.task} of checkpoint {one.checkpoint_id}' for one in claim.dropped)}"
        )
        for claim in found.claims
        if claim.dropped
    ]
    return Group(head, "", table, "", *dropped) if dropped else Group(head, "", table)


def transaction_lines(found: Unfinished, flow: Flow | None = None) -> Iterator[str]:
    """Yield the pending transactions as lines of JSON; see `listing`."""
    for one, state in _with_states(found, flow):
        held = one.transaction.held
        row = {
            "task": str(one.task),
            "checkpoint": one.transaction.checkpoint_id,
            "held_bytes": None if held is None else held.size_bytes,
            "state": state,
            "handle": one.transaction.handle,
        }
        yield json.dumps(row)


def _with_states(found: Unfinished, flow: Flow | None) -> Iterator[tuple[Pending, str]]:
    visible = _visible(found, flow) if flow is not None else None
    for one in found.pending:
        state = "pending or committed"
        if visible is not None:
            found_there = visible[is_of_dead_letters_alone(one.transaction.handle)].get(one.task, 0)
            state = "committed" if found_there >= one.transaction.checkpoint_id else "pending"
        yield one, state


def _visible(found: Unfinished, flow: Flow) -> tuple[dict[TaskId, CheckpointId], dict[TaskId, CheckpointId]]:
    """Return up to where the output of each task is visible: of its records, and of its dead letters."""
    lineage = found.claims[-1].lineage
    records: dict[TaskId, CheckpointId] = {}
    dead_letters: dict[TaskId, CheckpointId] = {}
    graph = flow.compile(found.claims[-1].parallelism, found.claims[-1].max_parallelism)
    for vertex in graph.vertices:
        if vertex.sink is None:
            continue
        uid = vertex.chain[-1].uid
        visible = {uid: records, dead_letters_uid(uid): dead_letters}
        for one in vertex.sink.sink.committed():
            if one.lineage == lineage and one.task.vertex == vertex.vertex_id and one.sink_uid in visible:
                mine = visible[one.sink_uid]
                mine[one.task] = max(mine.get(one.task, CheckpointId(0)), one.checkpoint_id)
    return records, dead_letters


def _short(text: str) -> str:
    return text if len(text) <= _HANDLE_SHOWN else f"{text[: _HANDLE_SHOWN - 3]}..."


def selected(found: Unfinished, sink: str, checkpoint: int | None) -> list[Pending]:
    """Return the pending transactions of `sink`: the name of a sink ("orders") or of a task ("orders[0]").

    Args:
        checkpoint: Only those of this checkpoint; None: all.

    Raises:
        StoreError: There are none.
    """
    chosen = [
        one
        for one in found.pending
        if sink in (one.task.vertex, str(one.task)) and checkpoint in (None, one.transaction.checkpoint_id)
    ]
    if not chosen:
        there = ", ".join(sorted({str(one.task) for one in found.pending})) or "none"
        raise StoreError(
            f"no pending transaction of {sink!r}"
            + (f" and checkpoint {checkpoint}" if checkpoint is not None else "")
            + f"; tasks with pending transactions: {there}"
        )
    return chosen


def exported(
    store: CheckpointStore, found: Unfinished, chosen: Sequence[Pending], flow: Flow
) -> Iterator[str]:
    """Yield a line of JSON for each record of the chosen transactions. Nothing is changed.

    Raises:
        ConnectorError: The sink can't show them, or they can't be read.
        FlowError: The flow has no such sink.
    """
    claim = found.claims[-1]
    graph = flow.compile(claim.parallelism, claim.max_parallelism)
    vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
    for one in chosen:
        vertex = vertices.get(one.task.vertex)
        if vertex is None or vertex.sink is None:
            raise FlowError(
                f"flow {flow.name!r} has no sink in vertex {one.task.vertex!r}: is it another flow?"
            )
        held = HeldData()
        transaction = one.transaction
        if transaction.held is not None:
            held.keep(transaction.checkpoint_id, store.read_part(transaction.held))
        uid = vertex.chain[-1].uid
        context = SinkContext(claim.lineage, claim.epoch, one.task, uid, held, claim.driver, flow.name)
        writer = vertex.sink.sink.writer(context)
        try:
            for record in writer.pending_records([transaction.handle]):
                line = {"task": str(one.task), "checkpoint": transaction.checkpoint_id, "record": record}
                yield json.dumps(line, default=_as_text)
        finally:
            writer.close()


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def dropped(store: CheckpointStore, chosen: Collection[Pending], reason: str, *, force: bool) -> EpochClaimed:
    """Drop the chosen transactions for good; return the durable entry of the job log.

    Args:
        reason: In the operator's words, for the log.
        force: Also while the process that claimed the job last may still run: it is fenced, and ends.

    Raises:
        StoreError: Nothing was dropped; the message says why.
        ConnectorError: No reason is given.
    """
    if not reason.strip():
        raise ConnectorError("--reason: state why this output is dropped; the job log keeps the reason")
    newest = unfinished(store).claims[-1].claimant
    if not force and newest.host == socket.gethostname() and _is_alive(newest.pid):
        raise StoreError(
            f"process {newest.pid} of this host claimed the job last and still runs: stop the job first. "
            f"If another program has that id now, use --force"
        )
    who = Claimant(
        f"{getpass.getuser()}@{socket.gethostname()}", os.getpid(), SystemClock().now().isoformat()
    )
    return drop_output(store, [one.output for one in chosen], who, reason.strip())


def _is_alive(pid: int) -> bool:
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
