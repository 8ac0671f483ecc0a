"""How a job ends for the program that waits for it: with an error, or with Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from crosscut.errors import (
    ConnectorError,
    CrosscutError,
    FlowError,
    HistoryError,
    JobFailedError,
    RefusedRecordError,
    SettingsError,
    StoreError,
    WorkersError,
)
from crosscut.protocol.effects import EndJob
from crosscut.protocol.messages import FailureCause

_EXCEPTIONS: dict[str, type[CrosscutError]] = {
    kind.__name__: kind
    for kind in (
        ConnectorError,
        FlowError,
        HistoryError,
        RefusedRecordError,
        SettingsError,
        StoreError,
        WorkersError,
    )
}


def failure_of(name: str, end: EndJob, error: BaseException | None) -> JobFailedError:
    """Return what job `name`, which has failed, raises for its user.

    Args:
        error: What was raised, if that was in this process.
    """
    cause = end.cause or FailureCause("Unknown", "no cause was given")
    # The error itself where it was raised here, else one of its kind; what happened elsewhere is text.
    kind = _EXCEPTIONS.get(cause.kind)
    # An operator is named where user code raised, and where a source or sink did.
    if error is None and kind is not None and (not cause.operator or issubclass(kind, ConnectorError)):
        ids = {}
        if issubclass(kind, ConnectorError):
            ids = {"is_permanent": cause.is_permanent, "may_recover": cause.is_transient}
        error = kind(f"job {name!r}: {cause.message}", **ids)
        # Of the error that it stands for.
        error._was_transient = cause.is_transient
    failure = JobFailedError(_failure_text(name, cause), cause=cause, outcome=end.outcome)
    failure.__cause__ = error
    return failure


def _failure_text(name: str, cause: FailureCause) -> str:
    lines = [f"job {name!r} failed: {cause.message}"]
    if cause.record:
        lines.append(f"record: {cause.record}")
    if cause.traceback:
        lines.append(cause.traceback.rstrip())
    return "\n".join(lines)


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt and do no more.

    A SparkContext that the user has made answers it by cancelling all Spark jobs: that would end the
    workers before a last checkpoint.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not getattr(before, "__module__", "").startswith("pyspark."):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Terminated(SystemExit):
    """SIGTERM has come while the program waits for its job; ends the program with 143, as shells say it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextmanager
def termination_raises() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, unless the program handles it itself."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminated(number: int, frame: FrameType | None) -> None:
        # Supervisors send it again; the job stops already.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
