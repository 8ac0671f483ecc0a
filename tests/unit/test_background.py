"""The background work of a worker's tasks: what sinks may raise, what can't be shown, who is kept waiting."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from crosscut.errors import ConnectorError, StoreError, UserCodeError, WorkersError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.host.failpoints import Failpoints
from crosscut.net.causes import CAUSE_CHARS_MAX, failure_cause
from crosscut.operators.stateless import Map
from crosscut.protocol.messages import FailureCause, TaskFailed, WorkerMessage
from crosscut.protocol.snapshots import Part
from crosscut.state.keyed import KeyedState
from crosscut.state.layers import ROWS_PER_BLOCK
from crosscut.worker import background
from crosscut.worker.background import Threads
from crosscut.worker.local_state_cache import LocalStateCache
from crosscut.worker.pool import TaskPool

TASK = TaskId(VertexId("out"), 0)
N1 = CheckpointId(1)
DEADLINE_S = 100.0


class NoParts:
    def write_part(
        self, checkpoint_id: CheckpointId, task: TaskId, epoch: Epoch, chunks: list[bytes]
    ) -> Part:
        raise StoreError("nothing is stored here")

    def delete_parts(self, paths: Iterable[str]) -> list[str]:
        return list(paths)


def pool_of(reported: list[WorkerMessage], sink_timeout_ms: int = 20_000) -> TaskPool:
    return TaskPool(
        epoch=Epoch(1),
        store=NoParts(),
        batch_rows=10,
        linger_ms=1,
        alignment_timeout_ms=0,
        sink_timeout_ms=sink_timeout_ms,
        failpoints=Failpoints(None, None),
        report=reported.append,
        give_credit=lambda channel, size_bytes: None,
    )


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work()

    asyncio.run(in_time())


# What user code raises


class Unshowable(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


class UnshowableRecord(Exception):
    @property
    def record(self) -> object:
        raise ValueError("no record")


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "second"),
    [(Unshowable(), "KeyError"), (UnshowableRecord(), "ValueError"), (Exits(), "SystemExit")],
)
def test_an_exception_that_can_not_be_shown_is_reported_by_its_type(error: Exception, second: str) -> None:
    """L: a failure that could not be reported would look like a lost worker."""
    cause = failure_cause(error)
    kind = type(error).__name__
    assert cause.kind == kind
    assert cause.message == f"{kind}, which can't be shown: looking at it raises {second}"
    assert (cause.operator, cause.record, cause.traceback) == ("", "", "")


def test_a_failure_fits_into_one_message_and_keeps_the_end_of_its_traceback() -> None:
    cause = failure_cause(ValueError("x" * 10 * CAUSE_CHARS_MAX))
    assert len(cause.message) == len(cause.traceback) == CAUSE_CHARS_MAX


def test_only_a_damaged_part_is_beyond_mending_by_a_restart() -> None:
    assert failure_cause(StoreError("torn", damaged=True)).is_final
    assert not failure_cause(StoreError("slow")).is_final


def test_a_failure_says_whether_the_system_or_the_network_had_a_part_in_it() -> None:
    """K5: libraries have exceptions of their own for a connection that is refused."""

    def refused(record: int) -> int:
        try:
            raise ConnectionRefusedError(111, "refused")
        except OSError as error:
            if record:
                raise LookupError("no answer") from error
            raise LookupError("no answer")  # noqa: B904 - as many libraries do

    def none_found(_: int) -> int:
        raise LookupError("none")

    def cause_in(function: Callable[[int], int], *records: int) -> FailureCause:
        with pytest.raises(UserCodeError) as failure:
            Map("call", function).process(Batch(list(records)))
        return failure_cause(failure.value)

    assert cause_in(refused, 0).is_from_outside
    assert cause_in(refused, 1).is_from_outside
    assert failure_cause(TimeoutError()).is_from_outside
    assert cause_in(refused, 1).is_transient and failure_cause(TimeoutError()).is_transient
    assert failure_cause(ConnectorError("no broker answers")).is_transient
    assert not failure_cause(ConnectorError("not null", is_permanent=True)).is_transient
    assert not failure_cause(FileNotFoundError()).is_transient
    assert not cause_in(none_found, 1).is_transient
    # A certain mistake that only followed a failure of the network.
    assert cause_in(refused, 0).is_certain and not cause_in(refused, 0).is_transient
    assert not cause_in(none_found, 1).is_from_outside
    assert cause_in(none_found, 1).is_first
    assert not cause_in(lambda i: 1 // i, 1, 0).is_first


@pytest.mark.parametrize(
    "error", [StopIteration("empty"), asyncio.CancelledError(), concurrent.futures.CancelledError()]
)
def test_what_a_sink_raises_fails_its_task_even_if_asyncio_would_take_it_for_its_own(
    error: BaseException,
) -> None:
    """L: a cancelled call of a client library would end the background work in silence."""

    def commit() -> None:
        raise error

    async def work() -> None:
        reported: list[WorkerMessage] = []
        failed = asyncio.Event()
        pool = pool_of(reported)
        pool.report = lambda message: (reported.append(message), failed.set())[0]

        async def background() -> None:
            await pool.threads.call_sink(commit)

        pool.spawn(TASK, background)
        await failed.wait()
        (message,) = reported
        assert isinstance(message, TaskFailed)
        assert message.task == TASK
        assert message.cause.message == f"{type(error).__name__} was raised"
        assert "in commit" in message.cause.traceback
        await pool.close()

    run(work)


def test_background_work_that_is_cancelled_while_its_epoch_goes_on_is_a_failure() -> None:
    async def work() -> None:
        reported: list[WorkerMessage] = []
        pool = pool_of(reported)

        async def background() -> None:
            raise asyncio.CancelledError

        pool.spawn(TASK, background)
        while not reported:
            await pool.pause()
        assert isinstance(reported[0], TaskFailed)
        await pool.close()

    run(work)


def test_background_work_that_ends_with_its_epoch_is_no_failure() -> None:
    async def work() -> None:
        reported: list[WorkerMessage] = []
        pool = pool_of(reported)
        pool.spawn(TASK, asyncio.Event().wait)  # type: ignore[arg-type]
        await pool.pause()
        await pool.close()
        assert reported == []

    run(work)


def test_background_work_whose_epoch_ends_before_it_begins_leaves_no_coroutine() -> None:
    """A process that is killed then has nobody left who could close it: Python would warn of it."""

    async def work() -> None:
        pool = pool_of([])
        made: list[Coroutine[Any, Any, None]] = []

        def background() -> Coroutine[Any, Any, None]:
            made.append(pool.pause())
            return made[-1]

        pool.spawn(TASK, background)
        await pool.close()
        assert made == []

    run(work)


# Calls that hang


def test_calls_that_never_return_keep_no_other_call_waiting() -> None:
    """D3: else they would be taken for those of a sink that was never called."""
    let_go = threading.Event()

    async def work() -> None:
        threads = Threads(Epoch(1), sink_timeout_ms=20_000)
        hung = [threads.start(let_go.wait, DEADLINE_S) for _ in range(64)]
        assert await threads.call_sink(lambda: "called") == "called"
        assert not any(one.done() for one in hung)
        let_go.set()
        await threads.close()

    run(work)


def fetches_for_ever(let_go: threading.Event) -> None:
    let_go.wait(DEADLINE_S)


def test_a_call_that_does_not_return_when_its_epoch_is_over_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "THREADS_END_TIMEOUT_S", 0.01)
    let_go = threading.Event()

    async def work() -> None:
        threads = Threads(Epoch(1), sink_timeout_ms=20_000)
        for _ in range(2):
            threads.start(fetches_for_ever, let_go)
        try:
            with pytest.raises(
                WorkersError, match=r"2 calls of .* \(fetches_for_ever\) did not return within"
            ):
                await threads.close()
        finally:
            let_go.set()

    run(work)


# Loading state


def test_state_is_loaded_in_slices_and_the_loop_serves_others_in_between() -> None:
    """A worker that restores for longer than the heartbeat timeout must not look dead."""
    blocks = 20
    state = KeyedState(int)
    state.values.update({key: key for key in range(blocks * ROWS_PER_BLOCK)})
    state.freeze(N1)
    part = b"".join(state.encoded(N1, CheckpointId(0)))
    seen: deque[int] = deque()

    async def work() -> None:
        pool = pool_of([])
        at_hand = LocalStateCache()
        is_loaded = False

        async def heartbeats() -> None:
            while not is_loaded:
                seen.append(1)
                await asyncio.sleep(0)

        others = asyncio.ensure_future(heartbeats())
        restored = await at_hand.restored(
            TASK, KeyedState(int), N1, (Part("parts/1/a", len(part), "00"),), lambda _: part, pool
        )
        is_loaded = True
        await others
        assert restored.values[blocks * ROWS_PER_BLOCK - 1] == blocks * ROWS_PER_BLOCK - 1
        await pool.close()

    run(work)
    assert len(seen) >= blocks
