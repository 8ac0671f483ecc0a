"""The streams that `split` gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from crosscut.errors import FlowError
from crosscut.flow.draft import Draft, DraftOperator
from crosscut.flow.tail import SideOutputs
from crosscut.foundation.type_variables import Record

if TYPE_CHECKING:
    from crosscut.flow.stream import Stream


class Split(SideOutputs, Mapping[str, "Stream[Record]"]):
    """The streams that `split` gives, by name."""

    def __init__(self, draft: Draft, operator: DraftOperator, names: tuple[str, ...]) -> None:
        super().__init__(draft, operator)
        self._names = names

    @property
    def rest(self) -> Stream[Record]:
        """The records for which no predicate is true."""
        return self._made()

    def __getitem__(self, name: str) -> Stream[Record]:
        if name not in self._names:
            known = ", ".join(map(repr, self._names))
            raise FlowError(
                f"flow {self._draft.name!r}: operator {self._operator.uid!r} has no stream {name!r}: "
                f"expected one of {known}, or `rest` for the others",
                operator=self._operator.uid,
            )
        return self._made(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _made(self, output: str = "") -> Stream[Record]:
        from crosscut.flow.stream import Stream

        return Stream(self._draft, self._operator, output=output)
