"""A job on a cluster whose hosts may not share its directories: `python unshared.py DIRECTORY MASTER STORE`.

It says how it ended, on one line. It is judged in test_unshared_directories.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from clustered import session_on
from jobs import DEADLINE_S, PATIENT

import crosscut as cc
from crosscut.errors import CrosscutError


def main(directory: Path, master: str, store: str) -> None:
    flow = cc.Flow("unshared")
    flow.source(cc.items(list(range(400)))).sink(cc.files.write_jsonl(directory / "out")).named("out")
    # As many as there are slots: some run on each host.
    settings = cc.Settings(parallelism=4, checkpoint_dir=store, shared=True, **PATIENT)
    with session_on(master, {}) as spark:
        try:
            job = flow.start(settings, spark=spark)
            job.wait(DEADLINE_S)
            said = job.status
        except CrosscutError as error:
            said = str(error)
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
