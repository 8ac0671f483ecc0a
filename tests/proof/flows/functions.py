"""The functions of drawn flows. Each takes whatever shape a record has got by what came before.

A record is ("r", number, energy), a number, or the (key, value) of a keyed operator; `plain` makes one of the
first shape of each. All are functions of a module, so that any engine can send them to its workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, assert_never
from zlib import crc32

from tests.proof.flows.steps import (
    Attempt,
    Filter,
    FlatMap,
    KeyBy,
    KeyName,
    Map,
    Reduce,
    ReduceName,
    SumName,
)

from crosscut.contracts.dead_letters import DeadLetter
from crosscut.graph.specs import Emit

MODULUS = 1_000_003


def record(number: int, energy: int = 0) -> Any:
    """Return the record of this number."""
    return ("r", number, energy)


def mixed(*parts: Any) -> int:
    """Return a number that follows from all of `parts`, the same in every process."""
    return crc32(repr(parts).encode()) % MODULUS


def number_of(one: Any) -> int:
    """Return the number that stands for all that a record says."""
    if not isinstance(one, tuple):
        return int(one)
    if len(one) == 3:
        return int(one[1])
    key, value = one
    return number_of(value) if isinstance(value, tuple) else mixed(key, value)


def energy_of(one: Any) -> int:
    """Return how many times the record may still go round: none if neither it nor its key says so."""
    if not isinstance(one, tuple):
        return 0
    if len(one) == 3:
        return int(one[2])
    key, value = one
    if isinstance(value, tuple):
        return energy_of(value)
    return int(key[1]) if isinstance(key, tuple) else 0


def plain(one: Any) -> Any:
    """Return the record in its first shape."""
    return record(number_of(one), energy_of(one))


# map, filter, flat_map, key_by


def map_function(step: Map) -> Callable[[Any], Any]:
    """Return the function of a `map`."""
    match step.function:
        case "same":
            return _same
        case "plain":
            return plain
        case "add":
            return partial(_added, step.argument)
        case "mix":
            return partial(_mixed, step.argument)
        case "number":
            return number_of
        case "energise":
            return partial(_energised, step.argument)
        case _:
            assert_never(step.function)


def _same(one: Any) -> Any:
    return one


def _added(argument: int, one: Any) -> Any:
    return record(number_of(one) + argument, energy_of(one))


def _mixed(argument: int, one: Any) -> Any:
    return record(mixed(argument, number_of(one)), energy_of(one))


def _energised(argument: int, one: Any) -> Any:
    return record(number_of(one), number_of(one) % (argument + 1))


def filter_function(step: Filter) -> Callable[[Any], Any]:
    """Return the function of a `filter`."""
    match step.function:
        case "multiples":
            return partial(_is_multiple, step.argument + 2)
        case "others":
            return partial(_is_no_multiple, step.argument + 2)
        case "energy":
            return energy_of
        case "exhausted":
            return is_exhausted
        case "all":
            return _all
        case "none":
            return _none
        case _:
            assert_never(step.function)


def _is_multiple(modulus: int, one: Any) -> bool:
    return number_of(one) % modulus == 0


def _is_no_multiple(modulus: int, one: Any) -> bool:
    return number_of(one) % modulus > 0


def is_exhausted(one: Any) -> bool:
    """Whether the record can't go round any more."""
    return energy_of(one) == 0


def _all(one: Any) -> bool:
    return True


def _none(one: Any) -> bool:
    return False


def flat_map_function(step: FlatMap) -> Callable[[Any], Iterable[Any]]:
    """Return the function of a `flat_map`."""
    match step.function:
        case "copies":
            return partial(_copies, step.argument)
        case "some":
            return partial(_some, step.argument + 2)
        case "spread":
            return partial(_spread, step.argument)
        case "yielded":
            return partial(_yielded, step.argument)
        case _:
            assert_never(step.function)


def _copies(argument: int, one: Any) -> list[Any]:
    return [one] * argument


def _some(modulus: int, one: Any) -> tuple[Any, ...]:
    return (one,) * (number_of(one) % modulus)


def _spread(argument: int, one: Any) -> list[Any]:
    return [_mixed(each, one) for each in range(argument)]


def _yielded(argument: int, one: Any) -> Iterator[Any]:
    yield one
    if number_of(one) % 2:
        yield _added(argument, one)


def part_predicate(parts: int, part: int) -> Callable[[Any], bool]:
    """Return what is true of the records that belong to a part of a `split`."""
    return partial(_is_of_part, parts, part)


def _is_of_part(parts: int, part: int, one: Any) -> bool:
    return number_of(one) % (parts + 1) == part


def attempt_function(step: Attempt) -> Callable[[Any], Any]:
    """Return the function of an `attempt`."""
    match step.operator:
        case "flat_map":
            return partial(_yielding_half, step.modulus)
        case "split":
            return partial(_raising_or_odd, step.modulus)
        case _:
            return partial(_raising, step.modulus)


def _raising(modulus: int, one: Any) -> Any:
    if number_of(one) % modulus == 0:
        raise ValueError(f"{number_of(one)} is a multiple of {modulus}")
    return one


def _raising_or_odd(modulus: int, one: Any) -> bool:
    _raising(modulus, one)
    return number_of(one) % 2 == 1


def _yielding_half(modulus: int, one: Any) -> Iterator[Any]:
    yield one
    _raising(modulus, one)


CALL_TIMEOUT_S = 0.1
CALL_RETRIES = 3
"""A record without an answer is given up after 0.7 s: what is behind it waits for so long."""
OUTAGE_S = 0.09
"""Shorter than the time between two calls for a record, so that they are not both in it."""
BETWEEN_OUTAGES_S = 0.8
"""Longer than all calls for a record take: at most one of them fails by chance."""


def has_no_answer(one: Any) -> bool:
    """Return whether all calls of a `map_async` fail for it."""
    return number_of(one) % 7 == 5


def answer(one: Any) -> Any:
    """Return what the calls of a `map_async` return."""
    if has_no_answer(one):
        raise LookupError(f"{number_of(one)} has no answer")
    return record(mixed(3, number_of(one)), energy_of(one))


def returned(one: Any) -> Any:
    """Return the answer: the plain function of a `map_async`, called in a thread."""
    return answer(one)


async def awaited(one: Any) -> Any:
    """Return the answer after some time: the coroutine function of a `map_async`. Calls that begin in one of
    the outages, which come and go, fail or never end."""
    loop = asyncio.get_running_loop()
    outages, since = divmod(loop.time(), BETWEEN_OUTAGES_S)
    await asyncio.sleep(number_of(one) % 40 / 1_000)
    if since < OUTAGE_S:
        if outages % 2:
            await loop.create_future()
        raise ConnectionError("refused now and then")
    return answer(one)


def refusing(modulus: int, calls: list[Any] | None) -> Callable[[Any], None]:
    """Return the function of a `for_each`, which notes in `calls` what it is called for."""
    return partial(_noting, modulus, calls)


def _noting(modulus: int, calls: list[Any] | None, one: Any) -> None:
    if calls is not None:
        calls.append(one)
    _raising(modulus, one)


def record_of(letter: DeadLetter) -> Any:
    """Return the record that a dead letter is about."""
    return letter.record


def key_function(step: KeyBy) -> Callable[[Any], Any]:
    """Return the function of a `key_by`."""
    return partial(key_of, step.key, step.modulus)


def key_of(name: KeyName, modulus: int, one: Any) -> Any:
    """Return the key of a record."""
    rest = number_of(one) % modulus
    match name:
        case "number":
            return rest
        case "text":
            return f"key {rest}"
        case "bytes":
            return bytes([rest % 256])
        case "bool":
            return rest > 0
        case "one":
            return None
        case "with energy":
            return (rest, energy_of(one))
        case "nested with energy":
            return ((f"{rest}", None), energy_of(one))
        case _:
            assert_never(name)


# sum, reduce, process, top_n


def sum_function(name: SumName, key_by: KeyBy) -> Callable[[Any], Any] | None:
    """Return the function of a `sum`; None: the records themselves."""
    match name:
        case "weight":
            return partial(weight, key_by.key, key_by.modulus)
        case "number":
            return number_of
        case "itself":
            return None
        case _:
            assert_never(name)


def weight(key: KeyName, modulus: int, one: Any) -> int:
    """Return what a record adds to a sum: as much as any other of its key, so each value on the way is
    determined, too."""
    return 1 + mixed(key_of(key, modulus, one)) % 100


def reduce_function(step: Reduce) -> Callable[[Any, Any], Any]:
    """Return the function of a `reduce`."""
    return _REDUCE[step.function]


def _newest(value: Any, one: Any) -> Any:
    return one


def most(value: Any, one: Any) -> Any:
    """Return the greater of two records."""
    return max(value, one, key=rank_of)


def rank_of(one: Any) -> tuple[int, str]:
    """Return what records are compared by."""
    # Equal only for what is the same: else the first to come would win.
    return number_of(one), repr(one)


def _merged(value: Any, one: Any) -> Any:
    return record(number_of(value) ^ number_of(one), max(energy_of(value), energy_of(one)))


_REDUCE: dict[ReduceName, Callable[[Any, Any], Any]] = {
    "newest": _newest,
    "most": most,
    "merged": _merged,
}


def is_refused(one: Any) -> bool:
    """Return whether the process of a `process` raises for it."""
    return number_of(one) % 5 == 4


def of_key(key: Any, *said: Any) -> Any:
    """Return a record for what is said of a key, with the energy that the key has."""
    return record(mixed(key, *said), energy_of((key, 0)))


def counted_once(step: KeyBy, one: Any) -> Any:
    """Return the record of a window that has counted `one`, and nothing else."""
    return of_key(key_of(step.key, step.modulus, one), 1)


def only_key(step: KeyBy, one: Any) -> Any:
    """Return a record that says no more of `one` than its key."""
    return of_key(key_of(step.key, step.modulus, one))


def of_top(emit: Emit, result: Any) -> Any:
    """Return a record for what a `top_n` says."""
    key, best = result
    return of_key(key, *map(number_of, best)) if emit == "final" else (key, len(best))


def of_pair(key: Any, one: Any, other: Any) -> Any:
    """Return a record for two that a process has got on two inputs."""
    return of_key(key, number_of(one), number_of(other))


def rule_of(one: Any) -> int:
    """Return which rule a record is, that is broadcast."""
    return number_of(one) % 3


def of_rule(rule: int, count: int) -> Any:
    """Return a record for how often a rule has come."""
    return record(mixed("rule", rule, count))


def of_other(one: Any) -> Any:
    """Return a record for one that has come on the second input."""
    return record(mixed("other", number_of(one)), energy_of(one))


def without_version(result: Any) -> Any:
    """Return the record that a `newest` has joined with something."""
    return result[1][0]


# loops


def tired(one: Any) -> tuple[Any, ...]:
    """Return what goes round of a record: it with less energy, or nothing."""
    return (weaker(one),) if energy_of(one) else ()


def weaker(one: Any) -> Any:
    """Return the record with less energy."""
    return record(number_of(one), energy_of(one) - 1)
