"""Modules that can be imported by another name: what users import, and what older snapshots name.

A pickle names the module of a class. So a class that users keep in their state, or that goes into a channel
log, can still be loaded by the name that its module had when the snapshot was written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PUBLIC = {
    "delta": "connectors.delta",
    "files": "connectors.files",
    "http": "connectors.http",
    "iceberg": "connectors.iceberg",
    "kafka": "connectors.kafka",
    "nats": "connectors.nats",
    "postgres": "connectors.postgres",
    "sqlite": "connectors.sqlite",
}
"""Below `crosscut`, by the name that users import."""

_IN_SNAPSHOTS = {
    "connectors.postgres_changes": "connectors.postgres.changes",
    "connectors.postgres_changes.change": "connectors.postgres.changes.change",
    "dead_letters": "contracts.dead_letters",
    "ids": "foundation.ids",
    "windows": "contracts.windows",
}

_MODULES = {f"crosscut.{old}": f"crosscut.{new}" for old, new in {**PUBLIC, **_IN_SNAPSHOTS}.items()}


def current_name(module: str) -> str:
    """Return the name that a module has now."""
    return _MODULES.get(module, module)


class _Aliases(MetaPathFinder, Loader):
    """Finds the one module under both of its names, so that its classes are the same under both."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in _MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_MODULES[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It has been executed. Importing it by this name has set its spec to that of the alias.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Have `import` find the modules by their other names. Calling it again changes nothing."""
    if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Aliases())
