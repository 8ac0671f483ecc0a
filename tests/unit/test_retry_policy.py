"""What Spark hears of attempts that fail, where it may make others beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.foundation.ids import TaskId, VertexId, WorkerIndex
from crosscut.microbatch.ports import Routed
from crosscut.microbatch.shuffle import Failure, ShuffleBlock
from crosscut.protocol.job.deaths import deaths_of
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.attempts import Partition
from crosscut.protocol.microbatch.retry_policy import (
    DEATHS_MAX,
    dead,
    deaths_before,
    given_up,
    goes_back,
    tries,
)
from crosscut.spark.cluster.batch_retries import TriedError, tried, tries_of

COUNT = VertexId("count")
SPECULATES = {"spark.speculation": "true"}
FAILURE = Failure(TaskId(COUNT, 1), FailureCause("ValueError", "bad", traceback="Traceback ..."))


def said(closed: list[bool]) -> Iterator[Routed]:
    """What an attempt says that has sent something, and then failed."""
    partition = Partition(1, 1)
    yield 0, ShuffleBlock(partition, "a", 0)
    for target in range(2):
        yield target, ShuffleBlock(partition, "a", 1, is_last=True, failure=FAILURE)
    closed.append(True)


def test_the_first_attempts_fail_as_spark_knows_it_and_then_the_cause_counts() -> None:
    for number in range(2):
        closed: list[bool] = []
        heard: list[Routed] = []
        with pytest.raises(TriedError, match=r"count\[1\] failed: bad\nTraceback"):
            heard.extend(tried(said(closed), {COUNT}, number, 2))
        assert closed, "what it has open is closed"
    assert [shuffle_block.failure for _, shuffle_block in tried(said([]), {COUNT}, 2, 2)] == [
        None,
        FAILURE,
        FAILURE,
    ]


def test_what_has_failed_in_the_stage_before_was_tried_there() -> None:
    assert len(list(tried(said([]), {VertexId("sum")}, 0, 2))) == 3


@given(fails=st.sets(st.integers(0, 9)), failures_max=st.integers(1, 9), speculates=st.booleans())
def test_spark_never_gives_up_before_the_cause_is_known_nor_for_one_attempt_beside_another(
    fails: set[int], failures_max: int, speculates: bool
) -> None:
    """Against a Spark that counts: it goes on until an attempt succeeds, says why not, or is one too many."""
    borne = tries(speculates=speculates, failures_max=failures_max)
    failed, told = 0, None
    for attempt in range(10):
        if attempt not in fails:
            break
        if not goes_back(FAILURE.task, {COUNT}, attempt, borne):
            told = attempt
            break
        failed += 1
        assert failed < failures_max, "Spark has given the batch up, without a cause"
    # Whoever fails first may not take the one beside it along, where Spark bears that and makes one.
    if told is not None and speculates and failures_max > 1:
        assert told >= min(2, failures_max - 1)
    # Nor does anything fail again and again that fails each time.
    assert failed <= 2
    if not speculates:
        assert failed == 0


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("spark://host:7077", SPECULATES, 2),
        ("local-cluster[2,1,1024]", SPECULATES, 2),
        ("spark://host:7077", {}, 0),
        ("local[4,4]", SPECULATES, 0),
        ("yarn", SPECULATES | {"spark.task.maxFailures": "2"}, 1),
        ("yarn", SPECULATES | {"spark.task.maxFailures": "1"}, 0),
    ],
)
def test_it_is_so_only_where_spark_speculates_and_no_more_often_than_it_bears(
    master: str, conf: dict[str, str], expected: int
) -> None:
    assert tries_of(master, conf.get) == expected


def test_a_partition_whose_processes_die_again_and_again_ends_the_batch() -> None:
    """Spark may be willing to make a million attempts."""
    assert [deaths_before(attempt, tries=0) for attempt in range(3)] == [0, 1, 2]
    assert [deaths_before(attempt, tries=2) for attempt in range(5)] == [0, 0, 0, 1, 2]
    assert [dead(deaths, ["b", "a"], 1, 7) for deaths in range(DEATHS_MAX)] == [None] * DEATHS_MAX
    cause = dead(DEATHS_MAX, ["b", "a"], 1, 7)
    assert cause is not None
    assert "5 attempts in a row at partition 1 of a, b in batch 7 have ended" in cause.message
    assert deaths_of(WorkerIndex(1), [cause, cause]) == 2


@pytest.mark.parametrize(
    ("said", "deaths"),
    [
        ("Task 0 failed 1 times: SparkException: Python worker exited unexpectedly (crashed)", 2),
        ("Task 0 failed 4 times: ExecutorLostFailure (executor 1 exited caused by a task)", 2),
        ("Total size of serialized results is bigger than spark.driver.maxResultSize", 0),
    ],
)
def test_records_are_tried_in_copies_if_spark_gives_batches_up_since_processes_die(
    said: str, deaths: int
) -> None:
    """A Spark that makes one attempt only never gets to those that try them by themselves."""
    assert deaths_of(WorkerIndex(1), [given_up(said)] * 2) == deaths
