"""Which engine runs, when the other one follows, and that no order of events starts two or none."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import crosscut as cc
from crosscut.contracts.settings import Settings
from crosscut.driver.job_spec import settings_of
from crosscut.errors import FlowError, SettingsError
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.microbatch.engine_switch import (
    BatchVisible,
    EndAsked,
    EngineEffect,
    EngineEnded,
    EngineEvent,
    Engines,
    LagSeen,
    SourceRead,
    StartEngine,
    StopEngine,
    Switch,
    behind,
    waiting,
)


def engines() -> Engines:
    return Engines(caught_up_at=10, behind_at=1_000, behind_for_ms=100)


def batch(n: int, left: int | None, *, is_drained: bool = False) -> BatchVisible:
    return BatchVisible(CheckpointId(n), left, is_drained)


def live() -> Engines:
    one = engines()
    one.handle(batch(1, 0))
    one.handle(EngineEnded("stopped"))
    return one


def test_a_job_begins_in_batches_and_goes_over_when_it_has_caught_up() -> None:
    one = engines()
    assert one.engine == "micro-batch"
    assert one.handle(batch(1, 5_000)) == []
    assert one.handle(batch(2, None)) == [], "more waits, nobody knows how much"
    why = "10 records wait after batch 3"
    assert one.handle(batch(3, 10)) == [StopEngine(why)]
    assert one.handle(EngineEnded("stopped")) == [StartEngine("continuous", why)]
    assert live().engine == "continuous"


def test_a_batch_is_looked_at_once() -> None:
    one = engines()
    one.handle(batch(1, 5_000))
    assert one.handle(batch(1, 0)) == []
    assert one.dropped["batch that was seen"] == 1


def test_a_job_that_has_read_all_of_its_input_is_left_to_its_end() -> None:
    assert engines().handle(batch(1, 0, is_drained=True)) == []


def test_it_goes_back_when_too_much_has_waited_for_some_time() -> None:
    one = live()
    assert one.handle(LagSeen(0, 5_000)) == []
    assert one.handle(LagSeen(60, 1_000)) == [], "that is not too much"
    assert one.handle(LagSeen(90, 5_000)) == []
    assert one.handle(LagSeen(189, 5_000)) == []
    (stop,) = one.handle(LagSeen(190, 6_000))
    assert isinstance(stop, StopEngine)
    assert one.handle(EngineEnded("stopped")) == [StartEngine("micro-batch", stop.why)]


def test_what_is_known_of_the_other_engine_counts_for_nothing() -> None:
    one = engines()
    assert one.handle(LagSeen(0, 5_000)) == one.handle(LagSeen(1_000, 5_000)) == []
    one = live()
    assert one.handle(batch(2, 0)) == []


def test_a_source_that_does_not_know_its_lag_is_never_behind_while_tasks_run() -> None:
    one = live()
    assert (
        one.handle(LagSeen(0, 5_000))
        == one.handle(LagSeen(150, None))
        == one.handle(LagSeen(200, 5_000))
        == []
    )


def test_nothing_follows_once_the_end_was_asked_for() -> None:
    one = engines()
    one.handle(batch(1, 0))
    one.handle(EndAsked())
    assert one.handle(EngineEnded("stopped")) == []
    assert one.phase is Switch.OVER


@pytest.mark.parametrize("outcome", ["finished", "failed", "fenced", "cancelled"])
def test_an_engine_that_ends_otherwise_than_by_its_stop_is_the_end_of_the_job(outcome: str) -> None:
    one = engines()
    one.handle(batch(1, 0))
    assert one.handle(EngineEnded(outcome)) == []
    assert one.phase is Switch.OVER


def test_what_waits_is_what_is_known_unless_somebody_has_more_and_does_not_know_how_much() -> None:
    assert waiting([SourceRead(3, is_full=True), SourceRead(4, is_full=False)]) == 7
    assert waiting([SourceRead(3, is_full=False), SourceRead(None, is_full=False)]) == 3
    assert waiting([SourceRead(3, is_full=False), SourceRead(None, is_full=True)]) is None
    assert behind([3, None, 4]) == 7
    assert behind([None]) is None


EVENTS: tuple[EngineEvent, ...] = (
    batch(1, 0),
    batch(2, 5_000),
    batch(3, 0),
    LagSeen(0, 5_000),
    LagSeen(200, 5_000),
    LagSeen(300, 0),
    EndAsked(),
    EngineEnded("stopped"),
    EngineEnded("failed"),
)


def check_all_orders(kind: type[Engines]) -> tuple[set[tuple[Switch, str]], set[str]]:
    """Check each order on rules that know nothing of the machine.

    Returns:
        The states that were seen, and the reasons for which an event was dropped.
    """
    seen: set[tuple[Switch, str]] = set()
    dropped: set[str] = set()

    def walk(one: Engines, running: str, *, is_asked: bool, is_stopped: bool, depth: int) -> None:
        for event in EVENTS:
            after = copy.deepcopy(one)
            effects = after.handle(event)
            seen.add((after.phase, after.engine))
            asked = is_asked or isinstance(event, EndAsked)
            if isinstance(event, EngineEnded):
                # Exactly one thing follows the end of an engine: the other one, or the end of the job.
                if after.phase is not Switch.OVER:
                    assert len(effects) == 1
                    effect = effects[0]
                    assert isinstance(effect, StartEngine)
                    assert is_stopped
                    assert not asked
                    assert event.outcome == "stopped"
                    assert effect.engine != running
                    if depth > 1:
                        walk(after, effect.engine, is_asked=asked, is_stopped=False, depth=depth - 1)
                else:
                    assert effects == []
                    assert asked or not is_stopped or event.outcome != "stopped"
                    for late in EVENTS:
                        assert after.handle(late) == [], "the job is over"
                        dropped.update(after.dropped)
                continue
            dropped.update(after.dropped)
            assert all(isinstance(effect, StopEngine) for effect in effects)
            # A stop is asked for once, and not after the user has.
            assert not (effects and (is_stopped or asked))
            if depth > 1:
                walk(after, running, is_asked=asked, is_stopped=is_stopped or bool(effects), depth=depth - 1)

    walk(
        kind(caught_up_at=10, behind_at=1_000, behind_for_ms=100),
        "micro-batch",
        is_asked=False,
        is_stopped=False,
        depth=5,
    )
    return seen, dropped


def test_every_order_of_events_has_one_engine_at_a_time_until_the_end() -> None:
    seen, dropped = check_all_orders(Engines)
    assert {phase for phase, _ in seen} == set(Switch)
    assert {engine for _, engine in seen} == {"continuous", "micro-batch"}
    assert dropped == {
        "word of an engine that is to end",
        "batch that was seen",
        "end of a job that is over",
    }


class ForgetsTheUser(Engines):
    def _end_asked(self) -> list[EngineEffect]:
        return []


class StartsAfterAFailure(Engines):
    def _ended(self, outcome: str) -> list[EngineEffect]:
        return super()._ended("stopped")


class StopsAgain(Engines):
    def _batch(self, event: BatchVisible) -> list[EngineEffect]:
        return [StopEngine("again")] if self.phase is Switch.SWITCHING else super()._batch(event)


class StaysWithItsEngine(Engines):
    def _ended(self, outcome: str) -> list[EngineEffect]:
        before = self.engine
        effects = super()._ended(outcome)
        return [StartEngine(before, one.why) if isinstance(one, StartEngine) else one for one in effects]


@pytest.mark.parametrize("bug", [ForgetsTheUser, StartsAfterAFailure, StopsAgain, StaysWithItsEngine])
def test_a_planted_bug_is_found(bug: type[Engines]) -> None:
    with pytest.raises(AssertionError):
        check_all_orders(bug)


def test_batches_run_on_all_that_spark_has_and_tasks_that_stay_on_what_was_asked_for() -> None:
    auto = Settings(engine="auto", parallelism=2)
    assert settings_of(auto, "continuous", 8).parallelism == 2
    assert settings_of(auto, "micro-batch", 8).parallelism == 8
    assert settings_of(auto, "micro-batch", None).parallelism == 2
    assert settings_of(auto, "micro-batch", 1_000).parallelism == auto.max_parallelism
    asked = Settings(engine=cc.Auto(batch_parallelism=3), parallelism=2)
    assert settings_of(asked, "micro-batch", 8).parallelism == 3
    alone = Settings(engine="micro-batch", parallelism=2)
    assert settings_of(alone, "micro-batch", 8) == alone


def test_settings_that_would_have_a_job_go_to_and_fro_are_refused() -> None:
    with pytest.raises(SettingsError, match="is not below behind_at"):
        cc.Auto(caught_up_at=5, behind_at=5)
    with pytest.raises(SettingsError, match="count each record once"):
        Settings(engine="auto", snapshots="at-least-once")


@pytest.mark.parametrize("engine", ["auto", "micro-batch"])
def test_a_loop_is_refused_before_spark_starts(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(builder: SparkSession.Builder) -> SparkSession:
        raise AssertionError("Spark is started")

    # Not asked of Spark itself: another test of this process may have left its own running.
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", started)
    flow = cc.Flow("rounds")
    numbers = flow.source(cc.generate(lambda i: i, count=10))
    numbers.iterate(lambda loop: (loop.filter(bool), loop)).sink(cc.collect(tmp_path))
    with pytest.raises(FlowError, match="is the head of a loop"):
        flow.start(cc.Settings(engine=engine, checkpoint_dir=str(tmp_path / "checkpoints")))
