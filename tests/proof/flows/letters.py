"""Folds and keys of drawn flows whose functions raise. What they raise for is told by the record alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, assert_never

from tests.proof.flows.added_steps import Stray, Trial
from tests.proof.flows.functions import energy_of, key_of, mixed, number_of, record

from crosscut.contracts.dead_letters import DEAD_LETTERS, DeadLetter


def is_multiple(modulus: int, one: Any) -> bool:
    """Return whether a function with this modulus raises for a record."""
    return number_of(one) % modulus == 0


def of_letter(one: Any) -> Any:
    """Return what is made of a dead letter about a record."""
    return record(mixed("letter", number_of(one)), energy_of(one))


def tried(keyed: Any, step: Trial, uid: str) -> Any:
    """Return the stream of a `trial`."""
    match step.fold:
        case "sum":
            fold = keyed.sum(partial(_one, step.modulus), emit=step.emit, on_error=DEAD_LETTERS)
        case "reduce":
            fold = keyed.reduce(partial(_reduced, step.modulus), emit=step.emit, on_error=DEAD_LETTERS)
            counts = fold.named(uid).map(partial(_of_reduced, step.modulus)).named(f"{uid}-counts")
            return _with_letters(counts, fold, uid, _of_record)
        case "aggregate":
            add = partial(_appended, step.modulus)
            fold = keyed.aggregate(list, add, len, emit=step.emit, on_error=DEAD_LETTERS)
        case "result":
            result = partial(_length, step.modulus)
            fold = keyed.aggregate(list, _kept, result, emit=step.emit, on_error=DEAD_LETTERS)
            return _with_letters(fold.named(uid), fold, uid, _of_result)
        case _:
            assert_never(step.fold)
    return _with_letters(fold.named(uid), fold, uid, _of_record)


def strayed(stream: Any, step: Stray, uid: str) -> Any:
    """Return the stream of a `stray`."""
    keyed = stream.key_by(partial(_key_or_none, step), on_error=DEAD_LETTERS).named(f"{uid}-keys")
    return _with_letters(keyed.count().named(uid), keyed, uid, _of_record)


def _with_letters(stream: Any, operator: Any, uid: str, of: Callable[[DeadLetter], Any]) -> Any:
    letters = operator.side_output(DEAD_LETTERS).map(of).named(f"{uid}-letters")
    return stream.union(letters).named(f"{uid}-all")


def _of_record(letter: DeadLetter) -> Any:
    return of_letter(letter.record)


def _of_result(letter: DeadLetter) -> Any:
    # It is about a key, with what its final result would have been made of.
    key, values = letter.record
    return of_letter((key, len(values)))


def _refuse(modulus: int, number: int) -> None:
    if number % modulus == 0:
        raise ValueError(f"{number} is a multiple of {modulus}")


def _one(modulus: int, one: Any) -> int:
    _refuse(modulus, number_of(one))
    return 1


class _Reduced(NamedTuple):
    """What `reduce` has made of more than one record: how many of them are no multiples."""

    rows: int


def _reduced(modulus: int, value: Any, one: Any) -> _Reduced:
    _refuse(modulus, number_of(one))
    if isinstance(value, _Reduced):
        return _Reduced(value.rows + 1)
    # The first record was taken unseen. It doesn't count if it is a multiple, so that none does.
    return _Reduced(1 if is_multiple(modulus, value) else 2)


def _of_reduced(modulus: int, pair: tuple[Any, Any]) -> Any:
    key, value = pair
    if isinstance(value, _Reduced):
        return key, value.rows
    return of_letter(value) if is_multiple(modulus, value) else (key, 1)


def _appended(modulus: int, values: list[Any], one: Any) -> list[Any]:
    # The worst moment: the accumulator has been changed.
    values.append(number_of(one))
    _refuse(modulus, number_of(one))
    return values


def _kept(values: list[Any], one: Any) -> list[Any]:
    values.append(number_of(one))
    return values


def _length(modulus: int, values: list[Any]) -> int:
    _refuse(modulus, len(values))
    return len(values)


def _key_or_none(step: Stray, one: Any) -> Any:
    if is_multiple(step.unfit, one):
        if number_of(one) % 2:
            raise ValueError(f"{number_of(one)} has no key")
        # It is nobody's key: whoever looks for its owner raises.
        return [number_of(one)]
    return key_of(step.key, step.modulus, one)
