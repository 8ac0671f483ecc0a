"""The functions of drawn flows. Each takes whatever shape a record has got by what came before.

A record is ("r", number, energy), a number, or the (key, value) of a keyed operator; `plain` makes one of the
first shape of each. All are functions of a module, so that any engine can send them to its workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, assert_never
from zlib import crc32

import crosscut as cc
from crosscut.dead_letters import DeadLetter
from crosscut.graph.specs import Emit
from crosscut.testing.flows.steps import (
    Aggregate,
    AggregateName,
    Attempt,
    Counted,
    Deduplicate,
    Filter,
    FlatMap,
    FoldName,
    Join,
    JoinName,
    KeyBy,
    KeyName,
    Map,
    Newest,
    Reduce,
    ReduceName,
    Sift,
    Step,
    SumName,
    Times,
    TopN,
    Window,
    WithinName,
)

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
    return partial(_key, step.key, step.modulus)


def _key(name: KeyName, modulus: int, one: Any) -> Any:
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


# sum, reduce, aggregate, process, top_n


def sum_function(name: SumName, key_by: KeyBy) -> Callable[[Any], Any] | None:
    """Return the function of a `sum`; None: the records themselves."""
    match name:
        case "weight":
            return partial(_weight, key_by.key, key_by.modulus)
        case "number":
            return number_of
        case "itself":
            return None
        case _:
            assert_never(name)


def _weight(key: KeyName, modulus: int, one: Any) -> int:
    # The same for all records of a key: so each value on the way is determined, too.
    return 1 + mixed(_key(key, modulus, one)) % 100


def reduce_function(step: Reduce) -> Callable[[Any, Any], Any]:
    """Return the function of a `reduce`."""
    return _REDUCE[step.function]


def _newest(value: Any, one: Any) -> Any:
    return one


def _most(value: Any, one: Any) -> Any:
    return max(value, one, key=_rank)


def _rank(one: Any) -> tuple[int, str]:
    # Equal only for what is the same: else the first to come would win.
    return number_of(one), repr(one)


def _merged(value: Any, one: Any) -> Any:
    return record(number_of(value) ^ number_of(one), max(energy_of(value), energy_of(one)))


_REDUCE: dict[ReduceName, Callable[[Any, Any], Any]] = {
    "newest": _newest,
    "most": _most,
    "merged": _merged,
}


def is_refused(one: Any) -> bool:
    """Return whether the process of a `process` raises for it."""
    return number_of(one) % 5 == 4


def of_key(key: Any, *said: Any) -> Any:
    """Return a record for what is said of a key, with the energy that the key has."""
    return record(mixed(key, *said), energy_of((key, 0)))


def only_key(step: KeyBy, one: Any) -> Any:
    """Return a record that says no more of `one` than its key."""
    return of_key(_key(step.key, step.modulus, one))


def rank_of(one: Any) -> Any:
    """Return what `top_n` compares by."""
    return _rank(one)


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


class Folding(NamedTuple):
    """The arguments of an `aggregate`."""

    initial: Any
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] | None


def folding(name: AggregateName, key_by: KeyBy) -> Folding:
    """Return the arguments of an `aggregate`."""
    match name:
        case "length":
            return Folding(list, _appended, len)
        case "last":
            return Folding(list, _appended, _last)
        case "both":
            return Folding(list, _appended, _length_and_last)
        case "cell":
            return Folding(_new_cell, _incremented, None)
        case "pair":
            return Folding((0, 0), partial(_counted, key_by.key, key_by.modulus), None)
        case "numbers":
            return Folding(_new_numbers, _noted, _numbers)
        case _:
            assert_never(name)


def _appended(values: list[Any], one: Any) -> list[Any]:
    values.append(one)
    return values


def _last(values: list[Any]) -> Any:
    return values[-1]


def _length_and_last(values: list[Any]) -> Any:
    return [len(values), values[-1]]


def separated(pair: Any) -> list[Any]:
    """Return apart what an aggregate "both" says: which record came as which is not determined."""
    key, (length, last) = pair
    return [(key, length), (key, last)]


def _new_cell() -> list[int]:
    return [0]


def _incremented(cell: list[int], one: Any) -> list[int]:
    cell[0] += 1
    return cell


def _counted(key: KeyName, modulus: int, pair: tuple[int, int], one: Any) -> tuple[int, int]:
    count, total = pair
    return count + 1, total + _weight(key, modulus, one)


def _new_numbers() -> dict[str, Any]:
    return {"numbers": [], "energy": 0}


def _noted(value: dict[str, Any], one: Any) -> dict[str, Any]:
    value["numbers"].append(number_of(one))
    value["energy"] = max(value["energy"], energy_of(one))
    return value


def _numbers(value: dict[str, Any]) -> Any:
    return record(mixed(sorted(value["numbers"])), value["energy"])


# Times


IDLE_AFTER = "5ms"


def within(name: WithinName) -> str | None:
    """Return for how long a `deduplicate` lets no other record of a key pass: longer than any world lives."""
    return None if name == "ever" else "36500d"


def time_function(step: Times) -> Callable[[Any], int]:
    """Return the function of an `assign_timestamps`."""
    match step.function:
        case "in order" | "idle soon":
            return number_of
        case "scattered":
            return mixed
        case _:
            assert_never(step.function)


# windows, joins

DISORDER_MS = 100
"""How much older than the newest record of its split another may be."""


def time_of(one: Any) -> int:
    """Return when a record of a source happened: not in order, and not too far from it."""
    number = number_of(one)
    return 40 * (number % 100) + mixed(number) % DISORDER_MS


def window_of(step: Window) -> Any:
    """Return the window of a `window`."""
    match step.window:
        case "tumbling":
            return cc.tumbling(f"{step.size}ms")
        case "sliding":
            return cc.sliding(f"{2 * step.size}ms", every=f"{step.size}ms")
        case "session":
            return cc.session(f"{step.size}ms")
        case _:
            assert_never(step.window)


def folded(windows: Any, name: FoldName) -> Any:
    """Return the stream of what windows come to."""
    match name:
        case "count":
            return windows.count()
        case "sum":
            return windows.sum(number_of)
        case "reduce":
            return windows.reduce(_most)
        case "aggregate":
            return windows.aggregate(_new_numbers, _noted, _numbers, _noted_together)
        case "process":
            return windows.process(_both_of)
        case _:
            assert_never(name)


def folds_to(name: FoldName, records: list[Any]) -> list[Any]:
    """Return the values that a window of these records says."""
    match name:
        case "count":
            return [len(records)]
        case "sum":
            return [sum(map(number_of, records))]
        case "reduce":
            return [max(records, key=_rank)]
        case "aggregate":
            energy = max(map(energy_of, records))
            return [record(mixed(sorted(map(number_of, records))), energy)]
        case "process":
            return [len(records), mixed(sorted(map(number_of, records)))]
        case _:
            assert_never(name)


def _noted_together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        "numbers": one["numbers"] + other["numbers"],
        "energy": max(one["energy"], other["energy"]),
    }


def _both_of(window: Any) -> Iterator[Any]:
    yield len(window.value)
    yield mixed(sorted(map(number_of, window.value)))


def of_window(result: Any) -> Any:
    """Return a record for what a window says."""
    pair = (result.key, result.value)
    return record(mixed(result.key, result.start, result.end, number_of(pair)), energy_of(pair))


def counted_window(step: Counted) -> tuple[Any, Any]:
    """Return the window of a `counted`, and its trigger."""
    match step.window:
        case "count":
            return cc.count_window(step.rows), None
        case "global":
            return cc.global_window(), None
        case "global on count":
            return cc.global_window(), cc.on_count(step.rows)
        case _:
            assert_never(step.window)


def of_counted(result: Any) -> Any:
    """Return a record for what a `counted` says: how many they are, and not when they happened."""
    return of_key(result.key, result.value)


def listed(window: Any) -> list[Any]:
    """Return the records of a window, to be said each by itself."""
    return list(window.value)


def value_of(result: Any) -> Any:
    """Return the value of a window's result."""
    return result.value


def of_join(name: JoinName, result: Any) -> Any:
    """Return a record for what a join says."""
    if name == "window":
        key, (left, right) = (result.key, result.start, result.end), result.value
    else:
        key, (left, right) = result
    numbers = [None if one is None else number_of(one) for one in (left, right)]
    if name == "latest":
        numbers[1] = None if right is None else 1
    return record(mixed(key, *numbers), 0 if left is None else energy_of(left))


# Loops


def tired(one: Any) -> tuple[Any, ...]:
    """Return what goes round of a record: it with less energy, or nothing."""
    return (weaker(one),) if energy_of(one) else ()


def weaker(one: Any) -> Any:
    """Return the record with less energy."""
    return record(number_of(one), energy_of(one) - 1)


def as_record(steps: Sequence[Step], step: Step) -> Callable[[Any], Any] | None:
    """Return what makes a record of what `step` says, None if it says records."""
    match step:
        case Window():
            return of_window
        case Counted():
            return of_counted
        case Sift():
            return value_of
        case Join(_, _, join):
            return partial(of_join, join)
        case Newest():
            return without_version
        case TopN(_, _, emit):
            return partial(of_top, emit)
        case Deduplicate(keyed):
            key_by = steps[keyed]
            return partial(only_key, key_by) if isinstance(key_by, KeyBy) else None
        case _:
            return None


def is_followed_by_separation(step: Step) -> bool:
    """Whether `step` says two things whose connection is not determined."""
    return isinstance(step, Aggregate) and step.function == "both"
