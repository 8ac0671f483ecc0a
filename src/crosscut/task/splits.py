"""The input of a source task: its splits, and how far each has been read."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.contracts.decoding import DecodingTrial
from crosscut.errors import ConnectorError, CrosscutError, InternalError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId
from crosscut.operators.connector_errors import connector_code_error
from crosscut.operators.operator import shortened
from crosscut.protocol.messages import SplitAssignment
from crosscut.task.task_section import SplitChanges
from crosscut.wire.frames import CONTROL_LIMITS, FrameType

SPLITS_SHOWN_MAX = 3

SHARE_BYTES_MAX = CONTROL_LIMITS[FrameType.CONTROL] * 3 // 4
"""Splits of one worker. The rest is for positions that grow while they are read, and for keyed state."""

HELD_MS = 1_000.0
"""Splits that wait for slower ones are looked at again after so long, if nothing is heard before."""

LAG_MAX = (1 << 63) - 1
"""More than that a report can't hold."""
EMPTY_READS_MIN = 100
"""Empty lists in a row after which a reader is said to give nothing; some give one now and then."""

_NEVER = Wait(float("inf"))


@dataclass(slots=True)
class _OpenSplit:
    split: Split
    reader: SplitReader
    empty_reads: int = 0
    is_coming: bool = False


class SplitQueue:
    """Reads the splits of one source task, some at a time, in turn.

    At most `Source.open_splits_max` are open, so that a million files need four handles. Splits that have
    nothing to read now do not count: endless ones would keep the others waiting for ever.

    Args:
        unread: Splits with the position to read from, in order.
        uid: The source's name in errors.
        is_open: Others may come.

    Attributes:
        origin: The split whose records `read` has returned last.
        just_ended: Those that have ended in the last call of `read`.
        just_waiting: Those that had nothing to read then.
    """

    def __init__(
        self,
        source: Source,
        unread: Sequence[tuple[Split, JSON]],
        uid: str = "source",
        *,
        is_open: bool = False,
    ) -> None:
        self._source = source
        self._uid = uid
        self._unread = deque(unread)
        self._open: deque[_OpenSplit] = deque()
        self.is_open = is_open
        # Splits that came while the task ran, with the checkpoint from which on they count.
        self._since: dict[str, CheckpointId] = {}
        self.origin = ""
        self.just_ended: list[str] = []
        self.just_waiting: list[str] = []
        self._wake: Callable[[], None] | None = None
        self._trial: DecodingTrial | None = None
        # Positions to acknowledge once a checkpoint is complete.
        self._frozen: dict[CheckpointId, list[tuple[SplitReader, JSON]]] = {}
        # Of open splits, by the newest group that has ended; None: the queue is not in a log.
        self._logged: dict[str, JSON] | None = None
        self._given_since: list[tuple[Split, JSON]] = []
        self._ended_since: list[str] = []

    @property
    def is_drained(self) -> bool:
        """Whether every split has ended, and no other will come."""
        return not self._unread and not self._open and not self.is_open

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Give `wake` to the readers that will be opened: it ends a Wait, from any thread."""
        self._wake = wake

    def try_decoding(self, trial: DecodingTrial | None) -> None:
        """Have the readers try records in a copy of the process before they decode them; None: no more."""
        self._trial = trial
        for one in self._open:
            one.reader.try_decoding(trial)

    def add(self, splits: Sequence[tuple[Split, JSON]], since: CheckpointId, *, is_last: bool) -> None:
        """Take more splits, which belong to checkpoints from `since` on; after the last no others come."""
        self._unread += splits
        if self._logged is not None:
            self._given_since += splits
        self._since |= dict.fromkeys((split.split_id for split, _ in splits), since)
        self.is_open = self.is_open and not is_last

    @property
    def empty_split(self) -> str:
        """A split whose reader gives nothing but empty lists, "" if there is none."""
        return next((one.split.split_id for one in self._open if one.empty_reads >= EMPTY_READS_MIN), "")

    @property
    def lag(self) -> int | None:
        """Records that are known to wait in the open splits; None: no reader can tell."""
        known = [found for _, found in self.lags() if found is not None]
        return max(0, min(sum(known), LAG_MAX)) if known else None

    def lags(self) -> Iterator[tuple[str, int | None]]:
        """Yield the same of each open split."""
        for one in self._open:
            try:
                found = one.reader.lag
            except Exception:  # noqa: BLE001 - of a reader somebody else wrote; only people look at it
                found = None
            yield one.split.split_id, found if isinstance(found, int) else None

    def read(self, limit: int, held: Collection[str] = ()) -> list[Any] | Wait:
        """Return records of one split, at least one, or how long to wait; with `is_drained`, Wait(0).

        Args:
            held: Splits that are not to be read now.

        Raises:
            UserCodeError, ConnectorError: A split can't be opened; the message names it.
        """
        self.just_ended = []
        self.just_waiting = []
        shortest = _NEVER
        # So many at the end of the queue, each once: else one that waits beside others that are held is asked
        # as often as there are splits, and one more is opened each time.
        looked_at = 0
        idle_count = 0
        while True:
            while self._unread and len(self._open) < self._source.open_splits_max + idle_count:
                self._open_next(len(self._open) - looked_at)
            if looked_at == len(self._open):
                break
            current = self._open[0]
            if current.split.split_id in held:
                self._open.rotate(-1)
                looked_at += 1
                shortest = min(shortest, Wait(HELD_MS), key=lambda wait: wait.delay_ms)
                continue
            found = current.reader.read(limit)
            current.is_coming = isinstance(found, Wait) and found.is_coming
            match found:
                case EndOfSplit():
                    self._open.popleft()
                    self.just_ended.append(current.split.split_id)
                    if self._logged is not None:
                        self._ended_since.append(current.split.split_id)
                    current.reader.close()
                case Wait(delay_ms):
                    current.empty_reads = 0
                    self.just_waiting.append(current.split.split_id)
                    idle_count += 1
                    looked_at += 1
                    self._open.rotate(-1)
                    shortest = min(shortest, Wait(delay_ms), key=lambda wait: wait.delay_ms)
                case list():
                    self._open.rotate(-1)
                    if found:
                        current.empty_reads = 0
                        self.origin = current.split.split_id
                        return found
                    # Against the contract, and harmless unless it is asked again and again.
                    current.empty_reads += 1
                    looked_at += 1
                    shortest = min(shortest, Wait(1.0), key=lambda wait: wait.delay_ms)
                case _:
                    raise ConnectorError(
                        f"the reader of split {current.split.split_id!r} returned a "
                        f"{type(found).__name__}: expected a list of records, Wait or EndOfSplit"
                    )
        return Wait(0) if self.is_drained else shortest

    def _open_next(self, place: int) -> None:
        split, position = self._unread[0]
        try:
            reader = self._source.reader(split, own(position))
            if self._wake is not None:
                reader.wake_by(self._wake)
            if self._trial is not None:
                reader.try_decoding(self._trial)
        except BaseException as error:
            at = "" if position == split.start else f" at position {shortened(position)}"
            failed = f"source {self._uid!r}: split {shortened(split.split_id)} can't be opened{at}"
            if isinstance(error, CrosscutError):
                raise ConnectorError(f"{failed}: {error}", **error.ids) from error
            message = f"{failed}: {type(error).__name__}: {error}"
            raise connector_code_error(message, self._uid, error) from error
        self._unread.popleft()
        self._open.insert(place, _OpenSplit(split, reader))

    @property
    def open_ids(self) -> list[str]:
        """The ids of the splits that are being read."""
        return [one.split.split_id for one in self._open]

    @property
    def unfinished(self) -> list[str]:
        """The ids of the splits that have not ended."""
        return [one.split.split_id for one in self._open] + [split.split_id for split, _ in self._unread]

    def positions(self, without: Collection[str] = ()) -> JSON:
        """Return the unfinished splits, but those whose ids are in `without`, with their positions."""
        unfinished = [(one.split, position_of(one.reader)) for one in self._open] + list(self._unread)
        return [
            [split.split_id, split.start, split.detail, split.weight, position]
            for split, position in unfinished
            if split.split_id not in without
        ]

    def freeze(self, checkpoint_id: CheckpointId) -> JSON:
        """Return the positions that belong to a checkpoint, and remember them until it is complete."""
        self._since = {one: since for one, since in self._since.items() if since > checkpoint_id}
        listening = [one.reader for one in self._open if listens(one.reader)]
        if listening:
            self._frozen[checkpoint_id] = [(reader, position_of(reader)) for reader in listening]
        return self.positions(self._since)

    def acknowledge(self, checkpoint_id: CheckpointId) -> None:
        """Tell the readers that `checkpoint_id` is complete."""
        readers = {id(one.reader) for one in self._open}
        for reader, position in self._frozen.pop(checkpoint_id, ()):
            if id(reader) in readers:
                reader.acknowledge(position)
        self._frozen = {n: frozen for n, frozen in self._frozen.items() if n > checkpoint_id}

    # Changes, for a log.

    def record_changes(self, *, are_logged: bool) -> None:
        """Remember from now on what becomes of the splits, for `changes`.

        Args:
            are_logged: The log has the splits that are here, with their positions. Else the first changes
                give all of them.
        """
        unread = list(self._unread)
        self._logged = {split.split_id: position for split, position in unread} if are_logged else {}
        self._given_since = [] if are_logged else unread

    def changes(self) -> SplitChanges:
        """Return what has become of the splits since this was called last, or since `record_changes`."""
        logged = self._logged
        if logged is None:
            raise InternalError(f"source {self._uid!r} was not told to remember changes")
        given, self._given_since = self._given_since, []
        ended, self._ended_since = self._ended_since, []
        logged |= {split.split_id: position for split, position in given}
        moved = []
        for one in self._open:
            split_id, position = one.split.split_id, position_of(one.reader)
            if logged[split_id] != position:
                moved.append((split_id, position))
                logged[split_id] = position
        for split_id in ended:
            del logged[split_id]
        rows: tuple[JSON, ...] = tuple(
            [split.split_id, split.start, split.detail, split.weight, position] for split, position in given
        )
        return SplitChanges(rows, tuple(moved), tuple(ended))

    @property
    def listening(self) -> dict[str, JSON]:
        """The positions of the open splits whose readers are to be told what is durable."""
        return {one.split.split_id: position_of(one.reader) for one in self._open if listens(one.reader)}

    def acknowledge_position(self, split_id: str, position: JSON) -> None:
        """Tell the reader of a split that what is before `position` is durable."""
        for one in self._open:
            if one.split.split_id == split_id and listens(one.reader):
                one.reader.acknowledge(position)

    def close(self) -> None:
        """Close every reader; the first error is raised after all were tried."""
        with ExitStack() as stack:
            while self._open:
                stack.callback(self._open.pop().reader.close)


def listens(reader: SplitReader) -> bool:
    """Whether it is to be told what is part of a completed checkpoint."""
    return type(reader).acknowledge is not SplitReader.acknowledge


def checked_splits(found: object, uid: str) -> list[Split]:
    """Return `found`, which `Source.splits` of source `uid` has returned, if a job can go by it.

    Raises:
        ConnectorError: It can't; the message says why, and how to mend it.
    """
    splits = check_ids(found, uid, "splits")
    if not splits:
        raise ConnectorError(
            f"source {uid!r} has found nothing to read: splits() returned no split at all. If there is "
            f"nothing yet, return a split whose reader answers crosscut.Wait; else raise ConnectorError "
            f"there, with what was looked for"
        )
    return splits


def check_ids(found: object, uid: str, method: str) -> list[Split]:
    """Return the splits that a method of source `uid` has returned, if each is one, with an id of its own.

    Raises:
        ConnectorError: They are something else.
    """
    if not isinstance(found, Iterable):
        raise ConnectorError(
            f"source {uid!r}: {method}() returned {shortened(found)}: expected a list of crosscut.Split"
        )
    splits: list[Any] = list(found)
    for one in splits:
        if not isinstance(one, Split):
            raise ConnectorError(
                f"source {uid!r}: {method}() returned {shortened(one)} as a split: expected crosscut.Split"
            )
    counts = Counter(one.split_id for one in splits)
    if repeated := [split_id for split_id, count in counts.items() if count > 1]:
        shown = ", ".join(map(shortened, repeated[:SPLITS_SHOWN_MAX]))
        more = f" and {len(repeated) - SPLITS_SHOWN_MAX} more" if len(repeated) > SPLITS_SHOWN_MAX else ""
        raise ConnectorError(
            f"source {uid!r}: {method}() returned more than one split with the id {shown}{more}: an id is "
            f"what tells the splits of a source apart; make each of them unique, and the same at every "
            f"discovery"
        )
    return splits


def check_shares(assignments: Iterable[SplitAssignment]) -> None:
    """Refuse splits that would not fit into the message that deploys the tasks of their worker.

    Raises:
        ConnectorError: The message names the number and the limit.
    """
    counts: Counter[int] = Counter()
    sizes_bytes: Counter[int] = Counter()
    for one in assignments:
        if isinstance(one.splits, list):
            counts[one.task.index] += len(one.splits)
            sizes_bytes[one.task.index] += len(json.dumps(one.splits, separators=(",", ":")))
    for index, size_bytes in sizes_bytes.most_common(1):
        if size_bytes > SHARE_BYTES_MAX:
            fitting = counts[index] * SHARE_BYTES_MAX // size_bytes
            raise ConnectorError(
                f"worker {index} would get {counts[index]} splits, {size_bytes} bytes with what the sources "
                f"say of them; at most {SHARE_BYTES_MAX} bytes fit into the message that deploys its tasks, "
                f"which is about {fitting} such splits: return fewer and larger ones, say less of each "
                f"(Split.detail), or raise parallelism"
            )


def split_as_json(split: Split) -> JSON:
    """Return `split`, unread, in the form that `splits_from_json` takes."""
    return [split.split_id, split.start, split.detail, split.weight, split.start]


def own(position: JSON) -> JSON:
    """Return a position that no reader can change: it may keep the one that it has given or been given."""
    return deepcopy(position) if isinstance(position, (dict, list)) else position


def position_of(reader: SplitReader) -> JSON:
    """Return where `reader` is now, whatever it does with that object later."""
    return own(reader.position)


def splits_from_json(data: JSON) -> list[tuple[Split, JSON]]:
    """Return splits with positions from the form of `SplitQueue.positions` and `split_as_json`.

    Raises:
        ConnectorError: It is something else.
    """
    try:
        rows: Any = data
        return [(Split(uid, start, detail, weight), at) for uid, start, detail, weight, at in rows or []]
    except (TypeError, ValueError) as error:
        raise ConnectorError(f"source positions are not readable: {data!r:.200}") from error
