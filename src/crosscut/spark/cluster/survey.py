"""Asks every executor of a cluster for what a job needs of it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pyspark import InheritableThread, SparkContext

from crosscut.errors import WorkersError
from crosscut.foundation.urls import local_path, shown_url
from crosscut.store.files import Files, LocalFiles
from crosscut.store.objects import ObjectFiles

STAY_S = 1.0
"""A task stays for so long, so that the next one goes to another slot."""
CONNECT_TIMEOUT_S = 5.0
ANSWERS_TIMEOUT_S = 120.0
_TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True)
class ExecutorAnswer:
    """What one executor has answered.

    Attributes:
        host: Its name.
        python: Version of the interpreter, as "3.12.1".
        packages: Version of crosscut and pyspark there; "" if one is not installed.
        connection: "" if it has reached the driver, else why not.
        store: "" if it has read what the driver wrote into the checkpoint directory, else why not.
        clock_ahead_s: By how much its clock was ahead of the driver's; None: it has not reached the driver.
    """

    host: str
    python: str
    packages: dict[str, str]
    connection: str
    store: str
    clock_ahead_s: float | None = None


def survey(context: SparkContext, directory: str | None, tasks: int) -> list[ExecutorAnswer]:
    """Run `tasks` short tasks at once, and return an answer for each executor that had one, by host.

    Args:
        directory: The checkpoint directory, a path or a URL; None: it is not looked at.
        tasks: As many as Spark can run at once, so that each executor has one.
    """
    marker = f"doctor-{secrets.token_hex(8)}"
    files = _files(directory) if directory is not None else None
    clocks: dict[str, float] = {}
    # Where Spark's executors reach the driver.
    host = context.getConf().get("spark.driver.host") or socket.gethostname()
    path = local_path(directory) if directory is not None else None
    was_there = path is None or os.path.isdir(path)
    if files is not None:
        files.put_if_absent(marker, marker.encode())
    try:
        with _listening(clocks) as port:
            answers = _collected(context, tasks, _probe(host, port, directory, marker, STAY_S))
    finally:
        if files is not None:
            with suppress(OSError):
                files.delete(marker)
        if path is not None and not was_there:
            with suppress(OSError):
                os.rmdir(path)
    found: dict[tuple[str, str], ExecutorAnswer] = {}
    for text in answers:
        one = json.loads(text)
        executor, token = (one["host"], one.pop("executor")), one.pop("token")
        if directory is not None:
            # What a file system raises may hold the URL as it was given.
            one["store"] = one["store"].replace(directory, shown_url(directory))
        found.setdefault(executor, ExecutorAnswer(**one, clock_ahead_s=clocks.get(token)))
    return [found[executor] for executor in sorted(found)]


def _collected(context: SparkContext, tasks: int, probe: Callable[[int], str]) -> list[str]:
    group = f"crosscut-doctor-{secrets.token_hex(4)}"
    outcome: Future[list[str]] = Future()

    def collect() -> None:
        context.setJobGroup(group, "crosscut doctor", interruptOnCancel=True)
        try:
            outcome.set_result(context.parallelize(range(tasks), tasks).map(probe).collect())
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            outcome.set_exception(error)

    InheritableThread(target=collect, name="crosscut-doctor-job", daemon=True).start()
    try:
        return outcome.result(ANSWERS_TIMEOUT_S)
    except TimeoutError:
        context.cancelJobGroup(group)
        raise WorkersError(
            f"{tasks} short tasks were not done within {ANSWERS_TIMEOUT_S:g} s: does {context.master} have "
            f"free cores and memory for an executor?"
        ) from None


def _files(directory: str) -> Files:
    path = local_path(directory)
    return ObjectFiles(directory) if path is None else LocalFiles(path)


@contextmanager
def _listening(clocks: dict[str, float]) -> Iterator[int]:
    """Open a port at which executors say their time; notes by token how far their clocks are ahead."""
    with socket.create_server(("", 0)) as server:
        # So that the thread looks whether it is over.
        server.settimeout(0.1)
        is_over = threading.Event()

        def listen() -> None:
            while not is_over.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection, suppress(OSError, ValueError):
                    connection.settimeout(CONNECT_TIMEOUT_S)
                    with connection.makefile("rb") as file:
                        token, their_s = file.readline(256).split()
                        clocks[token.decode()] = float(their_s) - time.time()
                    connection.sendall(b"heard\n")

        thread = threading.Thread(target=listen, name="crosscut-doctor", daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            is_over.set()
            thread.join()


def _probe(host: str, port: int, directory: str | None, marker: str, stay_s: float) -> Callable[[int], str]:
    """Return what a task runs. It is pickled by value: Crosscut need not be installed where it runs."""

    def look(_: int) -> str:
        import json
        import os
        import secrets
        import socket
        import sys
        import time
        from importlib.metadata import PackageNotFoundError, version

        packages = {}
        for name in ("crosscut", "pyspark"):
            try:
                packages[name] = version(name)
            except PackageNotFoundError:
                packages[name] = ""
        token, connection, store = secrets.token_hex(8), "", ""
        try:
            with socket.create_connection((host, port), timeout=5.0) as peer:
                peer.sendall(f"{token} {time.time()!r}\n".encode())
                if peer.recv(16) != b"heard\n":
                    connection = f"{host}:{port} has not answered"
        except OSError as error:
            connection = f"{host}:{port}: {error}"
        if directory is not None:
            try:
                if "://" in directory:
                    import fsspec

                    with fsspec.open(f"{directory.rstrip('/')}/{marker}", "rb") as file:
                        content = file.read()
                else:
                    with open(os.path.join(directory, marker), "rb") as file:
                        content = file.read()
                if content != marker.encode():
                    store = "it holds something else there than the driver has written"
            except Exception as error:  # noqa: BLE001 - what a file system raises is part of the answer
                store = f"{type(error).__name__}: {error}"
        time.sleep(stay_s)
        return json.dumps(
            {
                "host": socket.gethostname(),
                # The directories of an executor are its own; a local Spark has none.
                "executor": os.environ.get("SPARK_EXECUTOR_DIRS", ""),
                "python": ".".join(map(str, sys.version_info[:3])),
                "packages": packages,
                "connection": connection,
                "store": store,
                "token": token,
            }
        )

    return look
