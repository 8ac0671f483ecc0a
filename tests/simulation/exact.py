"""Worlds whose output has to be exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from crosscut.testing.simulator.options import Options
from crosscut.testing.simulator.shrink import live, shrunk


def all_exact(worlds: Iterable[Options], command: str = "crosscut simulate") -> Counter[str]:
    """Return what has happened in all of them; the first one that is not exact fails, made small."""
    seen: Counter[str] = Counter()
    for options in worlds:
        life = live(options)
        if life.failure:
            pytest.fail(shrunk(options, life).report(command), pytrace=False)
        seen += life.seen
    return seen
