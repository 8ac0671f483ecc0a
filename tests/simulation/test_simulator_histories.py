"""N1 in virtual worlds: a store that loses newest entries of the job log, which it had promised to keep.

No job can go on from there without writing its output a second time, and so none does: the driver sees at
the sinks what the log does not know any more.
"""

from __future__ import annotations

import pytest
from tests.proof.worlds.graphs import built

from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.world import World
from test_simulator_scenarios import EXACTLY_ONCE, world

COMMITTED_MIN = 3


def lived_until_committed(protocol: ProtocolKind, seed: int) -> World:
    """A job in the middle of its input, some of whose output is visible, and whose processes are gone."""
    options = world(seed, "chain", protocol, retain=10, record_count=30)
    one = World(options, built(options))
    while len(one.resource.committed) < COMMITTED_MIN:
        one.go_on()
    # Workers would still commit what they have been told to.
    for process in one.processes:
        process.die("killed by the test")
    return one


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
@pytest.mark.parametrize("share", ["the newest", "all"])
def test_a_driver_whose_log_has_lost_entries_claims_nothing(protocol: ProtocolKind, share: str) -> None:
    one = lived_until_committed(protocol, seed=2)
    entries = sorted(path for path in one.files.content if path.endswith(".json"))
    one.files.lose_entries(len(entries) if share == "all" else len(entries) // 2 + 1)
    left = {path for path in one.files.content if path.endswith(".json")}
    before = dict(one.resource.committed)
    one.run()
    assert one.seen["ended loudly after a broken promise"] == 1
    end = one.drivers[-1].end
    assert end is not None and end.cause is not None and end.cause.kind == "HistoryError"
    expected = "another history" if share == "all" else "job log has lost entries"
    assert expected in end.cause.message
    assert {path for path in one.files.content if path.endswith(".json")} == left, "an epoch was claimed"
    assert one.resource.committed == before


def test_a_driver_whose_log_is_whole_goes_on() -> None:
    one = lived_until_committed("aligned", seed=2)
    one.run()
    assert one.seen["job finished"] == 1
