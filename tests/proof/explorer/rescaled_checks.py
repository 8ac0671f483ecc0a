"""What must hold of a job that has just been restored at another parallelism, or from a savepoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.proof.explorer.items import ensure
from tests.proof.explorer.rescaled_state import (
    KEYED,
    MAX_PARALLELISM,
    READ,
    TIMES,
    Complete,
    Record,
    State,
    group_of,
    owner_of,
    read_back,
)

from crosscut.contracts.connectors import JSON
from crosscut.foundation.keys import groups_of_task


def check_restored(state: State, restored: Complete, records: Sequence[Record]) -> None:
    """Raise Violation unless all of the checkpoint has exactly one owner, and no watermark has gone back."""
    n = restored.entry.checkpoint_id
    owners: dict[str, list[int]] = {}
    for i, reader in enumerate(state.readers):
        for split, at in reader.positions:
            owners.setdefault(f"split {split} at {at}", []).append(i)
    before: dict[str, Any] = {
        f"split {row[0]} at {row[4]}": 0
        for one in restored.contents
        for row in _rows_of(one.snapshot.positions)
    }
    _check_owners(before, owners, n)
    for which, name in enumerate(("state", "timer")):
        there = {f"{name} of {record}": 0 for one in restored.contents for record in one.rows[which]}
        found: dict[str, list[int]] = {}
        for i, keeper in enumerate(state.keepers):
            for record in keeper.rows[which]:
                found.setdefault(f"{name} of {record}", []).append(i)
        _check_owners(there, found, n)
    for i, keeper in enumerate(state.keepers):
        for record in keeper.rows.seen:
            owner = owner_of(records[record], state.parallelism)
            ensure(
                owner == i,
                f"I4: key group {group_of(records[record])} is at keyed[{i}], its records go to [{owner}]",
            )
    _check_on_the_way(state, restored)
    _check_watermarks(state, restored)


def _check_on_the_way(state: State, restored: Complete) -> None:
    there = {f"record {record} on its way": 0 for one in restored.contents for _, record in one.log}
    found: dict[str, list[int]] = {}
    for i, keeper in enumerate(state.keepers):
        waiting = [*keeper.replay]
        for source in range(state.parallelism):
            waiting += state.queues[source * state.parallelism + i]
        for what, record in waiting:
            if what == "record":
                found.setdefault(f"record {record} on its way", []).append(i)
    _check_owners(there, found, restored.entry.checkpoint_id)


def _check_watermarks(state: State, restored: Complete) -> None:
    """No task goes on with an older watermark than those had whose key groups it has."""
    old = [one for one in restored.contents if one.task.vertex == KEYED]
    for i, keeper in enumerate(state.keepers):
        mine = groups_of_task(i, MAX_PARALLELISM, state.parallelism)
        known = [
            one.snapshot.watermark
            for one in old
            if _meet(mine, groups_of_task(one.task.index, MAX_PARALLELISM, len(old)))
        ]
        highest = max((one for one in known if one is not None), default=None)
        last = max((at for what, at in keeper.replay if what == "watermark"), default=keeper.told)
        ensure(
            highest is None or (last is not None and last >= highest),
            f"I14: keyed[{i}] goes on with watermark {last}; its key groups had {highest}",
        )
    sides = {
        split: watermark
        for one in restored.contents
        if one.task.vertex == READ
        for split, watermark in _sides_of(one.snapshot.assigned).items()
    }
    for i, reader in enumerate(state.readers):
        _, mine_now = read_back(reader.assigned)
        for split, _ in reader.positions:
            was, now = sides.get(split), mine_now.get(split)
            ensure(
                was is None or (now is not None and now >= was),
                f"I14: read[{i}] goes on with watermark {now} of {split}, which had {was}",
            )


def _rows_of(positions: JSON) -> list[Any]:
    rows: Any = positions or []
    return list(rows)


def _sides_of(assigned: JSON) -> Mapping[str, int]:
    saved: Any = assigned
    return saved[TIMES][1] if saved else {}


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _check_owners(there: Mapping[str, Any], found: Mapping[str, list[int]], n: int) -> None:
    for what in sorted({*there, *found}):
        owners = found.get(what, [])
        ensure(
            len(owners) == 1 and what in there,
            f"I4: {what}, of checkpoint {n}, has the owners {owners}: expected exactly one",
        )
