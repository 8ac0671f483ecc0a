"""Checks of sinks: a system that answers nothing, or slowly for ever (P8)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime

from crosscut.contracts.connectors import JSON, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.testing.sink_targets import SinkTarget, open_writer, permit, require, require_visible, stage

DEADLINE_S = 120.0
"""For a call that has a time-out of its own, on a busy machine."""

COMMIT_ATTEMPTS = 5


def check_a_system_that_never_answers_is_an_error(target: SinkTarget) -> None:
    """P8: a commit and a recovery end with an error in bounded time; later everything is there, once."""
    handles, epoch = list[JSON](), 1
    for committed, stall in enumerate(target.stalls, 1):
        writer = open_writer(target.sink, epoch, restore=committed - 1, handles=handles)
        handles = [stage(writer, target.records(10 * (committed - 1), 10 * committed), committed)]
        let_go = stall()
        try:
            _require_error(lambda: writer.commit(permit(committed, epoch), handles), "commit")  # noqa: B023
            _require_error(
                lambda: open_writer(target.sink, epoch + 1, restore=committed, handles=handles).close(),  # noqa: B023
                "recover",
            )
        finally:
            let_go()
        writer.close()
        # Whoever came later may have begun, so the next one is newer still.
        epoch += 2
        _recovered(target, epoch, committed, handles).close()
        epoch += 1
        require_visible(target, target.records(0, 10 * committed))


def _recovered(target: SinkTarget, epoch: int, restore: int, handles: list[JSON]) -> SinkWriter:
    """Recover, perhaps not at the first try: the system has just begun to answer again."""
    for left in reversed(range(COMMIT_ATTEMPTS)):
        try:
            return open_writer(target.sink, epoch, restore=restore, handles=handles)
        except ConnectorError:
            if not left:
                raise
    raise AssertionError("unreachable")


def _require_error(call: object, what: str) -> None:
    assert callable(call)
    thread = ThreadPoolExecutor(1, thread_name_prefix="crosscut-check")
    try:
        thread.submit(call).result(DEADLINE_S)
    except NotInTime:
        raise AssertionError(f"{what}() has not come to an end in {DEADLINE_S:g} s") from None
    except ConnectorError:
        return
    finally:
        thread.shutdown(wait=False)
    require(False, f"{what}() has succeeded, and the system has not answered")
