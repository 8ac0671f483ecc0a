"""The user's own modules on the driver: which there are, and what it takes to import them elsewhere."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from crosscut.foundation.user_files import installed_roots, is_user_file

_EVERYWHERE = ("crosscut", "pyspark", "py4j", "cloudpickle")
"""Every worker has these, wherever they are: a Spark distribution keeps pyspark outside site-packages."""

_SOURCES_MAX = 1_000
"""Of so many sources it is remembered what they import and define: each start of a flow asks, some twice."""


@dataclass(frozen=True, slots=True)
class ShippedModule:
    """The source of a module.

    Attributes:
        origin: Its file on the driver, for tracebacks and for data beside it; "": a namespace package.
        source: Its text; "" for a namespace package.
        package_dirs: Where its submodules are on the driver; None: it is no package.
    """

    name: str
    origin: str
    source: str
    package_dirs: tuple[str, ...] | None


def user_modules() -> dict[str, ModuleType]:
    """Return the imported modules that are neither installed nor Python's own nor `__main__`, by name."""
    libraries = _compiled_packages()
    return {
        name: module
        for name, module in tuple(sys.modules.items())
        # `multiprocessing` keeps the main program under a second name.
        if isinstance(module, ModuleType)
        and module.__name__ == name != "__main__"
        and name.partition(".")[0] not in libraries
        and _is_user_module(vars(module).get("__spec__"), vars(module).get("__file__"), name)
    }


def is_being_imported(module: ModuleType) -> bool:
    """Tell whether the module's own code is still at work: it may have started the job."""
    return bool(getattr(vars(module).get("__spec__"), "_initializing", False))


def shipped_modules(roots: Iterable[str], more: str = "") -> list[ShippedModule]:
    """Return the user's modules among `roots`, and those that they import, each package before its modules.

    Args:
        roots: Names of modules.
        more: Source of the main program, whose imports count, too.
    """
    known = user_modules()
    found: dict[str, ShippedModule | None] = {}
    waiting = [*roots, *_imported(more, "")]
    while waiting:
        name = waiting.pop()
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            one = ".".join(parts[:end])
            if one in found:
                continue
            module = found[one] = _shipped(one, known.get(one))
            if module is not None:
                waiting += _imported(module.source, _package_of(module))
            elif one in sys.modules or end == 1:
                break
    return [found_one for _, found_one in sorted(found.items()) if found_one is not None]


def is_stale(module: ModuleType, shipped: ShippedModule) -> bool:
    """Tell whether `module` has functions that its source has not: it was edited, or rewritten on import.

    Equal code objects have equal lines, so a traceback in a worker shows what has run.
    """
    written = _written(shipped.source, shipped.origin)
    return written is None or any(
        code not in written.get(code.co_qualname, ())
        for code in _loaded(module)
        if code.co_filename == shipped.origin and "<locals>" not in code.co_qualname
    )


@lru_cache(_SOURCES_MAX)
def _written(source: str, origin: str) -> dict[str, list[CodeType]] | None:
    """Return the code that a source defines, by qualified name; None if it is no Python."""
    try:
        found = compile(source, origin or "<namespace>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    written: dict[str, list[CodeType]] = {}
    for code in _codes(found):
        written.setdefault(code.co_qualname, []).append(code)
    return written


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _loaded(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of a module's functions and methods."""
    for value in tuple(vars(module).values()):
        if isinstance(value, FunctionType):
            yield value.__code__
        elif isinstance(value, type) and value.__module__ == module.__name__:
            yield from (one.__code__ for one in tuple(vars(value).values()) if isinstance(one, FunctionType))


def main_source() -> str:
    """Return the text of the main program, "" if it has none, as in a console."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return _text(file) if file is not None and file.endswith(".py") else ""


def _shipped(name: str, module: ModuleType | None) -> ShippedModule | None:
    """Return the source of a module, None if it is not the user's or can't be found."""
    if module is not None:
        spec, file = vars(module).get("__spec__"), vars(module).get("__file__")
        package_dirs = vars(module).get("__path__")
    else:
        if name in sys.modules or name.partition(".")[0] in sys.stdlib_module_names:
            return None
        spec = _found(name)
        if spec is None or not _is_user_module(spec, spec.origin, name):
            return None
        file, package_dirs = spec.origin, spec.submodule_search_locations
    dirs = None if package_dirs is None else tuple(map(str, package_dirs))
    if file is None:
        return ShippedModule(name, "", "", dirs)
    try:
        # Of a module in an archive, too.
        read = getattr(getattr(spec, "loader", None), "get_source", None)
        source = _text(file) if read is None else read(name)
    except (ImportError, OSError):
        source = None
    return None if source is None else ShippedModule(name, file, source, dirs)


def _found(name: str) -> ModuleSpec | None:
    """Return where a module that is not imported is found, without importing the packages around it."""
    parent = name.rpartition(".")[0]
    path: Sequence[str] | None = None
    if parent:
        around = sys.modules.get(parent)
        spec = vars(around).get("__spec__") if around is not None else _found(parent)
        locations = getattr(spec, "submodule_search_locations", None)
        if locations is None:
            return None
        path = list(locations)
    try:
        return PathFinder.find_spec(name, path)
    except (ImportError, ValueError):
        return None


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _package_of(module: ShippedModule) -> str:
    return module.name if module.package_dirs is not None else module.name.rpartition(".")[0]


@lru_cache(_SOURCES_MAX)
def _imported(source: str, package: str) -> tuple[str, ...]:
    """Return the names that the code of a module in `package` may import, at the top or in functions."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                around = package.split(".")
                around = around[: len(around) - node.level + 1]
                base = ".".join([*around, *filter(None, [base])])
            if base:
                found += (base, *(f"{base}.{one.name}" for one in node.names if one.name != "*"))
    return tuple(found)


def _is_user_module(spec: ModuleSpec | None, file: str | None, name: str) -> bool:
    if name.partition(".")[0] in _EVERYWHERE:
        return False
    if file is not None:
        return _is_users(file) and not _is_in_library(file, name)
    # A namespace package has no file.
    places = [f"{one}/__init__.py" for one in getattr(spec, "submodule_search_locations", None) or ()]
    return bool(places) and all(_is_users(one) and not _is_in_library(one, name) for one in places)


@cache
def _is_users(file: str) -> bool:
    return file.endswith(".py") and is_user_file(str(Path(file).resolve()), _resolved_roots())


@cache
def _resolved_roots() -> tuple[str, ...]:
    return tuple(str(Path(root).resolve()) for root in installed_roots())


@cache
def _is_in_library(file: str, name: str) -> bool:
    """Tell whether a module was installed into a directory of libraries, as by `pip install --target`."""
    place = Path(file)
    depth = name.count(".") + (place.name == "__init__.py")
    if depth >= len(place.parents):
        return False
    return name.partition(".")[0] in _installed_in(place.parents[depth])


@cache
def _installed_in(directory: Path) -> frozenset[str]:
    tops = set()
    try:
        for record in directory.glob("*.dist-info/RECORD"):
            for line in record.read_text(encoding="utf-8").splitlines():
                top = line.partition(",")[0].partition("/")[0]
                tops.add(top.removesuffix(".py"))
    except (OSError, UnicodeDecodeError):
        return frozenset()
    return frozenset(tops)


def _compiled_packages() -> set[str]:
    """Return the names of packages of which a module is compiled: their source alone is of no use."""
    found = set()
    for name, module in tuple(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and "." in name and file.endswith(tuple(EXTENSION_SUFFIXES)):
            found.add(name.partition(".")[0])
    return found
