"""The scenarios of reliability.md that a virtual world can show: each on purpose, in a handful of worlds.

A plan says what happens and when. `survives` lets worlds live with it, under every exactly-once protocol;
all checkers watch, the output has to be exact, and what the scenario is about has to have happened.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.proof.worlds.shrinking import live, report

from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.options import FaultKind, Moment, Options, PlannedFault, options_of

EXACTLY_ONCE: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching", "halting")


SEEDS = range(1)
"""Of the worlds of all scenarios here that name none of their own. `make prove` has more."""


@pytest.fixture(
    autouse=True,
    params=[pytest.param(SEEDS, id="one"), pytest.param(range(2), id="two", marks=pytest.mark.proof)],
)
def seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SEEDS", request.param)


def world(seed: int, graph: str, protocol: ProtocolKind, **changed: Any) -> Options:
    """A world of two workers in which nothing goes wrong by itself, and a checkpoint takes about 10 ms."""
    options = replace(
        options_of(seed, (graph,), (protocol,)),
        theme="",
        graph=graph,
        snapshots=protocol,
        parallelism=2,
        is_periodic=True,
        alignment_timeout_ms=5,
        splits_per_task=1,
        record_count=8,
        source_ms=200,
        batch_rows=3,
        channel_bytes=200,
        inline_bytes=0,
        retain=1,
        interval_ms=20,
        pause_ms=0,
        in_flight_max=1,
        checkpoint_timeout_ms=60,
        heartbeat_timeout_ms=200,
        spark_attempts_max=100,
        spark_start_ms=5,
        latency_us=500,
        step_us=200,
        store_us=2_000,
        safety_ms=800,
        faults=(),
    )
    return replace(options, **changed)


def at(kind: FaultKind, ms: int, choice: int = 0) -> PlannedFault:
    """A fault at a time."""
    return PlannedFault(ms, kind, choice)


def when(kind: FaultKind, moment: Moment, nth: int = 1, choice: int = 0, after_ms: int = 40) -> PlannedFault:
    """A fault at a moment: the `nth` after `after_ms`."""
    return PlannedFault(after_ms, kind, choice, moment, nth)


def survives(
    *faults: PlannedFault,
    must: Sequence[str] = (),
    graphs: Sequence[str] = ("chain",),
    protocols: Sequence[ProtocolKind] = EXACTLY_ONCE,
    seeds: Sequence[int] = (),
    **changed: Any,
) -> Counter[str]:
    """Let worlds live with these faults; return what they have seen."""
    seen: Counter[str] = Counter()
    for graph in graphs:
        for protocol in protocols:
            for seed in seeds or SEEDS:
                life = live(world(seed, graph, protocol, faults=faults, **changed))
                assert not life.failure, report(life)
                seen += life.seen
    kinds = {f"fault: {fault.kind}" for fault in faults}
    moments = {f"moment: {fault.moment}" for fault in faults if fault.moment}
    missing = sorted({*kinds, *moments, *must} - seen.keys())
    assert not missing, f"never happened: {missing}"
    return seen


def test_nothing_happens_where_nothing_goes_wrong() -> None:
    seen = survives(graphs=("chain", "union", "loop"))
    assert seen["epoch"] == len(EXACTLY_ONCE) * len(SEEDS) * 3, "no failover came of it"


# Task crash.


@pytest.mark.parametrize("nth", [1, 3, 8])
def test_a_source_dies_behind_its_records_and_before_its_barrier(nth: int) -> None:
    """A1"""
    survives(when("kill a worker", "source.sent", nth), graphs=("chain", "union"))


def test_a_task_with_two_inputs_dies_in_the_middle_of_an_alignment() -> None:
    """A2"""
    survives(when("kill a worker", "align.partial", 2), graphs=("union", "rebalance"), protocols=("aligned",))


def test_a_task_with_two_inputs_dies_while_it_logs_a_channel() -> None:
    """A2"""
    survives(
        when("kill a worker", "snapshot.logging", 1),
        graphs=("union", "rebalance", "diamond"),
        protocols=("unaligned", "switching"),
        seeds=range(4),
        channel_bytes=50,
        record_count=25,
    )


@pytest.mark.parametrize("moment", ["snapshot.frozen", "snapshot.encoded"])
def test_a_worker_dies_with_its_state_frozen_or_half_written(moment: Moment) -> None:
    """A3"""
    survives(when("kill a worker", moment, 2), must=["effect: ListParts"], graphs=("chain", "two sinks"))


def test_a_worker_dies_when_its_part_is_durable_and_nobody_knows() -> None:
    """A4"""
    survives(when("kill a worker", "snapshot.stored", 3), graphs=("chain", "union"))


def test_an_acknowledgement_gets_lost_with_its_link_or_comes_twice() -> None:
    """A4"""
    survives(when("break a control link", "snapshot.stored", 2, choice=0))
    survives(
        *(when("repeat a message", "driver.acknowledged", nth, choice=3 * nth) for nth in range(1, 20)),
        must=["drop: repeated acknowledgement"],
        graphs=("union",),
    )


def test_a_worker_dies_while_it_restores_twice_and_then_when_it_closes() -> None:
    """A5"""
    survives(
        when("kill a worker", "source.sent", 2),
        when("kill a worker", "restore.state", 1),
        when("kill a worker", "restore.task", 5),
        when("kill a worker", "close", 1),
        graphs=("chain", "loop"),
    )


def test_a_worker_dies_while_a_channel_log_is_replayed() -> None:
    """A5, G2: and a checkpoint may be triggered during the replay."""
    survives(
        when("kill a worker", "snapshot.logging", 2),
        when("kill a worker", "commit.told", 3),
        *(when("kill a worker", "restore.replaying", nth) for nth in (1, 2)),
        graphs=("rebalance", "loop", "nested loops"),
        protocols=("unaligned",),
        seeds=range(4),
        channel_bytes=50,
        record_count=25,
        interval_ms=10,
        source_ms=20,
    )


# Driver crash.


@pytest.mark.parametrize("nth", range(1, 7))
def test_the_driver_dies_with_some_of_the_acknowledgements(nth: int) -> None:
    """B1"""
    survives(when("kill the driver", "driver.acknowledged", nth), seeds=(0, 1))


def test_the_driver_dies_with_a_durable_entry_that_nobody_has_heard_of() -> None:
    """B2"""
    survives(when("kill the driver", "driver.appended"), graphs=("chain", "two sinks"))


def test_the_driver_dies_with_half_of_the_sinks_told() -> None:
    """B3"""
    survives(when("kill the driver", "driver.commit", 2), graphs=("two sinks",))


@pytest.mark.parametrize("what", ["apply", "lose", "delay"])
def test_nobody_knows_what_became_of_an_append(what: str) -> None:
    """B4"""
    kinds: dict[str, FaultKind] = {
        "apply": "apply a log append without an answer",
        "lose": "lose a log append without an answer",
        "delay": "delay a log append without an answer",
    }
    survives(when(kinds[what], "driver.append"), at("kill a worker", 150), must=["effect: ReadEntry"])


@pytest.mark.parametrize("moment", ["driver.append", "driver.commit", "driver.acknowledged"])
def test_a_driver_sleeps_and_wakes_up_beside_its_successor(moment: Moment) -> None:
    """B5"""
    fault = when("pause the driver and start another", moment, choice=3)
    survives(fault, must=["two drivers at once", "job fenced"])


def test_the_driver_dies_before_it_deletes_what_is_not_needed_any_more() -> None:
    """B6"""
    survives(
        when("kill the driver", "driver.delete"), graphs=("chain", "union"), must=["effect: DeleteParts"]
    )


# Zombies.


def test_a_sink_sleeps_past_its_replacement_and_commits_then() -> None:
    """C1"""
    seen: Counter[str] = Counter()
    # How long it sleeps. Whether its request is still on its way then is up to the world.
    for choice in (2, 3, 5):
        asleep = when("pause a worker", "commit.before", choice=choice)
        seen += survives(asleep, graphs=("chain", "two sinks"), seeds=range(2))
    assert seen["zombie left by Spark"] and seen["request that outlived its sender"]


def test_an_acknowledgement_of_an_older_epoch_comes_late() -> None:
    """C2"""
    survives(
        at("kill a worker", 60, choice=0),
        *(when("repeat a message", "restore.ready", 2, choice=choice) for choice in range(0, 60, 3)),
        must=["drop: late message of another epoch"],
        seeds=range(2),
    )


def test_a_zombie_goes_on_sending_to_those_who_are_an_epoch_ahead() -> None:
    """C3: whatever comes in on a channel of another epoch is a violation (I7)."""
    survives(
        at("pause a worker", 60, choice=6),
        at("kill a worker", 65, choice=1),
        at("pause a worker", 90, choice=5),
        graphs=("union", "rebalance"),
        must=["zombie left by Spark"],
    )


def test_a_zombie_writes_its_state_beside_that_of_its_successor() -> None:
    """C4"""
    survives(when("pause a worker", "snapshot.encoded", choice=6), must=["zombie left by Spark"])


# The store.


def test_a_slow_store_lets_checkpoints_time_out_and_nothing_else() -> None:
    """D3"""
    slow = [at("slow store", ms, choice=2) for ms in (40, 200, 400)]
    survives(*slow, must=["part given up and deleted"], source_ms=400)


def test_a_store_that_hangs_is_answered_for() -> None:
    """D3"""
    hung = [at("hang the store", ms, choice=2) for ms in range(40, 160, 20)]
    survives(
        *hung,
        *(when("hang the store", "driver.acknowledged", nth, choice=2, after_ms=300) for nth in (4, 8, 12)),
        must=["part given up and deleted", "drop: late log answer"],
        source_ms=400,
    )


def test_a_full_disk_costs_one_checkpoint_and_a_delete_that_fails_nothing() -> None:
    """D4"""
    survives(
        at("refuse a part", 40),
        at("refuse a log append", 100),
        at("refuse a delete", 60),
        at("refuse a delete", 61),
    )


def test_nothing_depends_on_a_listing() -> None:
    """D5"""
    survives(
        at("miss objects in a listing", 30),
        at("kill the driver", 60),
        at("show deleted objects in a listing", 120),
        at("kill the driver", 140),
        must=["effect: ListParts", "effect: DeleteParts"],
    )


@pytest.mark.parametrize("kind", ["flip a bit in a read", "misdirect a read"])
def test_what_a_read_gets_wrong_once_is_read_again(kind: FaultKind) -> None:
    """D6"""
    survives(at("kill the driver", 60), at(kind, 60), at("kill the driver", 120), at(kind, 120))


def test_a_rotten_part_ends_the_job_with_an_error_that_names_it() -> None:
    """D6"""
    survives(
        *(at("rot a part", ms) for ms in range(50, 100, 5)),
        at("kill the driver", 100),
        must=["ended loudly after a broken promise"],
    )


def test_a_commit_stops_half_way() -> None:
    """D7"""
    survives(
        at("refuse a part", 35),
        at("apply half a commit without an answer", 50),
        when("kill a worker", "commit.after", 2),
        graphs=("chain", "two sinks"),
    )


# The network.


@pytest.mark.parametrize("choice", [0, 1])
def test_a_connection_is_cut_with_what_is_on_its_way_or_behind_it(choice: int) -> None:
    """E1"""
    survives(at("break a channel", 50, choice), at("break a control link", 120, choice), graphs=("union",))


def test_a_peer_vanishes_without_a_word() -> None:
    """E2"""
    survives(at("half-open channel", 50, 1), at("half-open control link", 300, 0), graphs=("union",))


def test_words_and_records_overtake_each_other_on_different_ways() -> None:
    """E3"""
    seen = survives(
        *(at("slow control link", ms, ms // 10) for ms in range(30, 300, 30)),
        *(at("slow channel", ms, ms // 10) for ms in range(40, 300, 40)),
        graphs=("union", "rebalance"),
        protocols=("aligned", "unaligned", "switching"),
        in_flight_max=4,
    )
    assert seen["drop: obsolete abort"] and seen["drop: obsolete barrier"]


def test_what_is_said_twice_counts_once() -> None:
    """E4: nothing is sent again, a lost channel is a failover; words are repeated all the same."""
    repeated = [at("repeat a message", ms, ms) for ms in range(30, 200, 3)]
    repeated += [at("repeat a word", ms, ms) for ms in range(31, 200, 3)]
    survives(*repeated, graphs=("union", "loop"), must=["drop: repeated completion"])


@pytest.mark.parametrize("kind", ["partition two workers", "partition two workers one way"])
def test_two_workers_cannot_reach_each_other_and_the_driver_sees_both(kind: FaultKind) -> None:
    """E5"""
    survives(
        at(kind, 40, 4), when(kind, "align.partial", choice=3), graphs=("union",), protocols=("aligned",)
    )
    survives(at(kind, 40, 4), when(kind, "commit.before", choice=2), graphs=("union", "loop"), seeds=(0,))


def test_lines_clog_and_clear_in_another_order() -> None:
    """E6"""
    survives(*(at("clog some lines", ms, ms) for ms in range(40, 240, 40)), graphs=("union", "loop"))


# Commit.


def test_a_commit_was_applied_and_nobody_knows() -> None:
    """F1"""
    survives(
        at("apply a commit without an answer", 40),
        at("apply a commit without an answer", 80),
        when("kill a worker", "commit.before", 3),
    )


def test_the_word_about_the_last_checkpoint_is_lost_and_the_next_one_commits_its_output() -> None:
    """F2"""
    survives(at("refuse a part", 30), at("refuse a part", 50), when("kill a worker", "commit.told", 2))


def test_a_transaction_waits_for_its_commit_as_long_as_it_takes() -> None:
    """F3"""
    survives(
        *(at("hang a sink", ms, 2) for ms in (40, 60, 80)),
        when("kill the driver", "driver.commit", 1),
        must=["hung call: sink"],
    )


def test_one_checkpoint_is_restored_again_and_again() -> None:
    """F4"""
    survives(
        *(when("kill a worker", "source.sent", nth, after_ms=150) for nth in (1, 2, 3)),
        at("kill the driver", 200),
        interval_ms=100,
        source_ms=400,
    )


@pytest.mark.parametrize("kind", ["kill a worker", "kill the driver"])
@pytest.mark.parametrize(
    "moment", ["driver.append", "driver.appended", "driver.commit", "driver.finish", "commit.after"]
)
def test_the_input_ends_and_somebody_dies_around_the_final_checkpoint(
    kind: FaultKind, moment: Moment
) -> None:
    """F5: one of the two sources of the union ends long before the other."""
    after_ms = 40 if moment == "driver.finish" else 190
    survives(when(kind, moment, after_ms=after_ms), graphs=("union", "totals"), seeds=(0,))


def test_transactions_of_checkpoints_that_never_were_are_aborted() -> None:
    """F6"""
    survives(
        when("kill a worker", "snapshot.stored", 1),
        when("kill a worker", "snapshot.frozen", 6),
        at("refuse a part", 60),
        graphs=("two sinks",),
    )


def test_a_stop_whose_output_can_not_be_committed_is_no_restart() -> None:
    """F7"""
    survives(
        at("stop the job", 60),
        *(at("fail a commit", 61) for _ in range(6)),
        graphs=("chain", "two sinks"),
        must=["phase: STOPPING", "job stopped"],
    )


# Loops.


def test_a_worker_dies_with_records_on_their_way_around_the_loop() -> None:
    """G1"""
    survives(
        when("kill a worker", "snapshot.logging", 2, after_ms=0),
        graphs=("loop", "nested loops"),
        protocols=("aligned", "unaligned", "switching"),
        source_ms=20,
        record_count=25,
    )


def test_a_full_loop_waits_for_nothing() -> None:
    """G3"""
    survives(
        at("slow sink", 40, 1),
        graphs=("loop", "nested loops"),
        channel_bytes=50,
        record_count=25,
        batch_rows=1,
    )


def test_a_loop_ends_when_it_is_empty_whoever_dies_meanwhile() -> None:
    """G4"""
    survives(
        when("kill a worker", "driver.completed", 1, after_ms=200),
        when("kill the driver", "driver.append", 2, after_ms=200),
        graphs=("loop", "nested loops"),
    )


# Clocks and load.


def test_the_wall_clock_decides_nothing() -> None:
    """I-1"""
    jumps = [at("jump the wall clock", ms, ms) for ms in range(10, 200, 10)]
    seen = survives(*jumps)
    assert seen["epoch"] == len(EXACTLY_ONCE) * len(SEEDS), "no failover came of it"


def test_a_sink_a_hundred_times_too_slow_holds_its_input_up_and_nothing_else() -> None:
    """J1: credit is never exceeded (I11), with all records of one key."""
    survives(
        *(at("slow sink", ms, 3) for ms in range(30, 700, 200)),
        graphs=("chain", "union"),
        channel_bytes=50,
        record_count=25,
    )


def test_a_recovery_with_full_channels_catches_up() -> None:
    """J2: more is on its way than the channels give credit for."""
    survives(
        at("slow sink", 30, 3),
        when("kill a worker", "commit.told", 2),
        at("kill a worker", 400),
        graphs=("rebalance", "union"),
        protocols=("unaligned",),
        channel_bytes=50,
        record_count=25,
        source_ms=50,
        seeds=range(4),
    )


# Spark and sinks.


def test_spark_gives_the_job_up_and_is_given_it_again() -> None:
    kills = [at("kill a worker", ms, 0) for ms in range(40, 240, 25)]
    survives(*kills, must=["Spark gave the job up", "effect: SubmitWorkers"], spark_attempts_max=2)


def test_a_sink_that_hangs_is_a_failure_of_its_task() -> None:
    """A call that never returns; its process ends with it."""
    survives(
        *(at("hang a sink", ms, 2) for ms in (40, 120, 200)),
        must=["task failed: SinkHungError", "phase: WAITING"],
    )


SIMULATED = [
    *("A1", "A2", "A3", "A4", "A5", "B1", "B2", "B3", "B4", "B5", "B6", "C1", "C2", "C3", "C4"),
    *("D3", "D4", "D5", "D6", "D7", "E1", "E2", "E3", "E4", "E5", "E6"),
    *("F1", "F2", "F3", "F4", "F5", "F6", "F7", "G1", "G2", "G3", "G4", "I-1", "J1", "J2"),
]


def test_every_scenario_has_a_test_by_name() -> None:
    tree = ast.parse(Path(__file__).read_text())
    words = [
        word.strip(",:")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for word in (ast.get_docstring(node) or "").split()
    ]
    assert sorted(set(SIMULATED) - set(words)) == []
