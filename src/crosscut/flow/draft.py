"""What the user has written so far: operators in the order of writing, still renameable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from crosscut.errors import FlowError
from crosscut.foundation.ids import checked_name
from crosscut.graph.specs import AssignTimestampsSpec, Input, OperatorNode, OperatorSpec, Partitioning


class DraftInput(NamedTuple):
    """What an operator reads; see `crosscut.graph.specs.Input`."""

    operator: DraftOperator
    how: Partitioning
    output: str = ""


@dataclass(slots=True, eq=False)
class DraftOperator:
    """One operator, by identity: its uid may change until the flow is compiled.

    Attributes:
        label: Place and kind, as "3-map"; the uid as long as the user gives none.
    """

    label: str
    spec: OperatorSpec
    inputs: tuple[DraftInput, ...]
    uid: str


class Draft:
    """The operators of one flow. Not thread-safe: a flow is written by one thread."""

    def __init__(self, name: str) -> None:
        self.name = checked_name(name, "flow name")
        self._operators: list[DraftOperator] = []

    def label(self, kind: str) -> str:
        """Return what the next operator will be called if it is of this kind."""
        return f"{len(self._operators) + 1}-{kind}"

    def add(
        self, kind: str, spec: OperatorSpec, *inputs: DraftInput, name: str | None = None
    ) -> DraftOperator:
        """Append an operator.

        Args:
            name: Its uid; its label, if None.

        Raises:
            FlowError: `name` can't be part of a path, or another operator of the flow has it.
        """
        label = self.label(kind)
        uid = label if name is None else self._checked(name, label)
        self._check_free(uid, label)
        operator = DraftOperator(label, spec, inputs, uid=uid)
        self._operators.append(operator)
        return operator

    def close_loop(self, head: DraftOperator, *again: DraftInput) -> None:
        """Lead what goes round again back to the head of its loop."""
        head.inputs = (*head.inputs, *again)

    def rename(self, operator: DraftOperator, uid: str) -> None:
        """Give `operator` the uid under which its state is found.

        Raises:
            FlowError: `uid` can't be part of a path, or another operator of the flow has it.
        """
        self._checked(uid, operator.label)
        if uid != operator.uid:
            self._check_free(uid, operator.label)
        operator.uid = uid

    def nodes(self) -> tuple[OperatorNode, ...]:
        """Return the operators as plain data, each after all that it reads from, back edges aside."""
        return tuple(
            OperatorNode(
                o.uid,
                o.spec,
                tuple(Input(of.uid, how, output) for of, how, output in o.inputs),
                is_named=o.uid != o.label,
            )
            for o in self._operators
        )

    def _checked(self, uid: str, label: str) -> str:
        return checked_name(uid, f"flow {self.name!r}, operator {label!r}: uid")

    def _check_free(self, uid: str, label: str) -> None:
        for other in self._operators:
            if other.uid == uid:
                raise FlowError(
                    f"flow {self.name!r}: operators {other.label!r} and {label!r} would both have uid "
                    f"{uid!r}: a uid identifies the state and must be unique; name one of them differently",
                    operator=uid,
                )


def has_event_time(operator: DraftOperator) -> bool:
    """Return whether the records of `operator` have timestamps, as far as it is written."""
    seen: dict[DraftOperator, None] = {}
    waiting = [operator]
    while waiting:
        one = waiting.pop()
        if isinstance(one.spec, AssignTimestampsSpec):
            return True
        if one not in seen:
            seen[one] = None
            waiting += [read.operator for read in one.inputs]
    return False
