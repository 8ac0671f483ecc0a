"""A job that a test looks at from outside: `python readable.py DIRECTORY ENGINE`. It runs until it is killed.

It prints a line for each batch or checkpoint that it has completed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import crosscut as cc

CANARY = "canary-that-no-other-user-may-read"


def main(directory: Path, engine: str) -> None:
    flow = cc.Flow("readable")
    numbers = flow.source(cc.generate(lambda i: (i % 50, f"{CANARY}-{i}"), rate=2_000))
    latest = numbers.key_by(lambda one: one[0]).reduce(lambda _, one: one).map(list)
    latest.sink(cc.files.write_jsonl(directory / "out"))
    settings = cc.Settings(
        parallelism=2,
        engine=engine,  # type: ignore[arg-type]
        checkpoint_dir=str(directory / "checkpoints"),
        checkpoint_interval="100ms",
        web=True,
    )
    job = flow.start(settings)
    seen = 0
    sys.stdout.write("started\n")
    sys.stdout.flush()
    while not job.wait(0.1):
        newest = max((one.checkpoint_id for one in job.checkpoints()), default=0)
        if newest > seen:
            seen = newest
            sys.stdout.write(f"{newest}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
