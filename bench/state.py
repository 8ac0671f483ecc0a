"""Large keyed state: many keys, a checkpoint every second, and a worker that is killed.

`count` is a running count, `aggregate` has a tuple for each key, and `process` is a `KeyedProcess` with a
value state; `bytes` keeps 100 bytes for each key. `--memory-bytes` limits what each worker may take,
`--cache-bytes` is what of it is for blocks of RocksDB, and `--rescale` goes on at another parallelism at the
end.

Memory a key is what the processes have resident, how much of that has come since they were empty, and what
the job itself says that its state takes.

`uniform`: every key changes, in turn. `hot`: all keys have been counted once, and from then on 1,000 of
them change. Prints a JSON line for each: records/s once all keys are there, how long checkpoints take,
memory for each key, and the time from SIGKILL of a worker until records flow again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import crosscut as cc
from bench.rates import measured
from bench.recovery import wait_until
from bench.throughput import Discard, first
from crosscut.contracts.settings import BackendName
from crosscut.monitoring.traces import CheckpointTrace, FailoverTrace
from crosscut.state.rocksdb.database import BLOCK_CACHE_BYTES

OPERATORS = ("count", "aggregate", "process", "bytes")
VALUE_BYTES = 100
COUNT_BYTES = 8
NOISE = random.Random(1).randbytes(1_000_000)
HOT_KEYS = 1_000
STEPS = ("alignment_ms", "freeze_ms", "store_ms", "append_ms")
STEP = 7_919
"""A prime: keys come in no order, and each once before any comes again."""


class Keys:
    """Record i is (key, i); all of `count` keys come once, then `again` of them in turn."""

    def __init__(self, count: int, again: int) -> None:
        self.count = count
        self.again = again

    def __call__(self, i: int) -> tuple[str, int]:
        number = i * STEP % self.count if i < self.count else i * STEP % self.again
        return (f"key-{number:08d}", i)


def add(total: tuple[int, int], record: tuple[str, int]) -> tuple[int, int]:
    return total[0] + 1, total[1] + record[1]


def add_bytes(total: bytes, record: tuple[str, int]) -> bytes:
    count = int.from_bytes(total[:COUNT_BYTES], "big") + 1
    # Where no compression finds anything.
    at = hash(record) % (len(NOISE) - VALUE_BYTES)
    return count.to_bytes(COUNT_BYTES, "big") + NOISE[at : at + VALUE_BYTES - COUNT_BYTES]


class Counting(cc.KeyedProcess[tuple[str, int], tuple[str, int]]):
    """What `count` does, as a user writes it."""

    seen = cc.ValueState(0)

    def on_record(self, record: tuple[str, int], ctx: cc.Context) -> Iterator[tuple[str, int]]:
        count = self.seen.get() + 1
        self.seen.set(count)
        yield record[0], count


def flow_of(operator: str, workload: str, keys: int) -> cc.Flow:
    """Return the flow that is measured."""
    flow = cc.Flow("state")
    records = cc.generate(Keys(keys, keys if workload == "uniform" else HOT_KEYS))
    keyed = flow.source(records).key_by(first)
    results: Any
    if operator == "count":
        results = keyed.count()
    elif operator == "aggregate":
        results = keyed.aggregate((0, 0), add)
    elif operator == "bytes":
        results = keyed.aggregate(bytes(VALUE_BYTES), add_bytes)
    else:
        results = keyed.process(Counting())
    results.sink(Discard())
    return flow


def run(
    workload: str,
    keys: int,
    seconds: float,
    kills: int,
    backend: BackendName,
    operator: str = "count",
    memory_bytes: int = 0,
    rescale: int = 0,
    cache_bytes: int = BLOCK_CACHE_BYTES,
    parallelism: int = 2,
) -> dict[str, Any]:
    """Run one workload; return what was measured."""
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    flow = flow_of(operator, workload, keys)
    settings = cc.Settings(
        parallelism=parallelism,
        checkpoint_dir=directory,
        checkpoint_interval="1s",
        heartbeat_timeout="4s",
        restart=cc.Restart(failures=kills + 1),
        state_backend=backend,
        state_cache_bytes=cache_bytes,
    )
    job = flow.start(settings)
    try:
        began = time.monotonic()
        wait_until(job, lambda status: status.phase == "running")
        empty = sum(resident_bytes(worker.pid) for worker in job.workers())
        # Not the records alone: two sources need not be as fast as each other.
        while job.report().records_read < keys * 1.2 or job.report().state_keys < keys:
            limit_memory(job, memory_bytes)
            if job.wait(0.1) or time.monotonic() > began + 1_800:
                raise SystemExit("the keys did not all come")
        wait_for_checkpoints(job)
        first_id = job.checkpoints()[-1].checkpoint_id
        rates = measured(job, seconds)
        checkpoints = [one for one in job.checkpoints() if one.checkpoint_id > first_id]
        traces = [one for one in job.metrics().checkpoints if one.checkpoint_id > first_id]
        memory = sum(resident_bytes(worker.pid) for worker in job.workers())
        state_keys, estimated = job.report().state_keys, job.report().state_memory_bytes
        state_bytes = checkpoints[-1].state_bytes if checkpoints else 0
        flowing = [seconds_to_flowing(job) for _ in range(kills)]
        failovers = job.metrics().failovers
        if rescale:
            job.cancel()
            asked = time.monotonic()
            settings = replace(settings, parallelism=rescale)
            job = flow_of(operator, workload, keys).start(settings)
            wait_until(job, lambda status: status.first_flow_ns > 0, 600)
            rescaled_s = round(time.monotonic() - asked, 2)
            # Before, some tasks have not said yet how many they have.
            before = job.report().checkpoints_completed
            wait_until(job, lambda status: status.checkpoints_completed > before, 600)
            rescaled_keys = job.report().state_keys
    finally:
        job.cancel()
        shutil.rmtree(directory)
    return {
        "benchmark": "state",
        "workload": workload,
        "operator": operator,
        "backend": backend,
        "cache_bytes": cache_bytes,
        "parallelism": parallelism,
        "keys": keys,
        **rates._asdict(),
        "checkpoints": len(checkpoints),
        "checkpoint_ms": [one.duration_ms for one in checkpoints],
        "median_checkpoint_ms": statistics.median(one.duration_ms for one in checkpoints)
        if checkpoints
        else 0,
        "median_steps": {
            name: round(statistics.median(getattr(one, name) for one in traces), 1) for name in STEPS
        }
        if traces
        else {},
        "longest": steps_of(max(traces, key=lambda one: one.duration_ms)) if traces else {},
        "freeze_us": max((one.freeze_us for one in checkpoints), default=0),
        "resident_bytes_per_key": round(memory / keys),
        "resident_more_per_key": round((memory - empty) / keys),
        "estimated_bytes_per_key": round(estimated / keys),
        "state_keys": state_keys,
        "state_bytes": state_bytes,
        "kill_to_flowing_s": statistics.median(flowing) if flowing else None,
        "kills_to_flowing_s": flowing,
        "failovers": [steps_of(one) for one in failovers],
        **(
            {"rescaled_to": rescale, "rescaled_s": rescaled_s, "rescaled_keys": rescaled_keys}
            if rescale
            else {}
        ),
    }


def limit_memory(job: Any, memory_bytes: int) -> None:
    """Let no worker take more than that of memory for itself: an allocation beyond it fails."""
    if memory_bytes:
        for worker in job.workers():
            with suppress(ProcessLookupError):
                resource.prlimit(worker.pid, resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def wait_for_checkpoints(job: Any, count: int = 1) -> None:
    """Wait until so many more checkpoints have completed."""
    until = job.report().checkpoints_completed + count
    wait_until(job, lambda status: status.checkpoints_completed >= until)


def steps_of(trace: CheckpointTrace | FailoverTrace) -> dict[str, float]:
    """Return what took how many milliseconds."""
    return {name: round(value, 1) for name, value in asdict(trace).items() if name.endswith("_ms") and value}


def seconds_to_flowing(job: Any) -> float:
    """Kill a worker once a checkpoint has completed; return the seconds until records flow again."""
    wait_for_checkpoints(job)
    recovered = len(job.report().recoveries)
    killed_ns = time.monotonic_ns()
    os.kill(job.workers()[-1].pid, signal.SIGKILL)
    wait_until(job, lambda status: len(status.recoveries) > recovered)
    flowing_ns: int = job.report().recoveries[-1].flowing_ns
    return round((flowing_ns - killed_ns) / 1e9, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--workload", choices=("uniform", "hot"), nargs="+", default=["uniform", "hot"])
    parser.add_argument("--backend", choices=get_args(BackendName), nargs="+", default=["memory"])
    parser.add_argument("--operator", choices=OPERATORS, nargs="+", default=["count"])
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("--cache-bytes", type=int, default=BLOCK_CACHE_BYTES)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--rescale", type=int, default=0)
    parser.add_argument("--kills", type=int, default=1, help="of a worker, where all keys change")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    wanted = product(options.keys, options.workload, options.backend, options.operator)
    for keys, workload, backend, operator in wanted:
        kills = options.kills if workload == "uniform" else 0
        result = run(
            workload,
            keys,
            options.seconds,
            kills,
            backend,
            operator,
            options.memory_bytes,
            options.rescale,
            options.cache_bytes,
            options.parallelism,
        )
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
