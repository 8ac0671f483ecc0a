"""Identifiers: the words of docs/protocol.md as types.

Everything here is a plain value: equal by content, ordered, hashable, picklable, and the same in
every process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NewType

from crosscut.errors import FlowError

Lineage = NewType("Lineage", str)
"""Identity of a job's history; restoring a snapshot into a new job starts a new lineage."""

Epoch = NewType("Epoch", int)
"""Fencing token: grows at every (re)start and failover; only the newest may act. 0 means none yet."""

CheckpointId = NewType("CheckpointId", int)
"""n: grows from 1 and is never reused, across epochs too. 0 means none yet."""

VertexId = NewType("VertexId", str)
"""A chain of operators in the compiled graph."""

WorkerIndex = NewType("WorkerIndex", int)
"""Which task of every vertex a worker hosts, from 0."""

AttemptId = NewType("AttemptId", int)
"""Spark's unique id of one attempt of one Spark task (its attempt *numbers* repeat)."""

KeyGroup = NewType("KeyGroup", int)
"""stable_hash(key) mod max_parallelism: the unit in which keyed state is redistributed."""

NAME_CHARACTERS_MAX = 64

PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
"""What a name that becomes part of a path may look like (rule S10): no separator, no leading dot."""


def checked_name(name: str, what: str) -> str:
    """Return `name` if it can be a path component in every store, else raise.

    Args:
        name: The candidate, at most 64 characters.
        what: What the name is for, as the error should call it ("operator uid").

    Raises:
        FlowError: `name` has other characters than letters, digits, `_`, `-` and inner dots.
    """
    if not isinstance(name, str) or PLAIN_NAME.fullmatch(name) is None:
        raise FlowError(
            f"{what} {name!r} is not usable: expected 1 to 64 letters, digits, '_', '-' or '.' "
            f"(not starting with '.'), since it becomes part of a path in the checkpoint store"
        )
    return name


class _HashedOnce:
    """Looked up far more often than made. The hash is no field: it is another one in every process."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True, order=True)
class TaskId(_HashedOnce):
    """One parallel instance of a vertex."""

    vertex: VertexId
    index: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.vertex, self.index)))
            return self._hash

    def __str__(self) -> str:
        return f"{self.vertex}[{self.index}]"


@dataclass(frozen=True, slots=True, order=True)
class LogIndex:
    """Where an entry is in the job log: entry `number` of segment `segment`.

    Segments count from 1. Number 0 is the segment's head; later ones are greater.
    """

    segment: int
    number: int

    def __str__(self) -> str:
        return f"{self.segment}/{self.number}"


@dataclass(frozen=True, slots=True, order=True)
class ChannelId(_HashedOnce):
    """A directed FIFO link between two tasks, called by what it joins: snapshots name it, and a flow whose
    independent parts are written in another order still has it.

    `input` is the position among the inputs of the target's vertex: two tasks may be joined more than once.
    """

    input: int
    source: TaskId
    target: TaskId

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.input, self.source, self.target)))
            return self._hash

    def __str__(self) -> str:
        return f"{self.source}->{self.target}#{self.input}"
