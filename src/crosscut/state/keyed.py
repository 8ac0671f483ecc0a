"""Keyed state in memory, frozen by layering.

The values of a task are spread over layers: `base` holds everything up to the newest completed
checkpoint, each barrier puts one frozen layer on top of it, and a dict above all takes what changes.
Freezing is one assignment, whatever the state's size. A frozen layer is never touched again, so

* a checkpoint writes only what changed since the last one, at leisure;
* going back to a completed checkpoint drops the layers above it and reads nothing.

A value that user code could change in place is copied when it is first used after a freeze (copy on
access): the frozen layer keeps the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from crosscut.ids import CheckpointId
from crosscut.state.encoding import MAGIC, decode_part, encode_block, owned_copy

_ABSENT: Any = object()

ROWS_PER_BLOCK = 1_000
"""Rows that are encoded or merged in one step: well below a millisecond for small values."""


class Layer(dict[Any, Any]):
    """What changed since the last barrier. Looking a key up brings its value here first.

    Attributes:
        new_count: Keys that were looked up here and have no value further down.
    """

    __slots__ = ("_find", "new_count")

    def __init__(self, find: Callable[[Any], Any]) -> None:
        super().__init__()
        self._find = find
        self.new_count = 0

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self._find(key)
        return value


class KeyedState:
    """One value per key, of one task.

    Args:
        initial: Makes the value of a key that has none.
    """

    def __init__(self, initial: Callable[[], Any]) -> None:
        self._initial = initial
        self._base: dict[Any, Any] = {}
        self._base_id = CheckpointId(0)
        # Of keys; behind the base's own length while a layer is being merged into it.
        self._base_count = 0
        # Oldest first; those at or below `_completed` are being merged into the base.
        self._frozen: list[tuple[CheckpointId, Layer]] = []
        self._completed = CheckpointId(0)
        self.values = Layer(self._find)

    def __len__(self) -> int:
        """Number of keys, in constant time; right as long as keys are looked up before they are set."""
        return self._base_count + sum(layer.new_count for _, layer in self._frozen) + self.values.new_count

    @property
    def at_hand(self) -> tuple[CheckpointId, ...]:
        """Checkpoints that `roll_back` can go to: none older than what the base has begun to take in."""
        return tuple(n for n in (self._base_id, *(n for n, _ in self._frozen)) if n >= self._completed)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield every (key, value) once; no value may change meanwhile, but `complete` may go on."""
        frozen = (layer for _, layer in reversed(self._frozen))
        layers: list[dict[Any, Any]] = [self.values, *frozen, self._base]
        for position, layer in enumerate(layers):
            newer = layers[:position]
            # A list: folding a layer in adds keys to the base, of which `newer` holds every one.
            for key in list(layer):
                if not any(key in one for one in newer):
                    yield key, layer[key]

    def freeze(self, checkpoint_id: CheckpointId) -> None:
        """Keep the state as it is now under `checkpoint_id`; constant time."""
        self._frozen.append((checkpoint_id, self.values))
        self.values = Layer(self._find)

    def encoded(self, checkpoint_id: CheckpointId, since: CheckpointId) -> Iterator[bytes]:
        """Yield the part of the state frozen at `checkpoint_id`, in steps of `ROWS_PER_BLOCK`.

        Args:
            since: 0 for the whole state, else only what changed after that checkpoint.

        Raises:
            StateError: A value can't be stored.
        """
        layers: list[dict[Any, Any]] = [
            layer for n, layer in reversed(self._frozen) if since < n <= checkpoint_id
        ]
        if since == 0:
            layers.append(self._base)
        yield MAGIC
        rows = _newest_first(layers) if len(layers) > 1 else iter(layers[0].items() if layers else ())
        while block := list(islice(rows, ROWS_PER_BLOCK)):
            keys, values = zip(*block, strict=True)
            yield encode_block(list(keys), list(values))

    def complete(self, checkpoint_id: CheckpointId) -> Iterator[None]:
        """Fold everything at or below `checkpoint_id` into the base, a step at a time.

        Look-ups are right between the steps too. Must not run while `encoded` does.
        """
        self._completed = max(self._completed, checkpoint_id)
        while self._frozen and self._frozen[0][0] <= self._completed:
            n, layer = self._frozen[0]
            rows = iter(layer.items())
            if not self._base:
                self._base = layer
            else:
                while block := list(islice(rows, ROWS_PER_BLOCK)):
                    self._base.update(block)
                    yield
            self._frozen.pop(0)
            self._base_id, self._base_count = n, len(self._base)

    def roll_back(self, checkpoint_id: CheckpointId) -> None:
        """Go back to `checkpoint_id`, which must be `at_hand`; reads nothing."""
        for _ in self.complete(checkpoint_id):
            pass
        self._frozen.clear()
        self.values = Layer(self._find)

    def load(self, parts: Iterator[bytes], checkpoint_id: CheckpointId, owns: Callable[[Any], bool]) -> None:
        """Replace everything by what `parts`, oldest first, say of the keys that this task `owns`.

        Raises:
            StateError: A part is not readable as state.
        """
        for _ in self.loading(parts, checkpoint_id, owns):
            pass

    def loading(
        self, parts: Iterator[bytes], checkpoint_id: CheckpointId, owns: Callable[[Any], bool]
    ) -> Iterator[None]:
        """As `load`, a block at a time: the caller can do something else between the steps."""
        base: dict[Any, Any] = {}
        for part in parts:
            for keys, values in decode_part(part):
                base.update((key, value) for key, value in zip(keys, values, strict=True) if owns(key))
                yield
        self._base, self._base_id, self._completed = base, checkpoint_id, checkpoint_id
        self._base_count = len(base)
        self._frozen.clear()
        self.values = Layer(self._find)

    def _find(self, key: Any) -> Any:
        for _, layer in reversed(self._frozen):
            value = layer.get(key, _ABSENT)
            if value is not _ABSENT:
                return owned_copy(value)
        value = self._base.get(key, _ABSENT)
        if value is not _ABSENT:
            return owned_copy(value)
        self.values.new_count += 1
        return self._initial()


def _newest_first(layers: list[dict[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    for position, layer in enumerate(layers):
        newer = layers[:position]
        for key, value in layer.items():
            # Not any(): a generator for each key would cost more than the look-ups.
            for one in newer:
                if key in one:
                    break
            else:
                yield key, value
