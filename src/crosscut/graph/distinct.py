"""How many distinct values there are, about: HyperLogLog.

Source: Flajolet et al., *HyperLogLog* (2007), with the estimator of Ertl, *New cardinality estimation
algorithms for HyperLogLog sketches* (2017), algorithm 6, which needs no correction for few or many values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crosscut.errors import FlowError
from crosscut.foundation.keys import stable_hash

EXACT_MAX = 256
"""So many hashes are kept as they are: the count is exact, and takes less space than registers."""

_INDEX_BITS = 12
_REGISTERS = 1 << _INDEX_BITS
_RANK_BITS = 64 - _INDEX_BITS
_RANK_MASK = (1 << _RANK_BITS) - 1

STANDARD_ERROR = 1.04 / math.sqrt(_REGISTERS)

Sketch = set[int] | bytes
"""The hashes of few values; of many, for each register the highest rank of a hash: one byte each.

Bytes are immutable, so that a snapshot shares them: a value seldom changes a register once there are many.
"""


@dataclass(frozen=True, slots=True)
class AddDistinct:
    """Adds `function(record)`.

    Raises:
        TypeError: That can't be a key.
    """

    function: Callable[[Any], Any]

    def __call__(self, sketch: Sketch, record: Any) -> Sketch:
        value = self.function(record)
        try:
            found = stable_hash(value)
        except FlowError as error:
            # As user code would: the record is to blame, and may become a dead letter.
            raise TypeError(f"approx_distinct counts what can be a key: {error}") from None
        if isinstance(sketch, set):
            sketch.add(found)
            return sketch if len(sketch) <= EXACT_MAX else _registers(sketch)
        index, rank = _place(found)
        if sketch[index] >= rank:
            return sketch
        changed = b"%b%c%b" % (sketch[:index], rank, sketch[index + 1 :])
        if _histograms and (histogram := _histograms.pop(sketch, None)) is not None:
            histogram[sketch[index]] -= 1
            histogram[rank] += 1
            _histograms[changed] = histogram
        return changed


def merge_distinct(one: Sketch, other: Sketch) -> Sketch:
    """Return the sketch of the values of both."""
    if isinstance(one, set) and isinstance(other, set):
        both = one | other
        return both if len(both) <= EXACT_MAX else _registers(both)
    pairs = zip(_as_registers(one), _as_registers(other), strict=True)
    return bytes([max(pair) for pair in pairs])


def distinct_count(sketch: Sketch) -> int:
    """Return the estimate."""
    if isinstance(sketch, set):
        return len(sketch)
    counts = _histogram(sketch)
    z = _REGISTERS * _tau(1 - counts[-1] / _REGISTERS)
    for count in counts[-2:0:-1]:
        z = 0.5 * (z + count)
    z += _REGISTERS * _sigma(counts[0] / _REGISTERS)
    return round(_REGISTERS * _REGISTERS / (2 * math.log(2) * z))


_HISTOGRAMS_MAX = 256

_histograms: dict[bytes, list[int]] = {}
"""How many registers of a sketch have each rank, for those that were asked for last.

With `emit="updates"` each record asks. To count 4,096 registers takes longer than all else that is done for
it.
"""


def _histogram(registers: bytes) -> list[int]:
    found = _histograms.get(registers)
    if found is None:
        found, left = [0] * (_RANK_BITS + 2), _REGISTERS
        for rank in range(len(found)):
            found[rank] = registers.count(rank)
            left -= found[rank]
            if not left:
                break
        if len(_histograms) >= _HISTOGRAMS_MAX:
            _histograms.pop(next(iter(_histograms)), None)
        _histograms[registers] = found
    return found


def _as_registers(sketch: Sketch) -> bytes:
    return _registers(sketch) if isinstance(sketch, set) else sketch


def _registers(hashes: set[int]) -> bytes:
    registers = bytearray(_REGISTERS)
    for index, rank in map(_place, hashes):
        registers[index] = max(registers[index], rank)
    return bytes(registers)


def _place(found: int) -> tuple[int, int]:
    """Return the register of a hash, and its rank there: one more than its leading zeros."""
    return found >> _RANK_BITS, _RANK_BITS - (found & _RANK_MASK).bit_length() + 1


def _sigma(x: float) -> float:
    if x == 1.0:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x = math.sqrt(x)
        before = z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3
