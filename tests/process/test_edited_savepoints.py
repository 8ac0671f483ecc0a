"""A savepoint with every kind of state, edited with Polars, goes on at another parallelism and backend."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars
import pytest
from jobs import DEADLINE_S, Held, until

import crosscut as cc
from crosscut.errors import StoreError

KEYS = [f"k{index}" for index in range(8)]
DUE = 1_000_000
FAR = 5_000_000_000_000


def plus(accumulator: tuple[int, int], n: int) -> tuple[int, int]:
    return accumulator[0] + n, accumulator[1] + 1


def mean(accumulator: tuple[int, int]) -> float:
    return accumulator[0] / accumulator[1]


def nothing_yet() -> tuple[int, int]:
    return 0, 0


class Kinds(cc.KeyedProcess[tuple[str, int], Any]):
    last = cc.ValueState[int](default=0)
    items = cc.ListState[int]()
    entries = cc.MapState[str, int]()
    most = cc.ReducingState[int](max)
    mean = cc.AggregatingState[int, float](nothing_yet, plus, mean)
    mortal = cc.ValueState[int](ttl="1h", ttl_time="processing")
    packed = cc.ValueState[int](serializer=cc.MsgspecSerializer(int))

    def on_record(self, record: tuple[str, int], ctx: cc.Context) -> Iterator[Any]:
        _, n = record
        if n == 0:
            yield (
                ctx.key, self.last.get(), self.items.get(), dict(self.entries), self.most.get(),
                self.mean.get(), self.mortal.get(), self.packed.get(),
            )  # fmt: skip
            return
        self.last.set(n)
        self.items.append(n)
        self.entries[str(n % 2)] = n
        self.most.add(n)
        self.mean.add(n)
        self.mortal.set(n)
        self.packed.set(n)
        ctx.set_timer(DUE)
        ctx.set_processing_timer(FAR)

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        yield (ctx.key, "event timer", time)

    def on_processing_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        yield (ctx.key, "processing timer", time)


def key_of(record: tuple[str, int]) -> str:
    return record[0]


def time_of(record: tuple[str, int]) -> int:
    return record[1]


def number_of(record: tuple[str, int]) -> int:
    return record[1]


FIRST = [(key, n) for n, key in enumerate(KEYS, start=1) for n in (n, n + 8)]
"""Two numbers for each key."""


def flow_of(out: Path, gate: Path, then: list[tuple[str, int]], *, has_windows: bool = True) -> cc.Flow:
    flow = cc.Flow("kinds")
    records = flow.source(Held(cc.items(FIRST), gate, None)).named("records")
    if then:
        records = records.union(flow.source(cc.items(then)).named("more")).named("all")
    timed = records.assign_timestamps(time_of, out_of_orderness="1h").named("timed")
    keyed = timed.key_by(key_of).named("keys")
    keyed.process(Kinds()).named("kinds").map(repr).sink(cc.files.write_jsonl(out / "kinds"))
    if has_windows:
        windows = keyed.window(cc.tumbling(1_000)).sum(number_of).named("windows")
        windows.map(repr).sink(cc.files.write_jsonl(out / "windows"))
    return flow


def edited(value: Any, state: str) -> Any:
    """Return the JSON of a value as a user would change it."""
    match state, value:
        case "items", [*items]:
            return [*items, 777]
        case "mean", {"$tuple": [total, count]}:
            return {"$tuple": [total + count, count]}
        case "mortal", {"$tuple": [written, number]}:
            return {"$tuple": [written, number + 1_000]}
        case "packed", {"$bytes": text}:
            data = base64.b64decode(text)
            number = msgspec.msgpack.encode(msgspec.msgpack.decode(data[2:]) + 1_000)
            return {"$bytes": base64.b64encode(data[:2] + number).decode()}
        case "last" | "entries" | "most" | "windows", int():
            return value + 1_000
        case _:
            return value


def is_row(state: str, key: str) -> polars.Expr:
    return (polars.col("state") == state) & (polars.col("key") == json.dumps(key))


def edit(savepoint: Path) -> None:
    for file in (savepoint / "state").rglob("*.parquet"):
        frame = polars.read_parquet(file)
        is_gone = is_row("event timers", "k0") | is_row("processing timers", "k1")
        frame = frame.filter(~is_gone)
        changed = [
            json.dumps(edited(json.loads(value), state))
            for state, value in frame.select("state", "value").rows()
        ]
        frame = frame.with_columns(polars.Series("value", changed, dtype=polars.String))
        if file.name == "0.parquet" and file.parent.name == "kinds":
            new = {
                "key_group": 0,
                "operator": "kinds",
                "state": "last",
                "key": '"new"',
                "name": None,
                "value": "42",
            }
            frame = polars.concat([frame, polars.DataFrame([new], schema=frame.schema)])
        frame.write_parquet(file)


def lines_in(directory: Path) -> list[str]:
    return sorted(
        json.loads(line) for file in directory.glob("part-*") for line in file.read_text().splitlines()
    )


def test_what_a_user_has_edited_is_what_every_state_holds(tmp_path: Path, started: Any) -> None:
    """H1, H3: through the rows of a savepoint from one database into others."""
    gate, savepoint = tmp_path / "gate", tmp_path / "savepoint"
    common: dict[str, Any] = {
        "checkpoint_interval": "200ms", "max_parallelism": 16, "state_backend": "rocksdb",
    }  # fmt: skip
    first = flow_of(tmp_path / "first", gate, [])
    job = started.flow(first, cc.Settings(parallelism=2, checkpoint_dir=tmp_path / "1", **common))
    until(lambda: job.report().records_read == len(FIRST), "all records")
    assert job.stop(DEADLINE_S, savepoint=savepoint)
    edit(savepoint)
    cc.seal_savepoint(savepoint)

    gate.touch()
    tell = [(key, 0) for key in [*KEYS, "new"]]
    second = flow_of(tmp_path / "second", gate, tell)
    settings = cc.Settings(parallelism=3, checkpoint_dir=tmp_path / "2", restore_from=savepoint, **common)
    job = started.flow(second, settings)
    assert job.wait(DEADLINE_S)
    told = [(i + 1009, [i + 1, i + 9, 777], {str((i + 1) % 2): i + 1009}) for i in range(8)]
    expected: list[Any] = [
        *((f"k{i}", *held, i + 1009, i + 6.0, i + 1009, i + 1009) for i, held in enumerate(told)),
        ("new", 42, [], {}, None, None, None, None),
        *((key, "event timer", DUE) for key in KEYS if key != "k0"),
        *((key, "processing timer", FAR) for key in KEYS if key != "k1"),
    ]
    shown = sorted(map(repr, expected))
    assert lines_in(tmp_path / "second" / "kinds") == shown
    sums = {key: 2 * index + 1010 for index, key in enumerate(KEYS)} | {"new": 0}
    assert lines_in(tmp_path / "second" / "windows") == sorted(
        repr(cc.Windowed(key, 0, 1_000_000, total)) for key, total in sums.items()
    )

    # Without the windows their state is nobody's: dropped only if that is said, and the rest is as it was.
    third = flow_of(tmp_path / "third", gate, tell, has_windows=False)
    settings = replace(settings, checkpoint_dir=str(tmp_path / "3"))
    with pytest.raises(
        StoreError, match=r"no operator takes the state 'windows' .* of 'windows'.*allow_dropped_state"
    ):
        started.flow(third, settings)
    job = started.flow(third, replace(settings, allow_dropped_state=True))
    assert job.wait(DEADLINE_S)
    assert lines_in(tmp_path / "third" / "kinds") == shown
