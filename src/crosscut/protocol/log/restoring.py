"""May a job begin with a savepoint? Pure decisions: over its content, the flow, and what sinks remember."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from crosscut.contracts.connectors import CommittedOutput
from crosscut.foundation.frozen import dataclass
from crosscut.protocol.log.entries import (
    Ancestor,
    CheckpointCompleted,
    EpochClaimed,
    LogEntry,
    OpenOutput,
)
from crosscut.protocol.log.history import ForeignOutput, NewerOutput
from crosscut.protocol.log.identity import FlowIdentity, OperatorIdentity

_STATE = re.compile(r"(?:, )?(.+?) \(([^()]*)\)")
"""One state: its name, and its form, in which there may be commas."""


@dataclass(frozen=True, slots=True)
class Content:
    """Something in a savepoint that belongs to an operator.

    Attributes:
        uid: Of the operator.
        state: Which of its states; "" if it has one, or for what is no state.
        kind: "state", "splits", "search" (how far a dynamic source has come with it) or "records".
        count: How many rows, unread splits, searches, records on their way.
    """

    uid: str
    state: str
    kind: str
    count: int

    def __str__(self) -> str:
        of = f" {self.state!r}" if self.state else ""
        what = {
            "state": f"state{of} ({self.count} rows)",
            "splits": f"{self.count} splits that are not read to their end",
            "search": "search for splits, which knows what was found,",
            "records": f"{self.count} records on their way",
        }[self.kind]
        return f"{what} of {self.uid!r}"


@dataclass(frozen=True, slots=True)
class Fitting:
    """What becomes of the contents.

    Attributes:
        dropped: No operator takes them, and the user has agreed.
        refused: Why the job must not start; "" if it may.
    """

    dropped: frozenset[Content]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class _Unclaimed:
    """No operator takes it: it may be dropped."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Incompatible:
    """The operator that takes it can't use it."""

    reason: str


_Misfit = _Unclaimed | _Incompatible


def _nothing(uid: str, state: str) -> bool:
    return False


def fitting(
    contents: Iterable[Content],
    found: FlowIdentity,
    ours: FlowIdentity,
    *,
    allow_dropped: bool,
    accepts_changes: bool,
    is_migrated: Callable[[str, str], bool] = _nothing,
) -> Fitting:
    """Decide whether a flow can begin with a savepoint of another one, by the uids of the operators.

    Args:
        found: The flow that the savepoint is of.
        is_migrated: Whether a function of the user turns a state (of which operator, its name) into what it
            has to be.
    """
    before = {one.uid: one for one in found.operators}
    now = {one.uid: one for one in ours.operators}
    dropped, problems = set(), []
    for one in sorted(contents, key=lambda one: (one.uid, one.state, one.kind)):
        if not one.count:
            continue
        if one.uid not in before:
            problems.append(f"{one} is in its files, and its manifest knows no such operator")
            continue
        has_migration = is_migrated(one.uid, one.state)
        match _misfit(one, before[one.uid], now.get(one.uid), accepts_changes, has_migration):
            case None:
                pass
            case _Unclaimed() if allow_dropped:
                dropped.add(one)
            case _Unclaimed(reason) | _Incompatible(reason):
                problems.append(reason)
    if not problems:
        return Fitting(frozenset(dropped))
    return Fitting(frozenset(), f"the savepoint does not fit this flow: {'; '.join(problems)}")


def _misfit(
    one: Content,
    then: OperatorIdentity,
    now: OperatorIdentity | None,
    accepts_changes: bool,
    is_migrated: bool,
) -> _Misfit | None:
    if now is None:
        return _Unclaimed(
            f"no operator takes the {one}: the flow has no such operator (name it so with .named(), or drop "
            f"what it had with allow_dropped_state=True)"
        )
    if one.kind in ("splits", "search"):
        if now.kind != "source" or now.connector != then.connector:
            connector = f" {now.connector}" if now.connector else ""
            return _Incompatible(f"{one.uid!r} is a {now.kind}{connector}, and was a source {then.connector}")
        if now.details != then.details and not accepts_changes:
            return _Incompatible(
                f"source {one.uid!r} is {now.details!r} in this flow, and was {then.details!r}: it goes on "
                f"with the splits that it had; if that is what you want, start with accept_changes=True"
            )
        return None
    if one.kind == "records":
        if now.inputs != then.inputs:
            return _Unclaimed(
                f"no operator takes the {one}: {one.uid!r} reads from others than it did (stop with a "
                f"savepoint under snapshots='aligned', which has no records on their way outside of loops)"
            )
        return None
    if is_migrated:
        return None
    if then.kind != now.kind:
        return _Incompatible(
            f"{one.uid!r} is a {now.kind}, and was a {then.kind}: say with migrate_state what becomes of its "
            f"state"
        )
    declared, was = forms_of(now.states), forms_of(then.states)
    if one.state and one.state in was and declared.get(one.state) != was[one.state]:
        if one.state not in declared:
            return _Unclaimed(
                f"no operator takes the {one}: it declares no such state (allow_dropped_state=True drops it)"
            )
        return _Incompatible(
            f"the {one} is a {declared[one.state]}, and was a {was[one.state]}: its rows hold something "
            f"else; say with migrate_state what becomes of them, or give the new state a name of its own"
        )
    return None


def forms_of(states: str) -> dict[str, str]:
    """Return what a row of each state holds, by name, as `OperatorIdentity.states` says it."""
    return dict(_STATE.findall(states))


@dataclass(frozen=True, slots=True)
class Begin:
    """Take the savepoint over: the directory is empty."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """That has been done; the job goes on from its newest checkpoint."""


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


def beginning(
    log: Sequence[LogEntry], claims: Sequence[EpochClaimed], ancestors: Sequence[Ancestor], digest: str = ""
) -> Begin | GoOn | Refused:
    """Decide what `restore_from` means for a checkpoint directory.

    Args:
        log: The end of its job log.
        ancestors: Of the savepoint: the last is the checkpoint that it is a copy of.
        digest: Of the savepoint as it is now; "" if it is none, but a checkpoint.
    """
    if not log:
        return Begin()
    begun = claims[-1].ancestors[-1] if claims and claims[-1].ancestors else None
    this = ancestors[-1]
    if begun is None or (begun.lineage, begun.checkpoint_id) != (this.lineage, this.checkpoint_id):
        return Refused(
            "it holds a job already, which did not begin with this savepoint: restore_from needs a "
            "checkpoint_dir of its own"
        )
    if begun.digest and digest and begun.digest != digest:
        return Refused(
            f"the job there has begun with this savepoint as it was before it was edited (its manifest was "
            f"{begun.digest[:12]}..., and is {digest[:12]}...): what was changed since is not in it. Choose "
            f"another checkpoint_dir to begin with the edited one, or leave restore_from out to go on"
        )
    if not any(isinstance(one, CheckpointCompleted) for one in log):
        return Refused(
            "this savepoint was being restored here, and that was cut off: nothing has run. Remove the "
            "directory, and start again"
        )
    return GoOn()


def open_output(
    pending: Iterable[OpenOutput], ancestors: Sequence[Ancestor], outputs: Iterable[CommittedOutput]
) -> OpenOutput | None:
    """Return output of the checkpoint that would never be committed, as far as the sinks know."""
    lineage = ancestors[-1].lineage
    visible = {one.task: one.checkpoint_id for one in outputs if one.lineage == lineage}
    return next((one for one in pending if visible.get(one.task, 0) < one.checkpoint_id), None)


def conflict_with_output(
    ancestors: Iterable[Ancestor], outputs: Iterable[CommittedOutput], *, is_fresh: bool
) -> NewerOutput | ForeignOutput | None:
    """Decide whether a job may begin with a savepoint beside what is visible already.

    Output of the job that it was taken of is where it belongs, up to the savepoint. What is newer would be
    written a second time.
    """
    if is_fresh:
        return None
    known = {one.lineage: one.checkpoint_id for one in ancestors}
    for one in outputs:
        if not one.checkpoint_id:
            continue
        if one.lineage not in known:
            return ForeignOutput(one)
        if one.checkpoint_id > known[one.lineage]:
            return NewerOutput(one, known[one.lineage])
    return None
