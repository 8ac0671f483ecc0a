"""Run the benchmarks one after the other: `python -m bench [NAME ...]`."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    "start",
    "recovery",
    "latency",
    "logged",
    "throughput",
    "memory",
    "protocols",
    "back_pressure",
    "scale",
    "simulator",
    "fixed_cost",
    "state",
    "contention",
    "windows",
    "timestamps",
    "operators",
    "batches",
    "page",
    "reports",
    "files",
)


def main() -> None:
    wanted = sys.argv[1:] or list(NAMES)
    unknown = sorted(set(wanted) - set(NAMES))
    if unknown:
        raise SystemExit(f"no benchmark called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    sys.argv[1:] = []
    for name in wanted:
        importlib.import_module(f"bench.{name}").main()


if __name__ == "__main__":
    main()
