"""Finds the flow that a command line names: "app.py:flow" or "package.module:flow"."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from crosscut.errors import CrosscutError, FlowError
from crosscut.flow.flow import Flow

DEFAULT_NAME = "flow"


def load_flow(target: str) -> Flow:
    """Import the module that `target` names and return the flow in it.

    Args:
        target: "app.py:name" (its directory becomes importable, as if Python ran the file) or
            "package.module:name" (found from the working directory on). The name may be left out if
            it is "flow". The name stands for a Flow, or for a function of no arguments that returns one.

    Raises:
        FlowError: There is no such file, module or name, or it is no flow; or the module itself
            raised: then the message has the place, or the traceback of the module's own code.
    """
    found = load_named(target)
    if not isinstance(found, Flow) and callable(found):
        with _UserCode(target):
            found = found()
    if not isinstance(found, Flow):
        raise FlowError(
            f"{target} is of type {type(found).__name__}: expected a crosscut.Flow, or a function of no "
            f"arguments that returns one"
        )
    return found


def load_named(target: str) -> Any:
    """Import the module that `target` names and return what has the name in it: see `load_flow`.

    Raises:
        FlowError: There is no such file, module or name, or the module itself raised.
    """
    place, _, name = target.rpartition(":") if ":" in target else (target, "", DEFAULT_NAME)
    is_file = place.endswith(".py") or os.sep in place
    module = _from_file(Path(place)) if is_file else _from_name(place)
    if not hasattr(module, name):
        raise FlowError(
            f"{place} has no {name!r}; it has {', '.join(_flows_in(module)) or 'no flow at all'}. Name the "
            f"flow as in {place}:{DEFAULT_NAME}"
        )
    return getattr(module, name)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FlowError(f"there is no file {path}; expected a Python file that makes a flow")
    path = path.resolve()
    name = path.stem
    if getattr(sys.modules.get(name), "__file__", None) == str(path):
        return sys.modules[name]
    if name in sys.modules or name in sys.stdlib_module_names:
        # Workers unpickle records of its classes under this name, so it can't be another module's.
        raise FlowError(f"{path} can't be imported as {name!r}, the name of another module; rename it")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FlowError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _UserCode(str(path)):
        spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    with _UserCode(name):
        return importlib.import_module(name)


def _flows_in(module: ModuleType) -> list[str]:
    return [repr(name) for name, value in vars(module).items() if isinstance(value, Flow)]


class _UserCode:
    """Turns what user code raises into a FlowError that shows where, without our own frames."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)
        ]
        if isinstance(error, CrosscutError) and frames:
            raise FlowError(f"{frames[-1].filename}, line {frames[-1].lineno}: {error}") from error
        text = "".join(traceback.format_list(frames)).rstrip()
        reason = "".join(traceback.format_exception_only(error)).rstrip()
        raise FlowError("\n".join(one for one in (f"{self._place}: {reason}", text) if one)) from error


def _is_machinery(filename: str) -> bool:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    is_ours = os.path.abspath(filename).startswith(package + os.sep)
    return filename.startswith("<frozen importlib") or filename == importlib.__file__ or is_ours
