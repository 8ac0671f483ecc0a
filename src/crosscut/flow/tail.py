"""What all kinds of streams have: the operator that was written last, its name, its side outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from crosscut.contracts.dead_letters import DEAD_LETTERS
from crosscut.errors import FlowError
from crosscut.flow.arguments import flow_error, output_name
from crosscut.flow.draft import Draft, DraftOperator
from crosscut.graph.specs import ConnectSpec, ProcessSpec, SplitSpec, StreamProcessSpec, dead_letters_of

if TYPE_CHECKING:
    from crosscut.flow.stream import Stream

_WITH_SIDES = (ProcessSpec, StreamProcessSpec, ConnectSpec)


class Advised:
    """Says what to write instead of a method that there is not. Its classes have a `_draft`."""

    if not TYPE_CHECKING:
        # Type checkers report it themselves.
        def __getattr__(self, name: str) -> Any:
            """Say what to do instead where a method belongs to a stream of another kind."""
            from crosscut.flow.advice import instead, meant

            kind = type(self)
            if name.startswith("_"):
                raise AttributeError(f"a {kind.__name__} has no {name!r}")
            if advice := instead(kind, name):
                raise flow_error(self._draft, name, advice)
            # Without its `name` and `obj`: Python would add a suggestion of its own.
            raise AttributeError(f"a {kind.__name__} has no {name!r}{meant(kind, name)}")


class Tail(Advised):
    """The last operator of what was written so far."""

    def __init__(self, draft: Draft, operator: DraftOperator) -> None:
        self._draft = draft
        self._operator = operator

    def named(self, uid: str) -> Self:
        """Name the last operator. Name every operator that has state and every source and sink.

        Operators without a name are called by position and kind ("4-count"), which changes when another
        operator is put in before them; state of the old name is then not found.

        Args:
            uid: 1 to 64 letters, digits, `_`, `-` or inner dots; unique within the flow.

        Raises:
            FlowError: `uid` is not usable or taken.

        Examples:
            >>> import crosscut as cc
            >>> words = cc.Flow("words").source(cc.items(["to", "be"])).named("words")
        """
        self._draft.rename(self._operator, uid)
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._operator.uid!r} of flow {self._draft.name!r}>"


class SideOutputs(Tail):
    """A stream whose operator may say records under names."""

    _output = ""

    def side_output(self, name: str) -> Stream[Any]:
        """Return the stream of what the operator before this says under `name`, beside what it returns.

        Args:
            name: Of a `split`; given to `ctx.output` in a process; or "dead letters".

        Raises:
            FlowError: It says nothing under that name.

        Examples:
            >>> import crosscut as cc
            >>> parsed = cc.Flow("parsed").source(cc.items(["1", "x"])).map(int, on_error="dead letters")
            >>> bad = parsed.side_output("dead letters").map(lambda letter: letter.record)
        """
        from crosscut.flow.stream import Stream

        output_name(self._draft, "side_output", name)
        operator = self._operator
        if self._output:
            raise FlowError(
                f"flow {self._draft.name!r}: side_output({name!r}) of the stream {self._output!r} of "
                f"operator {operator.uid!r}: that has no operator of its own; take both from the operator",
                operator=operator.uid,
            )
        names = [DEAD_LETTERS] if dead_letters_of(operator.spec) else []
        if isinstance(operator.spec, SplitSpec):
            names += [one for one, _ in operator.spec.predicates]
        if (late := getattr(operator.spec, "late", None)) is not None:
            names.append(late)
        if name not in names and not isinstance(operator.spec, _WITH_SIDES):
            advice = ", which needs on_error='dead letters'" if name == DEAD_LETTERS and not names else ""
            raise FlowError(
                f"flow {self._draft.name!r}: operator {operator.uid!r} has no side output "
                f"{name!r}{advice}; it has {', '.join(map(repr, names)) or 'none'}",
                operator=operator.uid,
            )
        return Stream(self._draft, operator, output=name)


class StreamEnd(SideOutputs):
    """A stream that ended in a sink: it can be named, nothing more but its dead letters be read."""
