"""No file of the package imports, by way of others, itself: what depends on what has a direction.

Imports in functions and those for types alone count, too: they hide a circle, and do not cut it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import crosscut

SOURCES = Path(crosscut.__file__).parent

KNOWN = {
    # What a user chains: a stream makes a keyed one, that a windowed one, and that a stream again.
    frozenset(
        {
            "crosscut.flow.advice",
            "crosscut.flow.connected_streams",
            "crosscut.flow.frame",
            "crosscut.flow.keyed_frame",
            "crosscut.flow.keyed_stream",
            "crosscut.flow.split_stream",
            "crosscut.flow.stream",
            "crosscut.flow.tail",
            "crosscut.flow.windowed_stream",
        }
    ),
    # The parts of a simulated world use the world that is made of them.
    frozenset(
        f"crosscut.testing.simulator.{name}"
        for name in (
            "cluster",
            "driver",
            "executor",
            "faults",
            "job_process",
            "moving",
            "outside",
            "scheduler",
            "virtual_batches",
            "wiretap",
            "worker",
            "world",
        )
    ),
}
"""Circles that are still there: they are to get smaller and go, and this list with them."""


def module_name(path: Path) -> str:
    """Return what the module at `path` is called."""
    parts = path.relative_to(SOURCES.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(text: str, modules: frozenset[str]) -> Iterator[str]:
    """Yield those of `modules` that a module with this text imports, wherever it does so."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found = inner if inner in modules else node.module
                if found in modules:
                    yield str(found)


def reachable(graph: Mapping[str, frozenset[str]], start: str) -> frozenset[str]:
    """Return what `start` imports, and what that imports, and so on."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return frozenset(found)


def circles(graph: Mapping[str, frozenset[str]]) -> set[frozenset[str]]:
    """Return the largest sets of modules each of which reaches all of them."""
    reached = {name: reachable(graph, name) for name in graph}
    return {
        frozenset(other for other in found if name in reached[other])
        for name, found in reached.items()
        if name in found
    }


def test_a_circle_is_found_and_a_line_is_none() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert circles({name: frozenset(found) for name, found in graph.items()}) == {frozenset("bc")}


def test_imports_of_functions_and_types_count() -> None:
    text = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from crosscut.a import A\n"
        "def f():\n"
        "    from crosscut import b\n"
        "    import crosscut.c\n"
    )
    assert set(imported(text, frozenset({"crosscut", "crosscut.a", "crosscut.b", "crosscut.c"}))) == {
        "crosscut.a",
        "crosscut.b",
        "crosscut.c",
    }


def test_no_files_import_each_other_in_a_circle_but_those_listed() -> None:
    paths = {module_name(path): path for path in SOURCES.rglob("*.py")}
    modules = frozenset(paths)
    graph = {
        name: frozenset(imported(path.read_text(encoding="utf-8"), modules)) - {name}
        for name, path in paths.items()
    }
    found = circles(graph)
    assert not found - KNOWN, f"new circles: {[sorted(one) for one in found - KNOWN]}"
    assert not KNOWN - found, f"no circles any more: {[sorted(one) for one in KNOWN - found]}"
