"""The operators of a task, and what is on its way between them when a slice ends early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from crosscut.batch import Batch
from crosscut.errors import StateError
from crosscut.graph.specs import SideOutput
from crosscut.interfaces import JSON
from crosscut.operators.course import Course
from crosscut.operators.operator import Operator


def said_from_json(said: JSON) -> tuple[int, str]:
    """Return what `Chain.said` was.

    Raises:
        StateError: `said` is something else.
    """
    match said:
        case None:
            return 0, ""
        case [int() as position, str() as place]:
            return position, place
        case _:
            raise StateError(f"a snapshot says of the end of input {said!r:.100}: expected [operator, place]")


class Chain:
    """Takes batches from operator to operator, and hands on what comes out at the end.

    When the course is stopped, the records that an operator has not taken, and what the others have made
    of those before them, wait here and go on first. A snapshot can't see them: none is to be taken while
    the chain `is_halfway`.

    Args:
        emit: Takes what the last operator has made.
        emit_aside: Takes what operators have said under names.

    Attributes:
        said: How far the operators have come with what they say at the end: the position of the one that
            was the last to say something, and its place.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        emit: Callable[[Batch], None],
        emit_aside: Callable[[Batch, SideOutput], None],
    ) -> None:
        self._operators = operators
        self._emit = emit
        self._emit_aside = emit_aside
        # With the position of the operator that is to take it; the last one goes on first: it was ahead.
        self._waiting: list[tuple[int, Batch]] = []
        self.said = (0, "")
        self.follow(Course())

    def follow(self, course: Course) -> None:
        """Let the operators be stopped by `course`."""
        self._course = course
        for operator in self._operators:
            operator.course = course

    @property
    def is_halfway(self) -> bool:
        """Whether records wait between operators."""
        return bool(self._waiting)

    def begin(self, rows_max: int) -> None:
        """A slice begins; what operators say at the end comes in batches of `rows_max`."""
        self._course.begin(rows_max)

    def process(self, batch: Batch) -> Batch | None:
        """Take a batch in, when nothing waits; return what the first operator has not taken of it."""
        self._run(batch, 0)
        if self._waiting and self._waiting[0][0] == 0:
            return self._waiting.pop(0)[1]
        return None

    def keep(self, rest: Batch) -> None:
        """Let what `process` has returned wait here, after everything else."""
        self._waiting.insert(0, (0, rest))

    def go_on(self) -> None:
        """Go on with what is furthest ahead."""
        position, batch = self._waiting.pop()
        self._run(batch, position)

    def end(self) -> Iterator[None]:
        """Tell one operator after the other that no record will come any more, a batch at a time.

        It goes on after `said`. Whoever asks for the next step sees to it first that nothing is halfway.
        """
        first, after = self.said
        for position in range(first, len(self._operators)):
            for batch, place in self._operators[position].end(after):
                self.said = (position, place)
                self._take_aside(self._operators[position])
                self._run(batch, position + 1)
                yield
            after = ""

    def _run(self, batch: Batch, first: int) -> None:
        course = self._course
        for position in range(first, len(self._operators)):
            if course.is_over:
                self._waiting.append((position, batch))
                return
            operator = self._operators[position]
            batch = operator.process(batch)
            course.leave()
            if operator.sides is not None:
                self._take_aside(operator)
            if course.rest is not None:
                self._waiting.append((position, course.rest))
                course.rest = None
        self._emit(batch)

    def _take_aside(self, operator: Operator) -> None:
        """Hand on what an operator has said under names: no snapshot sees what is still there."""
        if operator.sides is not None and operator.sides.has_some:
            for side, batch in operator.sides.take():
                self._emit_aside(batch, side)
