"""The order in which keyed operators say their final results: the same wherever and whenever it is done.

So an ordinal in it can be part of a snapshot, and a restored task goes on after what it has said. The
order of a dict would not do: it is another one when the state has been restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from crosscut.foundation.keys import encoded_key, key_group

ORDINAL_BYTES = 16
_KEYS_PER_BUCKET = 1_000
_PREFIXES = 1 << 32
"""How many values the first eight digits of an ordinal have."""


def ordinal_of(key: Any) -> str:
    """Return where `key` stands: ordinals compare as the keys are said."""
    return blake2b(encoded_key(key), digest_size=ORDINAL_BYTES).hexdigest()


class Predecessors:
    """What has been said already by those that had a task's keys before the parallelism changed.

    Args:
        ranges: Key groups, and up to which ordinal their last owner had come: operator, and ordinal.
    """

    def __init__(self, ranges: Sequence[tuple[range, tuple[int, str]]], max_parallelism: int) -> None:
        self._max_parallelism = max_parallelism
        self._ordinals = {group: ordinal for groups, ordinal in ranges for group in groups}

    def have_emitted(self, key: Any, ordinal: str) -> bool:
        """Whether the final result of `key`, whose ordinal this is, has been said."""
        operator, emitted = self._ordinals.get(key_group(key, self._max_parallelism), (0, ""))
        return operator > 0 or ordinal <= emitted


class FinalResultOrder:
    """Puts keys into their order, a bounded number at a time.

    Args:
        key_count: How many there will be, about.
        after: The ordinal of the last one that has been said; "" if none has.
        predecessors: The tasks that owned some of the keys before, if they had emitted some of these.
        share: Which share of all ordinals it takes, and how many there are: keys that are not are left out.
    """

    def __init__(
        self,
        key_count: int,
        after: str,
        predecessors: Predecessors | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._share, self._shares = share
        self._after = after
        self._predecessors = predecessors
        # By the beginning of the ordinal: they are in order, and each is put in order when it is its turn.
        self._buckets: list[list[Any]] = [[] for _ in range(1 + key_count // _KEYS_PER_BUCKET)]

    def add(self, keys: Iterable[Any]) -> None:
        """Add keys, each once; those that have been said are left out."""
        buckets, after, predecessors = self._buckets, self._after, self._predecessors
        for key in keys:
            ordinal = ordinal_of(key)
            share, within = divmod(int(ordinal[:8], 16) * self._shares, _PREFIXES)
            if (
                share == self._share
                and ordinal > after
                and (predecessors is None or not predecessors.have_emitted(key, ordinal))
            ):
                buckets[within * len(buckets) // _PREFIXES].append(key)

    def buckets(self) -> Iterator[list[Any]]:
        """Yield some keys at a time, in order, when all have been added."""
        for position, keys in enumerate(self._buckets):
            self._buckets[position] = []
            keys.sort(key=ordinal_of)
            yield keys
