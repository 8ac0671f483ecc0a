"""Rare states of drawn worlds: each comes often, and a planted bug is found only where it does."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest
from tests.proof.worlds.drawn import back_to_back_ms
from tests.proof.worlds.shrinking import live, report
from tests.simulation.planted import must_break

from crosscut.protocol.effects import CommitterEffect
from crosscut.protocol.events import CommitAuthorised, CommitterEvent
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshot.commit import Committer
from crosscut.state import slot_parts
from crosscut.store import checkpoint_store
from crosscut.store.blocks import in_blocks
from crosscut.store.log import StoredLog
from crosscut.testing.simulator.options import Options, PlannedFault, options_of
from crosscut.testing.simulator.thresholds import THRESHOLDS, drawn_thresholds, lowered
from crosscut.worker.background import BackgroundWork

COUNTS = ("chain", "union", "rebalance")
EXACTLY_ONCE: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching")


def test_every_threshold_is_small_in_many_worlds() -> None:
    found: Counter[str] = Counter(name for seed in range(500) for name, _ in drawn_thresholds(seed))
    assert found.keys() == THRESHOLDS.keys()
    assert min(found.values()) > 40


def test_thresholds_are_restored() -> None:
    before = slot_parts.SLICE_ROWS_MIN
    with pytest.raises(ZeroDivisionError), lowered((("rows of a slice", 1),)):
        assert (slot_parts.SLICE_ROWS_MIN, before) == (1, 10_000)
        raise ZeroDivisionError
    assert before == slot_parts.SLICE_ROWS_MIN


# Bugs that are found only where a rare state is drawn.


def blocks_after_the_first_forgotten(patch: pytest.MonkeyPatch) -> None:

    def first_block(pieces: Iterable[bytes], block_bytes: int) -> Iterator[bytes]:
        yield from list(in_blocks(pieces, block_bytes))[:1]

    patch.setattr(checkpoint_store, "in_blocks", first_block)


def commit_without_its_lock(patch: pytest.MonkeyPatch) -> None:
    """A transaction is committed while another one is prepared, in two threads of one writer."""
    plain = BackgroundWork._commit

    async def commit(self: BackgroundWork, effect: Any) -> None:
        other = copy.copy(self)
        other._writer_lock = asyncio.Lock()
        await plain(other, effect)

    patch.setattr(BackgroundWork, "_commit", commit)


def directory_of_the_log_not_synced_by_its_reader(patch: pytest.MonkeyPatch) -> None:
    """A driver goes on from an entry that its predecessor may not have made durable."""
    patch.setattr(StoredLog, "_settle", lambda self, directories: None)


def what_is_authorised_during_a_commit_taken_for_committed(patch: pytest.MonkeyPatch) -> None:
    plain = Committer.handle

    def handle(self: Committer, event: CommitterEvent) -> list[CommitterEffect]:
        effects = plain(self, event)
        if isinstance(event, CommitAuthorised) and self._in_flight is not None and not effects:
            self._pending = {n: one for n, one in self._pending.items() if n != event.checkpoint_id}
        return effects

    patch.setattr(Committer, "handle", handle)


def worlds(**changed: Any) -> Iterator[Options]:
    for seed in range(200):
        thresholds = drawn_thresholds(seed)
        options = options_of(seed, COUNTS, EXACTLY_ONCE)
        yield replace(options, is_periodic=True, **{"thresholds": thresholds, **changed})


def at_small_thresholds() -> Iterator[Options]:
    name = "bytes of a block that is stored"
    return (one for one in worlds(inline_bytes=0) if name in dict(one.thresholds))


def where_sinks_are_slow() -> Iterator[Options]:
    drawn = worlds(interval_ms=10, pause_ms=0, faults=(), store_us=50_000)
    return (one for one in drawn if one.in_flight_max > 1)


def where_hosts_crash() -> Iterator[Options]:
    deaths = tuple(PlannedFault(ms, "kill the driver", choice=1) for ms in range(10, 400, 30))
    return worlds(hosts_crash=True, faults=deaths, safety_ms=400)


def where_checkpoints_are_frequent() -> Iterator[Options]:
    return (
        replace(one, interval_ms=back_to_back_ms(one), pause_ms=0, thresholds=()) for one in worlds(faults=())
    )


@dataclass(frozen=True)
class Where:
    """Attributes:
    worlds: In which the bug shows.
    breaks: What it has to break; see `must_break`.
    otherwise: With these options the same worlds show nothing of it.
    """

    worlds: Callable[[], Iterator[Options]]
    breaks: str
    otherwise: Mapping[str, Any]


BUGS: dict[Callable[[pytest.MonkeyPatch], None], Where] = {
    blocks_after_the_first_forgotten: Where(at_small_thresholds, "I1", {"thresholds": ()}),
    commit_without_its_lock: Where(where_sinks_are_slow, "I9", {"store_us": 200}),
    directory_of_the_log_not_synced_by_its_reader: Where(where_hosts_crash, "I6|I7", {"hosts_crash": False}),
    what_is_authorised_during_a_commit_taken_for_committed: Where(
        where_checkpoints_are_frequent, "I1", {"interval_ms": 300}
    ),
}


@pytest.mark.parametrize("plant", BUGS, ids=lambda one: one.__name__)
def test_a_bug_that_needs_a_rare_state_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    where = BUGS[plant]
    must_break(where.breaks, (live(options).failure for options in where.worlds()))


@pytest.mark.parametrize("plant", BUGS, ids=lambda one: one.__name__)
def test_it_is_not_found_where_the_state_is_not_drawn(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    where = BUGS[plant]
    for options in islice(where.worlds(), 5):
        life = live(replace(options, **where.otherwise))
        assert not life.failure, report(life)
