"""The steps of tasks as look-ups: every state that a task ever had, by number, and what comes of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.proof.explorer.event_time import NO_TIME
from tests.proof.explorer.frozen import Deed, Frozen, Site
from tests.proof.explorer.items import Content, Violation
from tests.proof.explorer.machines import Numbers
from tests.proof.explorer.reduction import Eager, check_step, eagerness
from tests.proof.explorer.tasks import ExploredTask

from crosscut.protocol.messages import WorkerMessage


class Step(NamedTuple):
    """Who did what; `action` tells apart what has the same name.

    Attributes:
        who: A task by number, or -1 for the driver.
    """

    is_zombie: bool
    who: int
    name: str
    action: Any = None


class Result(NamedTuple):
    """What a step of a task makes.

    Attributes:
        task: Its new number.
        sends: Channel and item.
        messages: What it says to the coordinator, by number.
        deeds: What it does to the store, by number; 0: nothing.
    """

    task: int
    sends: tuple[tuple[int, int], ...]
    messages: tuple[int, ...]
    deeds: int


class TaskMove(NamedTuple):
    """What a task could do by itself, and what that makes."""

    name: str
    action: tuple[Any, ...]
    result: Result
    eager: Eager


class TaskTable:
    """All that the tasks at one site ever were, and their steps as far as anybody has asked for them.

    Args:
        is_reduced: Whether steps of these tasks may be eager, so that what that relies on is tested.
        aborts: Whether a checkpoint may be aborted in this world.
        captures_by_message: Whether the coordinator may tell a task to capture.
    """

    def __init__(
        self,
        site: Site,
        kind: type[ExploredTask],
        messages: Numbers[WorkerMessage],
        deeds: Numbers[tuple[Deed, ...]],
        *,
        is_reduced: bool,
        aborts: bool,
        captures_by_message: bool,
    ) -> None:
        self.site = site
        self._kind = kind
        self._messages = messages
        self._deeds = deeds
        self.is_reduced = is_reduced
        self._aborts = aborts
        self._zombies_need_data = captures_by_message or not site.inputs
        self._numbers: Numbers[Frozen | None] = Numbers()
        self._numbers.number(None)  # 0: there is no task.
        self._steps: dict[tuple[int, tuple[Any, ...]], Result] = {}
        self._moves: dict[int, tuple[TaskMove, ...]] = {}
        self._fresh: dict[tuple[int, int, int, Content], Result] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def value(self, number: int) -> Frozen | None:
        """Return the task as a value, None for 0."""
        return self._numbers.values[number]

    def fresh(self, epoch: int, protocol: int, committer: int, content: Content) -> Result:
        """Return a restored task of a new epoch."""
        key = (epoch, protocol, committer, content)
        found = self._fresh.get(key)
        if found is None:
            task = self._kind(self.site, Frozen.fresh(self.site, epoch, protocol, committer))
            task.restore(content)
            found = self._fresh[key] = self._result(task)
        return found

    def step(self, number: int, action: tuple[Any, ...]) -> Result:
        """Return what calling the method `action[0]` with the rest of `action` makes."""
        found = self._steps.get((number, action))
        if found is None:
            task = self._thawed(number)
            getattr(task, action[0])(*action[1:])
            if self.is_reduced:
                check_step(self._thawed(number), action, task)
            found = self._steps[number, action] = self._result(task)
        return found

    def moves(self, number: int) -> tuple[TaskMove, ...]:
        """Return what the task could do by itself."""
        found = self._moves.get(number)
        if found is None:
            task = self._thawed(number)
            found = self._moves[number] = tuple(
                TaskMove(name, action, self.step(number, action), self._eager(task, action))
                for name, action in task.moves()
            )
        return found

    def without_data(self, number: int) -> int:
        """Return a zombie of the task: without what only records change, unless it may still show that."""
        frozen = self._numbers.values[number]
        if frozen is None or self._zombies_need_data:
            return number
        bare = frozen._replace(
            state=0,
            open=0,
            said=False,
            ended=False,
            is_end_forwarded=False,
            ended_inputs=0,
            queues=((),) * len(frozen.queues),
            unsent=((),) * len(frozen.unsent),
            timers=(),
            time=NO_TIME,
        )
        return self._numbers.number(bare)

    def _eager(self, task: ExploredTask, action: tuple[Any, ...]) -> Eager:
        if not self.is_reduced or action[0] != "process":
            return Eager.NO
        return eagerness(self.site, task, action[1], aborts=self._aborts)

    def _thawed(self, number: int) -> ExploredTask:
        frozen = self._numbers.values[number]
        if frozen is None:
            raise Violation("there is no such task")
        return self._kind(self.site, frozen)

    def _result(self, task: ExploredTask) -> Result:
        number = self._numbers.number(task.frozen())
        messages = tuple(map(self._messages.number, task.messages))
        return Result(number, tuple(task.sends), messages, self._deeds.number(tuple(task.deeds)))
