"""Calls of what is outside of every process, the store and the sinks: slow, hung, outliving who asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from crosscut.testing.simulator.clock import Action
from crosscut.testing.simulator.loop import Killed
from crosscut.testing.simulator.processes import Process

if TYPE_CHECKING:
    from crosscut.testing.simulator.world import World

Callee = Literal["store", "sink"]
CRASH_US = 100_000
"""So long at most a host goes on that crashes while it writes."""


class Asked:
    """One call, on its way. No closures: each would hold on to itself, and wait for the garbage collector.

    Attributes:
        process: The caller.
        is_over: The caller has its answer, or nobody waits for it any more.
    """

    def __init__(self, world: World, process: Process, work: Action) -> None:
        self._world = world
        self.process = process
        self._work = work
        self._answers: deque[Callable[[], object]] = deque()
        self._is_begun = False
        self.is_over = False

    def begin(self) -> None:
        """Do it, if that is not done yet."""
        if not self._is_begun:
            self._is_begun = True
            self._do()

    def _do(self) -> None:
        world, process = self._world, self.process
        if not process.is_alive:
            if not world.coin():
                return
            world.seen["request that outlived its sender"] += 1
            process.last_requests = 1
        elif process.is_paused and world.coin():
            process.when_resumed(self._do)
            return
        with process:
            process.answers = None if self.is_over else self._answers
            world.outside.under_way = self
            try:
                self._work()
            except Killed:
                # The thread dies with its process.
                pass
            finally:
                world.outside.under_way = None
            process.answers = None
        world.outside.done(self)
        process.last_requests = 0

    def end(self) -> None:
        """Answer, if that is not done yet."""
        if self._world.outside.is_crashing(self.process):
            # Its host goes down before the write is durable.
            return
        if not self.is_over:
            self.is_over = True
            self.begin()
            self._world.files.synced(self)
            while self._answers:
                self._answers.popleft()()


class Outside:
    """Where calls go that a process makes in its threads.

    Attributes:
        hangs: How long the next calls hang, by who is called.
        under_way: The call that is being carried out now.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._store_factor = 1
        self.under_way: Asked | None = None
        self.hangs: dict[Callee, deque[int]] = {"store": deque(), "sink": deque()}
        self._hung: list[Action] = []
        self._doomed: set[Process] = set()
        self._crashing: set[Process] = set()

    def call(self, callee: Callee, process: Process, work: Action) -> None:
        """Do `work` there, some time, in the name of `process`. The request may outlive its sender.

        It may be done at once, and answered late; or late, and answered at once.
        """
        world = self._world
        asked = Asked(world, process, work)
        delay_us = 10 + world.below(world.options.store_us)
        if callee == "store":
            delay_us *= self._store_factor
        if self.hangs[callee]:
            world.seen[f"hung call: {callee}"] += 1
            delay_us = self.hangs[callee].popleft()

        if delay_us > 10 + world.options.store_us:
            # It takes longer than when nothing is wrong: that ends with the faults.
            self._hung.append(asked.end)
        if world.coin():
            world.clock.after(10, asked.begin)
        world.clock.after(delay_us, asked.end)

    def crash_at_a_write(self, process: Process) -> None:
        """Have the host of `process` go down while it writes the next file: it is there, and not durable."""
        self._doomed.add(process)

    def is_crashing(self, process: Process) -> bool:
        """Whether a write of the process never returns, since its host goes down."""
        return process in self._crashing and process.is_alive

    def done(self, call: Asked) -> None:
        """A call is carried out, and its answer is on the way."""
        world, process = self._world, call.process
        if process not in self._doomed or not world.files.is_unsynced(call):
            return
        self._doomed.discard(process)
        self._crashing.add(process)
        if process in world.drivers and world.below(4):
            # A successor sees the file before it is lost.
            world.new_driver()
        world.clock.after(
            100 + world.below(CRASH_US), lambda: process.die("killed: its host crashes", is_killed=True)
        )

    def slow_store(self, factor: int, duration_us: int) -> None:
        """Let the store take `factor` times as long for a while."""
        self._store_factor = factor

        def over() -> None:
            self._store_factor = 1

        self._world.clock.after(duration_us, over)

    def heal(self) -> None:
        """Everything answers again, also what has hung until now."""
        self._store_factor = 1
        self._doomed.clear()
        for callee in self.hangs:
            self.hangs[callee].clear()
        hung, self._hung = self._hung, []
        for once in hung:
            self._world.clock.after(0, once)
