"""for_each_checkpoint: one call for each checkpoint, with its records and id, and what a failure repeats."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches

import crosscut as cc
from crosscut.contracts.checkpoint_calls import ForEachCheckpoint
from crosscut.contracts.connectors import HeldData, SinkContext, SinkWriter
from crosscut.errors import ConnectorError, FlowError, RefusedRecordError, SettingsError, StateError
from crosscut.foundation.data_pickles import only_data
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.foundation.unpickling import loader
from crosscut.net.causes import failure_cause
from crosscut.testing.sink_targets import SinkTarget, open_writer, permit, stage
from crosscut.testing.sinks import SINK_CHECKS

CALLS: list[tuple[list[Any], int]] = []
"""What `called` was called with: a sink is pickled on its way to the workers, and so by name."""


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def called(records: list[Any], checkpoint_id: int) -> None:
    CALLS.append((records, checkpoint_id))


FAILURES: list[int] = []


def fails_once(records: list[Any], checkpoint_id: int) -> None:
    FAILURES.append(checkpoint_id)
    if len(FAILURES) == 1:
        raise OSError("the service is down")


def test_it_is_called_once_for_each_checkpoint_when_that_is_complete() -> None:
    writer = open_writer(ForEachCheckpoint(called), 1)
    first, second = stage(writer, ["a", "b"], 1), stage(writer, ["c"], 2)
    assert CALLS == []
    writer.commit(permit(1), [first])
    writer.commit(permit(2), [first, second])
    assert CALLS == [(["a", "b"], 1), (["c"], 2)]


def test_after_a_failure_it_may_be_called_again_with_the_same_records_and_the_same_id() -> None:
    sink = ForEachCheckpoint(called)
    writer = open_writer(sink, 1)
    handle = stage(writer, [1, 2], 7)
    writer.commit(permit(7), [handle])
    open_writer(sink, 2, restore=7, handles=[handle])
    assert CALLS == [([1, 2], 7), ([1, 2], 7)]


def test_what_it_raises_is_an_error_that_names_it_and_it_is_called_again() -> None:
    FAILURES.clear()
    writer = open_writer(ForEachCheckpoint(fails_once), 1)
    handle = stage(writer, [1], 3)
    with pytest.raises(
        ConnectorError, match=r"fails_once.* raised OSError for the 1 records of checkpoint 3"
    ):
        writer.commit(permit(3), [handle])
    writer.commit(permit(3), [handle])
    assert FAILURES == [3, 3]


@pytest.mark.parametrize(
    ("error", "is_permanent", "is_transient"),
    [
        (TypeError("no such argument"), True, False),
        (PermissionError("no"), True, False),
        (SettingsError("no"), True, False),
        (ConnectorError("no table", is_permanent=True), True, False),
        (ConnectorError("no answer"), False, True),
        (StateError("no"), False, False),
        (KeyError("usr"), False, False),
        (ZeroDivisionError(), False, False),
        (ValueError("no"), False, False),
        (AssertionError(), False, False),
        (OSError("the service is down"), False, True),
        (TimeoutError(), False, True),
    ],
    ids=repr,
)
def test_a_failure_in_it_says_whether_it_recurs_and_whether_it_may_pass(
    error: Exception, is_permanent: bool, is_transient: bool
) -> None:
    def raises(records: list[Any], checkpoint_id: int) -> None:
        raise error

    writer = open_writer(ForEachCheckpoint(raises), 1)
    handle = stage(writer, [1], 1)
    with pytest.raises(ConnectorError) as failed:
        writer.commit(permit(1), [handle])
    assert (failed.value.is_permanent, failed.value.is_transient) == (is_permanent, is_transient)
    cause = failure_cause(failed.value)
    assert (cause.is_permanent, cause.is_transient) == (is_permanent, is_transient)


def refused_late(records: list[Any], checkpoint_id: int) -> None:
    try:
        raise ConnectionResetError
    except OSError:
        raise AttributeError("no session")  # noqa: B904 - as many libraries do


def test_a_mistake_while_an_outage_is_handled_may_pass() -> None:
    writer = open_writer(ForEachCheckpoint(refused_late), 1)
    handle = stage(writer, [1], 1)
    with pytest.raises(ConnectorError) as failed:
        writer.commit(permit(1), [handle])
    assert failed.value.is_transient


def test_records_are_those_that_came_though_others_change_them_later() -> None:
    record = {"n": 1}
    writer = open_writer(ForEachCheckpoint(called), 1)
    writer.write([record])
    record["n"] = 2
    handle = stage(writer, [], 1)
    writer.commit(permit(1), [handle])
    assert CALLS == [([{"n": 1}], 1)]


def test_a_record_that_can_not_be_pickled_is_an_error() -> None:
    writer = open_writer(ForEachCheckpoint(called), 1)
    with pytest.raises(ConnectorError, match="can't be pickled and loaded"):
        writer.write([lambda: 1])


def test_under_micro_batches_a_record_that_the_driver_would_not_load_is_refused_when_it_is_written() -> None:
    """At the commit it would be too late: a complete checkpoint has to be committed."""
    pattern = re.compile("x")
    attempt = attempted()
    with pytest.raises(
        RefusedRecordError, match=r"record re\.compile\('x'\) is refused.*plain data"
    ) as failed:
        attempt.write([{"n": 1}, pattern, {"n": 2}])
    assert failed.value.record == "re.compile('x')" and not failed.value.is_transient
    # The continuous engine commits in the worker, which loads anything.
    writer = open_writer(ForEachCheckpoint(called), 1)
    writer.commit(permit(1), [stage(writer, [pattern], 1)])
    assert [([pattern], 1)] == CALLS


def attempted() -> SinkWriter:
    context = SinkContext(Lineage("lineage"), Epoch(1), TaskId(VertexId("out"), 0), "out", HeldData())
    writer = ForEachCheckpoint(called).writer(context)
    writer.begin_attempt([])
    return writer


def test_the_records_beside_a_refused_one_are_taken() -> None:
    attempt = attempted()
    refused: list[Any] = []
    attempt.set_aside = lambda record, reason: refused.append(record)
    pattern = re.compile("x")
    attempt.write([1, pattern, 2])
    attempt.write([pattern])
    handle = attempt.prepare(attempt.rotate(CheckpointId(1)))
    assert refused == [pattern, pattern]
    assert list(attempt.pending_records([handle])) == [1, 2]


LOADED: list[Any] = []


def loads_a_pattern(records: list[Any], checkpoint_id: int) -> None:
    LOADED.append(loader()(pickle.dumps(re.compile("x"))))


def test_the_function_may_load_anything_where_only_data_is_loaded_for_it() -> None:
    writer = open_writer(ForEachCheckpoint(loads_a_pattern), 1)
    handle = stage(writer, [1], 1)
    with only_data():
        writer.commit(permit(1), [handle])
    assert [re.compile("x")] == LOADED


NOT_PROMISED = {
    # A call can't be taken back, and nobody can be asked whether there was one.
    "check_a_driver_that_was_overtaken_is_refused",
    "check_dropped_output_is_never_visible_and_all_other_is",
    "check_newer_output_is_refused",
    # Checkpoints of two jobs have the same ids: what tells the jobs apart, the function has to know.
    "check_others_are_left_alone",
    "check_two_drivers_of_one_epoch_exclude_each_other",
    "check_zombie_changes_nothing",
}


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_a_function_that_replaces_by_checkpoint_makes_a_sink_that_is_exact(check: Any) -> None:

    def visible() -> list[Any]:
        return [one for _, records in sorted({n: records for records, n in CALLS}.items()) for one in records]

    target = SinkTarget(ForEachCheckpoint(called), visible=visible)
    if check.__name__ not in NOT_PROMISED:
        check(target)


def test_a_flow_calls_it_with_all_records_of_a_checkpoint(tmp_path: Path) -> None:
    flow = cc.Flow("calls")
    flow.source(cc.items(range(20)), name="in").for_each_checkpoint(called, name="out")
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=7),
        checkpoint_dir=str(tmp_path),
        checkpoint_interval="10ms",
    )
    graph = flow.compile(2, 128)
    assert any(node.uid == "out" for vertex in graph.vertices for node in vertex.chain)
    end, _ = run_batches(graph, settings, lambda made, url: LocalJobs(made, url, Random(1), FaultProfile()))
    assert end is not None and end.outcome == "finished", end
    ids = [checkpoint_id for _, checkpoint_id in CALLS]
    assert len(set(ids)) == len(ids) > 1
    assert sorted(one for records, _ in CALLS for one in records) == list(range(20))


def test_what_is_no_function_of_two_arguments_is_refused() -> None:
    stream = cc.Flow("calls").source(cc.items([1]))
    with pytest.raises(FlowError, match="records"):
        stream.for_each_checkpoint(lambda records: None)  # type: ignore[arg-type, misc]


def test_whoever_looks_for_foreach_batch_is_led_here() -> None:
    stream: Any = cc.Flow("calls").source(cc.items([1]))
    with pytest.raises(AttributeError, match=r"what Spark calls foreachBatch is \.for_each_checkpoint"):
        stream.foreachBatch(print)
