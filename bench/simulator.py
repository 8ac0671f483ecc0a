"""Worlds a second of the deterministic simulator, on one core: the smallest, and the mix of the zoo."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import Counter

from tests.proof.worlds.graphs import GRAPHS
from tests.proof.worlds.shrinking import live

from crosscut.testing.simulator.options import SIZES, Size, options_of


def measured(size: Size, seed_count: int) -> dict[str, object]:
    """Let `seed_count` worlds live; return what they did and how long it took."""
    seen: Counter[str] = Counter()
    steps = failed = 0
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for seed in range(seed_count):
        life = live(options_of(seed, tuple(GRAPHS), size=size))
        seen += life.seen
        steps += life.step_count
        failed += bool(life.failure)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {
        "size": size,
        "seeds": seed_count,
        "seeds_per_s": round(seed_count / wall_s, 1),
        "seeds_per_cpu_s": round(seed_count / cpu_s, 1),
        "failed": failed,
        "steps": steps,
        "epochs": seen["epoch"],
        "faults": sum(count for name, count in seen.items() if name.startswith("fault: ")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    options = parser.parse_args()
    # As the command does: log lines of simulated jobs are for nobody.
    logging.getLogger("crosscut").setLevel(logging.CRITICAL)
    # What is made once a process, such as the plans of the wire's messages, is made before.
    measured("small", 20)
    worlds = [measured(size, options.seeds) for size in SIZES]
    print(json.dumps({"benchmark": "simulator", "worlds": worlds}))


if __name__ == "__main__":
    main()
