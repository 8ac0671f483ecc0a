"""A fresh interpreter loads what is sent to the workers before they start; what differs is refused by name.

It imports the user's modules as a worker does, and compares what came by value with the original. It runs
beside the start of Spark, which takes longer.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import pickle  # noqa: S403 - of this process, for a child of its own
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from types import ModuleType
from typing import Any, TypedDict

from crosscut.errors import FlowError
from crosscut.graph.shipped_imports import install, loading
from crosscut.graph.shipping import Exceptions, PackedGraph, packed_graph, unpacked_graph, value_bytes
from crosscut.graph.specs import JobGraph
from crosscut.graph.user_modules import user_modules

LOGGER = logging.getLogger("crosscut")

TIMEOUT_S = 60.0
"""As long as a worker may take to start, by default."""

_COMMAND = "from crosscut.graph.rehearsal import rehearse_stdin; rehearse_stdin()"
_WORDS_MAX = 300


class Report(TypedDict):
    """What the fresh interpreter has found.

    Attributes:
        unimportable: By module, why it can't be imported.
        changed: By module, variables that have another value there.
        classes: Shapes of the classes by value, in order.
        error: Why the graph can't be loaded, "" if it can.
    """

    unimportable: dict[str, str]
    changed: dict[str, list[str]]
    classes: list[Any]
    error: str


class Rehearsal:
    """One graph, on its way to a fresh interpreter.

    Raises:
        FlowError: It can't be pickled.
    """

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._found: Future[Exceptions] = Future()
        packed = packed_graph(graph)
        threading.Thread(target=self._run, args=(packed,), name="crosscut-rehearsal", daemon=True).start()

    def result(self) -> Exceptions:
        """Wait, and return what is to be packed in another way.

        Raises:
            FlowError: Something would not arrive whole in the workers; it is named.
        """
        return self._found.result()

    def _run(self, packed: PackedGraph) -> None:
        try:
            self._found.set_result(self._rehearsed(packed))
        except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
            self._found.set_exception(error)

    def _rehearsed(self, packed: PackedGraph) -> Exceptions:
        report = _asked(packed)
        exceptions = Exceptions()
        if report is not None and report["unimportable"]:
            # Its code can't run a second time, as that of a program that makes a Spark session at its top.
            why = report["unimportable"]
            exceptions = Exceptions(by_value=frozenset(why))
            try:
                packed = packed_graph(self._graph, exceptions)
            except FlowError as error:
                raise FlowError(f"{error} ({_unimportable(why)})", **error.ids) from error
            report = _asked(packed)
            if report is not None and report["unimportable"]:
                raise FlowError(f"flow {self._graph.name!r}: {_unimportable(report['unimportable'])}")
        if report is None:
            return exceptions
        if report["error"]:
            raise FlowError(
                f"flow {self._graph.name!r} can't be loaded in a fresh interpreter, so its workers could not "
                f"either: {report['error']}. A library has to be installed where the workers run (or be on "
                f"PYTHONPATH there); an object that can't travel has to be made in a module, or when a "
                f"function is first called"
            )
        self._check_classes(packed, report["classes"])
        changed = tuple((module, tuple(names)) for module, names in sorted(report["changed"].items()))
        return Exceptions(exceptions.by_value, changed)

    def _check_classes(self, packed: PackedGraph, shapes: Sequence[Any]) -> None:
        for kind, found in zip(packed.classes, shapes, strict=True):
            expected = _shape_of(kind)
            if expected != found:
                raise FlowError(
                    f"flow {self._graph.name!r}: {kind.__qualname__} of {kind.__module__} would be another "
                    f"class in the workers: {_difference(expected, found)}. Define it in a module of its "
                    f"own, and import that"
                )


def _unimportable(why: Mapping[str, str]) -> str:
    shown = "; ".join(f"{name}: {error}" for name, error in sorted(why.items()))
    return f"workers can't import {shown}. What a module needs on the driver only belongs under a function"


def _difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    names = [name for name in expected if expected[name] != found.get(name)]
    return "; ".join(f"{name} {_shown(found.get(name))}, expected {_shown(expected[name])}" for name in names)


def _shown(value: Any) -> str:
    return json.dumps(value)[:_WORDS_MAX]


def _asked(packed: PackedGraph) -> Report | None:
    """Return what a fresh interpreter reports, None if there is none."""
    if not sys.executable:
        return None
    # Also of modules that others import: their variables may have been set from outside, too.
    imported = user_modules()
    known = {one.name: _digests(imported[one.name]) for one in packed.modules if one.name in imported}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND],
            input=pickle.dumps((packed.without_classes(), known)),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        LOGGER.warning("the user's modules were not tried in a fresh interpreter: %s", error)
        return None
    try:
        report: Report = json.loads(done.stdout)
    except ValueError:
        end = done.stderr[-_WORDS_MAX:].decode(errors="replace")
        LOGGER.warning("the user's modules were not tried in a fresh interpreter, which has ended: %s", end)
        return None
    return report


def rehearse_stdin() -> None:
    """Load what stands in standard input, and write a report to standard output."""
    # If the process that waits for it is gone, and the user's code never returns.
    signal.alarm(int(2 * TIMEOUT_S))
    out = os.dup(1)
    # What the user's modules print.
    os.dup2(2, 1)
    packed, known = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that has started this one
    with os.fdopen(out, "w") as file:
        json.dump(rehearse(packed, known), file)
        file.flush()
        # Threads and exit handlers of the user's modules have nothing to do here.
        os._exit(0)


def rehearse(packed: PackedGraph, known: Mapping[str, Mapping[str, str]]) -> Report:
    """Load a graph as a worker does.

    Args:
        known: Digests of the variables of its modules where it was packed.
    """
    report = Report(unimportable={}, changed={}, classes=[], error="")
    install(packed.modules, packed.search)
    for name in packed.used:
        try:
            with loading():
                import_module(name)
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, SystemExit too
            report["unimportable"][name] = f"{type(error).__name__}: {error}"
    if report["unimportable"]:
        return report
    for name, digests in known.items():
        if name in sys.modules:
            here = _digests(sys.modules[name])
            if others := sorted(one for one, digest in digests.items() if here.get(one) != digest):
                report["changed"][name] = others
    try:
        _, classes = unpacked_graph(packed)
        report["classes"] = [_shape_of(kind) for kind in classes]
    except BaseException as error:  # noqa: BLE001 - as above
        report["error"] = f"{type(error).__name__}: {error}"
    return report


def _digests(module: ModuleType) -> dict[str, str]:
    """Return digests of the variables of a module that may be changed from outside, and can travel."""
    found = {}
    for name, value in tuple(vars(module).items()):
        if name.startswith("__") or isinstance(value, ModuleType):
            continue
        if str(type(value).__module__).startswith(("crosscut.", "pyspark.")):
            continue
        data = value_bytes(value)
        if data is not None:
            found[name] = hashlib.sha256(data).hexdigest()
    return found


def _shape_of(kind: type) -> dict[str, Any]:
    """Return what can be said of a class in JSON, so that it can be compared with one in another process."""
    try:
        parameters = [
            [one.name, int(one.kind), one.default is not one.empty]
            for one in inspect.signature(kind).parameters.values()
        ]
    except (TypeError, ValueError):
        parameters = []
    fields = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
    fields = fields or getattr(kind, "model_fields", None) or getattr(kind, "_fields", None) or ()
    return {
        "metaclass": type(kind).__qualname__,
        "bases": [one.__qualname__ for one in kind.__mro__[1:]],
        "members": sorted(name for name in vars(kind) if not name.startswith("_")),
        "parameters": parameters,
        "fields": [one for one in fields if isinstance(one, str)],
    }
