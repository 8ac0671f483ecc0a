"""How many examples a property is tried with: few for each change, many in `make prove`."""

from __future__ import annotations

import hypothesis


def examples(many: int, *, few: int) -> int:
    """Return how many there are in this run."""
    return many if hypothesis.settings.get_current_profile_name() == "prove" else few
