"""What a listener of Structured Streaming hears of a job that goes from one engine to the other."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from crosscut.events import Ended, EngineSwitched, JobEvent, Started
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.spark.cluster.query_listener import telling

QUERY = "00000000-0000-0000-0000-000000000001"
RUNS = [f"00000000-0000-0000-0000-00000000000{n}" for n in (2, 3)]


class Heard(StreamingQueryListener):
    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def onQueryStarted(self, event: Any) -> None:
        self.found.append(("started", str(event.runId)))

    def onQueryProgress(self, event: Any) -> None:
        self.found.append(("progress", str(event.progress.runId)))

    def onQueryTerminated(self, event: Any) -> None:
        self.found.append(("terminated", str(event.runId)))


def test_each_engine_is_a_run_of_the_query_that_starts_and_ends_once() -> None:
    about: dict[str, Any] = {"job": "counts", "at_ms": 0, "epoch": Epoch(1)}

    def started(run: str) -> JobEvent:
        return Started(**about, resumed_from=None, parallelism=2, query_id=QUERY, run_id=run)

    heard = Heard()
    tell = telling(heard)
    for event in (
        started(RUNS[0]),
        EngineSwitched(**about, engine="continuous", reason="", resumes_from=CheckpointId(1)),
        started(RUNS[1]),
        Ended(**about, outcome="stopped", cause="", resumes_from=None, query_id=QUERY, run_id=RUNS[1]),
    ):
        tell(event)
    first, second = RUNS
    assert heard.found == [
        ("started", first),
        ("terminated", first),
        ("started", second),
        ("terminated", second),
    ]
