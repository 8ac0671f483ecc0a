"""Virtual processes: killed at any operation, stopped and continued; a thread is a call that takes time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Protocol, Self

from crosscut.host.calls import Calls
from crosscut.operators.time_budget import TimeBudget
from crosscut.testing.simulator.clock import Action, Clock
from crosscut.testing.simulator.loop import Killed, LoopNetwork, VirtualLoop, run_in


class Connection(Protocol):
    """One end of a connection, as the process that has it sees it."""

    def process_died(self, *, loses: bool) -> None:
        """The operating system closes it."""


class Listener(Protocol):
    """A server, as the process that has it sees it."""

    def close(self) -> None:
        """Listen no more."""


class Surface(Protocol):
    """The ground that all processes stand on, and chance."""

    clock: Clock
    running: Process | None

    @property
    def network(self) -> LoopNetwork:
        """What connects them."""

    def coin(self) -> bool:
        """Return one or the other."""

    def now(self) -> datetime:
        """Return the time of the wall clocks; they may jump."""

    def turn_us(self, process: Process) -> int:
        """Return how long `process` takes until it gets to the calls that are ready."""

    def call(self, process: Process, work: Action, name: str) -> None:
        """Do `work`, some time, in a thread of `process`."""

    def reported(self, process: Process, message: str, error: BaseException | None) -> None:
        """The loop of `process` reports something that nobody has caught."""

    def exited(self, process: Process, error: BaseException | None) -> None:
        """The main coroutine of `process` has come to its end, by itself."""

    def gone(self, process: Process) -> None:
        """`process` is not there any more, whatever the reason."""


class Call(Protocol):
    """A call that a process makes of what is outside of it, the store or a sink.

    Attributes:
        process: The caller.
        is_over: The caller has its answer, or nobody waits for it any more.
    """

    process: Process
    is_over: bool


class Process:
    """One process on a host of its own. Used as a context, it is the one that is running.

    Attributes:
        has_exited: It has ended by itself, and well.
        is_frozen: It is stopped, and never goes on: its machine hangs, and keeps its connections.
        dies_after: Operations until a crash, if one is planned.
        last_requests: What is on its way when the process dies may arrive all the same: so many operations.
        answers: What a thread tells the loop goes here while it is on its way; None: it arrives at once.
        was_killed: It did not end by itself.
        may_raise: Errors that its main coroutine may end with.
    """

    may_raise: tuple[type[Exception], ...] = ()

    def __init__(self, surface: Surface, name: str, host: str) -> None:
        self.surface = surface
        self.clock = surface.clock
        self.network = surface.network
        self.name = name
        self.host = host
        self.is_alive = True
        self.is_paused = False
        self.is_frozen = False
        self.dies_after: int | None = None
        self.loop = VirtualLoop(self)  # type: ignore[abstract]
        self.calls = Calls(name, self.start_thread)
        self.transports: dict[Connection, None] = {}
        self.servers: dict[Listener, None] = {}
        self.reason = ""
        self.was_killed = False
        self.has_exited = False
        self.last_requests = 0
        self.turns = 0
        self.answers: deque[Callable[[], object]] | None = None
        self._when_resumed: list[Action] = []

    def __repr__(self) -> str:
        return self.name

    def __enter__(self) -> Self:
        # As in a thread, where there is none.
        run_in(None, self.clock)
        self._interrupted = self.surface.running
        self.surface.running = self
        self.turns += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.surface.running = self._interrupted

    # Calls of the world.

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let the process do `main`, and end with it."""

        def begin() -> None:
            self.loop.create_task(self._main(main))

        self.loop.call_soon(begin)

    async def _main(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        error: BaseException | None = None
        try:
            await main()
        except GeneratorExit:
            raise
        except BaseException as raised:  # noqa: BLE001 - the outermost of the process
            error = raised
        if self.is_alive:
            self.has_exited = error is None
            self.surface.exited(self, error)
            self.die("it has ended" if error is None else f"{error}")

    def do(self, action: Callable[[], object]) -> None:
        """Have the process do something that it would not do of itself, in its own time."""
        self.loop.call_soon(action)

    def die(self, reason: str, *, loses: bool = False, is_killed: bool = False) -> None:
        """The process is gone; `loses`: and with it the bytes that it had just sent."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.was_killed = is_killed
        self.reason = reason
        for server in list(self.servers):
            server.close()
        for transport in list(self.transports):
            transport.process_died(loses=loses)
        # Not now: it may be in the middle of a call.
        self.clock.after(0, self.loop.unwind)
        self.surface.gone(self)

    def kill(self, reason: str) -> None:
        """Die in the middle of what it is doing.

        Raises:
            Killed: Always.
        """
        self.die(reason, loses=self.surface.coin(), is_killed=True)
        raise Killed(reason)

    def pause(self) -> None:
        """SIGSTOP: what it is doing comes to its end, since that takes no time, and nothing else."""
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if self.is_frozen:
            return
        self.is_paused = False
        waiting, self._when_resumed = self._when_resumed, []
        for action in waiting:
            self.clock.after(0, action)
        self.loop.wake(timers_first=self.surface.coin())

    def when_resumed(self, action: Action) -> None:
        """Do `action` when the process goes on."""
        self._when_resumed.append(action)

    # Calls of its own code.

    def operate(self) -> None:
        """Do one thing that somebody may see.

        Raises:
            Killed: A crash was planned here.
        """
        if self.dies_after is not None and self.is_alive and self.surface.running is self:
            if self.dies_after == 0:
                self.kill("killed between two operations")
            self.dies_after -= 1

    def request(self) -> None:
        """Ask something of the world outside of the process: the store, a sink.

        Raises:
            Killed: The process is dead, and nothing of it was on its way.
        """
        if self.is_alive:
            self.operate()
        elif self.last_requests:
            self.last_requests -= 1
        else:
            raise Killed("a dead process asks for nothing")

    def idle(self) -> None:
        """All that was ready is done."""

    def start_thread(self, work: Action, name: str) -> None:
        """Do `work` later, as if in a thread."""
        self.operate()
        self.surface.call(self, work, name)

    def reported(self, message: str, error: BaseException | None) -> None:
        """Its loop reports something."""
        self.surface.reported(self, message, error)

    # As `crosscut.host.process.Process` and `crosscut.host.clock.Clock` have it.

    @property
    def pid(self) -> int:
        return 1

    def is_orphaned(self) -> bool:
        """Never: virtual parents do not die before their children."""
        return False

    def processor_ns(self) -> int:
        """Return virtual time: what is not charged takes none."""
        return self.clock.now_us * 1_000

    def watch(self, timeout_s: float | None) -> None:
        """Nothing holds a virtual loop up."""

    def begin_slice(self, now_ns: int, patience_ns: int, time_budget: TimeBudget) -> None:
        """Nobody looks at virtual user code; how far a slice gets is up to its course."""

    def end_slice(self) -> None:
        """Likewise."""

    def tidy(self) -> None:
        """The garbage is the real process's affair."""

    def load(self) -> None:
        """Likewise."""

    def settle(self) -> None:
        """Likewise."""

    def monotonic_ns(self) -> int:
        """Return virtual time."""
        return self.clock.now_us * 1_000

    def now(self) -> datetime:
        """Return the time of the wall clocks."""
        return self.surface.now()
