"""The core computes, and does nothing else: it imports only what is listed here, opens and evaluates nothing.

The list names what may be imported. So a library for I/O that nobody has thought of fails as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import crosscut

SOURCES = Path(crosscut.__file__).parent
ROOMS = ("protocol", "task", "wire", "graph", "operators", "state")

EVERYWHERE = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "bisect",
        "collections",
        "contextlib",
        "crosscut",
        "dataclasses",
        "decimal",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "struct",
        "types",
        "typing",
    }
)
ALSO = {
    "graph": {"asyncio", "html"},  # the clock of an event loop in `rate_limit`, which only runs in a worker
    "operators": {"sys", "traceback"},  # whether an error is that of the user's code
    "state": {"copyreg", "gc", "importlib", "pickle", "pickletools", "sys", "weakref"},  # values as bytes
    "task": {"copy"},  # of positions, which readers may change
    "wire": {"hmac", "pickle"},
}
OUTSIDE = {
    # The graph on its way to the workers: code is pickled, and tried in a fresh interpreter.
    "graph/reducers.py",
    "graph/rehearsal.py",
    "graph/shipped_imports.py",
    "graph/shipping.py",
    "graph/user_modules.py",
    # Reads parts of the RocksDB backend, too, through a temporary directory.
    "state/reading.py",
}
FORBIDDEN_CALLS = frozenset({"__import__", "breakpoint", "compile", "eval", "exec", "input", "open", "print"})
FORBIDDEN_ROOMS = frozenset({"connectors", "driver", "host", "net", "spark", "store", "web", "worker"})


def faults(text: str, room: str) -> Iterator[str]:
    """Yield what a module of `room` with this text must not do."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS
        ):
            yield f"line {node.lineno} calls {node.func.id}"
        for name in names:
            top, _, rest = name.partition(".")
            if top not in EVERYWHERE | ALSO.get(room, set()):
                yield f"line {node.lineno} imports {top}"
            if top == "crosscut" and rest.partition(".")[0] in FORBIDDEN_ROOMS:
                yield f"line {node.lineno} imports {name}"


@pytest.mark.parametrize("room", ROOMS)
def test_the_core_imports_only_what_is_allowed(room: str) -> None:
    modules = [
        path
        for path in sorted((SOURCES / room).rglob("*.py"))
        if str(path.relative_to(SOURCES)) not in OUTSIDE
        and not path.is_relative_to(SOURCES / "state/rocksdb")
    ]
    assert modules
    found = [
        f"{path.relative_to(SOURCES)}: {fault}"
        for path in modules
        for fault in faults(path.read_text(), room)
    ]
    assert found == []


def test_every_exception_is_there() -> None:
    assert [name for name in sorted(OUTSIDE) if not (SOURCES / name).exists()] == []


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ("import fsspec", "imports fsspec"),
        ("import sqlite3", "imports sqlite3"),
        ("from urllib.request import urlopen", "imports urllib"),
        ("import time", "imports time"),
        ("TEXT = open('/etc/hostname').read()", "calls open"),
        ("VALUE = eval('1')", "calls eval"),
        ("def late():\n    import socket", "imports socket"),
        ("from crosscut.store import files", "imports crosscut.store.files"),
    ],
)
def test_what_is_planted_in_the_core_is_found(planted: str, fault: str) -> None:
    text = (SOURCES / "protocol/snapshot/commit.py").read_text()
    assert list(faults(text, "protocol")) == []
    (found,) = faults(f"{text}\n\n{planted}\n", "protocol")
    assert found.endswith(fault)
