"""The graph, with the user's functions in it, from the Spark driver to the workers.

Code of the user's own modules travels by value, since a module next to the script is not there on
another machine; code of installed packages travels by reference. A record class that travels by
value is bound under its module's name in the worker, so that the plain pickle that carries records
and state finds it there.
"""

from __future__ import annotations

import pickle  # noqa: S403 - see unpack_graph
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from threading import Lock
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from crosscut.errors import FlowError
from crosscut.graph.specs import JobGraph
from crosscut.user_files import installed_roots, is_user_file

_registry_lock = Lock()
"""cloudpickle's registry of modules is global: two flows must not pack at the same time."""

_BY_REFERENCE = ("crosscut", "pyspark", "py4j", "cloudpickle")
"""Every worker has these, wherever they are: a Spark distribution keeps pyspark outside site-packages."""

_BLAME_DEPTH = 6


def pack_graph(graph: JobGraph) -> bytes:
    """Return `graph` as bytes for `unpack_graph`, for the same minor version of Python.

    Raises:
        FlowError: Something in an operator can't be pickled; the message names the operator, the way
            to the culprit, and what to do. The graph is unchanged.
    """
    with _registry_lock, _by_value(_user_modules()):
        packed = _pickled(graph)
        if isinstance(packed, bytes):
            return packed
        for vertex in graph.vertices:
            for node in vertex.chain:
                failure = _pickled(node.spec)
                if isinstance(failure, Exception):
                    raise FlowError(
                        f"operator {node.uid!r} can't be sent to the workers: "
                        f"{' -> '.join(_blamed(node.spec, _BLAME_DEPTH))}: "
                        f"{type(failure).__name__}: {failure}. Connections, locks, open files and the Spark "
                        f"session can't leave the driver: make them inside the function when it is first "
                        f"called, and keep only addresses and options in sources and sinks",
                        operator=node.uid,
                    ) from failure
        raise FlowError(f"flow {graph.name!r} can't be sent to the workers: {packed}") from packed


def unpack_graph(packed: bytes) -> JobGraph:
    """Return the graph that `pack_graph` packed, in a worker.

    Binds the record classes that came by value in their modules; a module that this process has not
    imported comes into being with just those classes in it: its own code is not run.
    """
    graph, classes = pickle.loads(packed)  # noqa: S301 - S6: driver to worker, inside Spark's task closure
    for kind in classes:
        if kind.__qualname__ == kind.__name__:
            setattr(_module(kind.__module__), kind.__name__, kind)
    unpacked: JobGraph = graph
    return unpacked


def _module(name: str) -> ModuleType:
    """Return the imported module of this name, or an empty one that stands in for it."""
    if name not in sys.modules:
        parent = name.rpartition(".")[0]
        if parent:
            # Pickle imports the packages around a module, too.
            _module(parent)
        found = find_spec(name)
        module = ModuleType(name)
        # Where the package exists after all, its other modules can still be imported.
        module.__path__ = list(found.submodule_search_locations or ()) if found else []
        sys.modules[name] = module
    return sys.modules[name]


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes the classes that travel by value."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self.classes: list[type] = []

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if isinstance(value, type) and reduced is not NotImplemented and value.__module__ != "builtins":
            # @dataclass(frozen=True, slots=True) makes a second class, and the methods of the second hold
            # on to the first. Both have the same name; what the module has under it must be bound last.
            module = sys.modules.get(value.__module__)
            is_found = getattr(module, value.__name__, None) is value
            self.classes.insert(len(self.classes) if is_found else 0, value)
        return reduced


def _pickled(value: Any) -> bytes | Exception:
    """Return the packed `value`, or what was raised: pickling runs user code, which may raise anything."""
    file = BytesIO()
    packer = _Packer(file)
    try:
        # The list is pickled after the value, and so holds by then all that was noted on the way.
        packer.dump((value, packer.classes))
    except Exception as error:  # noqa: BLE001 - returned, and raised by pack_graph with its cause
        return error
    return file.getvalue()


def _blamed(value: Any, depth: int) -> list[str]:
    """Return the names on the way from `value` to the innermost part that can't be pickled."""
    for name, part in _parts(value).items():
        if depth and isinstance(_pickled(part), Exception):
            return [name, *_blamed(part, depth - 1)]
    return []


def _parts(value: Any) -> dict[str, Any]:
    if isinstance(value, MethodType):
        return {"self": value.__self__}
    if isinstance(value, FunctionType):
        parts = {
            name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__
        }
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell != CellType():
                parts[name] = cell.cell_contents
        return parts
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    if isinstance(value, dict):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{index}]": part for index, part in enumerate(value)}
    return dict(getattr(value, "__dict__", {}))


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    already = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in already]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _user_modules() -> list[ModuleType]:
    """Return the imported modules that are neither installed nor Python's own.

    Each once: `multiprocessing` keeps the main program under a second name.
    """
    return [
        module
        for name, module in tuple(sys.modules.items())
        if isinstance(module, ModuleType)
        and module.__name__ == name
        and module.__name__.partition(".")[0] not in _BY_REFERENCE
        and _is_user_file(vars(module).get("__file__"))
    ]


@cache
def _is_user_file(file: str | None) -> bool:
    if not file or not file.endswith(".py"):
        return False
    return is_user_file(str(Path(file).resolve()), _resolved_roots())


@cache
def _resolved_roots() -> tuple[str, ...]:
    return tuple(str(Path(root).resolve()) for root in installed_roots())
