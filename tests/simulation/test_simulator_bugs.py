"""The simulator is able to fail: it finds each bug that is planted into the runtime, within some seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from crosscut.ids import CheckpointId
from crosscut.protocol.aligned import AlignedBarriers
from crosscut.protocol.choosing import ProtocolKind
from crosscut.protocol.commit import Committer
from crosscut.protocol.effects import CommitterEffect
from crosscut.protocol.events import CommitterEvent, TransactionPrepared
from crosscut.protocol.messages import DeployTasks, HaltTasks, Part
from crosscut.runtime import channel_log, deployment
from crosscut.runtime.items import Barrier, LoggedBatch
from crosscut.runtime.task import Task
from crosscut.state.keyed import KeyedState
from crosscut.testing.simulator.graphs import GRAPHS
from crosscut.testing.simulator.options import options_of
from crosscut.testing.simulator.pool import Runner, VirtualPool
from crosscut.testing.simulator.shrink import live
from crosscut.testing.simulator.worker import VirtualWorker

# A killed worker does not close the files that its back edges have spilled to; a real process need not.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SEEDS_MAX = 80
EXACTLY_ONCE: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching")

Plant = Callable[[pytest.MonkeyPatch], None]


def found(graphs: Sequence[str], protocols: tuple[ProtocolKind, ...]) -> str:
    """Return what the first seed that finds something finds."""
    for seed in range(SEEDS_MAX):
        life = live(replace(options_of(seed, tuple(graphs), protocols), is_periodic=True))
        if life.failure:
            return life.failure
    return ""


def log_replayed_twice(patch: pytest.MonkeyPatch) -> None:
    plain = channel_log.decoded_log
    patch.setattr(deployment, "decoded_log", lambda data: 2 * plain(data))


def log_not_replayed(patch: pytest.MonkeyPatch) -> None:
    def nothing(data: bytes) -> list[LoggedBatch]:
        return []

    patch.setattr(deployment, "decoded_log", nothing)


def halt_and_older_channels_ignored(patch: pytest.MonkeyPatch) -> None:
    plain_told = VirtualWorker.told

    def told(self: VirtualWorker, message: Any) -> None:
        if isinstance(message, DeployTasks) and self.pool is not None:
            # It goes on with the tasks that it has, under the new epoch.
            self.pool.epoch = message.epoch
        elif not isinstance(message, HaltTasks):
            plain_told(self, message)

    patch.setattr(VirtualWorker, "told", told)


def barrier_to_another_worker_lost(patch: pytest.MonkeyPatch) -> None:
    plain = VirtualPool.send

    def send(self: VirtualPool, sender: Runner, channel: Any, item: Any) -> None:
        is_lost = isinstance(item, Barrier) and channel.source.index > channel.target.index
        if not is_lost:
            plain(self, sender, channel, item)

    patch.setattr(VirtualPool, "send", send)


def output_not_flushed_before_a_barrier(patch: pytest.MonkeyPatch) -> None:
    def send_to_all(self: Task, item: Any) -> None:
        if not isinstance(item, Barrier):
            self.flush()
        self.outbox += [(channel, item) for output in self.outputs for channel in output.channels]

    patch.setattr(Task, "_send_to_all", send_to_all)


def committed_when_prepared(patch: pytest.MonkeyPatch) -> None:
    plain = Committer.handle

    def handle(self: Committer, event: CommitterEvent) -> list[CommitterEffect]:
        effects = plain(self, event)
        if isinstance(event, TransactionPrepared) and self._in_flight is None:
            self._authorised = event.checkpoint_id
            effects += self._next()
        return effects

    patch.setattr(Committer, "handle", handle)


def no_commit_on_restore(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deployment, "restore_permit", lambda *_: None)


def state_rolled_back_too_far(patch: pytest.MonkeyPatch) -> None:
    plain = KeyedState.loading

    def loading(self: KeyedState, parts: Any, checkpoint_id: CheckpointId, owns: Any) -> Iterator[None]:
        chain = list(parts)
        return plain(self, iter(chain[:-1] if len(chain) > 1 else chain), checkpoint_id, owns)

    patch.setattr(KeyedState, "loading", loading)


def state_not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    def roll_back(self: KeyedState, checkpoint_id: CheckpointId) -> None:
        self._frozen.clear()

    patch.setattr(KeyedState, "roll_back", roll_back)


def captured_without_blocking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AlignedBarriers, "is_blocked", lambda self, channel: False)


def acknowledged_before_durable(patch: pytest.MonkeyPatch) -> None:
    def write(self: VirtualPool, runner: Runner, frozen: Any, chunks: Any, answer: Any) -> None:
        task, n = runner.task.task_id, frozen.checkpoint_id
        part = Part(f"parts/{n}/{task.vertex}-{task.index}-{self.epoch}-0", 1, "0" * 64)
        answer(part, None)

    patch.setattr(VirtualPool, "_write", write)


def position_saved_one_record_too_far(patch: pytest.MonkeyPatch) -> None:
    from crosscut.runtime.splits import SplitQueue

    plain = SplitQueue.positions

    def positions(self: SplitQueue) -> Any:
        rows: Any = plain(self)
        return [[*row[:-1], row[-1] + 1] for row in rows]

    patch.setattr(SplitQueue, "positions", positions)


def only_own_transaction_committed(patch: pytest.MonkeyPatch) -> None:
    plain = VirtualPool._commit

    def commit(self: VirtualPool, runner: Runner, effect: Any) -> None:
        plain(self, runner, replace(effect, handles=effect.handles[-1:]))

    patch.setattr(VirtualPool, "_commit", commit)


ANY = tuple(GRAPHS)
LOOPS = ("loop", "nested loops")
COUNTS = ("chain", "union", "rebalance")
BUGS: list[tuple[Plant, Sequence[str], tuple[ProtocolKind, ...]]] = [
    (log_replayed_twice, LOOPS, EXACTLY_ONCE),
    (log_not_replayed, LOOPS, EXACTLY_ONCE),
    (halt_and_older_channels_ignored, ANY, EXACTLY_ONCE),
    (barrier_to_another_worker_lost, COUNTS, ("aligned",)),
    (output_not_flushed_before_a_barrier, ANY, ("aligned",)),
    (committed_when_prepared, ANY, EXACTLY_ONCE),
    (no_commit_on_restore, ANY, EXACTLY_ONCE),
    (state_rolled_back_too_far, COUNTS, EXACTLY_ONCE),
    (state_not_rolled_back, COUNTS, EXACTLY_ONCE),
    (captured_without_blocking, COUNTS, ("aligned",)),
    (acknowledged_before_durable, COUNTS, EXACTLY_ONCE),
    (position_saved_one_record_too_far, ANY, EXACTLY_ONCE),
    (only_own_transaction_committed, ANY, EXACTLY_ONCE),
]


@pytest.mark.parametrize(("plant", "graphs", "protocols"), BUGS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_bug_is_found(
    plant: Plant, graphs: Sequence[str], protocols: tuple[ProtocolKind, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert found(graphs, protocols), f"{plant.__name__} survived {SEEDS_MAX} seeds"


def test_the_planted_bugs_are_the_only_ones() -> None:
    for seed in range(5):
        assert live(options_of(seed, ANY, EXACTLY_ONCE)).failure == ""
