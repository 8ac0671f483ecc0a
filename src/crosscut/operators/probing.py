"""Finds the record that ends the process: a batch is tried in a copy of the process before it is taken here.

A record that makes native code crash, or for which user code calls `os._exit`, leaves no exception behind:
the process that could name it is gone. So the worker that comes after two such deaths tries each batch in a
forked copy of itself first, record by record. What a copy survives is then processed here. See decision 0097.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from crosscut.contracts.dead_letters import DeadLetter
from crosscut.contracts.decoding import DecodingTrial, ProcessDiedError
from crosscut.errors import UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.operators.operator import Operator, shortened, text_of

DEATHS_WITHOUT_WITNESS = 3
"""Deaths after which a record is to blame although no other one was seen to pass in a copy."""

AT_ONCE_MS = 2_000
"""What a worker may spend on copies before its share of the time counts: a deadly record comes soon after the
restart. The worker that died had come to it since the newest checkpoint."""

KILLED = "SIGKILL"


@dataclass(frozen=True, slots=True)
class Died:
    """How a copy came to its end.

    Attributes:
        how: As "SIGSEGV" or "exit status 3".
        trace: Where it was, as far as it could say; or "".
    """

    how: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a batch in a copy.

    Attributes:
        passed: Records that it was through with, also those for which an exception was raised.
        died: How it ended before it could say that it was done; None if it did say so, was silent for too
            long and therefore killed, or could not be made.
    """

    passed: int
    died: Died | None = None


def part_of(batch: Batch, start: int, end: int) -> Batch:
    """Return records of `batch` as they came: on the same input."""
    part = batch.part(start, end)
    part.input = batch.input
    return part


class Copies(Protocol):
    """Makes copies of this process, as it is now, that process records and are gone afterwards."""

    def attempt(self, operator: Operator, batch: Batch) -> Tried:
        """Let a copy process the records of `batch` one after the other; nothing changes here.

        It takes a bounded time. A copy that is not through by then says how far it is.
        """

    def attempt_due(self, operator: Operator, watermark: int | None) -> Tried:
        """Let a copy say what `operator` has due by `watermark`; `passed` is 1 if it came through."""

    def now_ms(self) -> int:
        """Return a time that never goes back."""


class ProbingTime:
    """How long a worker, with all its tasks, may wait for copies.

    A copy takes some ten milliseconds, also for a single record. Most workers are killed from outside, by a
    lost machine for example, and must not take minutes for the work of seconds because of that. So batches
    are processed unprobed as soon as copies have had their share of the time: half of it after two deaths,
    three quarters after three, and so on. A deadly record that gets through kills its worker once more.

    Args:
        deaths: Those because of which the worker probes.
    """

    def __init__(self, copies: Copies, deaths: int) -> None:
        self._copies = copies
        self._share = 1 - 0.5 ** max(1, deaths - 1)
        self._began_ms = copies.now_ms()
        self._spent_ms = 0

    @property
    def is_left(self) -> bool:
        """Whether a batch may be tried now."""
        return self._spent_ms <= AT_ONCE_MS + self._share * (self._copies.now_ms() - self._began_ms)

    def attempt(self, operator: Operator, batch: Batch) -> Tried:
        """See `Copies.attempt`."""
        with self._spending():
            return self._copies.attempt(operator, batch)

    def attempt_due(self, operator: Operator, watermark: int | None) -> Tried:
        """See `Copies.attempt_due`."""
        with self._spending():
            return self._copies.attempt_due(operator, watermark)

    @contextmanager
    def _spending(self) -> Iterator[None]:
        before_ms = self._copies.now_ms()
        yield
        self._spent_ms += self._copies.now_ms() - before_ms


@dataclass(frozen=True, slots=True)
class Deadly:
    """The first record of a batch ends the process, whenever it is processed."""

    record: Any
    died: Died


class Probing:
    """The probing of one task.

    Args:
        time: The worker's.
        deaths: Those because of which the worker probes.
    """

    def __init__(self, time: ProbingTime, deaths: int) -> None:
        self._time = time
        self._needs_witness = deaths < DEATHS_WITHOUT_WITNESS
        # Operators of which a copy was through with a record: there, copies do work.
        self._witnessed: set[str] = set()
        # Operators that can't be probed: copies of them don't answer, or die of whatever they are given.
        self._unfit: set[str] = set()

    def look(self, operator: Operator, batch: Batch) -> int | Deadly:
        """Return how many records of `batch` to process now, at least one, or that the first is deadly.

        Only the death of a copy at the first record is looked into. What comes before is processed first,
        so the copy that is to tell has the state that the record finds.
        """
        if not self._is_tried(operator):
            return len(batch)
        tried = self._time.attempt(operator, batch)
        if tried.passed:
            self._witnessed.add(operator.uid)
            return tried.passed
        if tried.died is None:
            # There is no copy, or its function waits for a thread that no copy has. One that hangs here as
            # well is the watchdog's business.
            self._unfit.add(operator.uid)
            return len(batch)
        # Somebody may have killed the copy: a record is to blame that does it twice.
        again = self._time.attempt(operator, part_of(batch, 0, 1))
        if again.died is None:
            return 1
        if again.died.how == KILLED:
            # By a record that takes all memory, or by a machine that has none left, for any copy.
            return Deadly(batch.records[0], again.died) if self._next_passes(operator, batch) else 1
        if self._is_known_to_work(operator) or self._next_passes(operator, batch):
            return Deadly(batch.records[0], again.died)
        self._unfit.add(operator.uid)
        return 1

    def look_at_due(self, operator: Operator, watermark: int | None) -> Died | None:
        """Return how what is due by `watermark` ends the process; None: it does not, as far as is known."""
        if not self._is_tried(operator):
            return None
        tried = self._time.attempt_due(operator, watermark)
        if tried.passed:
            return None
        if tried.died is None:
            self._unfit.add(operator.uid)
            return None
        again = self._time.attempt_due(operator, watermark).died
        is_sure = again is not None and again.how != KILLED and self._is_known_to_work(operator)
        return again if is_sure else None

    def _is_tried(self, operator: Operator) -> bool:
        return operator.runs_in_copies and operator.uid not in self._unfit and self._time.is_left

    def _is_known_to_work(self, operator: Operator) -> bool:
        """Whether copies of an operator die for a reason: others have come through, or workers die, too."""
        return operator.uid in self._witnessed or not self._needs_witness

    def _next_passes(self, operator: Operator, batch: Batch) -> bool:
        """Whether a copy, made now, is through with the record after the first."""
        return len(batch) > 1 and self._time.attempt(operator, part_of(batch, 1, 2)).passed > 0


class _Decoding(Operator):
    """Stands for a source, whose records are decoded before there is an operator that could be copied."""

    def __init__(self, uid: str, decode: Callable[[Any], object]) -> None:
        super().__init__(uid)
        self._decode = decode

    def process(self, batch: Batch) -> Batch:
        for one in batch.records:
            self._decode(one)
        return batch


def decoding_trial(probing: Probing, uid: str) -> DecodingTrial:
    """Return what tries the decoding of source `uid`."""

    def trial(decode: Callable[[Any], object], found: Sequence[Any]) -> int | ProcessDiedError:
        outcome = probing.look(_Decoding(uid, decode), Batch(list(found)))
        if isinstance(outcome, Deadly):
            return ProcessDiedError(outcome.died.how, outcome.died.trace)
        return outcome

    return trial


def deadly_error(uid: str, found: Deadly) -> UserCodeError:
    """Return the error of operator `uid` that names a deadly record."""
    return _error(uid, found.died, "a record", "the record", shortened(found.record))


def due_error(uid: str, died: Died) -> UserCodeError:
    """Return the error of operator `uid` whose timers or windows end the process."""
    return _error(uid, died, "a timer or window that is due", "it", "")


def _error(uid: str, died: Died, where: str, tried: str, record: str) -> UserCodeError:
    error = UserCodeError(
        f"operator {uid!r} ends its process ({died.how}) at {where}: workers have died of it, and two "
        f"copies of the process that tried {tried}",
        operator=uid,
        record=record,
        traceback=died.trace,
        is_certain=True,
    )
    error.__cause__ = ProcessDiedError(died.how)
    return error


def dead_letter_of_death(uid: str, found: Deadly, key: Any) -> DeadLetter:
    """Return the dead letter of operator `uid` with a deadly record."""
    error = text_of(ProcessDiedError(found.died.how))
    return DeadLetter(found.record, error, uid, key, None, found.died.trace)
