"""The files of a savepoint, written by a child process: `python -m crosscut.savepoints.child`.

To write them, state and records have to be unpickled, which runs code that workers chose. The driver has the
key of the job log, the link to Spark and the token of the page; the child has none of them in its environment
or memory. It answers in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from crosscut.contracts.codec import from_json, to_text
from crosscut.errors import CrosscutError, StateError, StoreError
from crosscut.graph.shipping import unpack_graph
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.savepoints.folder import folder_of
from crosscut.savepoints.rows import RowFile
from crosscut.savepoints.writing import WriteFiles, files_written
from crosscut.store.checkpoint_store import open_store

_LENGTHS = struct.Struct(">QQ")
_SECRETS = ("CROSSCUT_LOG_KEY", "CROSSCUT_WEB_TOKEN", "PYSPARK_", "_PYSPARK_", "SPARK_")
"""What the names of variables start with that the child does not get."""
_ERRORS: dict[str, type[CrosscutError]] = {"StateError": StateError, "StoreError": StoreError}


@dataclass(frozen=True, slots=True)
class SavepointOrder:
    """What the child is to write.

    Attributes:
        path: Of the savepoint, which the driver has claimed.
        store_url: Where the parts of the checkpoint are.
        max_parallelism: The number of key groups.
    """

    path: str
    store_url: str
    checkpoint: CheckpointCompleted
    max_parallelism: int


def files_by_child(path: str, store_url: str, packed_graph: bytes) -> WriteFiles:
    """Return what has a child process write the files of a savepoint at `path`; see `written_by_child`."""

    def write(checkpoint: CheckpointCompleted, max_parallelism: int) -> list[RowFile]:
        return written_by_child(SavepointOrder(path, store_url, checkpoint, max_parallelism), packed_graph)

    return write


def written_by_child(order: SavepointOrder, packed_graph: bytes) -> list[RowFile]:
    """Have a child process write the files of a savepoint. Blocks.

    Args:
        packed_graph: Brings the classes of state and records, as to workers.

    Raises:
        StoreError: As in `files_written`; or the child has ended without an answer.
        StateError: As in `files_written`.
    """
    text = to_text(order).encode("ascii")
    done = subprocess.run(
        # -P: not from the working directory, where others may have put modules, unless the driver does, too.
        [sys.executable, "-P", "-m", __name__],
        input=_LENGTHS.pack(len(text), len(packed_graph)) + text + packed_graph,
        stdout=subprocess.PIPE,
        env=child_environment(os.environ, sys.path),
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {}
    match answer:
        case {"files": list(files)}:
            return [from_json(one, (RowFile,), StoreError) for one in files]
        case {"error": str(kind), "text": str(message)}:
            raise _ERRORS.get(kind, StoreError)(message)
        case _:
            raise StoreError(
                f"the process that writes the savepoint {order.path} has ended with exit code "
                f"{done.returncode} and no answer; what it had to say stands on standard error"
            )


def child_environment(environment: Mapping[str, str], path: list[str]) -> dict[str, str]:
    """Return the environment of the child: without secrets of the driver, with its way to modules."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_SECRETS)}
    return {**kept, "PYTHONPATH": os.pathsep.join(one or os.getcwd() for one in path)}


def answered(request: BinaryIO) -> dict[str, Any]:
    """Carry out the order that `written_by_child` has sent; return the answer."""
    text_bytes, graph_bytes = _LENGTHS.unpack(request.read(_LENGTHS.size))
    order: SavepointOrder = from_json(json.loads(request.read(text_bytes)), (SavepointOrder,), StoreError)
    try:
        unpack_graph(request.read(graph_bytes))
        # Without the key of the job log: the entry pins the parts by their digests.
        store = open_store(order.store_url, create=False)
        folder = folder_of(order.path)
        files = files_written(folder, order.checkpoint, order.max_parallelism, store.read_part)
    except Exception as error:  # noqa: BLE001 - of a class of the user, say; the driver gets it as text
        kind = "StateError" if isinstance(error, StateError) else "StoreError"
        message = str(error) if isinstance(error, CrosscutError) else f"{type(error).__name__}: {error}"
        return {"error": kind, "text": message}
    return {"files": [{"type": RowFile.__name__, **asdict(one)} for one in files]}


def main() -> None:
    """Answer one request from standard input on standard output."""
    # Ctrl-C in a terminal is for the program, which may write a last savepoint because of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.dup(1)
    # What user code prints is no answer.
    os.dup2(2, 1)
    answer = answered(sys.stdin.buffer)
    with open(answers, "wb") as file:
        file.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
