"""The graph, with the user's functions in it, from the Spark driver to the workers.

The source of the user's modules travels with it, since a module next to the script is not there on another
machine; a worker imports them from that, and what they define is pickled by reference (decision 0088). Only
the main program is taken along by value, with modules that can't be imported a second time. A record class
that travels by value is bound under its module's name in the worker, so that the plain pickle that carries
records and state finds it there.
"""

from __future__ import annotations

import dis
import pickle  # noqa: S403 - see unpack_graph
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from threading import Lock
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from crosscut.errors import FlowError
from crosscut.foundation.data_pickles import count_as_program
from crosscut.graph.reducers import reduced, reduced_function, travels_by_value, with_slots
from crosscut.graph.shipped_imports import install, loading, restore
from crosscut.graph.specs import JobGraph
from crosscut.graph.user_modules import (
    ShippedModule,
    is_being_imported,
    is_stale,
    main_source,
    shipped_modules,
    user_modules,
)

_registry_lock = Lock()
"""cloudpickle's registry of modules is global: two flows must not pack at the same time."""

_BLAME_DEPTH = 6

VALUE_BYTES_MAX = 1 << 20
"""A variable of a module that is larger is as its own code has made it."""


@dataclass(frozen=True, slots=True)
class Exceptions:
    """What a fresh interpreter has found of the user's modules.

    Attributes:
        by_value: Modules that can't be imported there.
        changed: By module, the names that have another value there.
    """

    by_value: frozenset[str] = frozenset()
    changed: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class PackedGraph:
    """What `unpack_graph` needs.

    Attributes:
        modules: Those that the workers import from their source.
        used: Names of the modules that the graph refers to.
        search: The driver's path.
        graph: The graph, what was set in modules after their import, and the classes by value, pickled.
        classes: The classes by value where they come from, which stay there.
    """

    modules: tuple[ShippedModule, ...]
    used: tuple[str, ...]
    search: tuple[str, ...]
    graph: bytes
    classes: tuple[type, ...] = ()

    def without_classes(self) -> PackedGraph:
        """Return what travels."""
        return replace(self, classes=())


def pack_graph(graph: JobGraph, exceptions: Exceptions = Exceptions()) -> bytes:
    """Return `graph` as bytes for `unpack_graph`, for the same minor version of Python.

    Raises:
        FlowError: Something in an operator can't be pickled; the message names the operator, the way
            to the culprit, and what to do. The graph is unchanged.
    """
    return pickle.dumps(packed_graph(graph, exceptions).without_classes())


def packed_graph(graph: JobGraph, exceptions: Exceptions = Exceptions()) -> PackedGraph:
    """Return what `pack_graph` makes into bytes."""
    known = user_modules()
    by_value = [one for name, one in known.items() if name in exceptions.by_value or is_being_imported(one)]
    changed = {
        module: {name: vars(known[module])[name] for name in names if name in vars(known[module])}
        for module, names in exceptions.changed
        if module in known
    }
    with _registry_lock, _by_value(by_value):
        packer, packed = _packed(graph, changed)
        modules = shipped_modules([*packer.modules, *packer.imports], main_source())
    used = packer.modules & {one.name for one in modules} - {one.__name__ for one in by_value}
    used &= known.keys()
    stale = {one.name for one in modules if one.name in used and is_stale(known[one.name], one)}
    if stale:
        return packed_graph(graph, replace(exceptions, by_value=exceptions.by_value | stale))
    return PackedGraph(tuple(modules), tuple(sorted(used)), tuple(sys.path), packed, tuple(packer.classes))


def pack_copies(graph: JobGraph) -> bytes:
    """Return `graph` for `unpack_copy`: with the user's code by value, so that each copy has its own."""
    with _registry_lock, _by_value(user_modules().values()):
        return _packed(graph, {})[1]


def unpack_copy(packed: bytes) -> tuple[JobGraph, list[type]]:
    """Return a graph whose functions are as new as in a process that has just started, and its classes."""
    (graph, _), classes = pickle.loads(packed)  # noqa: S301 - packed by this process
    return graph, classes


def unpack_graph(packed: bytes) -> JobGraph:
    """Return the graph that `pack_graph` packed, in a worker.

    Binds the record classes that came by value in their modules; a module that this process has not
    imported comes into being with just those classes in it: its own code is not run.
    """
    found: PackedGraph = pickle.loads(packed)  # noqa: S301 - S6: driver to worker, inside Spark's task closure
    return unpacked_graph(found)[0]


def unpacked_graph(packed: PackedGraph) -> tuple[JobGraph, list[type]]:
    """Return the graph, and the classes that came by value; see `unpack_graph`."""
    install(packed.modules, packed.search)
    with loading():
        (graph, changed), classes = pickle.loads(packed.graph)  # noqa: S301 - as above
    for name, values in changed.items():
        restore(import_module(name), values)
    for kind in classes:
        if kind.__qualname__ == kind.__name__:
            setattr(_module(kind.__module__), kind.__name__, kind)
    return graph, classes


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
        count_as_program(name)
    return sys.modules[name]


def _packed(graph: JobGraph, changed: Mapping[str, Mapping[str, Any]]) -> tuple[_Packer, bytes]:
    packer = _Packer(BytesIO())
    packed = packer.pickled((graph, changed))
    if isinstance(packed, bytes):
        return packer, packed
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


class _Bounded(BytesIO):
    """A file that takes no more than a variable of a module may have."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > VALUE_BYTES_MAX:
            raise ValueError("too large")
        return super().write(data)


def value_bytes(value: Any) -> bytes | None:
    """Return a module's variable as it would travel, None if it can't, or is large."""
    found = _Packer(_Bounded()).pickled(value)
    return found if isinstance(found, bytes) else None


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes what travels by value, and what a worker has to import.

    Attributes:
        classes: Those by value.
        modules: Names of modules that are referred to.
        imports: Names that functions by value import when they are called.
    """

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self._file = file
        self.classes: list[type] = []
        self.modules: set[str] = set()
        self.imports: set[str] = set()

    def pickled(self, value: Any) -> bytes | Exception:
        """Return the packed `value`, or what was raised: user code runs, which may raise anything."""
        try:
            # The list is pickled after the value, and so holds by then all that was noted on the way.
            self.dump((value, self.classes))
        except Exception as error:  # noqa: BLE001 - returned, and raised by `_packed` with its cause
            return error
        return self._file.getvalue()

    def reducer_override(self, value: Any) -> Any:
        found = reduced(value)
        if found is NotImplemented:
            found = super().reducer_override(value)
            if found is NotImplemented:
                self._note_reference(value)
            elif type(value) is FunctionType and (name := _home_of(value)):
                # With the variables that the module's other functions have.
                self.modules.add(name)
                return reduced_function(value, name)
        elif type(value) is CodeType:
            self.imports.update(_imports_of(value))
        if found is not NotImplemented and isinstance(value, type) and value.__module__ != "builtins":
            self._note_class(value)
            return with_slots(value, found)
        return found

    def _note_reference(self, value: Any) -> None:
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            self.modules.add(name)

    def _note_class(self, value: type) -> None:
        # @dataclass(frozen=True, slots=True) makes a second class, and the methods of the second hold
        # on to the first. Both have the same name; what the module has under it must be bound last.
        module = sys.modules.get(value.__module__)
        is_found = getattr(module, value.__name__, None) is value
        self.classes.insert(len(self.classes) if is_found else 0, value)


def _home_of(function: FunctionType) -> str:
    """Return the name of the module whose variables `function` has, "" if it is to be taken along without."""
    name = function.__globals__.get("__name__")
    if not isinstance(name, str) or name == "__main__" or travels_by_value(name):
        return ""
    module = sys.modules.get(name)
    return name if module is not None and vars(module) is function.__globals__ else ""


def _imports_of(code: CodeType) -> Iterator[str]:
    base = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            base = step.argval
            yield base
        elif step.opname == "IMPORT_FROM":
            yield f"{base}.{step.argval}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports_of(constant)


def _pickled(value: Any) -> bytes | Exception:
    return _Packer(BytesIO()).pickled(value)


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
def _by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    already = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in already]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)
