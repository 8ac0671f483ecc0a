"""Parameters that only `make prove` runs: apart from the jobs, whose workers do without pytest."""

from __future__ import annotations

from typing import Any

import pytest


def proven(*values: Any) -> Any:
    """Return the parameters of a test that `make prove` runs, and `make test` does not."""
    return pytest.param(*values, marks=pytest.mark.proof)
