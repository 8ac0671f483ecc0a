"""What survives: the job log, the parts, the sink's stage and what its readers see; and what must hold.

Each invariant is checked at the first moment it could break: when an entry lands in the log, when a
transaction becomes visible, when a part is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.proof.explorer.graphs import RECORD_BITS, Graph, once, times
from tests.proof.explorer.items import LINEAGE, Content, ensure, is_record, record_of
from tests.proof.explorer.machines import Numbers

from crosscut.contracts.connectors import CommitPermit, CommittedOutput
from crosscut.foundation.ids import CheckpointId, Epoch, LogIndex, TaskId, VertexId
from crosscut.protocol.log.entries import (
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    LogEntry,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.log.segments import FIRST, claim_of
from crosscut.protocol.snapshots import Snapshot

_RECORD_MASK = (1 << RECORD_BITS) - 1


class Stored(NamedTuple):
    """The store as a value; log entries by number.

    Attributes:
        log: Every entry that was ever appended, in this order.
        deleted: Which of them are not there any more.
        strays: What closed a segment that its driver had left, by drivers that had slept: no reader ever
            comes to it.
    """

    log: tuple[tuple[LogIndex, int], ...] = ()
    deleted: frozenset[LogIndex] = frozenset()
    strays: frozenset[tuple[LogIndex, int]] = frozenset()
    parts: frozenset[tuple[str, Content]] = frozenset()
    staged: frozenset[tuple[str, int]] = frozenset()
    committed: frozenset[str] = frozenset()
    visible: int = 0
    late: tuple[tuple[LogIndex, int], ...] = ()
    """Appends whose sender has given them up, and which may be applied yet: index and entry."""


class ExploredStore:
    """All states of the store, by number; every method takes one and returns the next.

    Args:
        is_exact: Whether the protocol promises exactly-once.
    """

    def __init__(self, graph: Graph, *, is_exact: bool) -> None:
        self._graph = graph
        self._is_exact = is_exact
        self._states: Numbers[Stored] = Numbers()
        self.entries: Numbers[LogEntry] = Numbers()
        self.empty = self._states.number(Stored())
        self._steps: dict[tuple[object, ...], int] = {}

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """Those that write parts."""
        return self._graph.tasks

    def value(self, store: int) -> Stored:
        """Return the store with this number as a value."""
        return self._states.values[store]

    def __len__(self) -> int:
        return len(self._states)

    # The job log.

    def log(self, store: int) -> tuple[LogEntry, ...]:
        """Return all entries that were ever appended, in order."""
        return tuple(self.entries.values[one] for _, one in self.value(store).log)

    def entry(self, store: int, index: LogIndex) -> LogEntry | None:
        """Return what stands at `index`, None if nothing does."""
        one = self.value(store)
        there = dict(one.strays) | {i: entry for i, entry in one.log if i not in one.deleted}
        return self.entries.values[there[index]] if index in there else None

    def indices(self, store: int) -> tuple[LogIndex, ...]:
        """Return the indices of all entries that are there, but heads."""
        one = self.value(store)
        there = {i for i, _ in one.log if i not in one.deleted} | {i for i, _ in one.strays}
        return tuple(sorted(i for i in there if i.number))

    def tail(self, store: int, count: int) -> tuple[tuple[LogIndex, LogEntry], ...]:
        """Return the newest claim, the newest `count` completed checkpoints, and what is after them."""
        one = self.value(store)
        chain = sorted((i, self.entries.values[entry]) for i, entry in one.log if i not in one.deleted)
        found: list[tuple[LogIndex, LogEntry]] = []
        while chain and sum(isinstance(entry, CheckpointCompleted) for _, entry in found) < count:
            index, entry = chain.pop()
            found.append((index, entry))
            before = entry.previous if isinstance(entry, SegmentOpened) else _before(index)
            if before in one.deleted:
                break
        while not any(claim_of(entry) for _, entry in found) and chain:
            if claim_of(chain[-1][1]):
                found.append(chain[-1])
            chain.pop()
        return tuple(reversed(found))

    def append(self, store: int, index: LogIndex, entry: int) -> tuple[int, bool]:
        """Create entry `index` if it does not exist; say whether it is this append that did."""
        key = ("append", store, index, entry)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._appended(store, index, entry)
        return found, found != store

    def _appended(self, store: int, index: LogIndex, number: int) -> int:
        if self.entry(store, index) is not None:
            return store
        one = self.value(store)
        then = dict(one.log)
        entry = self.entries.values[number]
        if isinstance(entry, SegmentClosed) and LogIndex(index.segment + 1, 0) in then:
            return self._states.number(one._replace(strays=one.strays | {(index, number)}))
        if index in one.deleted:
            # Whoever appends it believes that it is in the log: it was.
            ensure(
                then[index] == number,
                f"I7: {entry!r:.80} is appended at {index}, where {self.entries.values[then[index]]!r:.80} "
                f"was deleted",
            )
            return self._states.number(one._replace(deleted=one.deleted - {index}))
        is_next = _before(index) in then if index.number else index == FIRST or _head_before(index) in then
        ensure(is_next, f"entry {index} of a log that ends at {one.log[-1][0] if one.log else 'nothing'}")
        self._check_entry(store, entry)
        return self._states.number(one._replace(log=(*one.log, (index, number))))

    def delay(self, store: int, index: LogIndex, entry: int) -> int:
        """An append may be applied later."""
        one = self.value(store)
        return self._states.number(one._replace(late=(*one.late, (index, entry))))

    def apply_late(self, store: int, which: int) -> int:
        """One of the delayed appends is applied now, if nobody was faster."""
        one = self.value(store)
        index, entry = one.late[which]
        late = (*one.late[:which], *one.late[which + 1 :])
        store = self._states.number(one._replace(late=late))
        return self.append(store, index, entry)[0]

    def is_finished(self, store: int) -> bool:
        log = self.value(store).log
        return bool(log) and isinstance(self.entries.values[log[-1][1]], JobFinished)

    def _completed(self, store: int) -> list[CheckpointCompleted]:
        return [one for one in self.log(store) if isinstance(one, CheckpointCompleted)]

    # Parts.

    def write(self, store: int, path: str, content: Content) -> int:
        key = ("write", store, path, content)
        found = self._steps.get(key)
        if found is None:
            one = self.value(store)
            kept = {(p, c) for p, c in one.parts if p != path}
            found = self._steps[key] = self._states.number(
                one._replace(parts=frozenset(kept | {(path, content)}))
            )
        return found

    def delete(self, store: int, paths: Iterable[str], entries: Iterable[LogIndex] = ()) -> int:
        gone = frozenset(paths)
        one = self.value(store)
        newest = max((index.segment for index, _ in one.log), default=0)
        completed_at = [
            index for index, entry in one.log if isinstance(self.entries.values[entry], CheckpointCompleted)
        ]
        for index in entries:
            ensure(
                index.number > 0 and index.segment < newest,
                f"I7: entry {index} of a log whose newest segment is {newest} is deleted",
            )
            ensure(
                index not in completed_at[-1:],
                f"I8: entry {index} with the newest complete checkpoint is deleted",
            )
            one = one._replace(
                deleted=one.deleted | ({index} & {at for at, _ in one.log}),
                strays=frozenset(stray for stray in one.strays if stray[0] != index),
            )
        for completed in self._completed(store)[-1:]:
            needed = gone & {
                part.path
                for task in completed.snapshots
                for part in (*task.snapshot.parts, *task.snapshot.log)
            }
            ensure(
                not needed,
                f"I8: {sorted(needed)} of the newest complete checkpoint {completed.checkpoint_id} is gone",
            )
        parts = frozenset(part for part in one.parts if part[0] not in gone)
        return self._states.number(one._replace(parts=parts))

    def paths(self, store: int) -> tuple[str, ...]:
        return tuple(sorted(path for path, _ in self.value(store).parts))

    def missing(self, store: int, snapshot: Snapshot) -> str:
        """Return the part of `snapshot` that is not there, "" if all are."""
        there = {path for path, _ in self.value(store).parts}
        return next((part.path for part in snapshot.parts if part.path not in there), "")

    def content(self, store: int, snapshot: Snapshot) -> Content:
        """Return what the only part of `snapshot` holds."""
        path = snapshot.parts[0].path
        for found, content in self.value(store).parts:
            if found == path:
                return content
        ensure(False, f"I8: {path} is needed and does not exist")
        raise AssertionError

    # The sink.

    def stage(self, store: int, handle: str, records: int) -> int:
        one = self.value(store)
        staged = frozenset({(h, r) for h, r in one.staged if h != handle} | {(handle, records)})
        return self._states.number(one._replace(staged=staged))

    def commit(self, store: int, permit: CommitPermit, handles: tuple[str, ...]) -> int:
        """Make transactions visible: each of them once, however often it is asked for."""
        key = ("commit", store, permit, handles)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._committed(store, permit, handles)
        return found

    def outputs(self, store: int) -> tuple[CommittedOutput, ...]:
        """Return what the sink remembers of its tasks."""
        found = {}
        for handle in sorted(self.value(store).committed, key=lambda one: int(one.split("/")[1])):
            vertex, n, epoch = handle.split("/")
            task = TaskId(VertexId(vertex), 0)
            found[task] = CommittedOutput(
                "memory", LINEAGE, vertex, task, Epoch(int(epoch)), "", CheckpointId(int(n))
            )
        return tuple(found.values())

    def _committed(self, store: int, permit: CommitPermit, handles: tuple[str, ...]) -> int:
        one = self.value(store)
        staged = dict(one.staged)
        completed = self._completed(store)
        for handle in handles:
            if handle in one.committed:
                continue
            ensure(handle in staged, f"F3: transaction {handle} is gone, and has not been committed")
            ensure(not self.is_finished(store), f"I7: {handle} becomes visible after the job has finished")
            ensure(
                any(
                    pending.handle == handle and entry.checkpoint_id <= permit.checkpoint_id
                    for entry in completed
                    for task in entry.snapshots
                    for pending in task.snapshot.pending
                ),
                f"I3: {handle} becomes visible, and no completed checkpoint at or below "
                f"{permit.checkpoint_id} holds it",
            )
            one = one._replace(
                committed=one.committed | {handle},
                visible=_sum(one.visible, staged.pop(handle)),
                staged=frozenset(staged.items()),
            )
        return self._states.number(one)

    def abort(self, store: int, vertex: str, epoch: int) -> int:
        """Throw away what older epochs have staged at this sink."""
        one = self.value(store)
        staged = frozenset(
            (handle, records)
            for handle, records in one.staged
            if handle.split("/")[0] != vertex or int(handle.split("/")[2]) >= epoch
        )
        return self._states.number(one._replace(staged=staged))

    # What must hold.

    def check_savepoint(self, store: int, copied: CheckpointCompleted) -> None:
        """All of a checkpoint that is copied is there, and none of its output is still to be committed."""
        one, n = self.value(store), copied.checkpoint_id
        ensure(copied in self._completed(store), f"I8: the savepoint of checkpoint {n}, which is in no log")
        for task in copied.snapshots:
            missing = self.missing(store, task.snapshot)
            ensure(not missing, f"I8: {missing} is gone before it is copied into a savepoint")
            waiting = {str(pending.handle) for pending in task.snapshot.pending} - one.committed
            ensure(not waiting, f"F7: the savepoint of checkpoint {n} leaves {sorted(waiting)} uncommitted")

    def _check_entry(self, store: int, entry: LogEntry) -> None:
        log = self.log(store)
        claims = [claim for one in log if (claim := claim_of(one)) is not None]
        completed = self._completed(store)
        ensure(not log or not isinstance(log[-1], JobFinished), f"F5: {entry!r:.80} after the job finished")
        match entry:
            case EpochClaimed(epoch):
                ensure(not claims or epoch > claims[-1].epoch, f"I6: epoch {epoch} is claimed again")
            case SegmentOpened(claim):
                ensure(
                    not claims or claim.epoch > claims[-1].epoch or claim == claims[-1],
                    f"I7: a segment is opened in epoch {claim.epoch} when another driver owns the job",
                )
            case SegmentClosed():
                pass
            case CheckpointCompleted(epoch, n):
                ensure(
                    bool(claims) and claims[-1].epoch == epoch,
                    f"I7: checkpoint {n} of epoch {epoch} completes when another epoch owns the job",
                )
                ensure(
                    not completed or completed[-1].checkpoint_id < n,
                    f"I6: checkpoint {n} completes after {[one.checkpoint_id for one in completed]}",
                )
                self._check_cut(store, entry)
            case JobFinished():
                ensure(
                    bool(completed) and completed[-1].is_final,
                    "F5: the job finishes without a final checkpoint",
                )
                self._check_output(self.value(store).visible, range(len(self._graph.routes)), "at the end")

    def _check_output(self, output: int, records: Iterable[int], when: str) -> None:
        expected = set(records)
        for record in range(len(self._graph.routes)):
            count = times(output, record)
            name = self._graph.record_name(record)
            ensure(count > 0 or record not in expected, f"I1: {name} is lost from the output {when}")
            is_allowed = count == (record in expected) or not self._is_exact
            ensure(is_allowed, f"I2: {name} is {count} times in the output {when}")

    def _check_cut(self, store: int, entry: CheckpointCompleted) -> None:
        """The checkpoint is a consistent cut, and accounts for all the output.

        Every record is at one place of its way, as in a run without failures: not read yet, in the log
        of one channel, with a task that keeps it until the end of its input, or gone through; and the tasks
        after it have counted it, those before it not.
        """
        graph, n = self._graph, entry.checkpoint_id
        snapshots = {one.task: one.snapshot for one in entry.snapshots}
        ensure(
            snapshots.keys() == set(graph.tasks),
            f"I4: checkpoint {n} is of {sorted(map(str, snapshots))} only",
        )
        contents = [self.content(store, snapshots[task]) for task in graph.tasks]
        logged = [record_of(item) for one in contents for _, item, _ in one.log if is_record(item)]
        arrived = []
        for record, route in enumerate(graph.routes):
            origin, name = graph.origins[record], graph.record_name(record)
            is_read = graph.records_of(origin).index(record) < contents[origin].position
            hops = [hop for one, hop in logged if one == record]
            counts = [times(content.state, record) for content in contents]
            done, has_arrived = self._whereabouts(record, contents) if is_read else (0, False)
            if hops:
                done, has_arrived = hops[0], False
            if not self._is_exact:
                target = graph.channels[route[done - 1]][1]
                ensure(
                    not is_read or bool(hops) or counts[target] > 0,
                    f"I1 I4: checkpoint {n} has lost {name}, which its source has read",
                )
                if has_arrived:
                    arrived.append(record)
                continue
            ensure(
                len(hops) <= is_read,
                f"I4: {name} is in the channel logs of checkpoint {n}: {len(hops)} times",
            )
            for task, count in enumerate(counts):
                expected = graph.visits(record, done, task)
                where = f"has {done} of its {len(route)} hops behind it" if is_read else "has not been read"
                ensure(
                    count == expected,
                    f"I4: checkpoint {n} is no consistent cut: {name} {where}, and {graph.tasks[task]} "
                    f"has counted it {count} times, not {expected}",
                )
            if has_arrived:
                arrived.append(record)
        self._check_watermarks(store, entry, contents)
        self._check_manifest_output(store, entry, arrived)
        if entry.is_final:
            ensure(len(arrived) == len(graph.routes), f"F5: checkpoint {n} is called final and is not")

    def _check_watermarks(self, store: int, entry: CheckpointCompleted, contents: Sequence[Content]) -> None:
        for before in self._completed(store)[-1:] if self._graph.holds else ():
            snapshots = {one.task: one.snapshot for one in before.snapshots}
            for task, content in zip(self._graph.tasks, contents, strict=True):
                old, new = self.content(store, snapshots[task]).kept.watermark, content.kept.watermark
                ensure(
                    old is None or (new is not None and new >= old),
                    f"I14: checkpoint {entry.checkpoint_id} has the watermark {new} of {task}; it was {old}",
                )

    def _whereabouts(self, record: int, contents: Sequence[Content]) -> tuple[int, bool]:
        """Return how many hops `record`, read and in no channel, has behind it, and whether it is out."""
        graph = self._graph
        for hop, channel in enumerate(graph.routes[record], 1):
            target = graph.channels[channel][1]
            if target in graph.counts and not contents[target].said:
                return hop, False
            if times(contents[target].kept.held, record):
                return hop, False
        return len(graph.routes[record]), True

    def _check_manifest_output(self, store: int, entry: CheckpointCompleted, arrived: list[int]) -> None:
        one = self.value(store)
        staged = dict(one.staged)
        handles = {str(pending.handle) for task in entry.snapshots for pending in task.snapshot.pending}
        output = one.visible
        for handle in handles - one.committed:
            ensure(
                handle in staged, f"I9: checkpoint {entry.checkpoint_id} needs {handle}, which is not staged"
            )
            output = _sum(output, staged[handle])
        # What earlier completed checkpoints authorised and nobody has got round to yet is pending here too.
        self._check_output(output, arrived, f"of checkpoint {entry.checkpoint_id}")


def _before(index: LogIndex) -> LogIndex:
    return LogIndex(index.segment, index.number - 1)


def _head_before(index: LogIndex) -> LogIndex:
    return LogIndex(index.segment - 1, 0)


def _sum(records: int, more: int) -> int:
    """Add multisets; what does not fit into the bits for one record counts as very often."""
    total, record = records, 0
    while more >> RECORD_BITS * record:
        for _ in range(times(more, record)):
            if times(total, record) < _RECORD_MASK:
                total += once(record)
        record += 1
    return total
