"""Folds and keys of drawn flows whose functions raise. What they raise for is told by the record alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from crosscut.dead_letters import DEAD_LETTERS, DeadLetter
from crosscut.testing.flows.added_steps import Stray, Trial
from crosscut.testing.flows.functions import energy_of, key_of, mixed, number_of, record


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
        case "aggregate":
            add = partial(_appended, step.modulus)
            fold = keyed.aggregate(list, add, len, emit=step.emit, on_error=DEAD_LETTERS)
        case "result":
            result = partial(_length, step.modulus)
            fold = keyed.aggregate(list, _kept, result, emit=step.emit, on_error=DEAD_LETTERS)
        case _:
            assert_never(step.fold)
    return _with_letters(fold.named(uid), fold, uid, _of_trial)


def strayed(stream: Any, step: Stray, uid: str) -> Any:
    """Return the stream of a `stray`."""
    keyed = stream.key_by(partial(_key_or_none, step), on_error=DEAD_LETTERS).named(f"{uid}-keys")
    return _with_letters(keyed.count().named(uid), keyed, uid, _of_stray)


def _with_letters(stream: Any, operator: Any, uid: str, of: Callable[[DeadLetter], Any]) -> Any:
    letters = operator.side_output(DEAD_LETTERS).map(of).named(f"{uid}-letters")
    return stream.union(letters).named(f"{uid}-all")


def _of_stray(letter: DeadLetter) -> Any:
    return of_letter(letter.record)


def _of_trial(letter: DeadLetter) -> Any:
    about = letter.record
    if isinstance(about, tuple) and len(about) == 2 and isinstance(about[1], list):
        # A final result, with what it would have been made of.
        about = (about[0], len(about[1]))
    return of_letter(about)


def _refuse(modulus: int, number: int) -> None:
    if number % modulus == 0:
        raise ValueError(f"{number} is a multiple of {modulus}")


def _one(modulus: int, one: Any) -> int:
    _refuse(modulus, number_of(one))
    return 1


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
