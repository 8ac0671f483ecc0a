"""Worlds whose output has to be exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from tests.proof.worlds.shrinking import COMMAND, live, report, shrunk

from crosscut.testing.simulator.options import Options


def all_exact(worlds: Iterable[Options], command: str = COMMAND) -> Counter[str]:
    """Return what has happened in all of them; the first one that is not exact fails, made small."""
    seen: Counter[str] = Counter()
    for options in worlds:
        life = live(options)
        if life.failure:
            pytest.fail(report(shrunk(options, life), command), pytrace=False)
        seen += life.seen
    return seen
