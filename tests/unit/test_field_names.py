"""State by position: a class whose fields have changed places never gets the values of others."""

from __future__ import annotations

import pickle
import re
import struct as structs
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from enum import Enum
from io import BytesIO
from pathlib import Path
from pickletools import genops
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches
from tests.unit.test_deployment import restored
from tests.unit.test_pool import N1, A, B, Site, scene

import crosscut as cc
from crosscut.contracts.settings import BackendName
from crosscut.errors import StateError
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers
from crosscut.state import field_names
from crosscut.state.encoding import encode_block
from crosscut.state.field_names import REFERENCE, FieldNames, fields_by_position
from crosscut.task.items import Barrier
from crosscut.testing.simulator.sources import ReplayedSource

HERE = __name__
CALM = FaultProfile()


class Pair(NamedTuple):
    one: int
    two: int


class Other(NamedTuple):
    pair: Pair
    name: str


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: Any = None


@dataclass
class ByName:
    a: Any


class Struct(msgspec.Struct):
    x: int
    y: int = 0


class Named(msgspec.Struct, kw_only=True):
    x: int


def noted(*values: Any) -> dict[str, tuple[str, ...]]:
    names = FieldNames()
    names.note_block(encode_block("state", list(range(len(values))), list(values), is_named=False))
    return names.known


PAIR, OTHER, FROZEN = f"{HERE}:Pair", f"{HERE}:Other", f"{HERE}:Frozen"


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1, "a", None, b"\x93\x94", "\x8c\x01a\x94\x93\x94"], {}),
        ([Pair(1, 2)], {PAIR: ("one", "two")}),
        ([{"k": [ByName([Frozen(1, Pair(1, 2))])]}], {FROZEN: ("a", "b"), PAIR: ("one", "two")}),
        ([Other(Pair(1, 2), "Pair")], {OTHER: ("pair", "name"), PAIR: ("one", "two")}),
        # Names that stand there before as texts, and are referred to by their number.
        ([sys.intern("Pair"), sys.intern(HERE), Pair(1, 2)], {PAIR: ("one", "two")}),
        ([{sys.intern("Pair"): Pair(1, 2)}, Frozen(1)], {FROZEN: ("a", "b"), PAIR: ("one", "two")}),
        ([Struct(1)], {f"{HERE}:Struct": ("x", "y")}),
        ([Named(x=1), ByName(1)], {}),
        (
            [Pair(i, i) for i in range(1_000)] + [Struct(1)],
            {PAIR: ("one", "two"), f"{HERE}:Struct": ("x", "y")},
        ),
    ],
)
def test_classes_by_position_are_found_wherever_they_are_in_values(
    values: list[Any], found: dict[str, tuple[str, ...]]
) -> None:
    assert noted(*values) == found


class Parsed(list[int]):
    """The lengths of the pickles that were parsed whole."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()

        def counted(data: bytes) -> Any:
            self.append(len(data))
            return genops(data)

        patch.setattr(field_names, "genops", counted)


def test_a_batch_whose_values_have_the_bytes_of_a_reference_by_chance_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed, random = Parsed(monkeypatch), Random(7)
    names = FieldNames()
    for place in range(7):
        for _ in range(100):
            values: list[Any] = []
            for _ in range(10):
                drawn = bytearray(random.randbytes(8))
                drawn[place : place + 2] = REFERENCE
                values += [structs.unpack(">d", drawn)[0], bytes(drawn)]
            names.note(pickle.dumps(values, protocol=5))
    # Of 14,000 such values some have the bytes before the two that a reference has as well.
    assert len(parsed) < 70
    parsed.clear()
    # All have them in the same place.
    names.note(pickle.dumps([1253 + random.random() for _ in range(10_000)], protocol=5))
    assert parsed == []
    names.note(pickle.dumps([1253.125, 1253.375, "h哔", b"j123\x93\x94", Pair(1, 2)], protocol=5))
    assert names.known == {PAIR: ("one", "two")}


@pytest.mark.parametrize("pickler", [pickle.Pickler, pickle._Pickler])
def test_a_reference_is_found_wherever_a_frame_of_its_pickle_ends(pickler: Any) -> None:
    splits = set()
    for length in range(65_380, 65_536):
        for texts in ([], [sys.intern("Pair"), sys.intern(HERE)]):
            file = BytesIO()
            pickler(file, 5).dump([*texts, "x" * length, Pair(1, 2)])
            data = file.getvalue()
            splits |= {one for one in (b"\x8c\x04Pair", b"h", b"\x93") if re.search(FRAME + one, data, re.S)}
            names = FieldNames()
            names.note(data)
            assert names.known == {PAIR: ("one", "two")}, length
    # In front of a name or its number, and never after it.
    assert splits == {b"\x8c\x04Pair", b"h"}


FRAME = rb"\x95.{8}"


def test_only_short_beginnings_of_pickles_are_kept_and_not_many() -> None:
    names = FieldNames()
    for number in range(3_000):
        names.note(pickle.dumps([number, Pair(1, 2)], protocol=5))
        names.note(pickle.dumps([b"x" * 5_000, number, Pair(1, 2)], protocol=5))
    assert len(pickle.dumps(names)) < 200_000
    assert names.known == {PAIR: ("one", "two")}


def kinds_in(value: Any) -> Iterator[type]:
    yield type(value)
    if isinstance(value, ByName):
        value = [value.a]
    elif isinstance(value, Frozen):
        value = [value.b]
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from kinds_in(one)


def test_random_values_have_the_classes_that_unpickling_finds() -> None:
    random = Random(7)

    def drawn(depth: int) -> Any:
        made: list[Any] = [
            lambda: random.choice(["Pair", HERE, "Frozen", "x", b"\x93\x94", 7, None]),
            lambda: Pair(1, random.randrange(9)),
            lambda: Frozen(1, drawn(depth - 1)),
            lambda: Struct(1),
            lambda: ByName(drawn(depth - 1)),
            lambda: [drawn(depth - 1), drawn(depth - 1)],
            lambda: {random.choice(["Pair", "a"]): drawn(depth - 1)},
        ]
        return random.choice(made if depth else made[:2])()

    for _ in range(500):
        values = [drawn(4) for _ in range(3)]
        expected = {f"{HERE}:{kind.__name__}" for kind in kinds_in(values) if fields_by_position(kind)}
        assert set(noted(*values)) == expected, values


@pytest.fixture
def changing() -> Iterator[ModuleType]:
    """A module of the user's, of which there are several versions."""
    module = sys.modules["changing"] = ModuleType("changing")
    yield module
    del sys.modules["changing"]


def named_tuple(fields: str, **more: Any) -> Any:
    return namedtuple("Kind", fields, module="changing", **more)


def struct(*fields: Any) -> Any:
    return msgspec.defstruct("Kind", fields, module="changing")


def frozen(*fields: Any) -> Any:
    made = make_dataclass("Kind", fields, frozen=True, slots=True)
    made.__module__ = "changing"
    return made


VERSIONS: list[tuple[Any, Any, bool]] = [
    (named_tuple("a b"), named_tuple("a b"), True),
    (named_tuple("a b"), named_tuple("b a"), False),
    (named_tuple("a b"), named_tuple("a b c", defaults=[7]), True),
    (named_tuple("a b"), named_tuple("a b c"), False),
    (named_tuple("a b"), named_tuple("a"), False),
    (named_tuple("a b"), named_tuple("a c"), False),
    (struct("a", "b"), struct("b", "a"), False),
    (struct("a", "b"), struct("a", "b", ("c", int, 7)), True),
    (frozen("a", "b"), frozen("a", "b"), True),
    (frozen("a", "b"), frozen("b", "a"), False),
    # Nothing would set the third.
    (frozen("a", "b"), frozen("a", "b", ("c", int, 7)), False),
]


@pytest.mark.parametrize(("before", "now", "is_taken"), VERSIONS)
def test_fields_that_are_others_now_are_refused_with_both_lists(
    before: Any, now: Any, is_taken: bool, changing: ModuleType
) -> None:
    vars(changing)["Kind"] = before
    names = FieldNames()
    names.note(pickle.dumps([before(1, 2)], protocol=5))
    saved = names.as_json()
    vars(changing)["Kind"] = now
    restored = FieldNames()
    if is_taken:
        restored.restore(saved, "p")
        assert set(restored.known) == {"changing:Kind"}
        return
    with pytest.raises(StateError) as caught:
        restored.restore(saved, "p")
    assert f"with the fields (a, b); the class has ({', '.join(fields_by_position(now) or ())}) now" in str(
        caught.value
    )
    assert "operator 'p'" in str(caught.value)
    assert caught.value.ids["damaged"], "no restart mends it"


def test_an_added_field_belongs_to_what_is_compared_next_time(changing: ModuleType) -> None:
    """What was stored before has fewer."""
    vars(changing)["Kind"] = named_tuple("a b c", defaults=[7])
    names = FieldNames()
    names.restore({"changing:Kind": ["a", "b"]}, "p")
    names.note(pickle.dumps(changing.Kind(1, 2), protocol=5))
    assert names.as_json() == {"changing:Kind": ["a", "b", "c"]}


class Last(cc.KeyedProcess[int, list[int]]):
    last = cc.ValueState()

    def on_record(self, record: int, context: Any) -> Iterator[list[int]]:
        kind = sys.modules["changing"].Kind
        before = self.last.get() or [kind(a=0, b=100)]
        self.last.set([before[0]._replace(a=before[0].a + 1)])
        yield [record, before[0].a, before[0].b]


def run_versions(tmp_path: Path, state_backend: BackendName, process: Any, until: int = 400) -> Any:
    """Run a job over records 0 to 399; return how it ended, if it did."""
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("last")
    source = ReplayedSource({"s": list(range(400))})
    flow.source(source).key_by(lambda number: number % 3).process(process).named("p").sink(out)
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=20),
        checkpoint_dir=tmp_path / "checkpoints",
        parallelism=1,
        checkpoint_interval="10ms",
        state_backend=state_backend,
    )
    end, _ = run_batches(
        flow.compile(1, 128),
        settings,
        lambda graph, url: LocalJobs(graph, url, Random(1), CALM, state_backend),
        lambda driver: until < 400 and len(out.records()) > until,
    )
    return end


@pytest.mark.parametrize("state_backend", ["memory", "rocksdb"])
def test_a_job_does_not_go_on_with_a_class_whose_fields_have_changed_places(
    state_backend: BackendName, tmp_path: Path, changing: ModuleType
) -> None:
    out = cc.collect(tmp_path / "out")

    def run(kind: Any, until: int = 400) -> Any:
        vars(changing)["Kind"] = kind
        return run_versions(tmp_path, state_backend, Last(), until)

    run(named_tuple("a b"), until=100)
    end = run(named_tuple("b a"))
    assert end is not None
    assert "state of operator 'p' holds objects of Kind of changing" in end.cause.message
    # What the last checkpoint had staged is visible, and nothing else.
    assert len(out.records()) < 400
    run(named_tuple("a b c", defaults=[7]))
    assert len(out.records()) == 400
    assert {row[2] for row in out.records()} == {100}


class Keep(cc.KeyedProcess[int, list[int]]):
    last = cc.ValueState()

    def on_record(self, record: int, context: Any) -> Iterator[list[int]]:
        before = self.last.get()
        if (value := sys.modules["changing"].value()) is not None:
            self.last.set(value)
        yield [record, before is not None]


def enum(*members: str) -> Any:
    return Enum("Kind", list(members), module="changing")


def slots(*fields: str) -> Any:
    made = make_dataclass("Kind", [(one, int, 0) for one in fields], slots=True)
    made.__module__ = "changing"
    return made


@pytest.mark.parametrize("state_backend", ["memory", "rocksdb"])
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (enum("A", "B"), enum("A")),
        (slots("n", "gone"), slots("n")),
        (slots("n"), None),
    ],
    ids=["a member is gone", "a field is gone", "the class is gone"],
)
def test_state_that_this_code_cant_read_ends_the_job_at_once_and_names_the_operator(
    before: Any, now: Any, state_backend: BackendName, tmp_path: Path, changing: ModuleType
) -> None:
    out = cc.collect(tmp_path / "out")
    vars(changing).update(Kind=before, value=lambda: before.B if issubclass(before, Enum) else before())
    assert run_versions(tmp_path, state_backend, Keep(), until=100) is None
    vars(changing)["value"] = lambda: None
    if now is None:
        del vars(changing)["Kind"]
    else:
        vars(changing)["Kind"] = now
    end = run_versions(tmp_path, state_backend, Keep())
    assert "operator 'p'" in end.cause.message
    assert "state 'last' of" in end.cause.message
    assert "can't be decoded" in end.cause.message
    assert "no restart can mend" in end.cause.message
    assert len(out.records()) < 400
    # The job goes on with the class that it had.
    vars(changing)["Kind"] = before
    run_versions(tmp_path, state_backend, Keep())
    assert len(out.records()) == 400
    assert all(seen for record, seen in out.records() if record > 2)


# Records on their way, and those that a sink has staged in the snapshot.


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps([Pair(1, 2)], protocol=5),
        b"head" + pickle.dumps([1], protocol=5) + pickle.dumps({"a": [Pair(1, 2)]}, protocol=5) + b"end",
        pickle.dumps([pickle.dumps([1], protocol=5), pickle.dumps([Pair(1, 2)], protocol=5)], protocol=5),
        # By number, after bytes that only look like a pickle.
        b"\x80\x05\x95" + b"\x93\x94" * 9 + pickle.dumps([sys.intern("Pair"), Pair(1, 2)], protocol=5),
    ],
    ids=["alone", "between", "within", "after"],
)
def test_classes_are_found_in_whatever_a_sink_holds(data: bytes) -> None:
    names = FieldNames()
    names.note_any(data)
    assert names.known == {PAIR: ("one", "two")}


@scene
async def test_the_snapshot_says_the_classes_of_its_channel_records_and_of_no_other() -> None:
    site = Site(protocol=UnalignedBarriers)
    site.store.is_open.set()
    site.receive(A, [Other(Pair(1, 2), "before")])
    await site.until(lambda: bool(site.seen), "the record")
    site.receive(B, Barrier(N1))
    site.receive(A, [Pair(1, 2)])
    site.receive(A, Barrier(N1))
    found = await site.acknowledged()
    assert found.snapshot.log
    assert found.snapshot.record_fields == {PAIR: ["one", "two"]}
    await site.close()


def held_by(records: list[Any], checkpoint_id: int) -> None:
    sys.modules["changing"].called.extend([one.a, one.b] for one in records)


def as_kind(number: int) -> Any:
    return sys.modules["changing"].Kind(a=number, b=100)


def test_a_job_does_not_commit_held_records_of_a_class_whose_fields_have_changed_places(
    tmp_path: Path, changing: ModuleType
) -> None:
    changing.called = []

    def run(kind: Any, until: int = 400) -> Any:
        changing.Kind = kind
        flow = cc.Flow("held")
        numbers = flow.source(ReplayedSource({"s": list(range(400))})).map(as_kind).named("kinds")
        numbers.for_each_checkpoint(held_by, name="out")
        settings = cc.Settings(
            engine=cc.MicroBatch(records_max=20),
            checkpoint_dir=tmp_path / "checkpoints",
            parallelism=1,
            checkpoint_interval="10ms",
        )
        return run_batches(
            flow.compile(1, 128),
            settings,
            lambda graph, url: LocalJobs(graph, url, Random(1), CALM),
            lambda driver: until < 400 and len(changing.called) > until,
        )[0]

    run(named_tuple("a b"), until=100)
    seen = len(changing.called)
    assert 100 < seen < 400
    end = run(named_tuple("b a"))
    assert end is not None
    assert "the class has (b, a) now" in end.cause.message
    assert "records in the snapshot of task" in end.cause.message
    assert len(changing.called) == seen
    run(named_tuple("a b"))
    assert {tuple(one) for one in changing.called} == {(n, 100) for n in range(400)}


def test_a_task_does_not_take_channel_records_of_a_class_whose_fields_have_changed_places(
    changing: ModuleType,
) -> None:
    changing.Kind = named_tuple("b a")
    flow = cc.Flow("f")
    flow.source(cc.items([1])).named("in").rebalance().map(abs).named("m").sink(cc.collect()).named("out")
    with pytest.raises(
        StateError, match=r"records in the snapshot of task .* \(a, b\); the class has \(b, a\)"
    ):
        restored(flow.compile(1, 1), {}, record_fields={"changing:Kind": ["a", "b"]})
