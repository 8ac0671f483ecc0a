"""What a planted bug has to break: one invariant, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from crosscut.testing.simulator import moving, world

MISTAKES = re.compile(
    r"\b(NameError|UnboundLocalError|TypeError|AttributeError|KeyError|IndexError|ImportError)\b"
)


LIVENESS_MS, MOVES_MS = 20_000, 5_000


@contextmanager
def impatience() -> Iterator[None]:
    """Let a job that comes to no end be found after a fraction of the virtual time that others have.

    Until then it goes on with its checkpoints, thousands of them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "LIVENESS_MS", LIVENESS_MS)
        patch.setattr(moving, "MOVES_MS", MOVES_MS)
        yield


def must_break(invariant: str, failures: Iterable[str]) -> None:
    """Require that one of the worlds breaks `invariant`.

    A plant that raises by itself would be found by any test, so a mistake of Python's is one of the plant,
    unless `invariant` names it.

    Args:
        invariant: A pattern for the beginning of the failure, such as "I1|I2".
        failures: Of worlds, "" where nothing was wrong; no more are asked for than needed. Those of a
            generator live with `impatience`.
    """
    others = set()
    with impatience():
        for failure in failures:
            if re.match(rf"(?:{invariant})\b", failure):
                return
            if MISTAKES.search(failure):
                pytest.fail(f"the plant itself raises: {failure}")
            others.add(failure[:80] or "nothing")
    pytest.fail(f"no world breaks {invariant}; they break {sorted(others)}")
