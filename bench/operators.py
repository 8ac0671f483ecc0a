"""What keyed operators and their state cost: nanoseconds a record of one thread, without Spark.

Each operator gets the same records, each key in turn, in batches of 1,000, and a checkpoint is frozen,
stored and completed after every 100,000. `--restore` stores so many keys and takes them over at another
parallelism: half of them, and all. Prints a JSON line for each. The processor time of the one thread is what
counts, so other work on the machine disturbs it less than the clock; the caches it does disturb.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Generator, Iterator
from typing import Any

import crosscut as cc
from bench.state import add, add_bytes
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.foundation.keys import OwnedKeys, groups_of_task, key_group
from crosscut.graph.specs import AggregateSpec, CountSpec, OperatorNode, OperatorSpec, ProcessSpec
from crosscut.operators.building import NewState, build, keyed_state
from crosscut.protocol.snapshots import Part
from crosscut.state.keyed import KeyedState
from crosscut.state.predecessor_state import PredecessorState
from crosscut.state.rocksdb.database import chunks_of
from crosscut.state.rocksdb.state import RocksState
from crosscut.worker.backends import OnDisk

BATCH_ROWS = 1_000
CHECKPOINT_ROWS = 100_000
STEP = 7_919
GROUPS = 128
TASK = TaskId(VertexId("it"), 0)
NONE = CheckpointId(0)


class Counting(cc.KeyedProcess[Any, Any]):
    """What `count` does, as a user writes it."""

    seen = cc.ValueState(0)

    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        count = self.seen.get() + 1
        self.seen.set(count)
        yield record[0], count


class CountingEntries(cc.KeyedProcess[Any, Any]):
    """The same in an entry of a map."""

    seen = cc.MapState[str, int]()

    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        self.seen["count"] = count = self.seen.get("count", 0) + 1
        yield record[0], count


SPECS: dict[str, OperatorSpec] = {
    "count": CountSpec("updates"),
    "aggregate": AggregateSpec(lambda: (0, 0), add, None, "updates"),
    "bytes": AggregateSpec(lambda: bytes(100), add_bytes, None, "updates"),
    "process": ProcessSpec(Counting(), (("seen", "value"),)),
    "map": ProcessSpec(CountingEntries(), (("seen", "map"),)),
}


class Store:
    """Parts in memory."""

    def __init__(self) -> None:
        self._bytes: dict[str, bytes] = {}

    def read(self, part: Part) -> bytes:
        return self._bytes[part.path]

    def _written(self, n: CheckpointId, data: bytes) -> Part:
        part = Part(f"{len(self._bytes)}", len(data), "", "", n)
        self._bytes[part.path] = data
        return part

    def checkpoint(self, state: KeyedState, n: CheckpointId, since: CheckpointId) -> tuple[Part, ...]:
        """Freeze, store and complete n, in which a task in memory writes what has changed after `since`."""
        state.freeze(n)
        if isinstance(state, RocksState):
            for _ in state.writing(n):
                pass
            files = {path: self._written(n, b"".join(chunks_of(path))) for path in state.link(n)}
            parts = state.stored(n, self._written(n, state.head(n)), files)
        else:
            parts = (self._written(n, b"".join(state.encoded(n, since))),)
        for _ in state.complete(n):
            pass
        return parts


def seconds_of(spec: OperatorSpec, new: NewState, keys: int, rows: int) -> Generator[float, None, None]:
    """Yield how many seconds of this thread each `rows` records take, endlessly."""
    node = OperatorNode("it", spec, ())
    state = keyed_state(node, new)
    assert state is not None
    operator = build(node, state, None)
    assert operator is not None
    store = Store()
    n = NONE
    number = since_checkpoint = 0
    try:
        while True:
            spent = 0
            for _ in range(rows // BATCH_ROWS):
                names = [f"key-{i * STEP % keys:08d}" for i in range(number, number + BATCH_ROWS)]
                number += BATCH_ROWS
                records = names if isinstance(spec, CountSpec) else [(name, 1) for name in names]
                batch = Batch(records, names)
                began = time.thread_time_ns()
                operator.process(batch)
                since_checkpoint += BATCH_ROWS
                if since_checkpoint >= CHECKPOINT_ROWS:
                    since_checkpoint = 0
                    store.checkpoint(state, CheckpointId(n + 1), n)
                    n = CheckpointId(n + 1)
                spent += time.thread_time_ns() - began
            yield spent / 1e9
    finally:
        state.close()


def measure(kind: str, backend: str, new: NewState, keys: int, rounds: int) -> dict[str, Any]:
    """Return the nanoseconds a record once all keys are there."""
    rows = max(keys, CHECKPOINT_ROWS)
    measured = seconds_of(SPECS[kind], new, keys, rows)
    next(measured)
    found = [next(measured) / rows * 1e9 for _ in range(rounds)]
    measured.close()
    return {
        "benchmark": "operators",
        "operator": kind,
        "backend": backend,
        "keys": keys,
        "ns_per_record": round(statistics.median(found)),
    }


def restores(backend: str, new: NewState, keys: int) -> Iterator[dict[str, Any]]:
    """Yield what it takes to take over the keys of one task of two: half of them, and all."""
    store, old = Store(), new(int)
    had = groups_of_task(0, GROUPS, 2)
    for number in range(keys):
        key = f"key-{number:08d}"
        if key_group(key, GROUPS) in had:
            old.main.put(key, (number, "x" * 80))
    stored = len(old)
    parts = store.checkpoint(old, CheckpointId(1), NONE)
    old.close()
    for share, parallelism in (("half", 4), ("all", 1)):
        groups = groups_of_task(0, GROUPS, parallelism)
        whole = frozenset({0} if parallelism == 1 else ())
        predecessor_state = PredecessorState((parts,), 0, OwnedKeys(groups, GROUPS), whole)
        state = new(int)
        began = time.thread_time_ns()
        if isinstance(state, RocksState):
            state.inherit(predecessor_state, store.read, CheckpointId(1))
        else:
            for _ in state.loading_rows(predecessor_state.blocks(0, state, store.read, ""), CheckpointId(1)):
                pass
        spent = time.thread_time_ns() - began
        yield {
            "benchmark": "operators",
            "restore": share,
            "backend": backend,
            "stored_rows": stored,
            "restored_rows": len(state),
            "ns_per_stored_row": round(spent / stored),
        }
        state.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[2_000, 200_000])
    parser.add_argument("--operator", choices=tuple(SPECS), nargs="+", default=list(SPECS))
    parser.add_argument("--backend", choices=("memory", "rocksdb"), nargs="+", default=["memory", "rocksdb"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--restore", type=int, default=400_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crosscut-bench-") as directory:
        disk = OnDisk(directory, GROUPS)
        for backend in options.backend:
            new: NewState = KeyedState if backend == "memory" else disk.new_state(TASK)
            for keys in options.keys:
                for kind in options.operator:
                    print(json.dumps(measure(kind, backend, new, keys, options.rounds)), flush=True)
            for result in restores(backend, new, options.restore) if options.restore else ():
                print(json.dumps(result), flush=True)
        disk.close()


if __name__ == "__main__":
    main()
