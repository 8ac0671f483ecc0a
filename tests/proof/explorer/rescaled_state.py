"""A small job that changes its parallelism, as a value; see `tests.proof.explorer.rescaling`."""

from __future__ import annotations

from ast import literal_eval
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from crosscut.foundation.ids import TaskId, VertexId
from crosscut.foundation.keys import key_group, owner_of_group
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Snapshot

READ, KEYED = VertexId("read"), VertexId("keyed")
MAX_PARALLELISM = 8
TIMES = "times"
LINKS = ((READ, KEYED, True),)

Item = tuple[str, int]
"""What is in a channel: a record by number, a watermark, a barrier, or the end."""


class Record(NamedTuple):
    """A record of a split: its time is its place there, from 1."""

    split: str
    time: int
    key: int


class Rows(NamedTuple):
    """The state of a keyed task: records that it has seen, and those of them that wait for their timer."""

    seen: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()


class Reader(NamedTuple):
    """A source task.

    Attributes:
        positions: Of each unfinished split, in the form of a snapshot.
        assigned: What its `assign_timestamps` keeps.
    """

    protocol: int
    positions: tuple[tuple[str, int], ...]
    assigned: str
    has_ended: bool = False


class Keeper(NamedTuple):
    """A keyed task.

    Attributes:
        watermark: That of its inputs together, and `sides` that of each.
        told: What its operators go by; lower, while it processes what was on its way.
        replay: What was on its way, with the watermarks in between; it comes before all else.
        captured: Its snapshots that wait for the logs of channels.
        out: What it has given out since its last capture.
    """

    protocol: int
    rows: Rows
    watermark: int | None
    sides: tuple[tuple[int, int | None], ...]
    told: int | None
    replay: tuple[Item, ...] = ()
    captured: tuple[tuple[int, int], ...] = ()
    logs: tuple[tuple[int, int, int], ...] = ()
    out: tuple[int, ...] = ()


class State(NamedTuple):
    """The whole job. `snapshots` are those of checkpoints under way, as (n, task, place in `contents`)."""

    parallelism: int
    readers: tuple[Reader, ...]
    keepers: tuple[Keeper, ...]
    queues: tuple[tuple[Item, ...], ...]
    triggered: int
    snapshots: tuple[tuple[int, int], ...]
    complete: int
    visible: tuple[int, ...]
    savepoint: tuple[int, tuple[int, ...]] | None
    to_come: tuple[int, ...]
    checkpoints: int
    savepoints: int


class Content(NamedTuple):
    """What a captured task was.

    Attributes:
        heard: The watermark of the operators: none of its keys may ever see an older one.
    """

    n: int
    task: TaskId
    snapshot: Snapshot
    rows: Rows
    heard: int | None
    log: tuple[tuple[int, int], ...]
    out: tuple[int, ...]


class Complete(NamedTuple):
    """A complete checkpoint, with what its tasks were."""

    entry: CheckpointCompleted
    contents: tuple[Content, ...]


@dataclass(frozen=True)
class Bounds:
    """How much of the world is explored.

    Attributes:
        parallelisms: With which it begins, and with which it goes on after each death.
        records: The keys of the records of each split.
        savepoints: So many checkpoints may become savepoints, of which a job may begin instead of going on.
    """

    parallelisms: tuple[int, ...]
    records: tuple[tuple[int, ...], ...] = ((0, 1), (1, 0))
    checkpoints: int = 1
    in_flight: int = 1
    savepoints: int = 0


def group_of(record: Record) -> int:
    """Return its key group."""
    return key_group(record.key, MAX_PARALLELISM)


def owner_of(record: Record, parallelism: int) -> int:
    """Return which keyed task gets it."""
    return owner_of_group(group_of(record), MAX_PARALLELISM, parallelism)


def replaced(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    """Return `items` with another one at `at`."""
    return (*items[:at], item, *items[at + 1 :])


def repeated(items: tuple[int, ...] | list[int]) -> list[int]:
    """Return what is there more than once."""
    return [one for one, other in pairwise(sorted(items)) if one == other]


def read_back(kept: str) -> Any:
    """Return what `AssignTimestamps.saved` was, which a state holds as text."""
    return literal_eval(kept)
