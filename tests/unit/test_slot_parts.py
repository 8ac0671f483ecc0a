"""Which parts tables by slot are stored in: few, not large together, and none much larger than it must be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

import crosscut.state.slot_parts as slot_parts_module
import crosscut.state.slots as slots_module
from crosscut.errors import StateError
from crosscut.foundation.ids import CheckpointId
from crosscut.microbatch.state_cache import newer_parts
from crosscut.protocol.snapshots import Part
from crosscut.state.encoding import Extent, SlotRows, contents, decode_part
from crosscut.state.keyed import MAIN, KeyedState
from crosscut.state.parts import PARTS_MAX, PartChain
from crosscut.state.slot_parts import SLICES, Choice, SlotPart, SlotParts, choose, with_all_keys

NONE = CheckpointId(0)
KEYS = 800
CHECKPOINTS = 1_000


class Stored:
    """A state through its checkpoints, as a task and its store keep it."""

    def __init__(self) -> None:
        self.state = KeyedState(int, keeps_keys=True)
        self.chain = PartChain()
        self.bytes_of: dict[CheckpointId, bytes] = {}
        self.oracle: dict[int, int] = {}

    def change(self, keys: list[int]) -> None:
        rows, values = self.state.to_change(keys)
        for key, row in zip(keys, rows, strict=True):
            values[row] += 1
            self.oracle[key] = self.oracle.get(key, 0) + 1

    def checkpoint(self) -> int:
        """Return how many rows it has written."""
        n = CheckpointId(self.chain.checkpoint_id + 1)
        self.state.freeze(n)
        since = self.state.next_base(self.chain)
        if since:
            self.state.plan_part(n, since, self.chain.checkpoint_id)
        data = b"".join(self.state.encoded(n, since))
        needed = self.state.build_part(n, self.chain.checkpoint_id)
        part = Part(f"parts/{n}/a", len(data), "", "", n)
        self.chain = PartChain(n, self.chain.with_part(part, since, needed))
        # As the store deletes what nobody refers to.
        self.bytes_of = {one: self.bytes_of[one] for one in self.ids() if one != n} | {n: data}
        for _ in self.state.complete(n):
            pass
        return sum(len(block.slots) for block in decode_part(data) if isinstance(block, SlotRows))

    def ids(self) -> list[CheckpointId]:
        return [one.checkpoint_id for one in self.chain.parts]

    def rows(self) -> int:
        return sum(self.state.part_rows or [])

    def catch_up(self, other: KeyedState, known: tuple[Part, ...]) -> None:
        """Have the state of another process read what is newer than the parts that it knows."""
        (kept,) = other.at_hand
        if newer := newer_parts(known, self.chain.parts):
            other.roll_back(kept)
            parts = [(one.checkpoint_id, self.bytes_of[one.checkpoint_id]) for one in newer]
            for _ in other.loading(parts, self.chain.checkpoint_id):
                pass
            assert dict(other.items()) == self.oracle
            assert other.part_rows == self.state.part_rows

    def check(self) -> None:
        assert contents(map(self.bytes_of.__getitem__, self.ids())) == {MAIN: self.oracle}

    def restart(self) -> None:
        self.state = KeyedState(int, keeps_keys=True)
        for _ in self.state.loading([(n, self.bytes_of[n]) for n in self.ids()], self.chain.checkpoint_id):
            pass
        assert dict(self.state.items()) == self.oracle


def in_turn(count: int) -> Iterator[list[int]]:
    at = 0
    while True:
        yield [key % KEYS for key in range(at, at + count)]
        at += count


def at_random(count: int) -> Iterator[list[int]]:
    draw = random.Random(1)
    while True:
        yield draw.sample(range(KEYS), count)


def hot() -> Iterator[list[int]]:
    yield list(range(KEYS))
    while True:
        yield list(range(0, KEYS, 200))


def growing() -> Iterator[list[int]]:
    """Two new keys, and some old ones."""
    draw = random.Random(2)
    for count in range(2, 10 * CHECKPOINTS, 2):
        yield [*{count, count + 1, *draw.sample(range(count), min(count, 5))}]


def in_bursts() -> Iterator[list[int]]:
    draw = random.Random(3)
    while True:
        yield draw.sample(range(KEYS), draw.choice([0, 1, 5, 5, 20, 100, 300]))


WAYS: dict[str, Callable[[], Iterator[list[int]]]] = {
    "a fifth in turn": lambda: in_turn(KEYS // 5),
    "a twentieth in turn": lambda: in_turn(KEYS // 20),
    "a tenth at random": lambda: at_random(KEYS // 10),
    "a hundredth at random": lambda: at_random(KEYS // 100),
    "hot": hot,
    "growing": growing,
    "in bursts": in_bursts,
}


def go(way: str) -> None:
    stored = Stored()
    changes = WAYS[way]()
    for number in range(CHECKPOINTS):
        changed = next(changes)
        stored.change(changed)
        written = stored.checkpoint()
        count = len(stored.oracle)
        if count > KEYS // 2:
            assert written <= len(changed) + max(len(changed), count // SLICES)
        assert len(stored.ids()) <= 2 * (SLICES + 1) + PARTS_MAX
        assert stored.rows() <= 4 * count + len(changed)
        assert stored.state.part_rows is not None
        assert len(stored.state.part_rows) == len(stored.ids())
        if number % 41 == 40:
            stored.check()
        if number % 97 == 96:
            known = stored.state.part_rows
            other, older = stored.state, stored.chain.parts
            stored.restart()
            assert stored.state.part_rows == known
        if number > 97 and number % 97 == 2:
            stored.catch_up(other, older)
    stored.check()


@pytest.mark.parametrize("way", WAYS)
def test_of_a_large_table_no_checkpoint_writes_all_and_its_parts_stay_few_and_small(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_parts_module, "SLICE_ROWS_MIN", 1)
    go(way)


def slice_said_to_be_longer_than_it_is(patch: pytest.MonkeyPatch) -> None:
    """Who has restored it drops older parts too early."""
    plain = slots_module.encode_extent

    def longer(extent: Extent) -> bytes:
        some = extent.slice
        return plain(extent._replace(slice=range(some.start, extent.known) if some else some))

    patch.setattr(slots_module, "encode_extent", longer)


def slices_that_begin_again_each_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slot_parts_module, "_rest_of_table", lambda parts: (0, parts[-1].key_count))


def slices_that_leave_a_slot_out(patch: pytest.MonkeyPatch) -> None:
    plain = slot_parts_module._rest_of_table

    def rest(parts: Sequence[SlotPart]) -> tuple[int, int]:
        begin, end = plain(parts)
        return (begin + 1 if begin else 0), end

    patch.setattr(slot_parts_module, "_rest_of_table", rest)


def older_parts_kept_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slot_parts_module, "with_all_keys", lambda parts: [*parts])


def parts_that_are_not_needed_remembered_by_who_catches_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotParts, "drop_unneeded", lambda self: None)


PLANTED = [
    parts_that_are_not_needed_remembered_by_who_catches_up,
    slice_said_to_be_longer_than_it_is,
    slices_that_begin_again_each_time,
    slices_that_leave_a_slot_out,
    older_parts_kept_for_ever,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_bug_in_slices_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_parts_module, "SLICE_ROWS_MIN", 1)
    plant(monkeypatch)
    with pytest.raises((AssertionError, StateError)):
        go("a tenth at random")


def test_a_small_change_has_nothing_else_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_parts_module, "SLICE_ROWS_MIN", 1)
    stored = Stored()
    changes = hot()
    written = []
    for _ in range(200):
        stored.change(next(changes))
        written.append(stored.checkpoint())
    assert written == [KEYS, *[KEYS // 200] * 199]
    assert len(stored.ids()) <= PARTS_MAX


def test_a_small_table_is_written_whole() -> None:
    stored = Stored()
    changes = in_turn(KEYS // 4)
    for _ in range(50):
        stored.change(next(changes))
        stored.checkpoint()
        extents = [one for data in stored.bytes_of.values() for one in decode_part(data)]
        assert not any(one.slice for one in extents if isinstance(one, Extent))
        assert stored.rows() <= 2 * KEYS


def part(n: int, known: int, key_count: int, some: range = range(0), changed: int = 0) -> SlotPart:
    return SlotPart(CheckpointId(n), CheckpointId(n - 1), [0] * changed, known, key_count, some)


@pytest.mark.parametrize(
    ("parts", "needed"),
    [
        ([part(1, 0, 10)], [1]),
        ([part(1, 0, 10), part(2, 0, 12)], [2]),
        ([part(1, 0, 10), part(2, 10, 12)], [1, 2]),
        ([part(1, 0, 10), part(2, 10, 12, range(5)), part(3, 12, 12, range(5, 10))], [2, 3]),
        ([part(1, 0, 10), part(2, 10, 12, range(5)), part(3, 12, 12, range(6, 10))], [1, 2, 3]),
        ([part(1, 0, 0), part(2, 0, 0)], [2]),
        ([part(2, 10, 12, range(5)), part(3, 12, 12, range(6, 10))], None),
    ],
)
def test_needed_are_the_newest_parts_that_have_every_key(
    parts: list[SlotPart], needed: list[int] | None
) -> None:
    found = with_all_keys(parts)
    assert (None if found is None else [one.checkpoint_id for one in found]) == needed


M = 1_000_000
WHOLE = part(1, 0, M)


@pytest.mark.parametrize(
    ("parts", "new_rows", "since", "some"),
    [
        ([], 5, 0, range(0)),
        ([WHOLE], 10, 1, range(0)),
        # Twice the table: from its begin on.
        ([WHOLE, part(2, M, M, changed=M)], 10, 2, range(M // SLICES)),
        ([WHOLE, part(2, M, M, changed=M)], 200_000, 2, range(200_000)),
        # Most of it would be written anyway.
        ([WHOLE, part(2, M, M, changed=M)], M // 2, 0, range(0)),
        # What has begun goes on to its end.
        ([WHOLE, part(2, M, M, range(300_000), 10)], 10, 2, range(300_000, 300_000 + M // SLICES)),
        (
            [WHOLE, part(2, M, M, range(300_000)), part(3, M, M, range(300_000, 990_000))],
            1,
            3,
            range(990_000, M),
        ),
        ([part(2, M, M, range(300_000)), part(3, M, M, range(300_000, M))], 1, 3, range(0)),
        # Keys that have come meanwhile are in the parts that have come.
        ([part(2, M, M + 9, range(M // 2)), part(3, M + 9, M + 9, range(M // 2, M))], 1, 3, range(0)),
        # Parts that are small together are merged.
        ([WHOLE, *[part(n, M, M, changed=5) for n in range(2, 10)]], 5, 1, range(0)),
        ([WHOLE, *[part(n, M, M, changed=50_000) for n in range(2, 10)]], 50_000, 9, range(M // SLICES)),
    ],
)
def test_what_the_next_part_holds(parts: list[SlotPart], new_rows: int, since: int, some: range) -> None:
    on, key_count = (parts[-1].checkpoint_id, parts[-1].key_count) if parts else (NONE, 5)
    assert choose(parts, on, new_rows, key_count) == Choice(CheckpointId(since), some)


def test_without_any_of_its_parts_a_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_parts_module, "SLICE_ROWS_MIN", 1)
    stored = Stored()
    changes = in_turn(KEYS // 5)
    for _ in range(40):
        stored.change(next(changes))
        stored.checkpoint()
    newest = stored.chain.parts[-1].checkpoint_id
    for missing in stored.ids()[:-1]:
        rest = [(n, stored.bytes_of[n]) for n in stored.ids() if n != missing]
        with pytest.raises(StateError, match="one of the parts has not been read"):
            for _ in KeyedState(int, keeps_keys=True).loading(rest, newest):
                pass
        with pytest.raises(StateError, match="one of the parts has not been read"):
            contents(data for _, data in rest)
