"""The user's modules in a worker, imported from the source that came with the graph."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import RLock
from types import CodeType, ModuleType
from typing import Any

from crosscut.errors import FlowError
from crosscut.graph.user_modules import ShippedModule

_lock = RLock()
_loading = 0


class _Loader(InspectLoader):
    """Loads one shipped module."""

    def __init__(self, module: ShippedModule) -> None:
        self.module = module

    def is_package(self, fullname: str) -> bool:
        return self.module.package_dirs is not None

    def get_source(self, fullname: str) -> str:
        return self.module.source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.module.source, self.module.origin or "<namespace>", "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        if self.module.origin:
            module.__file__ = self.module.origin
        super().exec_module(module)


def restore(module: ModuleType, values: Mapping[str, Any]) -> None:
    """Set in `module` what was changed after its import where it was packed."""
    for name, value in values.items():
        found: Any = vars(module).get(name)
        # In place: other modules may hold the same object.
        if isinstance(value, dict | set) and type(found) is type(value):
            if found is not value:
                found.clear()
                found.update(value)
        elif isinstance(value, list) and type(found) is list:
            found[:] = value
        else:
            setattr(module, name, value)


class _Finder(MetaPathFinder):
    """Finds the shipped modules, before all that is on the path of this process."""

    def __init__(self) -> None:
        self.loaders: dict[str, _Loader] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader = self.loaders.get(fullname)
        if loader is None:
            return None
        is_package = loader.is_package(fullname)
        spec = ModuleSpec(fullname, loader, origin=loader.module.origin, is_package=is_package)
        if loader.module.package_dirs is not None:
            # Where these exist, modules that were not shipped are found there.
            spec.submodule_search_locations = list(loader.module.package_dirs)
        return spec


_finder = _Finder()


def install(modules: Iterable[ShippedModule], search: Iterable[str] = ()) -> None:
    """Have `modules` imported from their source in this process, from now on.

    A module that this process has imported from the very same file stays as it is: this is the driver. One
    of an earlier job that differs makes way.

    Args:
        search: Directories on the driver's path. Where they exist, too, they are searched last.
    """
    with _lock:
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        for module in modules:
            there = sys.modules.get(module.name)
            before = getattr(getattr(there, "__spec__", None), "loader", None)
            if isinstance(before, _Loader):
                if before.module == module:
                    continue
            elif there is not None and module.origin == (vars(there).get("__file__") or ""):
                continue
            if there is not None:
                del sys.modules[module.name]
            _finder.loaders[module.name] = _Loader(module)
        sys.path += [one for one in search if one and one not in sys.path and os.path.exists(one)]


@contextmanager
def loading() -> Iterator[None]:
    """Run code that may import the user's modules: these must not start jobs."""
    global _loading
    _loading += 1
    try:
        yield
    finally:
        _loading -= 1


def refuse_start() -> None:
    """Raise FlowError if a module that was shipped is being imported.

    Raises:
        FlowError: It starts a job, which imports it in its workers, and so on.
    """
    if _loading:
        raise FlowError(
            "a module that is imported in the workers starts a job: put the start into a function, or under "
            'if __name__ == "__main__"'
        )
