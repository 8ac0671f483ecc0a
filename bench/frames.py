"""Frames beside their limit and beside records: rows a second of the operators, in one process and one run.

    python -m bench.frames [--rows 2000000] [--rounds 5]

The limit is one pass of Polars over the same batches, without anything of ours; it keeps nothing from batch
to batch, and sends nothing. Records do the same work with Python functions. Each line is JSON; `of_limit` and
`over_records` are ratios of medians of alternating rounds of one run, so that the load of the machine is in
both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import crosscut as cc
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows
from crosscut.foundation.keys import KeyRouter
from crosscut.operators.building import build, keyed_state
from crosscut.operators.operator import Operator
from crosscut.wire.batches import decode_batch, encode_batch

BATCH_ROWS = 64_000
RECORDS_BATCH_ROWS = 1_000
RECORDS_SHARE = 20
"""Records are so many times fewer rows: they take longer."""
WORKERS = 2
MAX_PARALLELISM = 128


def operators_of(stream: Any) -> list[Operator]:
    """Return the operators after the source, with empty state."""
    found = [build(node, keyed_state(node), None) for node in stream._draft.nodes()]
    return [one for one in found if one is not None]


def chained(operators: list[Operator], batch: Batch) -> Batch:
    for one in operators:
        if batch.records:
            batch = one.process(batch)
    return batch


class Work:
    """One piece of work, in three forms; each takes the batches of a frame.

    Args:
        keys: How many different keys there are.
    """

    def __init__(self, keys: int) -> None:
        import polars as pl

        self.pl = pl
        self.keys = keys

    def frame(self, rows: int) -> Any:
        pl = self.pl
        number = pl.int_range(rows, eager=True)
        # A fixed permutation: neighbours have different keys.
        key = (number * 7_919) % self.keys
        return pl.DataFrame({"k": key, "n": number % 1_000})

    def source(self) -> Any:
        return cc.Flow("bench").source(cc.items([]), name="in")

    def stateless(self) -> tuple[Callable[[Any], Any], ...]:
        pl = self.pl
        stream = self.source().frame({"k": "int64", "n": "int64"})
        operators = operators_of(stream.filter(pl.col("n") % 3 > 0).with_columns(n=pl.col("n") * 2 + 1))
        by_row = operators_of(
            self.source().filter(lambda row: row["n"] % 3 > 0).map(lambda row: {**row, "n": row["n"] * 2 + 1})
        )

        def limit(batch: Any) -> Any:
            return batch.filter(pl.col("n") % 3 > 0).with_columns(n=pl.col("n") * 2 + 1)

        def frames(batch: Any) -> Any:
            return chained(operators, Batch(FrameRows(batch)))

        def records(rows: list[Any]) -> Any:
            return chained(by_row, Batch(rows))

        return limit, frames, records

    def aggregate(self) -> tuple[Callable[[Any], Any], ...]:
        """Partition by key for two workers, to bytes and back, count and sum."""
        pl = self.pl
        keyed = self.source().frame({"k": "int64", "n": "int64"}).key_by("k")
        nodes = keyed.agg(pl.len(), total=pl.col("n").sum(), emit="final")._draft.nodes()
        tasks = [build(nodes[-1], keyed_state(nodes[-1]), None) for _ in range(WORKERS)]
        router = KeyRouter(MAX_PARALLELISM, WORKERS)
        row_nodes = (
            self.source()
            .key_by(lambda row: row["k"])
            .aggregate((0, 0), lambda so_far, row: (so_far[0] + 1, so_far[1] + row["n"]), emit="final")
            ._draft.nodes()
        )
        row_tasks = [build(row_nodes[-1], keyed_state(row_nodes[-1]), None) for _ in range(WORKERS)]
        row_keys = build(row_nodes[-2], None, None)
        row_router = KeyRouter(MAX_PARALLELISM, WORKERS)
        totals: list[Any] = []

        def limit(batch: Any) -> Any:
            totals.append(batch.group_by("k").agg(pl.len(), total=pl.col("n").sum()))

        def frames(batch: Any) -> Any:
            for owner, rows in FrameRows(batch, ("k",)).by_owner(router.owners):
                task = tasks[owner]
                assert task is not None
                task.process(decode_batch(encode_batch(Batch(rows))))

        def records(rows: list[Any]) -> Any:
            assert row_keys is not None
            keyed_batch = row_keys.process(Batch(rows))
            keys: list[list[Any]] = [[] for _ in range(WORKERS)]
            parts: list[list[Any]] = [[] for _ in range(WORKERS)]
            assert keyed_batch.keys is not None
            for owner, key, row in zip(
                row_router.owners(keyed_batch.keys), keyed_batch.keys, keyed_batch.records, strict=True
            ):
                keys[owner].append(key)
                parts[owner].append(row)
            for owner, task in enumerate(row_tasks):
                assert task is not None
                task.process(decode_batch(encode_batch(Batch(parts[owner], keys[owner]))))

        return limit, frames, records


def seconds(function: Callable[[Any], Any], batches: list[Any]) -> float:
    begin = time.process_time()
    for one in batches:
        function(one)
    return time.process_time() - begin


def measured(work: Work, name: str, rows: int, rounds: int) -> dict[str, Any]:
    whole = work.frame(rows)
    batches = [whole.slice(start, BATCH_ROWS) for start in range(0, rows, BATCH_ROWS)]
    few = whole.head(rows // RECORDS_SHARE)
    lists = [
        few.slice(start, RECORDS_BATCH_ROWS).to_dicts() for start in range(0, few.height, RECORDS_BATCH_ROWS)
    ]
    limit, frames, records = getattr(work, name)()
    taken: dict[str, list[float]] = {"limit": [], "frames": [], "records": []}
    for _ in range(rounds + 1):
        taken["limit"].append(seconds(limit, batches) / rows)
        taken["frames"].append(seconds(frames, batches) / rows)
        taken["records"].append(seconds(records, lists) / few.height)
    # The first round meets cold caches and empty state.
    medians = {one: median(found[1:]) for one, found in taken.items()}
    return {
        "work": name,
        "keys": work.keys,
        "rows": rows,
        "rounds": rounds,
        **{f"{one}_ns": round(found * 1e9, 2) for one, found in medians.items()},
        "of_limit": round(medians["limit"] / medians["frames"], 3),
        "over_records": round(medians["records"] / medians["frames"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for name, keys in (("stateless", 1_000), ("aggregate", 10), ("aggregate", 1_000), ("aggregate", 100_000)):
        print(json.dumps(measured(Work(keys), name, options.rows, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
