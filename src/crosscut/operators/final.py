"""The order in which keyed operators say their final results: the same wherever and whenever it is done.

So a place in it can be part of a snapshot, and a restored task goes on behind what it has said. The
order of a dict would not do: it is another one when the state has been restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from crosscut.keys import encoded_key

PLACE_BYTES = 16
_KEYS_PER_BUCKET = 1_000


def place_of(key: Any) -> str:
    """Return where `key` stands: places compare as the keys are said."""
    return blake2b(encoded_key(key), digest_size=PLACE_BYTES).hexdigest()


class FinalOrder:
    """Puts keys into their order, a bounded number at a time.

    Args:
        key_count: How many there will be, about.
        after: The place of the last one that has been said; "" if none has.
    """

    def __init__(self, key_count: int, after: str) -> None:
        self._after = after
        # By the beginning of the place: they are in order, and each is put in order when it is its turn.
        self._buckets: list[list[Any]] = [[] for _ in range(1 + key_count // _KEYS_PER_BUCKET)]

    def add(self, keys: Iterable[Any]) -> None:
        """Add keys, each once; those that have been said are left out."""
        buckets, after = self._buckets, self._after
        for key in keys:
            place = place_of(key)
            if place > after:
                buckets[int(place[:8], 16) * len(buckets) >> 32].append(key)

    def buckets(self) -> Iterator[list[Any]]:
        """Yield some keys at a time, in order, when all have been added."""
        for position, keys in enumerate(self._buckets):
            self._buckets[position] = []
            keys.sort(key=place_of)
            yield keys
