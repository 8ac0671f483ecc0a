"""The keyed state of a task: its tables, frozen, stored and restored as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from crosscut.errors import StateError, invariant
from crosscut.foundation.ids import CheckpointId
from crosscut.state.encoding import MAGIC, Block, Extent, NewKeys, SlotRows, decode_part, encode_block
from crosscut.state.field_names import FieldNames
from crosscut.state.layers import ROWS_PER_BLOCK, Layer
from crosscut.state.named import NamedTable
from crosscut.state.parts import PartChain
from crosscut.state.slots import SlotTable
from crosscut.state.table import Table

MAIN = ""
"""The table of operators that have one."""
_FORM = {False: "one value a key", True: "named rows"}


class KeyedState:
    """The tables of one task.

    Args:
        initial: Makes the value of a key that has none, in the table `MAIN`.
        others: The same for further tables, by name.
        named: Further tables, of named rows.
        shared: The names of tables whose rows belong to every task.
        alike: Those of them that are the same in every task: the rows of one are all there are.
        keeps_keys: No value in the table `MAIN` is ever deleted, and there is no other.
        is_often_frozen: False: only when somebody asks. What makes parts of changes small costs each record
            something, and is not worth it then.

    Attributes:
        is_in_memory: A forked process has a copy of it, and changes that alone.
    """

    is_in_memory = True

    def __init__(
        self,
        initial: Callable[[], Any],
        others: Mapping[str, Callable[[], Any]] | None = None,
        named: Iterable[NamedTable] = (),
        shared: Iterable[str] = (),
        alike: Iterable[str] = (),
        *,
        keeps_keys: bool = False,
        is_often_frozen: bool = True,
    ) -> None:
        has_slots = keeps_keys and is_often_frozen
        self.tables: dict[str, Table] = {MAIN: SlotTable(initial) if has_slots else Table(initial)}
        self.tables.update((name, Table(make)) for name, make in (others or {}).items())
        self.named: dict[str, NamedTable] = {table.name: table for table in named}
        self.tables.update(self.named)
        self.shared = frozenset(shared)
        self.alike = frozenset(alike)
        self.main = self.tables[MAIN]
        self.field_names = FieldNames()
        invariant(not keeps_keys or len(self.tables) == 1, "parts of slots are not those of other tables")

    def __len__(self) -> int:
        """Number of rows, in constant time."""
        return sum(map(len, self.tables.values()))

    @property
    def outside_bytes(self) -> int:
        """Memory that it takes outside of its tables."""
        return 0

    @property
    def values(self) -> Layer:
        """`Table.values` of the table `MAIN`."""
        return self.main.values

    def items(self) -> Iterator[tuple[Any, Any]]:
        """`Table.items` of the table `MAIN`."""
        return self.main.items()

    @property
    def at_hand(self) -> tuple[CheckpointId, ...]:
        """Checkpoints that `roll_back` can go to."""
        return self.main.at_hand

    @property
    def part_rows(self) -> list[int] | None:
        """Rows of the newest completed checkpoint's parts, oldest first; None: a part can't build on them."""
        counts = [table.part_rows for table in self.tables.values()]
        known = [rows for rows in counts if rows is not None]
        return list(map(sum, zip(*known, strict=True))) if len(known) == len(counts) else None

    @property
    def changed_rows(self) -> int:
        """Rows that a part of the changes since the newest completed checkpoint has at most."""
        return sum(table.changed_rows for table in self.tables.values())

    def peek(self, key: Any) -> Any:
        """`Table.peek` of the table `MAIN`."""
        return self.main.peek(key)

    def fetch(self, keys: Sequence[Any], *, to_change: bool = False) -> None:
        """`keys` are going to be asked for: a chance to read those that are not in memory, at once.

        Args:
            to_change: Their values in the table `MAIN` are going to be changed, too.
        """
        if to_change:
            self.main.fetch(keys, to_change=True)

    def to_change(self, keys: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """`Table.to_change` of the table `MAIN`, for keys that have been fetched."""
        return self.main.to_change(keys)

    def freeze(self, checkpoint_id: CheckpointId) -> None:
        """Keep the state as it is now under `checkpoint_id`; takes no longer for more rows."""
        for table in self.tables.values():
            table.freeze(checkpoint_id)

    def next_base(self, chain: PartChain) -> CheckpointId:
        """Return the checkpoint that the part of what is frozen holds the changes since; 0: it is a full one.

        Args:
            chain: The parts of the newest completed checkpoint.
        """
        if isinstance(self.main, SlotTable):
            return self.main.next_base(chain.checkpoint_id) if chain.parts else CheckpointId(0)
        return chain.next_base(self.part_rows, self.changed_rows)

    def plan_part(self, checkpoint_id: CheckpointId, since: CheckpointId, on: CheckpointId) -> None:
        """`Table.plan_part` of all tables."""
        for table in self.tables.values():
            table.plan_part(checkpoint_id, since, on)

    def build_part(self, checkpoint_id: CheckpointId, on: CheckpointId) -> list[CheckpointId] | None:
        """`Table.build_part` of all tables, which have the same parts."""
        built = [table.build_part(checkpoint_id, on) for table in self.tables.values()]
        return built[0]

    def encoded(self, checkpoint_id: CheckpointId, since: CheckpointId) -> Iterator[bytes]:
        """Yield the part of the state frozen at `checkpoint_id`, in steps of some rows.

        Args:
            since: 0 for the whole state, else only what changed after that checkpoint.

        Raises:
            StateError: A value can't be stored.
        """
        yield MAGIC
        for name, table in self.tables.items():
            for block in table.blocks(name, checkpoint_id, since, is_named=name in self.named):
                self.field_names.note_block(block)
                yield block

    def complete(self, checkpoint_id: CheckpointId) -> Iterator[None]:
        """Fold everything at or below `checkpoint_id` into one, a step at a time.

        Look-ups are right between the steps too. Must not run while `encoded` does.
        """
        # All at once: a snapshot between two steps counts the parts of each, which are the same ones.
        for table in self.tables.values():
            table.note_complete(checkpoint_id)
        for table in self.tables.values():
            yield from table.complete(checkpoint_id)

    # Changes, for a log.

    def record_changes(self) -> None:
        """Remember from now on what changes, for `changes`. To be called after a restore."""
        for table in self.tables.values():
            table.record_changes()

    @property
    def recorded_rows(self) -> int:
        """How many rows `changes` would hold."""
        return sum(table.recorded_count for table in self.tables.values())

    def changes(self) -> bytes:
        """Return the changes since this was called last, or since `record_changes`; b"": there are none.

        A state that is what this one was then is what this one is now after `replaying` them. They are a part
        of rows, so what reads parts reads them after those of a snapshot. Not to be called within a batch.

        Raises:
            StateError: A value can't be stored; the same changes are returned the next time.
        """
        blocks = [
            encode_block(
                name,
                rows[at : at + ROWS_PER_BLOCK],
                values[at : at + ROWS_PER_BLOCK],
                is_named=name in self.named,
            )
            for name, table in self.tables.items()
            for rows, values in (table.changed(),)
            for at in range(0, len(rows), ROWS_PER_BLOCK)
        ]
        for block in blocks:
            self.field_names.note_block(block)
        for table in self.tables.values():
            table.take_changed()
        return b"".join((MAGIC, *blocks)) if blocks else b""

    def replaying(self, changes: bytes, owns: Callable[[Any], bool] | None = None) -> Iterator[None]:
        """Make the changes of a log, in steps. To be called after a restore, and before `record_changes`.

        They count as changes since the checkpoint that was restored. So the next part holds them.

        Args:
            changes: What `changes` has returned.
            owns: Which keys are to be taken; None: all.

        Raises:
            StateError: They can't be decoded, or are of a table that is unknown here.
        """
        for block in decode_part(changes) if changes else ():
            if not isinstance(block, Block):
                raise StateError("changes in a log name rows by slot: expected keys")
            self.check_block(block, CheckpointId(0))
            rows = self.owned_rows(block, owns)
            self.tables[block.table].replay([row for row, _ in rows], [value for _, value in rows])
            yield

    def abandon(self, checkpoint_id: CheckpointId) -> None:
        """The layer of `checkpoint_id` will not be stored."""

    def close(self) -> None:
        """Release what this state holds outside of memory; it is not used after."""

    def roll_back(self, checkpoint_id: CheckpointId) -> None:
        """Go back to `checkpoint_id`, which must be `at_hand`; reads nothing."""
        for table in self.tables.values():
            table.roll_back(checkpoint_id)

    def loading(
        self, parts: Sequence[tuple[CheckpointId, bytes]], checkpoint_id: CheckpointId
    ) -> Iterator[None]:
        """Take in what `parts` say, a block at a time: the caller can do something else between the steps.

        The state must be empty, or just rolled back to the checkpoint that `parts` are the changes since.

        Args:
            parts: With the checkpoints at which they were written, oldest first.
            checkpoint_id: They add up to its state.

        Raises:
            StateError: A part is not readable as state, or holds a table that is unknown here.
        """
        for part_id, data in parts:
            for table in self.tables.values():
                table.begin_part(part_id)
            for block in decode_part(data):
                match block:
                    case Block():
                        self._load(block, checkpoint_id)
                    case Extent():
                        self._slots_of(block, checkpoint_id).load_extent(block)
                    case NewKeys():
                        self._slots_of(block, checkpoint_id).load_keys(block)
                    case SlotRows():
                        self._slots_of(block, checkpoint_id).load_slots(block)
                yield
        for table in self.tables.values():
            table.end_loading(checkpoint_id)

    def loading_rows(
        self,
        blocks: Iterable[Block],
        checkpoint_id: CheckpointId,
        owns: Callable[[Any], bool] | None = None,
    ) -> Iterator[None]:
        """Take in rows that come from parts of another format, or of several tasks; see `loading`.

        Args:
            owns: Which keys are to be taken; None: all.
        """
        for block in blocks:
            self._load(block, checkpoint_id, owns)
            yield
        for table in self.tables.values():
            table.forget_parts()
            table.end_loading(checkpoint_id)

    def _load(
        self, block: Block, checkpoint_id: CheckpointId, owns: Callable[[Any], bool] | None = None
    ) -> None:
        self.check_block(block, checkpoint_id)
        table = self.tables[block.table]
        if owns is None:
            table.load(block.keys, block.values)
        else:
            rows = self.owned_rows(block, owns)
            table.load([key for key, _ in rows], [value for _, value in rows])

    def _slots_of(self, block: Extent | NewKeys | SlotRows, checkpoint_id: CheckpointId) -> SlotTable:
        table = self.tables.get(block.table)
        if not isinstance(table, SlotTable):
            raise StateError(
                f"a part of checkpoint {checkpoint_id} holds the state {block.table!r} of keys that never go "
                f"away, by slot: it is of another operator, or of another version of Crosscut"
            )
        return table

    def check_block(self, block: Block, checkpoint_id: CheckpointId) -> None:
        """Make sure that rows of `checkpoint_id` are of a table that is declared here.

        Raises:
            StateError: They are not.
        """
        name = block.table
        if name not in self.tables:
            raise StateError(
                f"a part of checkpoint {checkpoint_id} holds the state {name!r}, which is not "
                f"declared: expected one of {sorted(self.tables)}"
            )
        if block.is_named != (name in self.named):
            raise StateError(
                f"a part of checkpoint {checkpoint_id} holds the state {name!r} as "
                f"{_FORM[block.is_named]}: it is declared as {_FORM[not block.is_named]} here"
            )

    def owned_rows(self, block: Block, owns: Callable[[Any], bool] | None) -> list[tuple[Any, Any]]:
        """Return the rows of `block` that belong to the task, with their values.

        Args:
            owns: Whether it owns a key; None: all. Those of a shared table belong to every task.
        """
        rows = zip(block.keys, block.values, strict=True)
        if owns is None or block.table in self.shared:
            return list(rows)
        if block.is_named:
            return [row for row in rows if owns(row[0][0])]
        return [row for row in rows if owns(row[0])]
