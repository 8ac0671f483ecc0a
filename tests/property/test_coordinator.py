"""The whole protocol core in a small virtual world, with everything going wrong that may.

`tests.simulation.protocol_world` says what the world is and which invariants it checks.
"""

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.simulation.protocol_world import Seeded, Tape, World

SEEDS = 1_500
STEPS = 600

GOALS = (
    "append applied after its time",
    "append refused",
    "attempt held in reserve",
    "checkpoint aborted in the middle of its alignment",
    "checkpoint with transactions of earlier barriers",
    "commit without an answer",
    "driver crash while FINISHING",
    "driver crash while RESTORING",
    "driver crash while RUNNING",
    "driver crash while STOPPING",
    "job cancelled",
    "job failed",
    "job fenced",
    "job finished",
    "job stopped",
    "late answer of the store",
    "part deleted",
    "paused worker came back",
    "phase CLAIMING",
    "phase ENDED",
    "phase FINISHING",
    "phase GATHERING",
    "phase RESTORING",
    "phase RUNNING",
    "phase STOPPING",
    "phase WAITING",
    "repeated RegisterWorker",
    "repeated SnapshotAcknowledged",
    "repeated TransactionsCommitted",
    "repeated WorkerReady",
    "restore of a checkpoint",
    "several transactions committed at once",
    "snapshot could not be stored",
    "Spark gave the workers up",
    "staged transaction aborted by a restore",
    "store hangs at CheckpointCompleted",
    "store hangs at EpochClaimed",
    "store hangs at JobFinished",
    "store hangs at deleting",
    "store hangs at reading back",
    "task failure",
    "transaction committed again",
    "two drivers at once",
    "uncertain or taken entry read back",
    "worker crash while FINISHING",
    "worker crash while RESTORING",
    "worker crash while RUNNING",
    "worker dropped a stale message",
    "worker replaced for its silence",
    "zombie restored",
)
"""Rare states that a batch of seeds has to reach: a world in which nothing happens proves nothing."""


@settings(max_examples=250)
@example(b"")
@given(st.binary(min_size=100, max_size=1_600))
def test_every_record_is_in_the_output_exactly_once_whatever_happens(tape: bytes) -> None:
    """A1, A3, A4, A5, B1, B2, B3, B4, B5, C1, C2, C5, D3, D4, F1, F2, F5, F6, F7: I1 to I10."""
    World(Tape(tape)).run()


def test_a_batch_of_seeds_holds_every_invariant_and_reaches_every_rare_state() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            seen += World(Seeded(seed, STEPS)).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert [goal for goal in GOALS if not seen[goal]] == []


def test_the_same_seed_is_the_same_world() -> None:
    first, second = World(Seeded(11, STEPS)), World(Seeded(11, STEPS))
    assert first.run() == second.run()
    assert first.log == second.log
    assert first.resource.committed == second.resource.committed


def test_a_calm_world_finishes_without_a_single_failure() -> None:
    world = World(Tape(b""))
    world.run()
    assert world.drivers[0].coordinator.failures == ()
    assert len(world.drivers) == 1
