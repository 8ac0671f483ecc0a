"""What unpickles state and records here: everything in workers, only data where somebody looks.

Workers load what workers of the same job wrote, so they load everything. A process that only looks at state
must not run code of its author: see `crosscut.foundation.data_pickles`.
"""

from __future__ import annotations

import pickle  # noqa: S403 - the one place that decides what is loaded
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from crosscut.errors import StateError

Loads = Callable[[bytes | memoryview], Any]

_loads: ContextVar[Loads] = ContextVar("crosscut-loads", default=pickle.loads)  # noqa: S301 - see above


class RefusedPickleError(StateError):
    """A pickle names what may be code, where only data is loaded."""


@contextmanager
def loading(loads: Loads) -> Iterator[None]:
    """Unpickle with `loads` within the block, in this thread."""
    before = _loads.set(loads)
    try:
        yield
    finally:
        _loads.reset(before)


def loading_anything() -> AbstractContextManager[None]:
    """Unpickle without limits within the block, in this thread: for code of the user."""
    return loading(pickle.loads)  # noqa: S301 - see above


def loader() -> Loads:
    """Return what unpickles here: `pickle.loads`, unless `loading` says otherwise."""
    return _loads.get()
