"""What a user sees of a job without the command line: the log, and the counters."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from jobs import KEYS, NumberedJob, until
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


class Heard(StreamingQueryListener):
    """As somebody has it who comes from Structured Streaming."""

    def __init__(self) -> None:
        self.starts: list[Any] = []
        self.rows = 0
        self.outcomes: list[Any] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        assert event.name == "numbered"
        self.starts.append((event.id, event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.rows += event.progress.numInputRows
        assert event.progress.runId == self.starts[-1][1]
        assert event.progress.sources[0].endOffset
        assert event.progress.json

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        assert event.runId == self.starts[-1][1]
        self.outcomes.append(event.exception)


def test_counters_are_right_and_the_log_tells_the_story_over_a_stop_and_a_resume(
    tmp_path: Path, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "crosscut")
    numbered = NumberedJob(tmp_path, count=9_000, held=1)
    first = started(numbered)
    listener = Heard()
    first.add_listener(listener)
    until(lambda: first.checkpoints() and first.report().records_read > 1_000, "records")
    until(lambda: first.report().state_memory_bytes > 0, "what its state takes of the memory")
    tracker = started.spark.statusTracker()

    def stages() -> list[str]:
        found = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return [one.name for one in found if one is not None]

    # That of another test may be about to end.
    until(lambda: stages() == ["crosscut: numbered"], "what Spark's own pages show")
    assert first.report().dropped == {}, "nothing is wrong, so nothing looks wrong"
    first.stop()
    stopped_at = first.report().records_read
    last = first.checkpoints()[-1].checkpoint_id
    assert 1_000 < stopped_at <= 9_000
    until(lambda: len(listener.outcomes) == 1, "the word of the end")
    assert listener.rows == stopped_at
    assert first.last_progress["batchId"] == last

    numbered.open_gate()
    second = started(numbered)
    second.add_listener(listener)
    started.finish(second)
    until(lambda: len(listener.outcomes) == 2, "the word of the second end")
    assert listener.rows == 9_000
    assert listener.outcomes == [None, None]
    queries, runs = zip(*listener.starts, strict=True)
    assert (len(set(queries)), len(set(runs))) == (1, 2)
    assert second.last_progress["id"] == str(queries[0])
    assert second.last_progress["runId"] == str(runs[1])
    final = second.report()
    assert (final.records_read, final.state_keys) == (9_000, KEYS)
    sums = [one for one in final.tasks if one.task.vertex.startswith("sums")]
    assert sum(one.records_in for one in sums) == 9_000
    assert sum(one.records_out for one in sums) == 9_000, "what its sink has written"
    numbered.check_output_is_exact()

    again = started(numbered)
    assert (again.status, again.wait(), again.checkpoints()) == ("finished", True, [])
    assert again.report().records_read == 9_000

    said = [record.getMessage() for record in caplog.records if record.name == "crosscut.job"]
    told = [one for one in said if "the job log is not authenticated" not in one]
    assert len(said) - len(told) == 2, "once a start"
    # How long a checkpoint takes is the machine's business.
    told = [one for one in told if " was slow: it took " not in one]
    final_id = second.checkpoints()[-1].checkpoint_id
    where = f"checkpoint {last} ({stopped_at:,} records read)"
    assert told == [
        "job 'numbered': started: epoch 1, 2 workers",
        f"job 'numbered': stopped; the next start goes on from {where}",
        f"job 'numbered': resumed from {where}: epoch 2, 2 workers",
        "job 'numbered': finished: everything is processed and committed, "
        f"with checkpoint {final_id} (9,000 records read)",
        f"job 'numbered' in {again.checkpoint_dir} has already finished, so nothing is read or written; "
        f"to run it again, choose another checkpoint_dir and another location for its output",
    ]
