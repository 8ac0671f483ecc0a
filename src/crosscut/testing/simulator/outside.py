"""Calls of what is outside of every process, the store and the sinks: slow, hung, outliving who asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from crosscut.testing.simulator.clock import Action
from crosscut.testing.simulator.processes import Process

if TYPE_CHECKING:
    from crosscut.testing.simulator.world import World

Callee = Literal["store", "sink"]


class _Asked:
    """One call, on its way. No closures: each would hold on to itself, and wait for the garbage collector."""

    def __init__(self, world: World, process: Process, work: Action) -> None:
        self._world = world
        self._process = process
        self._work = work
        self._answers: deque[Callable[[], object]] = deque()
        self._is_begun = self._is_over = False

    def begin(self) -> None:
        """Do it, if that is not done yet."""
        if not self._is_begun:
            self._is_begun = True
            self._do()

    def _do(self) -> None:
        world, process = self._world, self._process
        if not process.is_alive:
            if not world.coin():
                return
            world.seen["request that outlived its sender"] += 1
            process.last_requests = 1
        elif process.is_paused and world.coin():
            process.when_resumed(self._do)
            return
        with process:
            process.answers = None if self._is_over else self._answers
            self._work()
            process.answers = None
        process.last_requests = 0

    def end(self) -> None:
        """Answer, if that is not done yet."""
        if not self._is_over:
            self._is_over = True
            self.begin()
            while self._answers:
                self._answers.popleft()()


class Outside:
    """Where calls go that a process makes in its threads.

    Attributes:
        hangs: How long the next calls hang, by who is called.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._store_factor = 1
        self.hangs: dict[Callee, deque[int]] = {"store": deque(), "sink": deque()}
        self._hung: list[Action] = []

    def call(self, callee: Callee, process: Process, work: Action) -> None:
        """Do `work` there, some time, in the name of `process`. The request may outlive its sender.

        It may be done at once, and answered late; or late, and answered at once.
        """
        world = self._world
        asked = _Asked(world, process, work)
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

    def slow_store(self, factor: int, duration_us: int) -> None:
        """Let the store take `factor` times as long for a while."""
        self._store_factor = factor

        def over() -> None:
            self._store_factor = 1

        self._world.clock.after(duration_us, over)

    def heal(self) -> None:
        """Everything answers again, also what has hung until now."""
        self._store_factor = 1
        for callee in self.hangs:
            self.hangs[callee].clear()
        hung, self._hung = self._hung, []
        for once in hung:
            self._world.clock.after(0, once)
