"""Decoding of records that may end the process: each is tried in a copy of it first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class ProcessDiedError(Exception):
    """Stands for the end of a process, where other records have an exception.

    Attributes:
        trace: Where it was, as far as it could say; or "".
    """

    def __init__(self, how: str, trace: str = "") -> None:
        super().__init__(how)
        self.trace = trace

    @property
    def sentence(self) -> str:
        """The rest of a sentence that begins with what could not be decoded."""
        return (
            f"ends its process ({self}) when it is decoded: workers have died of it, and two copies of the "
            f"process that tried it"
        )


DecodingTrial = Callable[[Callable[[Any], object], Sequence[Any]], "int | ProcessDiedError"]
"""Is called with a function that decodes one item, and items; returns how many of them, at least one, may be
decoded now, or that the first one ends the process."""


class TriedDecoding:
    """Decodes items in order, and raises where one would end the process.

    Args:
        decode: Makes something of one item.
        found: All items that it will be called with.
    """

    def __init__(self, decode: Callable[[Any], Any], trial: DecodingTrial, found: Sequence[Any]) -> None:
        self._decode = decode
        self._trial = trial
        self._found = found
        self._next = 0
        self._safe_count = 0

    def __call__(self, item: Any) -> Any:
        """Decode the next item.

        Raises:
            ProcessDiedError: It ends the process.
        """
        if not self._safe_count:
            outcome = self._trial(self._decode, self._found[self._next :])
            if isinstance(outcome, ProcessDiedError):
                self._next += 1
                raise outcome
            self._safe_count = outcome
        self._safe_count -= 1
        self._next += 1
        return self._decode(item)
