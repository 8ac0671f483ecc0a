"""Rows a second into a table of Postgres, by one task's writer: from records to committed rows.

The server runs beside it on the same machine, with its defaults but for `max_prepared_transactions`; it
flushes its log at each commit. Prints a JSON line for each kind of sink and round, and one with the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import crosscut as cc
from bench.cores import waited_s
from crosscut.testing.postgres import PostgresServer
from crosscut.testing.sinks import open_writer, permit, stage

COLUMNS = {"id": "bigint", "name": "text", "value": "double precision"}
CHECKPOINTS = 5
ROWS = 100_000
"""Of a checkpoint."""


def rows(checkpoint: int) -> list[tuple[int, str, float]]:
    """Return the rows of a checkpoint: 60 bytes or so, no key twice."""
    first = checkpoint * ROWS
    return [
        (number, f"name of the row with number {number}", number / 7) for number in range(first, first + ROWS)
    ]


def sinks(conninfo: str) -> dict[str, cc.Sink]:
    """Return a sink of each kind, each with a table of its own."""
    postgres = cc.postgres
    return {
        "append": postgres.sink(conninfo, "appended", COLUMNS),
        "append, two-phase": postgres.sink(conninfo, "prepared", COLUMNS, two_phase=True),
        "replace by key": postgres.sink(conninfo, "replaced", COLUMNS, key="id"),
        "written at once": postgres.upsert(conninfo, "upserted", COLUMNS, key="id"),
    }


def server_cpu_s(server: PostgresServer) -> float:
    """Return the processor time of all its processes that are alive."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # After the name, which may hold blanks and brackets.
            fields = path.read_text().rpartition(")")[2].split()
            if server.pid in (int(path.parent.name), int(fields[1])):
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(kind: str, sink: cc.Sink, server: PostgresServer) -> dict[str, Any]:
    """Write some checkpoints; the first one, which fills caches, does not count."""
    sink.check()
    writer = open_writer(sink, 1)
    batches = [rows(checkpoint) for checkpoint in range(CHECKPOINTS + 1)]
    began_s = cpu_s = server_s = waiting_s = 0.0
    for checkpoint_id, batch in enumerate(batches, 1):
        if checkpoint_id == 2:
            began_s, cpu_s, server_s = time.monotonic(), time.process_time(), server_cpu_s(server)
            waiting_s = waited_s()
        writer.commit(permit(checkpoint_id), [stage(writer, batch, checkpoint_id)])
    seconds, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    server_s = server_cpu_s(server) - server_s
    waiting_s = waited_s() - waiting_s
    writer.close()
    return {
        "benchmark": "postgres",
        "kind": kind,
        "rows_per_s": round(CHECKPOINTS * ROWS / seconds),
        "rows_per_s_with_a_core": round(CHECKPOINTS * ROWS / (seconds - waiting_s)),
        "rows_per_cpu_s": round(CHECKPOINTS * ROWS / cpu_s),
        "rows_per_cpu_s_of_the_server": round(CHECKPOINTS * ROWS / server_s),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    found: dict[str, list[int]] = {}
    for _ in range(parser.parse_args().rounds):
        with PostgresServer(max_prepared_transactions="9") as server:
            for kind, sink in sinks(server.conninfo).items():
                one = measure(kind, sink, server)
                found.setdefault(kind, []).append(one["rows_per_s"])
                print(json.dumps(one), flush=True)
    medians = {kind: statistics.median(numbers) for kind, numbers in found.items()}
    print(json.dumps({"benchmark": "postgres", "medians": medians}), flush=True)


if __name__ == "__main__":
    main()
