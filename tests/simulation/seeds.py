"""How many worlds a test lets live: a few for each change, many in `make prove`."""

from __future__ import annotations

import pytest


def some_of(many: int, *, few: int) -> pytest.MarkDecorator:
    """Run a test with `seeds`: the first few in `make test`, all of them in `make prove`."""
    return pytest.mark.parametrize(
        "seeds",
        [
            pytest.param(range(few), id="few"),
            pytest.param(range(many), id="all", marks=pytest.mark.proof),
        ],
    )
