"""What somebody may have meant who wrote a name that there is not."""

from __future__ import annotations

from collections.abc import Iterable

_CUTOFF = 0.7


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`, "" if none is."""
    # Loaded only where something is wrong.
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), 1, _CUTOFF)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question to be put after an error; "" if nothing is like `name`."""
    found = closest(name, known)
    return f"; did you mean {found!r}?" if found else ""
