"""Outages of the checkpoint store: a job bears them for as long as it is told to (I15)."""

from __future__ import annotations

import pytest
from tests.proof.worlds.shrinking import live, report
from tests.simulation.test_simulator_scenarios import EXACTLY_ONCE, at, world

from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.options import Options, PlannedFault

LOG_IS_AWAY = at("take the log away", 100, 2)
"""For 6.4 s: more than the attempts at an entry of a driver that counts them."""
NO_PARTS = tuple(at("refuse a part", ms, choice) for ms in range(100, 4_000, 20) for choice in (1, 4))


def outage(protocol: ProtocolKind, *faults: PlannedFault, outage_ms: int = 60_000) -> Options:
    return world(
        1,
        "chain",
        protocol,
        faults=faults,
        safety_ms=9_000,
        outage_ms=outage_ms,
        source_ms=4_000,
        interval_ms=50,
    )


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
@pytest.mark.parametrize(
    "faults",
    [(LOG_IS_AWAY,), (LOG_IS_AWAY, at("kill a worker", 150)), NO_PARTS],
    ids=["checkpoints", "a failover", "parts"],
)
def test_a_job_outlives_a_store_that_is_down_for_seconds(
    protocol: ProtocolKind, faults: tuple[PlannedFault, ...]
) -> None:
    """D4, P5, I15: in the middle of checkpoints, and with a worker to be replaced meanwhile."""
    life = live(outage(protocol, *faults))
    assert not life.failure, report(life)
    assert life.seen["job failed"] == 0
    assert life.seen["job finished"] == 1


def test_a_job_that_ends_in_an_outage_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I15: the planted bug gives the job up at the first failed checkpoint."""

    def gives_up(self: Coordinator, effects: list[object]) -> list[object]:
        failed = self.checkpoints.failed
        if failed.last_failure and self.phase is Phase.RUNNING:
            failed._permanent_in_a_row = 1_000
            cause = failed.cause
            return [*effects, *self._end("failed", cause)]
        return effects

    monkeypatch.setattr(Coordinator, "_unless_too_many", gives_up)
    life = live(outage("aligned", *NO_PARTS))
    assert "I15" in str(life.failure)
