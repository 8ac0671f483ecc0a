"""Conformance suite for sources: does a reader opened at a position return what the first one would?

Point it at a bounded source of your own, with a few hundred records and, if it can have them, several
splits:

    @pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
    def test_my_source_conforms(check):
        check(MySource(...))

Every check raises AssertionError with the split, the position and the expected records. `check_restarts`
also takes a plan, so that hypothesis can look for the worst one.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cloudpickle

from crosscut.contracts.connectors import JSON, EndOfSplit, Sink, Source, Split, SplitReader, Wait
from crosscut.contracts.dynamic_source import Discovered, DynamicSource

_PARALLELISM = 3
_LIMIT = 1_000
_READ_DEADLINE_S = 60.0
_LOOKS_MAX = 1_000
_Description = TypeVar("_Description", bound=Source | Sink)


@dataclass(frozen=True, slots=True)
class ReadStep:
    """One step of a plan: read at most `limit` records, then go on with a new reader if `reopen`."""

    limit: int
    reopen: bool


def shipped(description: _Description) -> _Description:
    """Return a source or sink as a worker gets it."""
    copy: _Description = cloudpickle.loads(cloudpickle.dumps(description))
    return copy


def all_splits(source: Source, parallelism: int = _PARALLELISM) -> Iterator[Split]:
    """Yield the splits of a source; of a dynamic one, all that there are by now."""
    if not isinstance(source, DynamicSource):
        yield from source.splits(parallelism)
        return
    for _, found in _looks(source):
        yield from found.splits


def _looks(source: DynamicSource) -> Iterator[tuple[JSON, Discovered]]:
    """Ask again and again, until nothing comes any more; yield what was known before each look."""
    known: JSON = None
    for _ in range(_LOOKS_MAX):
        found = source.discover(known)
        yield known, found
        is_quiet = not found.splits and _as_json(found.known) == known
        if found.is_last or is_quiet:
            return
        known = _as_json(found.known)
    raise AssertionError(f"after {_LOOKS_MAX} looks discover({known!r}) still knows more each time")


def read_split(source: Source, split: Split, position: JSON = None) -> list[Any]:
    """Return all records of a bounded `split`, from its start or from `position`, in order."""
    reader = source.reader(split, split.start if position is None else position)
    records: list[Any] = []
    try:
        while batch := next_batch(reader, _LIMIT):
            records += batch
    finally:
        reader.close()
    return records


def read_source(source: Source, parallelism: int = _PARALLELISM) -> list[Any]:
    """Return all records of a bounded source, split by split."""
    return [record for split in all_splits(source, parallelism) for record in read_split(source, split)]


def next_batch(reader: SplitReader, limit: int) -> list[Any]:
    """Return the next records of `reader`, waiting as it asks to; an empty list at the end of the split.

    Raises:
        AssertionError: It returned too many records, an empty list, or nothing for a minute.
    """
    deadline_s = time.monotonic() + _READ_DEADLINE_S
    while time.monotonic() < deadline_s:
        match reader.read(limit):
            case EndOfSplit():
                return []
            case Wait(delay_ms):
                time.sleep(delay_ms / 1_000.0)
            case records:
                _require(
                    isinstance(records, list) and 1 <= len(records) <= limit,
                    f"read({limit}) returned {records!r}: expected a list of 1 to {limit} records",
                )
                return records
    raise AssertionError(
        f"the reader at {reader.position!r} only waited for {_READ_DEADLINE_S} s; is it bounded?"
    )


def check_splits(source: Source) -> None:
    """Splits are unique, the same at every discovery, in every process, and fit into the job log."""
    splits = list(source.splits(_PARALLELISM))
    is_dynamic = isinstance(source, DynamicSource)
    _require(
        bool(splits) or is_dynamic, "splits() found nothing; it must return a split or raise ConnectorError"
    )
    ids = [split.split_id for split in splits]
    _require(len(set(ids)) == len(ids), f"split ids are not unique: {ids}")
    for split in splits:
        _require(isinstance(split.weight, int) and split.weight > 0, f"{split}: expected a weight above 0")
        _require(_as_json(split.start) == split.start, f"{split}: start is not JSON")
        _require(_as_json(split.detail) == split.detail, f"{split}: detail is not JSON")
    _require(list(source.splits(_PARALLELISM)) == splits, "a second discovery found other splits")
    _require(list(shipped(source).splits(_PARALLELISM)) == splits, "a pickled source found other splits")


def check_discovery(source: Source) -> None:
    """A dynamic source finds each split once, and the same again from the same `known`, in every process."""
    if not isinstance(source, DynamicSource):
        return
    looks = list(_looks(source))
    ids = [split.split_id for _, found in looks for split in found.splits]
    again = sorted({one for one in ids if ids.count(one) > 1})
    _require(not again, f"discover() found {again} a second time, though told what is known")
    for known, found in looks:
        _require(_as_json(found.known) == found.known, f"discover({known!r}) knows {found!r}: not JSON")
        again_from = shipped(source).discover(known).splits
        repeated = {one.split_id: one for one in again_from}
        missing = [one.split_id for one in found.splits if repeated.get(one.split_id) != one]
        _require(not missing, f"discover({known!r}) did not find {missing} again, as after a failure it must")


def check_replay(source: Source) -> None:
    """A split read twice gives the same records, and its end stays its end."""
    for split in all_splits(source):
        whole = read_split(source, split)
        _require_same(read_split(shipped(source), split), whole, f"second read of {split}")
        reader = source.reader(split, split.start)
        try:
            while next_batch(reader, _LIMIT):
                pass
            _require(
                isinstance(reader.read(_LIMIT), EndOfSplit), f"{split}: read after the end found something"
            )
            end = _as_json(reader.position)
        finally:
            reader.close()
        _require_same(read_split(source, split, end), [], f"{split} read from its end {end!r}")


def check_positions(source: Source) -> None:
    """The position after every batch is exact, asking for it changes nothing, and readers are independent."""
    for split in all_splits(source):
        whole = read_split(source, split)
        reader = source.reader(split, split.start)
        read_count = 0
        try:
            for limit in itertools.cycle((1, 7, 100)):
                position = reader.position
                _require(_as_json(position) == position, f"{split}: position {position!r} is not JSON")
                # The other reader runs to the end of the split in the middle of the first one's work.
                rest = read_split(shipped(source), split, _as_json(position))
                _require_same(rest, whole[read_count:], f"{split} read from {position!r}")
                _require(reader.position == position, f"{split}: position moved without a read")
                batch = next_batch(reader, limit)
                _require_same(
                    batch, whole[read_count : read_count + len(batch)], f"{split} after {position!r}"
                )
                read_count += len(batch)
                if not batch:
                    break
        finally:
            reader.close()
        _require(
            read_count == len(whole),
            f"{split}: {read_count} records in small reads, {len(whole)} in big ones",
        )


def check_restarts(source: Source, plan: Iterable[ReadStep] | None = None) -> None:
    """Records read before and after any restarts equal those of one uninterrupted read.

    Args:
        source: Bounded.
        plan: Read limits and where to start again; repeated until a split ends. Default: a few fixed
            pseudo-random ones.
    """
    plans: Sequence[Sequence[ReadStep]] = [tuple(plan)] if plan is not None else _plans()
    for split in all_splits(source):
        whole = read_split(source, split)
        for steps in plans:
            records: list[Any] = []
            reader = source.reader(split, split.start)
            try:
                for step in itertools.cycle(steps):
                    batch = next_batch(reader, step.limit)
                    records += batch
                    if step.reopen:
                        position = _as_json(reader.position)
                        reader.close()
                        reader = shipped(source).reader(split, position)
                    if not batch:
                        break
            finally:
                reader.close()
            _require_same(records, whole, f"{split} with the plan {steps}")


SOURCE_CHECKS: tuple[Callable[[Source], None], ...] = (
    check_splits,
    check_discovery,
    check_replay,
    check_positions,
    check_restarts,
)


def check_source(source: Source) -> None:
    """Run all of `SOURCE_CHECKS` on a bounded source."""
    for check in SOURCE_CHECKS:
        check(source)


def _plans() -> list[list[ReadStep]]:
    choices = random.Random(20_240_229)
    return [
        [ReadStep(choices.randint(1, limit_max), choices.random() < 0.4) for _ in range(13)]
        for limit_max in (1, 3, 50, 1_000)
    ]


def _as_json(value: JSON) -> JSON:
    decoded: JSON = json.loads(json.dumps(value))
    return decoded


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _require_same(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    if found == expected:
        return
    index = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
    if index is None:
        raise AssertionError(f"{what}: {len(found)} records, expected {len(expected)}")
    raise AssertionError(f"{what}: record {index} is {found[index]!r}, expected {expected[index]!r}")
