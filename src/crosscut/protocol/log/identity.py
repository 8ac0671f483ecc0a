"""A job by name and content: it is compared with the one whose checkpoint directory is opened.

A claim of an epoch holds the identity of the flow that was started. A driver that finds one there goes
on only if it is the same job: the wrong flow on a directory would fence the right one, go on from its
positions, or believe that all is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from crosscut.foundation.frozen import dataclass


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """That an operator reads from the operator `uid`, and how the records are distributed.

    `output` is the name of the side output that it reads, "" if it reads none.
    """

    uid: str
    how: str
    output: str = ""


@dataclass(frozen=True, slots=True)
class OperatorIdentity:
    """One operator of a flow.

    Attributes:
        kind: The method that adds it: "map", "count", "source", ...
        emit: When a keyed operator emits: "updates", "final", or "" for the others.
        connector: Name of the class of a source or sink, else "".
        details: What that says of itself (`Source.describe`, `Sink.describe`): a path, an address.
        states: The states that a process declares, in words, else "".
    """

    uid: str
    kind: str
    inputs: tuple[OperatorInput, ...] = ()
    emit: str = ""
    connector: str = ""
    details: str = ""
    states: str = ""


@dataclass(frozen=True, slots=True)
class FlowIdentity:
    """A flow by name and content; `operators` vertex by vertex, in order."""

    name: str
    operators: tuple[OperatorIdentity, ...] = ()


@dataclass(frozen=True, slots=True)
class Claimant:
    """Which process has claimed an epoch, and when, for people: no decision reads it."""

    host: str = ""
    pid: int = 0
    wall_clock: str = ""


@dataclass(frozen=True, slots=True)
class Same:
    """It is the same job."""


@dataclass(frozen=True, slots=True)
class ChangedDetails:
    """It is the same job, with sources or sinks that say something else of themselves than before.

    Attributes:
        changes: One for each, in words.
    """

    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnotherJob:
    """It is the state of something else.

    Attributes:
        reason: The difference, in words that name both sides.
    """

    reason: str


def compared(
    found: FlowIdentity, ours: FlowIdentity, *, is_same_structure: bool
) -> Same | ChangedDetails | AnotherJob:
    """Decide whether the state of `found` is that of `ours`.

    Args:
        is_same_structure: Whether the fingerprints of their graphs are equal.
    """
    if found.name != ours.name:
        return AnotherJob(f"it belongs to flow {found.name!r}, and this is flow {ours.name!r}")
    if not is_same_structure:
        lines = list(differences(found.operators, ours.operators)) or [
            "no operator is different: the state was written by another release of Crosscut"
        ]
        return AnotherJob("\n  ".join(("it holds the state of a different graph:", *lines)))
    before = {one.uid: one for one in found.operators}
    pairs = [(before[one.uid], one) for one in ours.operators if one.uid in before]
    for then, now in pairs:
        if then.connector != now.connector:
            return AnotherJob(
                f"its {now.kind} {now.uid!r} is of class {then.connector}, and in this flow it is of class "
                f"{now.connector}"
            )
    changes = tuple(
        f"{now.kind} {now.uid!r} is {now.details!r} in this flow, and was {then.details!r}"
        for then, now in pairs
        if then.details != now.details
    )
    return ChangedDetails(changes) if changes else Same()


def differences(found: Sequence[OperatorIdentity], ours: Sequence[OperatorIdentity]) -> Iterator[str]:
    """Yield what happened to the operators from `found` to `ours`, one sentence for each."""
    before, now = {one.uid: one for one in found}, {one.uid: one for one in ours}
    renamed = _renamed(
        [one for one in found if one.uid not in now], [one for one in ours if one.uid not in before]
    )
    new_uids = set(renamed.values())
    for one in ours:
        if one.uid not in before and one.uid not in new_uids:
            yield f"added: {one.kind} {one.uid!r}"
    for one in found:
        if one.uid not in now and one.uid not in renamed:
            yield f"removed: {one.kind} {one.uid!r}"
    for old, new in renamed.items():
        yield f"renamed: {now[new].kind} {old!r} is called {new!r}"
    for then in found:
        counterpart = now.get(renamed.get(then.uid, then.uid))
        if counterpart is not None:
            yield from _changes(_with_inputs_renamed(then, renamed), counterpart)


def _changes(then: OperatorIdentity, now: OperatorIdentity) -> Iterator[str]:
    if then.kind != now.kind:
        yield f"changed: {now.uid!r} is a {now.kind}, and was a {then.kind}"
    elif then.emit != now.emit:
        yield f"changed: {now.uid!r} emits {now.emit}, and emitted {then.emit}"
    if then.states != now.states:
        yield f"changed: {now.uid!r} declares {now.states or 'no state'}; it was {then.states or 'none'}"
    if then.inputs != now.inputs:
        yield f"changed: {now.uid!r} reads from {_shown(now)}, and read from {_shown(then)}"


def _shown(one: OperatorIdentity) -> str:
    return " and ".join(map(_shown_input, one.inputs)) or "nothing"


def _shown_input(one: OperatorInput) -> str:
    output_text = f"{one.output!r} of " if one.output else ""
    return f"{output_text}{one.uid!r} ({one.how})"


def _renamed(removed: list[OperatorIdentity], added: list[OperatorIdentity]) -> dict[str, str]:
    """Return which of the `added` operators each of the `removed` ones probably is, by uid.

    First those that read from the same operators, as far as these are known; then, since an operator
    without a name is called by its position, those of the same kind in the same order.
    """
    renamed: dict[str, str] = {}
    left = list(added)
    for is_exact in (True, False):
        has_grown = True
        while has_grown:
            has_grown = False
            for old in removed:
                if old.uid in renamed:
                    continue
                new = next((one for one in left if _may_be(old, one, renamed, is_exact=is_exact)), None)
                if new is not None:
                    renamed[old.uid] = new.uid
                    left.remove(new)
                    has_grown = True
    return renamed


def _may_be(
    old: OperatorIdentity, new: OperatorIdentity, renamed: Mapping[str, str], *, is_exact: bool
) -> bool:
    if (old.kind, old.emit, old.connector) != (new.kind, new.emit, new.connector):
        return False
    return not is_exact or _with_inputs_renamed(old, renamed).inputs == new.inputs


def _with_inputs_renamed(one: OperatorIdentity, renamed: Mapping[str, str]) -> OperatorIdentity:
    return replace(
        one, inputs=tuple(replace(each, uid=renamed.get(each.uid, each.uid)) for each in one.inputs)
    )


def shown(claimant: Claimant) -> str:
    """Return which process `claimant` is, for people."""
    when = claimant.wall_clock[:19].replace("T", " ")
    return f"pid {claimant.pid} on {claimant.host}" + (f", since {when} UTC" if when else "")
