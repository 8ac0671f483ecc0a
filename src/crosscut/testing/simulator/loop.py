"""The event loop of one virtual process: asyncio's contract over virtual time and virtual sockets.

What is ready is done in turns, in the order in which it became ready; a turn begins some drawn time after
there is something to do, as if the process were busy, or another one had the processor. Nothing happens
in a process that is stopped; in one that is dead nothing happens any more, whatever is still called.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any, Protocol, TypeVar

from crosscut.errors import invariant
from crosscut.host.calls import Calls
from crosscut.testing.simulator.clock import Clock

T = TypeVar("T")

TASKS_SWEPT_AT = 100
"""So many tasks a loop remembers beyond those that are not done."""
CLOSINGS_MAX = 100
"""How often a coroutine may await something more while it is being closed."""


class Killed(BaseException):
    """The process dies where it is: nothing of what it is doing comes to its end."""


class LoopSurface(Protocol):
    """What processes stand on, as a loop sees it."""

    # A process, as the rest of the world has it.
    running: Any

    def turn_us(self, process: Any) -> int:
        """Return how long `process` takes until it gets to the calls that are ready."""


class LoopNetwork(Protocol):
    """The network, as a loop sees it."""

    def listen(self, process: Any, accept: Callable[[], asyncio.Protocol], host: str, port: int) -> object:
        """Listen on an address of `process`."""

    async def connect(
        self, process: Any, make: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> object:
        """Connect `process` to a server."""


class LoopOwner(Protocol):
    """The process of a loop, as the loop sees it."""

    clock: Clock
    calls: Calls
    is_alive: bool
    is_paused: bool
    dies_after: int | None
    turns: int
    answers: deque[Callable[[], object]] | None

    @property
    def surface(self) -> LoopSurface: ...

    @property
    def network(self) -> LoopNetwork: ...

    def operate(self) -> None:
        """Do one thing that somebody may see."""

    def idle(self) -> None:
        """All that was ready is done."""

    def reported(self, message: str, error: BaseException | None) -> None:
        """The loop reports something."""


class VirtualHandle(asyncio.Handle):
    """A call to make. Unlike asyncio's it has no context of its own: only what is logged needs one."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback: Any = callback
        self._args: Any = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class VirtualTimer(VirtualHandle):
    """The same, at a time."""

    __slots__ = ("_when",)

    def __init__(self, when_s: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        super().__init__(callback, args)
        self._when = when_s

    def when(self) -> float:
        """Return the time, as `asyncio.TimerHandle` does."""
        return self._when


_Ready = tuple[Callable[..., object], tuple[Any, ...], VirtualHandle | None]
"""A call that is to be made now, and what it may be cancelled by."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """One thread of one process. The world calls `turn`; everything else is called from within."""

    def __init__(self, process: LoopOwner) -> None:
        self._process = process
        self._clock = process.clock
        self._ready: deque[_Ready] = deque()
        # Timers that became due while the process was stopped.
        self._overdue: list[VirtualTimer] = []
        # asyncio's list of all tasks has those of every world that nobody has swept up yet.
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_swept_at = TASKS_SWEPT_AT
        self._has_turn = False

    # Calls of the world.

    def turn(self) -> None:
        """Make the calls that are ready now; those that become ready meanwhile wait for the next turn."""
        self._has_turn = False
        process, ready = self._process, self._ready
        if process.is_paused or not process.is_alive:
            return
        # Most of what a world costs goes through here: no call is made for nothing.
        surface = process.surface
        interrupted, surface.running = surface.running, process
        process.turns += 1
        clock = self._clock
        if clock.running_loop is not self:
            clock.running_loop = self
            events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                callback, args, handle = ready[0]
                try:
                    if process.dies_after is not None:
                        process.operate()
                    ready.popleft()
                    if handle is None or not handle._cancelled:
                        callback(*args)
                except Killed:
                    # It is dead by now.
                    break
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio does
                    self.call_exception_handler({"message": "a callback raises", "exception": error})
                if process.is_paused or not process.is_alive:
                    break
        finally:
            if not clock.keeps_running_loop:
                run_in(None, clock)
            surface.running = interrupted
        if not ready:
            process.idle()
        # Looking at an idle process may have given it something to do.
        if ready and not self._has_turn:
            self.arm()

    def arm(self) -> None:
        """Let there be a turn, if there is something to do."""
        if self._ready and not self._has_turn and not self._process.is_paused:
            self._has_turn = True
            self._clock.after(self._process.surface.turn_us(self._process), self.turn)

    def wake(self, *, timers_first: bool) -> None:
        """Go on after a stop: all that came in or became due meanwhile is ready at once.

        Args:
            timers_first: As in libuv; asyncio's own loop looks at the sockets first.
        """
        overdue, self._overdue = self._overdue, []
        if timers_first:
            self._ready.extendleft((one._callback, one._args, one) for one in reversed(overdue))
        else:
            self._ready.extend((one._callback, one._args, one) for one in overdue)
        self.arm()

    def unwind(self) -> None:
        """Close the coroutines of a dead process: they end where they are, and nothing comes of it."""
        invariant(not self._process.is_alive, "the coroutines of a process that lives are closed")
        run_in(self, self._clock)
        try:
            for task in self._not_done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
        finally:
            run_in(None, self._clock)
        self._ready.clear()
        self._overdue.clear()
        self._tasks.clear()

    def _not_done(self) -> list[asyncio.Task[Any]]:
        return [one for one in self._tasks if not one.done()]

    # asyncio.AbstractEventLoop: time and calls.

    def time(self) -> float:
        return self._clock.now_us / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle | None:
        # Only asyncio's own futures and tasks name a context, and they never cancel the call.
        handle = VirtualHandle(callback, args) if context is None else None
        process = self._process
        if process.is_alive:
            self._ready.append((callback, args, handle))
            if not self._has_turn and not process.is_paused:
                self._has_turn = True
                self._clock.after(process.surface.turn_us(process), self.turn)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle | None:
        answers = self._process.answers
        if answers is not None:
            answers.append(lambda: self.call_soon(callback, *args))
            return VirtualHandle(callback, args)
        return self.call_soon(callback, *args)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualTimer:
        self._process.operate()
        timer = VirtualTimer(self.time() + delay, callback, args)
        # Rounded up: nothing happens before its time.
        self._clock.after(math.ceil(delay * 1e6), partial(self._fired, timer))
        return timer

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualTimer:
        return self.call_later(when - self.time(), callback, *args)

    def _fired(self, timer: VirtualTimer) -> None:
        if timer._cancelled or not self._process.is_alive:
            return
        if self._process.is_paused:
            self._overdue.append(timer)
        else:
            self._ready.append((timer._callback, timer._args, timer))
            if not self._has_turn:
                self.arm()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name="" if name is None else str(name))
        if not self._process.is_alive:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(coro)
            return task
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_swept_at:
            self._tasks = self._not_done()
            self._tasks_swept_at = 2 * len(self._tasks) + TASKS_SWEPT_AT
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: None, func: Callable[..., T], *args: Any
    ) -> Awaitable[T]:
        return asyncio.wrap_future(self._process.calls.start(func, *args), loop=self)

    # Sockets.

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int = 100,
        **_: Any,
    ) -> Any:
        self._process.operate()
        return self._process.network.listen(self._process, protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> Any:
        self._process.operate()
        return await self._process.network.connect(self._process, protocol_factory, host, port)

    # The rest of a loop's interface.

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self._process.is_alive and not isinstance(error, Killed):
            self._process.reported(str(context.get("message")), error)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self._process.is_alive


def run_in(loop: VirtualLoop | None, clock: Clock) -> None:
    """Let `loop` be what asyncio takes for the running one in the world that has `clock`."""
    if clock.running_loop is not loop:
        clock.running_loop = loop
        events._set_running_loop(loop)


def _close(coroutine: Any) -> None:
    """Close a coroutine, and those that it was given and has not begun to await."""
    if coroutine.cr_frame is not None:
        for value in coroutine.cr_frame.f_locals.values():
            if asyncio.iscoroutine(value):
                value.close()
    for _ in range(CLOSINGS_MAX):
        try:
            coroutine.close()
        except RuntimeError:
            # It has awaited something in a `finally`, or is what is running just now.
            continue
        except BaseException:  # noqa: BLE001 - a dead process raises nothing
            continue
        return
