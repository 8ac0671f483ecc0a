"""Keyed state whose keys have slots, against a plain dict: batches, parts, merges, roll-backs, crashes.

The oracle keeps a deep copy of a dict at every freeze and knows nothing of slots. Planted bugs are found.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.property.examples import examples

import crosscut.state.parts as parts_module
import crosscut.state.slot_parts as slot_parts_module
import crosscut.state.slots as slots_module
from crosscut.errors import StateError
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.snapshots import Part
from crosscut.state.encoding import PartReader, contents
from crosscut.state.keyed import MAIN, KeyedState
from crosscut.state.parts import PartChain
from crosscut.state.slot_changes import Changes, Past
from crosscut.state.slots import SlotTable, _Index

KEYS = st.integers(0, 9) | st.sampled_from(["a", "b", ("a", 1), None])
NUMBERS = st.sampled_from([1, 1 << 40, 1 << 70, True, 0.5, "text", None, (1, 2)])
BATCHES = st.lists(KEYS, min_size=1, max_size=4)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Any:
    """Several steps for a handful of keys, so that encoding can be broken off anywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots_module, "SLOTS_PER_BLOCK", 2)
        patch.setattr(parts_module, "PARTS_MAX", 3)
        patch.setattr(slot_parts_module, "SLICE_ROWS_MIN", 1)
        patch.setattr(slot_parts_module, "SLICES", 4)
        yield


class SlotWorld(RuleBasedStateMachine):
    """One task's state over several epochs, as an operator, the task and its runner use it."""

    @initialize()
    def begin(self) -> None:
        self.state = KeyedState(list, keeps_keys=True)
        self.oracle: dict[Any, Any] = {}
        self.at_freeze: dict[int, dict[Any, Any]] = {CheckpointId(0): {}}
        self.next_id = 1
        self.chain = PartChain()
        # Stored, with what its completion will make of the chain.
        self.stored: dict[int, PartChain] = {}
        self.bytes_of: dict[str, bytes] = {}
        self.forgetting: Any = None

    # What operators do.

    @rule(keys=BATCHES, number=st.integers(0, 9), left=st.integers(0, 2))
    def append_in_place(self, keys: list[Any], number: int, left: int) -> None:
        """A batch, the end of which is left for another slice."""
        rows, values = self.state.to_change(keys)
        taken = keys[: max(1, len(keys) - left)]
        for key, row in zip(taken, rows, strict=False):
            # A value of another rule is replaced by a list.
            value = values[row] if isinstance(values[row], list) else []
            assert value == (self.oracle.get(key, []) if isinstance(self.oracle.get(key), list) else [])
            value.append(number)
            values[row] = value
            self.oracle[key] = [*value]
        if len(taken) < len(keys):
            self.state.main.changed_only(rows[: len(taken)])

    @rule(keys=BATCHES, value=NUMBERS)
    def replace(self, keys: list[Any], value: Any) -> None:
        rows, values = self.state.to_change(keys)
        for key, row in zip(keys, rows, strict=True):
            values[row] = self.oracle[key] = value

    @rule(key=KEYS, value=NUMBERS)
    def put(self, key: Any, value: Any) -> None:
        self.state.main.put(key, value)
        self.oracle[key] = value

    @rule(key=KEYS, number=st.integers(0, 9))
    def get(self, key: Any, number: int) -> None:
        found = self.state.main.get(key)
        assert found == self.oracle.get(key) == self.state.main.own(key)
        assert self.state.main.has(key) == (key in self.oracle)
        if isinstance(found, list):
            found.append(number)
            self.oracle[key] = [*found]

    # What the task does at a barrier, and its runner after it.

    @rule(steps_between=st.integers(0, 4), keys=BATCHES, another=st.booleans())
    def take_a_checkpoint(self, steps_between: int, keys: list[Any], another: bool) -> None:
        """Freeze and encode, while values change between the steps, and another barrier may come."""
        self.finish_forgetting()
        n = self.freeze()
        since = self.state.next_base(self.chain)
        if since:
            self.state.plan_part(n, since, self.chain.checkpoint_id)
        chunks = []
        for step, chunk in enumerate(self.state.encoded(n, since)):
            chunks.append(chunk)
            if step < steps_between:
                self.append_in_place(keys, step, step % 2)
                if another and step == 1:
                    self.freeze()
        data = b"".join(chunks)
        part = Part(f"parts/{n}/state", len(data), "", "", n)
        self.bytes_of[part.path] = data
        built = self.state.build_part(n, self.chain.checkpoint_id)
        self.stored[n] = PartChain(n, self.chain.with_part(part, since, built))
        found = contents([self.bytes_of[one.path] for one in self.stored[n].parts]).get(MAIN, {})
        assert same(found, self.at_freeze[n])

    def freeze(self) -> CheckpointId:
        n = CheckpointId(self.next_id)
        self.next_id += 1
        self.state.freeze(n)
        self.at_freeze[n] = deepcopy(self.oracle)
        return n

    @precondition(lambda self: self.stored)
    @rule(data=st.data(), steps=st.integers(0, 4))
    def complete(self, data: st.DataObject, steps: int) -> None:
        """The newest or an older one: the others were aborted."""
        self.finish_forgetting()
        n = CheckpointId(data.draw(st.sampled_from(sorted(self.stored))))
        self.chain = self.stored[n]
        self.stored = {m: chain for m, chain in self.stored.items() if m > n}
        self.forgetting = self.state.complete(n)
        for _ in range(steps):
            next(self.forgetting, None)

    def finish_forgetting(self) -> None:
        for _ in self.forgetting or ():
            pass
        self.forgetting = None

    # What an epoch's end does.

    @rule(data=st.data())
    def fail_over_with_the_state_at_hand(self, data: st.DataObject) -> None:
        """To the newest completed checkpoint, or to one of which the task has not heard that it is."""
        known = [m for m in self.stored if m in self.state.at_hand]
        n = CheckpointId(data.draw(st.sampled_from([self.chain.checkpoint_id, *known])))
        assert n in self.state.at_hand
        self.chain = self.stored.get(n, self.chain)
        self.state.roll_back(n)
        self.restored(n)

    @precondition(lambda self: self.chain.checkpoint_id)
    @rule(owned=st.sets(KEYS, min_size=1))
    def fail_over_to_another_process(self, owned: set[Any]) -> None:
        """A fresh state reads the parts; what it does not own, it does not take."""
        n = self.chain.checkpoint_id
        parts = [(one.checkpoint_id, self.bytes_of[one.path]) for one in self.chain.parts]
        some = KeyedState(list, keeps_keys=True)
        reader = PartReader()
        blocks = (block for _, part in parts for block in reader.blocks(part))
        for _ in some.loading_rows(blocks, n, owned.__contains__):
            pass
        assert dict(some.items()) == {k: v for k, v in self.at_freeze[n].items() if k in owned}
        self.state = KeyedState(list, keeps_keys=True)
        for _ in self.state.loading(parts, n):
            pass
        self.restored(n)

    @precondition(lambda self: self.chain.checkpoint_id)
    @rule()
    def take_over_rows_without_slots(self) -> None:
        """As from another parallelism, or another backend: the next part is a whole one."""
        n = self.chain.checkpoint_id
        rows = self.at_freeze[n]
        self.state = KeyedState(list, keeps_keys=True)
        reader = PartReader()
        parts = [self.bytes_of[one.path] for one in self.chain.parts]
        for _ in self.state.loading_rows((block for part in parts for block in reader.blocks(part)), n):
            pass
        assert self.state.part_rows is None
        assert same(dict(self.state.items()), rows)
        self.restored(n)

    def restored(self, n: CheckpointId) -> None:
        self.oracle = deepcopy(self.at_freeze[n])
        self.stored, self.forgetting = {}, None
        assert self.state.at_hand == (n,)

    @invariant()
    def the_state_is_the_dict(self) -> None:
        if hasattr(self, "state"):
            assert same(dict(self.state.items()), self.oracle)
            assert len(self.state) == len(self.oracle)
            assert self.chain.checkpoint_id in self.state.at_hand


def same(found: dict[Any, Any], expected: dict[Any, Any]) -> bool:
    """Whether both hold the same, of the same types: `True == 1`."""
    kinds, others = ({key: type(value) for key, value in one.items()} for one in (found, expected))
    return found == expected and kinds == others


TestSlots = SlotWorld.TestCase
TestSlots.settings = settings(max_examples=examples(150, few=50), stateful_step_count=40)


def changed_without_noting_the_old_value(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "note", lambda self, slots, olds: self.slots.extend(()))


def changed_in_place_without_a_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slots_module, "owned_copy", lambda value: value)


def slot_kept_by_a_key_that_was_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """Another key gets a slot that older parts do not know, and this one has a value again."""
    patch.setattr(_Index, "cut", lambda self, count: self.names.__delitem__(slice(count, None)))


def new_keys_left_out_of_a_part(patch: pytest.MonkeyPatch) -> None:
    plain = slots_module.encode_new_keys
    patch.setattr(
        slots_module,
        "encode_new_keys",
        lambda table, first, keys: b"" if first else plain(table, first, keys),
    )


def newest_changes_taken_for_those_at_the_barrier(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Past, "_note_olds", lambda self: None)


def changes_of_replaced_parts_left_out(patch: pytest.MonkeyPatch) -> None:
    plain = slots_module._once
    patch.setattr(slots_module, "_once", lambda several, count: plain(several[:1], count))


def keys_of_the_rest_of_a_batch_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotTable, "changed_only", lambda self, rows: None)


def part_dropped_while_only_it_has_some_keys(patch: pytest.MonkeyPatch) -> None:
    plain = slot_parts_module.with_all_keys
    patch.setattr(slot_parts_module, "with_all_keys", lambda parts: (plain(parts) or [])[1:] or parts[-1:])


def slot_left_out_of_a_slice(patch: pytest.MonkeyPatch) -> None:
    plain = slots_module._blocks
    patch.setattr(slots_module, "_blocks", lambda slots: plain(slots[:-1] if slots.start else slots))


PLANTED = [
    part_dropped_while_only_it_has_some_keys,
    slot_left_out_of_a_slice,
    changed_without_noting_the_old_value,
    changed_in_place_without_a_copy,
    slot_kept_by_a_key_that_was_rolled_back,
    new_keys_left_out_of_a_part,
    newest_changes_taken_for_those_at_the_barrier,
    changes_of_replaced_parts_left_out,
    keys_of_the_rest_of_a_batch_kept,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_bug_in_slots_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = settings(max_examples=300, stateful_step_count=40, phases=[Phase.generate], derandomize=True)
    with pytest.raises((AssertionError, StateError, IndexError)):
        run_state_machine_as_test(SlotWorld, settings=found)  # type: ignore[no-untyped-call]
