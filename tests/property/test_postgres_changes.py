"""The messages of logical replication, and what of them the rows that were read before have in them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.connectors.postgres.changes.change import Change, ChangedTable, change_of
from crosscut.connectors.postgres.changes.parts import (
    Part,
    Position,
    Seen,
    has_seen,
    key_hash,
    position_of,
    rows_left,
)
from crosscut.connectors.postgres.changes.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    ColumnType,
    Commit,
    Delete,
    Ignored,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
    lsn_number,
    lsn_text,
    parsed,
)
from crosscut.errors import ConnectorError

# Messages.

_2000_MS = 946_684_800_000

oids = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
values = st.none() | st.binary(max_size=9) | st.just(UNCHANGED)
rows = st.lists(values, max_size=5).map(tuple)
columns = st.builds(Column, names, oids, st.booleans())
messages = st.one_of(
    st.builds(Begin, lsns, st.integers(_2000_MS, _2000_MS + 10**12), oids),
    st.builds(Commit, lsns, lsns),
    st.builds(ColumnType, oids, names, names),
    st.builds(Relation, oids, names, names, st.lists(columns, max_size=4).map(tuple)),
    st.builds(Insert, oids, rows),
    st.builds(Update, oids, st.none(), st.just(False), rows),
    st.builds(Update, oids, rows, st.booleans(), rows),
    st.builds(Delete, oids, rows, st.booleans()),
    st.builds(Truncate, st.lists(oids, max_size=3).map(tuple)),
)


def encoded(message: Message) -> bytes:
    """As the documentation of Postgres says."""
    match message:
        case Begin(lsn, time_ms, xid):
            return b"B" + struct.pack(">QqI", lsn, (time_ms - _2000_MS) * 1_000, xid)
        case Commit(lsn, end_lsn):
            return b"C" + struct.pack(">bQQq", 0, lsn, end_lsn, 0)
        case Relation(oid, schema, name, found):
            parts = [b"R", struct.pack(">I", oid), schema.encode(), b"\0", name.encode(), b"\0d"]
            parts.append(struct.pack(">h", len(found)))
            for one in found:
                parts += [bytes([one.is_key]), one.name.encode(), b"\0", struct.pack(">Ii", one.type_oid, -1)]
            return b"".join(parts)
        case Insert(oid, new):
            return b"I" + struct.pack(">I", oid) + b"N" + encoded_row(new)
        case Update(oid, None, _, new):
            return b"U" + struct.pack(">I", oid) + b"N" + encoded_row(new)
        case Update(oid, old, whole, new):
            assert old is not None
            first = b"O" if whole else b"K"
            return b"U" + struct.pack(">I", oid) + first + encoded_row(old) + b"N" + encoded_row(new)
        case Delete(oid, old, whole):
            return b"D" + struct.pack(">I", oid) + (b"O" if whole else b"K") + encoded_row(old)
        case Truncate(found):
            return b"T" + struct.pack(">Ib", len(found), 0) + struct.pack(f">{len(found)}I", *found)
        case ColumnType(oid, schema, name):
            return b"Y" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0"
        case Ignored(kind):
            return kind.encode()


def encoded_row(row: tuple[Any, ...]) -> bytes:
    parts = [struct.pack(">h", len(row))]
    for value in row:
        match value:
            case None:
                parts.append(b"n")
            case bytes():
                parts.append(b"t" + struct.pack(">I", len(value)) + value)
            case _:
                parts.append(b"u")
    return b"".join(parts)


@given(messages)
def test_each_message_is_read_as_it_was_written(message: Message) -> None:
    assert parsed(encoded(message)) == message


@given(messages, st.data())
def test_a_message_that_is_cut_or_too_long_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encoded(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for broken in (whole[:cut], whole + b"\0"):
        with pytest.raises(ConnectorError, match="logical replication"):
            parsed(broken)


@given(st.binary(max_size=30))
def test_any_bytes_are_a_message_or_a_named_error(data: bytes) -> None:
    try:
        parsed(data)
    except ConnectorError as error:
        assert "logical replication" in str(error)


@given(lsns)
def test_a_place_in_the_log_is_written_as_postgres_does(lsn: int) -> None:
    assert lsn_number(lsn_text(lsn)) == lsn
    assert lsn_text(0x16_B374D848) == "16/B374D848"


@pytest.mark.parametrize("text", ["", "16", "16/", "/1", "16/B374D848/1", "16/XYZ", "123456789/0", None, 7])
def test_what_is_no_place_in_the_log_is_refused(text: Any) -> None:
    with pytest.raises(ConnectorError, match="is not a position in the log"):
        lsn_number(text)


# Positions.

skips = st.integers(0, 99)
parts = st.builds(Part, names, st.none() | names, names)


@given(
    st.builds(Position, lsns, st.integers(0, 99))
    | st.builds(Position, lsns, st.integers(0, 9), st.lists(parts).map(tuple), st.just(True), st.none())
    | st.builds(
        Position, lsns, st.integers(0, 9), st.lists(parts, min_size=1).map(tuple), st.just(False), lsns
    )
)
def test_a_position_comes_back_from_json(position: Position) -> None:
    assert position_of(position.as_json()) == position


@pytest.mark.parametrize("value", [None, 7, {}, {"lsn": "0/1"}, {"lsn": "0/1", "skip": 0, "parts": [[1]]}])
def test_what_is_no_position_is_refused(value: Any) -> None:
    with pytest.raises(ConnectorError, match="is not a position in the changes"):
        position_of(value)


def test_tables_are_read_on_from_the_last_row_of_their_last_part() -> None:
    found = [Part("a", "07", "s1"), Part("a", None, "s2"), Part("b", "03", "s2"), Part("b", "05", "s3")]
    assert rows_left(found, ["a", "b", "c"]) == [("b", "05"), ("c", "")]
    assert rows_left([], ["a"]) == [("a", "")]


# Which transactions a snapshot has seen.


@given(st.data(), st.integers(0, 2**40))
def test_a_snapshot_has_seen_what_was_committed_before_it(data: st.DataObject, base: int) -> None:
    """Against whole numbers; replication sends the lower 32 bits."""
    running = data.draw(st.sets(st.integers(0, 30)))
    xmax = data.draw(st.integers(0, 31))
    there = sorted(base + one for one in running if one < xmax)
    snapshot = f"{min(there, default=base + xmax)}:{base + xmax}:{','.join(map(str, there))}"
    for one in range(32):
        expected = one < xmax and one not in running
        assert has_seen(snapshot, (base + one) & 0xFFFFFFFF) == expected, one


# Rows that are read in parts, and the changes that come after.

RELATION = Relation(1, "public", "t", (Column("k", 25, True), Column("v", 25, False)))
_KEYS = st.integers(0, 7).map(lambda number: b"%d" % number)
_OPERATIONS = st.tuples(st.sampled_from(["put", "put", "delete", "move"]), _KEYS, _KEYS)


class Replica:
    """Takes changes, and refuses each that does not fit: a row that comes twice, or was never there."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def take(self, change: Change) -> None:
        match change:
            case Change("snapshot" | "insert", new=dict(new)):
                assert new["k"] not in self.rows, change
                self.rows[new["k"]] = new["v"]
            case Change("update", new=dict(new), old=old):
                del self.rows[new["k"] if old is None else old["k"]]
                assert new["k"] not in self.rows, change
                self.rows[new["k"]] = new["v"]
            case Change("delete", old=dict(old)):
                assert old.keys() == {"k"}
                del self.rows[old["k"]]
            case _:
                raise AssertionError(change)


def done(table: dict[bytes, bytes], what: str, key: bytes, other: bytes, value: bytes) -> Any:
    """Do an operation as far as it makes sense; return the message that replication sends of it."""
    match what:
        case "put" if key in table:
            table[key] = value
            return Update(1, None, False, (key, value))
        case "put":
            table[key] = value
            return Insert(1, (key, value))
        case "delete" if key in table:
            del table[key]
            return Delete(1, (key, None), False)
        case "move" if key in table and other not in table:
            del table[key]
            table[other] = value
            return Update(1, (key, None), False, (other, value))
        case _:
            return None


@given(st.data())
def test_rows_in_parts_and_the_changes_after_them_make_the_table_and_nothing_twice(
    data: st.DataObject,
) -> None:
    """Transactions begin in one order and are committed in another; rows are read at any moments between."""
    count = data.draw(st.integers(0, 8))
    committed = data.draw(st.permutations(range(count)))
    moments = sorted(data.draw(st.lists(st.integers(0, count), min_size=1, max_size=4)))
    cuts = sorted(
        data.draw(st.lists(_KEYS, min_size=len(moments) - 1, max_size=len(moments) - 1)), key=hashed
    )
    first = data.draw(st.dictionaries(_KEYS, st.just(b"first")))

    table, log, states = dict(first), [], [dict(first)]
    for xid in committed:
        found = []
        for number, (what, key, other) in enumerate(data.draw(st.lists(_OPERATIONS, max_size=4))):
            if (message := done(table, what, key, other, b"%d-%d" % (xid, number))) is not None:
                found.append(message)
        log.append((xid, found))
        states.append(dict(table))

    replica, read, after = Replica(), [], ""
    for moment, to in zip(moments, [*map(hashed, cuts), None], strict=True):
        snapshot = snapshot_of(committed[:moment])
        for key, value in states[moment].items():
            if after < hashed(key) and (to is None or hashed(key) <= to):
                replica.take(Change("snapshot", "public.t", {"k": key.decode(), "v": value.decode()}))
        read.append(Part("public.t", to, snapshot))
        after = to or ""

    tables = {1: ChangedTable(RELATION, ["k"], [bytes.decode] * 2, Seen(read, "public.t"))}
    plain = {1: ChangedTable(RELATION, ["k"], [bytes.decode] * 2, None)}
    for place, (xid, found) in enumerate(log):
        for message in found:
            change = change_of(message, tables, xid, "0/1", 1)
            if place >= moments[-1]:
                assert change == change_of(message, plain, xid, "0/1", 1), "no part plays a role any more"
            if change is not None:
                replica.take(change)
    assert replica.rows == {key.decode(): value.decode() for key, value in table.items()}


def hashed(key: bytes) -> str:
    return key_hash([key])


def snapshot_of(seen: Any) -> str:
    xmax = max(seen, default=-1) + 1
    running = [xid for xid in range(xmax) if xid not in seen]
    return f"{min(running, default=xmax)}:{xmax}:{','.join(map(str, running))}"


def test_a_truncation_between_two_parts_can_not_be_told_and_ends_the_job() -> None:
    read = [Part("public.t", "05", "3:3:"), Part("public.t", None, "5:5:")]
    table = ChangedTable(RELATION, ["k"], [bytes.decode] * 2, Seen(read, "public.t"))
    assert table.truncated(2, "0/1", 1) is None
    assert table.truncated(6, "0/1", 1) == Change("truncate", "public.t", None, None, "0/1", 1)
    with pytest.raises(ConnectorError, match="was truncated after a part of its first rows"):
        table.truncated(4, "0/1", 1)


def test_a_large_value_that_was_not_touched_is_named_or_taken_from_the_old_row() -> None:
    table = {1: ChangedTable(RELATION, ["k"], [bytes.decode] * 2, None)}
    assert change_of(Update(1, None, False, (b"1", UNCHANGED)), table, 1, "0/1", 1) == Change(
        "update", "public.t", {"k": "1"}, None, "0/1", 1, ("v",)
    )
    assert change_of(Update(1, (b"1", b"large"), True, (b"2", UNCHANGED)), table, 1, "0/1", 1) == Change(
        "update", "public.t", {"k": "2", "v": "large"}, {"k": "1", "v": "large"}, "0/1", 1
    )
    with pytest.raises(ConnectorError, match="a change of table 7, which it has not announced"):
        change_of(Insert(7, ()), table, 1, "0/1", 1)
