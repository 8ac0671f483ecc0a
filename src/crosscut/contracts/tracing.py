"""Checkpoints and failovers as spans of OpenTelemetry: a listener of a job's events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crosscut import events
from crosscut.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

NS_PER_MS = 1_000_000


def open_telemetry(provider: TracerProvider | None = None) -> Callable[[events.JobEvent], None]:
    """Return a listener that makes spans of what happens to a job, for `Job.on_event`.

    Each checkpoint is a trace of its own: a span `checkpoint` with `snapshots` (from the trigger to the last
    acknowledgement) and `append` (until its entry of the job log is durable) in it. A failover is a span from
    the moment that the failure was noticed until records flow again, with what was raised. One listener is
    for one job. Needs opentelemetry-api (`crosscut[otel]`); who exports the spans, and where to, is up to the
    program.

    Args:
        provider: Whose tracer is used. Default: the program's.

    Raises:
        SettingsError: OpenTelemetry is not installed.

    Examples:
        >>> import crosscut as cc
        >>> def watch(job: cc.Job) -> None:
        ...     job.on_event(cc.open_telemetry())
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise SettingsError(
            "spans need OpenTelemetry, which is not installed: pip install 'crosscut[otel]'"
        ) from error
    return _Spans(trace.get_tracer("crosscut", tracer_provider=provider))


class _Spans:
    """The spans of one job."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._failover: Span | None = None

    def __call__(self, event: events.JobEvent) -> None:
        match event:
            case events.CheckpointCompleted():
                self._completed(event)
            case events.CheckpointFailed(reason=reason):
                span = self._begun("checkpoint", event, event.at_ms)
                _failed(span, reason)
                _end(span, event.at_ms)
            case events.FailedOver():
                self._failed_over(event)
            case events.Recovered(resumed_from=n):
                if self._failover is not None:
                    if n is not None:
                        self._failover.set_attribute("crosscut.checkpoint", int(n))
                    _end(self._failover, event.at_ms)
                    self._failover = None
            case events.Ended():
                if self._failover is not None:
                    _failed(self._failover, event.cause or f"the job has {event.outcome} meanwhile")
                    _end(self._failover, event.at_ms)
                    self._failover = None
            case _:
                pass

    def _completed(self, event: events.CheckpointCompleted) -> None:
        began_ms, appended_ms = event.at_ms - event.duration_ms, event.at_ms - event.append_ms
        span = self._begun("checkpoint", event, began_ms)
        span.set_attributes(
            {
                "crosscut.checkpoint": int(event.checkpoint_id),
                "crosscut.state_bytes": event.state_bytes,
                "crosscut.new_bytes": event.new_bytes,
                "crosscut.is_final": event.is_final,
                "crosscut.alignment_ms": event.alignment_ms,
                "crosscut.freeze_ms": event.freeze_ms,
                "crosscut.store_ms": event.store_ms,
            }
        )
        for name, from_ms, until_ms in (
            ("snapshots", began_ms, appended_ms),
            ("append", appended_ms, event.at_ms),
        ):
            _end(self._begun(name, event, from_ms, inside=span), until_ms)
        _end(span, event.at_ms)

    def _failed_over(self, event: events.FailedOver) -> None:
        if self._failover is None:
            self._failover = self._begun("failover", event, event.at_ms)
            if event.operator:
                self._failover.set_attribute("crosscut.operator", event.operator)
        # What fails meanwhile belongs to the same failover. Records are not told: spans go far.
        self._failover.add_event(
            "exception",
            {
                "exception.type": event.kind,
                "exception.message": event.message,
                "exception.stacktrace": event.traceback,
            },
            timestamp=event.at_ms * NS_PER_MS,
        )

    def _begun(self, name: str, event: events.JobEvent, at_ms: float, inside: Span | None = None) -> Span:
        from opentelemetry import trace
        from opentelemetry.context import Context

        # Not in whatever span the program has open: a job goes on when that is over.
        context: Any = Context() if inside is None else trace.set_span_in_context(inside, Context())
        span = self._tracer.start_span(name, context=context, start_time=int(at_ms * NS_PER_MS))
        span.set_attributes({"crosscut.job": event.job, "crosscut.epoch": int(event.epoch)})
        return span


def _failed(span: Span, reason: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, reason))


def _end(span: Span, at_ms: float) -> None:
    span.end(int(at_ms * NS_PER_MS))
