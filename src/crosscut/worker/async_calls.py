"""Calls of `map_async`: coroutines on the worker's event loop, plain functions in threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol

from crosscut.foundation.callables import is_async, name_of
from crosscut.operators.async_map import StartCall


class ThreadedCalls(Protocol):
    """Calls of what may block."""

    async def call_while_wanted(self, function: Any, *args: Any) -> Any:
        """Call `function` in a thread. The caller may cease to wait for it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call has ended. `error` None: it has returned `result`."""

    result: Any = None
    error: BaseException | None = None


async def outcome_of(call: StartCall, threads: ThreadedCalls) -> Outcome:
    """Make a call, and wait for it as long as it may take.

    A coroutine that takes longer is cancelled, without waiting until it has heard of that. A thread can't be
    ended: it goes on, and its result is dropped. Both hold also when the caller is cancelled.
    """
    if call.delay_ms:
        await asyncio.sleep(call.delay_ms / 1_000)
    made = asyncio.ensure_future(_made(call, threads))
    try:
        await asyncio.wait((made,), timeout=call.timeout_ms / 1_000)
        if made.done() and not made.cancelled():
            return made.result()
        if made.cancelled():
            return Outcome(error=RuntimeError(f"{name_of(call.function)} cancelled itself"))
        late = f"{name_of(call.function)} has not returned within timeout={call.timeout_ms / 1_000:g} s"
        return Outcome(error=TimeoutError(late))
    finally:
        made.cancel()


async def _made(call: StartCall, threads: ThreadedCalls) -> Outcome:
    function = call.function
    try:
        if is_async(function):
            return Outcome(await function(call.record))
        result = await threads.call_while_wanted(function, call.record)
        if isinstance(result, Awaitable):
            if inspect.iscoroutine(result):
                result.close()
            return Outcome(
                error=TypeError(f"{name_of(function)} returned an awaitable: make it an async function")
            )
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, and not at the event loop
        return Outcome(error=error)
    return Outcome(result)
