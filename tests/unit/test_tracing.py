"""Checkpoints and failovers as spans, in the exporter that OpenTelemetry has for tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import crosscut as cc
from crosscut import events
from crosscut.errors import SettingsError
from crosscut.foundation.ids import CheckpointId, Epoch

MS = 1_000_000
NOW_MS = 1_700_000_000_000
COMMON: dict[str, Any] = {"job": "a job", "epoch": Epoch(2)}


class Told:
    """A listener, and the spans that it has made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tell: Callable[[events.JobEvent], None] = cc.open_telemetry(self.provider)

    def spans(self) -> dict[str, ReadableSpan]:
        return {one.name: one for one in self._exporter.get_finished_spans()}


def completed(n: int) -> events.CheckpointCompleted:
    return events.CheckpointCompleted(
        at_ms=NOW_MS,
        checkpoint_id=CheckpointId(n),
        duration_ms=30,
        state_bytes=2_000,
        new_bytes=100,
        is_final=False,
        alignment_ms=4.0,
        append_ms=10.0,
        **COMMON,
    )


def failed_over(at_ms: int = NOW_MS) -> events.FailedOver:
    return events.FailedOver(
        at_ms=at_ms,
        kind="LookupError",
        message="no such price",
        operator="prices",
        record="('a secret', 1)",
        traceback="Traceback ...",
        **COMMON,
    )


def times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time // MS - NOW_MS, span.end_time // MS - NOW_MS


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("crosscut."): value for name, value in (span.attributes or {}).items()}


def test_a_checkpoint_is_a_trace_of_its_own_with_its_steps_also_where_the_program_has_a_span_open() -> None:
    told = Told()
    with told.provider.get_tracer("the program").start_as_current_span("whatever"):
        told.tell(completed(7))
    spans = told.spans()
    whole = spans["checkpoint"]
    assert whole.parent is None
    assert times(whole) == (-30, 0)
    assert times(spans["snapshots"]) == (-30, -10)
    assert times(spans["append"]) == (-10, 0)
    for name in ("snapshots", "append"):
        parent = spans[name].parent
        assert parent is not None
        assert parent.span_id == whole.context.span_id
    found = attributes(whole)
    assert (found["job"], found["epoch"], found["checkpoint"]) == ("a job", 2, 7)
    assert (found["state_bytes"], found["new_bytes"], found["alignment_ms"]) == (2_000, 100, 4.0)
    assert whole.status.status_code is StatusCode.UNSET


def test_a_checkpoint_that_was_given_up_is_an_error_with_its_reason() -> None:
    told = Told()
    told.tell(events.CheckpointFailed(at_ms=NOW_MS, reason="it took too long", **COMMON))
    span = told.spans()["checkpoint"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "it took too long")


def test_a_failover_lasts_until_records_flow_and_tells_all_that_failed_meanwhile_but_no_record() -> None:
    told = Told()
    told.tell(failed_over())
    assert told.spans() == {}
    told.tell(failed_over(NOW_MS + 5))
    told.tell(events.Recovered(at_ms=NOW_MS + 40, resumed_from=CheckpointId(6), seconds=0.04, **COMMON))
    span = told.spans()["failover"]
    assert times(span) == (0, 40)
    assert attributes(span)["operator"] == "prices"
    assert attributes(span)["checkpoint"] == 6
    assert [one.name for one in span.events] == ["exception", "exception"]
    assert (span.events[0].attributes or {})["exception.message"] == "no such price"
    assert "a secret" not in span.to_json()


def test_a_job_that_ends_in_a_failover_leaves_no_span_open() -> None:
    told = Told()
    told.tell(failed_over())
    told.tell(events.Ended(at_ms=NOW_MS + 9, outcome="failed", cause="given up", resumes_from=None, **COMMON))
    span = told.spans()["failover"]
    assert times(span) == (0, 9)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "given up")


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsError, match=r"crosscut\[otel\]"):
        cc.open_telemetry()
