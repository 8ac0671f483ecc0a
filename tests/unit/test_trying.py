"""What Spark hears of attempts that fail, where it may make others beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crosscut.ids import TaskId, VertexId
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.attempts import Place
from crosscut.spark.microbatch.surroundings import Routed
from crosscut.spark.microbatch.trying import TriedError, tried, tries_of
from crosscut.worker.parcels import Failure, Parcel

SPECULATES = {"spark.speculation": "true"}
FAILURE = Failure(TaskId(VertexId("count"), 1), FailureCause("ValueError", "bad", traceback="Traceback ..."))


def said(closed: list[bool]) -> Iterator[Routed]:
    """What an attempt says that has sent something, and then failed."""
    place = Place(1, 1)
    yield 0, Parcel(place, "a", 0)
    for target in range(2):
        yield target, Parcel(place, "a", 1, is_last=True, failure=FAILURE)
    closed.append(True)


def test_the_first_attempts_fail_as_spark_knows_it_and_then_the_cause_counts() -> None:
    for number in range(2):
        closed: list[bool] = []
        heard: list[Routed] = []
        with pytest.raises(TriedError, match=r"count\[1\] failed: bad\nTraceback"):
            heard.extend(tried(said(closed), {"count"}, number, 2))
        assert closed, "what it has open is closed"
    assert [parcel.failure for _, parcel in tried(said([]), {"count"}, 2, 2)] == [None, FAILURE, FAILURE]


def test_what_has_failed_in_the_stage_before_was_tried_there() -> None:
    assert len(list(tried(said([]), {"sum"}, 0, 2))) == 3


@pytest.mark.parametrize(
    ("master", "conf", "tries"),
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
    master: str, conf: dict[str, str], tries: int
) -> None:
    assert tries_of(master, conf.get) == tries
