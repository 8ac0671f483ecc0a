"""What runs inside a task: operators take a batch and return a batch.

An operator knows nothing of workers, channels or clocks. Where user code fails, the operator says
which record was to blame; the fast path pays nothing for that, since the iterator over the records
knows how many are left.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.contracts.metrics import Metrics
from crosscut.errors import StateError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.text import ShortRepr
from crosscut.operators.recurrence import is_of_record, recurs
from crosscut.operators.sides import Sides
from crosscut.operators.time_budget import TimeBudget

_RECORD_REPR = ShortRepr(300)
_RECORD_REPR.maxtuple = _RECORD_REPR.maxlist = _RECORD_REPR.maxdict = 10

_OURS = (
    "crosscut.operators.",
    "crosscut.task.",
    "crosscut.worker.",
    "crosscut.microbatch.",
    "crosscut.connectors.",
    "crosscut.testing.",
)


class Operator(ABC):
    """One operator of a chain, in one task and one epoch.

    Attributes:
        time_budget: Where a loop over records that calls user code gets its iterator from: it may end early.
        sides: What it says beside what it returns; None: never anything.
        late_count: Records that came too late for it, in this epoch.
        uses_watermarks: Whether `advance` is to be called.
        uses_clock: Whether it has use for processing time, which `time_budget.now_ms` is.
        passes_watermarks: Whether the watermark that comes in goes on to the next operator.
        metrics: Those of user code.
        runs_in_copies: Whether a forked copy of the process may process records: False where an operator uses
            files, connections or threads of ours, which a copy would share or lack.
    """

    runs_in_copies = True
    uses_watermarks = False
    uses_clock = False
    late_count = 0
    passes_watermarks = True
    metrics: Metrics | None = None

    def __init__(self, uid: str, sides: Sides | None = None) -> None:
        self.uid = uid
        self.sides = sides
        self.time_budget = TimeBudget()
        self.taken_count = 0
        """Records taken in this epoch, in whole batches."""

    def loading(self) -> Iterator[None]:
        """Make ready what goes with restored state, a step at a time, before anything else is called."""
        return iter(())

    def own(self, owns: Callable[[Any], bool]) -> None:
        """These keys belong to the task; called before anything else but `loading`."""

    def begin_at(self, watermark: int | None) -> None:
        """The restored snapshot has this watermark; the next operator may know it, and is told again."""

    @abstractmethod
    def process(self, batch: Batch) -> Batch:
        """Return what the records of `batch` become, in order. May keep neither list.

        If the course is stopped meanwhile, what they become as far as the operator came: `batch` is shorter
        then, and what is missing is the course's rest.

        Raises:
            UserCodeError: A function of the user raised, whatever it raised.
        """

    @property
    def comes_from(self) -> JSON:
        """The watermark up to which it has said all that was due, where a restored operator has to know.

        As `AssignTimestamps.saved`, without splits; None: it need not know.
        """
        return None

    def advance(self, watermark: int | None) -> Batch | None:
        """Return what is due now, of at most `time_budget.rows_max` timers, or None when nothing is.

        Called after each batch, and again until it returns None; then the watermark goes on to the next
        operator. What was due and has been said is in the state no more, so a snapshot may be taken between
        two calls: a restored operator is told of the same watermark first, and says the rest.

        Args:
            watermark: No older record will come; never lower than before. None: as before. After the end of
                input it is `END_OF_TIME`.

        Raises:
            UserCodeError: As in `process`.
        """
        return None

    @property
    def timer_count(self) -> int:
        """How many timers are set."""
        return 0

    @property
    def next_alarm_ms(self) -> int | None:
        """The processing time at which `advance` is to be called, whether records come or not."""
        return None

    def end(self, after: str) -> Iterator[tuple[Batch, str]]:
        """Yield what is still to come when all inputs have ended, up to `time_budget.rows_max` records each.

        With each batch comes an ordinal: that up to which all has been said then. It is part of the
        snapshot, and "" before the first. Nothing is said twice in the life of a job, so the order is always
        the same.

        Args:
            after: What comes after this ordinal is still to come.
        """
        return iter(())

    def take_held(self) -> Batch | None:
        """No other record comes in this batch of the micro-batch engine: return what was held back; None:
        nothing ever is."""
        return None

    def close(self) -> None:
        """The epoch is over: let user code release what it holds.

        Raises:
            UserCodeError: It raised.
        """

    def over(self, batch: Batch) -> _Loop:
        """Return what gives, in a `with`, the iterator of a loop that calls user code for the records."""
        return _Loop(self, batch)

    def blamed(self, error: BaseException, records: list[Any], remaining: Iterator[Any]) -> UserCodeError:
        """Return `error` as one that names this operator and the record.

        Args:
            records: The records that were being processed.
            remaining: The iterator over them; the last one it gave is to blame.
        """
        # What is raised before the first one, as by a process that can't be opened, comes with that.
        index = max(0, len(records) - remaining.__length_hint__() - 1)  # type: ignore[attr-defined]
        is_first = not index and not self.taken_count
        return user_code_error(self.uid, error, records[index], is_first=is_first)


class _Loop:
    """Of an operator, over the records of a batch: what is raised in it is the last record's fault."""

    __slots__ = ("_batch", "_operator", "_remaining")

    def __init__(self, operator: Operator, batch: Batch) -> None:
        self._operator = operator
        self._batch = batch

    def __enter__(self) -> Iterator[Any]:
        self._remaining = self._operator.time_budget.through(self._batch)
        return self._remaining

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        operator, batch = self._operator, self._batch
        if error is not None:
            raise operator.blamed(error, batch.records, self._remaining) from error
        # If the course was stopped meanwhile, the batch is shorter now.
        operator.taken_count += len(batch.records)


def user_code_error(uid: str, error: BaseException, record: Any, *, is_first: bool = False) -> UserCodeError:
    """Return `error`, raised by user code in operator `uid` for `record`, as text that can travel."""
    return UserCodeError(
        f"operator {uid!r} raised {type(error).__name__}: {error}",
        operator=uid,
        record=shortened(record),
        traceback=traceback_of(error),
        is_first=is_first,
        is_certain=recurs(error, _OURS),
        may_heal=not is_of_record(error, _OURS),
    )


def named_state_error(uid: str, error: StateError) -> StateError:
    """Return `error` as one that names the operator whose state it is about."""
    if getattr(error, "operator", ""):
        return error
    return StateError(f"operator {uid!r}: {error.message}", **{**error.ids, "operator": uid})


def traceback_of(error: BaseException) -> str:
    """Return where `error` was raised. It begins where the user's code does: how we came to call that would
    only be in the way."""
    frames = error.__traceback__
    while frames and frames.tb_next and frames.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def text_of(error: BaseException) -> str:
    """Return the class of `error` and what it says, of bounded length; its own `__str__` may raise."""
    try:
        return f"{type(error).__name__}: {error}"[:1_000]
    except Exception as raised:  # noqa: BLE001 - user code may raise anything, here too
        return f"{type(error).__name__} whose text raises {type(raised).__name__}"


def shortened(record: Any) -> str:
    """Return the repr of `record`, of bounded length; its own `__repr__` may raise."""
    try:
        return _RECORD_REPR.repr(record)[:1_000]
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, here too
        return f"<{type(record).__qualname__} whose repr raises {type(error).__name__}>"
