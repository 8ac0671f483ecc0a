"""What goes through Spark's shuffle between two stages of a batch: few, large shuffle blocks, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crosscut.contracts.codec import from_json, to_text
from crosscut.errors import InternalError, StateError, WireError
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.net.causes import failure_cause
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.attempts import Attempt, Partition
from crosscut.wire.frames import FrameType, Payload

SHUFFLE_BLOCK_BYTES = 1024 * 1024
"""A shuffle block leaves when it has so much."""

Posted = tuple[ChannelId, FrameType, Payload]
"""One item on a channel, as a frame would carry it between two workers."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt could not come to its end."""

    task: TaskId
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class ShuffleBlock:
    """Items from an attempt at one partition to one partition of the next stage.

    Attributes:
        name: Of the attempt.
        number: Shuffle blocks of an attempt to one partition are counted from 0, and taken in this order.
        is_last: No other follows.
        brought: With the last one to the partition of the same index: see `attempts.chosen`.
        failure: The attempt has failed, or one that it has read: nothing of the batch counts.
    """

    partition: Partition
    name: str
    number: int
    items: list[Posted] = field(default_factory=list)
    is_last: bool = False
    brought: tuple[Attempt, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """What a partition of the last stage tells the driver: as JSON, since the driver unpickles no result."""

    index: int
    brought: tuple[Attempt, ...] = ()
    failure: Failure | None = None


def encoded_result(index: int, shuffle_block: ShuffleBlock) -> bytes:
    """Return the last shuffle block of partition `index` as bytes for the driver.

    What can't be written, such as a position that is no JSON, is a failure of the task that has it.
    """
    try:
        return to_text(PartitionResult(index, shuffle_block.brought, shuffle_block.failure)).encode("ascii")
    except StateError as error:
        task = TaskId(VertexId("?"), index)
        for one in (one for attempt in shuffle_block.brought for one in attempt.snapshots):
            try:
                to_text(one)
            except StateError:
                task = one.task
                break
        return to_text(PartitionResult(index, failure=Failure(task, failure_cause(error)))).encode("ascii")


def decoded_result(data: bytes) -> PartitionResult:
    """Return what `encoded_result` made `data` from.

    Raises:
        WireError: `data` is nothing of the kind.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a result of {len(data)} bytes from a partition is not JSON: {error}") from error
    result: PartitionResult = from_json(content, (PartitionResult,), WireError)
    return result


class Outbox:
    """Collects what an attempt sends to partitions of the next stage.

    Args:
        targets: Their indices; of the last stage its own one only, for the driver.
    """

    def __init__(self, partition: Partition, name: str, targets: Sequence[int]) -> None:
        self._partition = partition
        self._name = name
        self._targets = targets
        self._numbers = dict.fromkeys(targets, 0)
        self._items: dict[int, list[Posted]] = {target: [] for target in targets}
        self._sizes = dict.fromkeys(targets, 0)
        self._ready: list[tuple[int, ShuffleBlock]] = []

    def post(self, one: Posted) -> None:
        """Send an item, after those before, to the partition of the task that it is for."""
        target = one[0].target.index
        self._items[target].append(one)
        self._sizes[target] += len(one[2])
        if self._sizes[target] >= SHUFFLE_BLOCK_BYTES:
            self._close(target)

    def take(self) -> Iterator[tuple[int, ShuffleBlock]]:
        """Yield the full shuffle blocks, each with its target; they are gone then."""
        ready, self._ready = self._ready, []
        return iter(ready)

    def end(self, brought: tuple[Attempt, ...]) -> None:
        """Send all that is left: the attempt has come to its end."""
        for target in self._targets:
            mine = brought if target == self._partition.index else ()
            self._close(target, is_last=True, brought=mine)

    def fail(self, failure: Failure) -> None:
        """Send the failure to every target, instead of what is not sent yet."""
        self._ready.clear()
        for target in self._targets:
            self._items[target].clear()
            self._close(target, is_last=True, failure=failure)

    def _close(
        self,
        target: int,
        *,
        is_last: bool = False,
        brought: tuple[Attempt, ...] = (),
        failure: Failure | None = None,
    ) -> None:
        number = self._numbers[target]
        shuffle_block = ShuffleBlock(
            self._partition, self._name, number, self._items[target], is_last, brought, failure
        )
        self._ready.append((target, shuffle_block))
        self._numbers[target] += 1
        self._items[target], self._sizes[target] = [], 0


class ShuffleInput:
    """Puts the shuffle blocks that a partition gets into order.

    A shuffle promises no order; in practice the blocks of an attempt come as they were sent, and nothing
    waits here.
    """

    def __init__(self, partition: Partition, parallelism: int) -> None:
        self._partition = partition
        self._parallelism = parallelism
        self._next = [0] * parallelism
        self._early: list[dict[int, ShuffleBlock]] = [{} for _ in range(parallelism)]
        self._names: dict[int, str] = {}
        self._ended: set[int] = set()

    def put(self, shuffle_block: ShuffleBlock) -> Iterator[ShuffleBlock]:
        """Take a shuffle block in; yield those whose turn it is now.

        Raises:
            InternalError: It is of another stage, or of a second attempt at the same partition.
        """
        sender = shuffle_block.partition.index
        known = self._names.setdefault(sender, shuffle_block.name)
        if shuffle_block.partition.stage != self._partition.stage - 1 or known != shuffle_block.name:
            raise InternalError(
                f"{self._partition} has got a shuffle block of {shuffle_block.partition} from attempt "
                f"{shuffle_block.name}: expected one of stage {self._partition.stage - 1}, attempt {known}"
            )
        early = self._early[sender]
        early[shuffle_block.number] = shuffle_block
        while (following := early.pop(self._next[sender], None)) is not None:
            self._next[sender] += 1
            if following.is_last:
                self._ended.add(sender)
            yield following

    @property
    def read(self) -> tuple[str, ...]:
        """The attempts that have been read, by index.

        Raises:
            InternalError: Not all of each has come.
        """
        missing = sorted(set(range(self._parallelism)) - self._ended)
        if missing:
            raise InternalError(
                f"{self._partition} has not got all that partitions {missing} of the stage before have sent: "
                f"the shuffle has lost something"
            )
        return tuple(self._names[index] for index in range(self._parallelism))
