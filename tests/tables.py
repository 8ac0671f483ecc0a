"""The tables of docs/protocol.md that are made from tables of the code.

`make tables` writes them; a test finds any that is not current.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from crosscut.protocol.effects import TaskEffect
from crosscut.protocol.job.phases import MOVES, Phase
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshot.snapshotting import SnapshotState
from crosscut.protocol.snapshot.transitions import IMPOSSIBLE, TRANSITIONS, Happening, Outcome

PROTOCOL = Path(__file__).parents[1] / "docs" / "protocol.md"
BLOCK = re.compile(r"(<!-- made from code: ([\w -]+) -->\n).*?(\n<!-- end -->)", re.S)

NOTHING = "·"
_SHORT = re.compile(r"State|Barrier|WithBarrier|Snapshot|Checkpoint")


def moves() -> str:
    """Return which event may lead where, events that do the same in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for kind, by_phase in MOVES.items():
        row = tuple(_phases(by_phase.get(phase, ())) for phase in Phase if phase is not Phase.ENDED)
        rows.setdefault(row, []).append(f"`{kind}`")
    head = [phase.name for phase in Phase if phase is not Phase.ENDED]
    return _table(["event", *head], ([", ".join(kinds), *row] for row, kinds in rows.items()))


def _phases(found: Iterable[Phase]) -> str:
    return ", ".join(phase.name for phase in Phase if phase in set(found)) or NOTHING


def snapshots(kind: ProtocolKind) -> str:
    """Return what checkpoint n is at a task, and what comes of what happens, under one protocol."""
    table = TRANSITIONS[kind]
    states = [one for one in SnapshotState if any(one is state for state, _ in table)]
    happenings = [one for one in Happening if any(one is happening for _, happening in table)]
    rows = (
        [one.value, *(_outcomes(state, table.get((state, one), frozenset())) for state in states)]
        for one in happenings
    )
    head = ["", *(_name(state) for state in states)]
    never = ", ".join(one.value for one in Happening if one in IMPOSSIBLE[kind])
    return f"{_table(head, rows)}\n\nImpossible: {never}."


def _outcomes(state: SnapshotState, outcomes: Iterable[Outcome]) -> str:
    order = list(SnapshotState)
    ordered = sorted(outcomes, key=lambda one: (order.index(one.next), len(one.effects)))
    return " *or* ".join(_outcome(state, one) for one in ordered) or NOTHING


def _outcome(state: SnapshotState, outcome: Outcome) -> str:
    effects = ", ".join(map(_effect, outcome.effects))
    if outcome.next is state:
        return effects or NOTHING
    return f"**{_name(outcome.next)}**" + (f": {effects}" if effects else "")


def _effect(kind: type[TaskEffect]) -> str:
    words = re.findall("[A-Z][a-z]+", _SHORT.sub("", kind.__name__.replace("WithBarrier", "")))
    return " ".join([words[0], *map(str.lower, words[1:])])


def _name(state: SnapshotState) -> str:
    return state.name.lower().replace("_", " ")


def states() -> str:
    """Return what the states mean."""
    return _table(["state of n", "meaning"], ([_name(one), one.value] for one in SnapshotState))


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "moves": moves,
    "states": states,
    **{kind: lambda kind=kind: snapshots(kind) for kind in TRANSITIONS},  # type: ignore[misc]
}


def with_blocks(text: str) -> str:
    """Return `text` with every block made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n{found[3]}", text)


def names(text: str) -> list[str]:
    """Return the blocks of `text`, in order."""
    return [found[2] for found in BLOCK.finditer(text)]


if __name__ == "__main__":
    PROTOCOL.write_text(with_blocks(PROTOCOL.read_text()))
