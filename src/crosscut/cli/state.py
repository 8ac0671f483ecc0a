"""The state of an operator, for people and for programs: rows of a savepoint or a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

from rich.console import Group, RenderableType
from rich.text import Text

from crosscut.cli.checkpoints import plain_table
from crosscut.savepoints.tables import StateRow, state_at


def state_table(path: str, uid: str, state: str | None, key: str | None, limit: int) -> RenderableType:
    """Return the first `limit` rows as a table, and how many more there are.

    Args:
        state: Only this one; None: all of the operator.
        key: Only rows of this key, as text or as JSON; None: all.

    Raises:
        StoreError: There is nothing at `path`, or it is damaged.
        StateError: There is no such operator or state; or nothing can be read without a class.
    """
    rows = _rows(path, uid, state, key)
    shown = list(islice(rows, limit))
    count = len(shown) + sum(1 for _ in rows)
    if not shown:
        return Text(f"operator {uid!r} has no state{f' of key {key}' if key is not None else ''}")
    has_states = any(row.state for row in shown)
    has_names = any(row.name is not None for row in shown)
    titles = ["state"] * has_states + ["key"] + ["name"] * has_names + ["value"]
    table = plain_table(*titles)
    for row in shown:
        cells = [row.state] * has_states + [row.key] + [row.name or ""] * has_names + [row.value]
        table.add_row(*map(Text, cells))
    if count == len(shown):
        return table
    return Group(table, "", Text(f"{count - len(shown)} more of {count} rows; --limit, or --json for all"))


def state_lines(path: str, uid: str, state: str | None, key: str | None, limit: int | None) -> Iterator[str]:
    """Yield rows as lines of JSON, with keys and values as a savepoint has them; see `state_table`."""
    for row in islice(_rows(path, uid, state, key), limit):
        fields = {"state": row.state, "key_group": row.key_group, "key": json.loads(row.key)}
        if row.name is not None:
            fields["name"] = json.loads(row.name)
        yield json.dumps({**fields, "value": json.loads(row.value)})


def _rows(path: str, uid: str, state: str | None, key: str | None) -> Iterator[StateRow]:
    wanted = None if key is None else {key, json.dumps(key)}
    for row in state_at(path, uid, state).rows():
        if wanted is None or row.key in wanted:
            yield row
