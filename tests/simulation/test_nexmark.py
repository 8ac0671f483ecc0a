"""The questions of Nexmark in worlds with faults, against a batch oracle that knows nothing of streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from examples import nexmark
from examples.nexmark import QUERIES, Auction, Bid, Event, Person, asked, event, flow_of
from tests.proof.batches import FaultProfile, LocalJobs, run_batches
from tests.simulation.seeds import some_of

import crosscut as cc
from crosscut import Windowed
from crosscut.testing.simulator.options import FAULT_KINDS, PROTOCOLS, options_of
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.user_flow import Rehearsal

EVENTS = 500
EXACT = tuple(one for one in PROTOCOLS if one != "at-least-once")
# After a broken promise of the disk, or a word of the user, a job may end without its answers.
FAULTS = tuple(
    one for one in FAULT_KINDS if one not in ("tear a part", "rot a part", "stop the job", "cancel the job")
)

# The generator.

SAMPLE = [event(number) for number in range(20_000)]


def those(kind: type, events: Iterable[Event] = SAMPLE) -> list[Any]:
    return [one for one in events if isinstance(one, kind)]


def test_an_event_is_the_same_whenever_it_is_made() -> None:
    assert [event(number) for number in range(1_000)] == SAMPLE[:1_000]


def test_of_fifty_events_one_is_a_person_and_three_are_auctions() -> None:
    assert [len(those(kind)) for kind in (Person, Auction, Bid)] == [400, 1_200, 18_400]
    assert [one.id for one in those(Person)] == list(range(400))
    assert [one.id for one in those(Auction)] == list(range(1_200))


def test_events_speak_of_people_and_auctions_that_there_have_been() -> None:
    people, auctions = -1, -1
    for one in SAMPLE:
        match one:
            case Person():
                people = one.id
            case Auction():
                auctions = one.id
                assert 0 <= one.seller <= people and one.time < one.expires
            case Bid():
                assert 0 <= one.bidder <= people and 0 <= one.auction <= max(auctions, 2)


def test_events_are_late_but_never_by_more_than_they_may_be() -> None:
    newest, late = 0, 0
    for one in SAMPLE:
        late += one.time < newest
        newest = max(newest, one.time)
        assert newest - one.time < nexmark.LATE_MS_MAX
    assert late > len(SAMPLE) / 2


# The oracle: the questions as one would put them to tables that hold everything.


def in_time(auction: Auction, bid: Bid) -> bool:
    return auction.id == bid.auction and auction.time <= bid.time <= auction.expires


def winners(events: Sequence[Event]) -> list[tuple[Auction, Bid]]:
    won = []
    for auction in those(Auction, events):
        bids = [bid for bid in those(Bid, events) if in_time(auction, bid)]
        if bids:
            highest = max(bid.price for bid in bids)
            earliest = min(bid.time for bid in bids if bid.price == highest)
            ties = [bid for bid in bids if (bid.price, bid.time) == (highest, earliest)]
            won.append((auction, min(ties, key=lambda bid: bid.bidder)))
    return won


def mean(prices: Sequence[int]) -> float:
    return float(Fraction(sum(prices), len(prices)))


def answers(name: str, events: Sequence[Event]) -> list[Any]:
    people, auctions, bids = (those(kind, events) for kind in (Person, Auction, Bid))
    match name:
        case "q0":
            return list(bids)
        case "q1":
            return [Bid(one.auction, one.bidder, one.price * 908 // 1_000, one.time) for one in bids]
        case "q2":
            return [(one.auction, one.price) for one in bids if one.auction in range(0, 10_000, 123)]
        case "q3":
            return [
                (person.name, person.city, person.state, auction.id)
                for person, auction in product(people, auctions)
                if auction.seller == person.id
                and auction.category == 10
                and person.state in {"OR", "ID", "CA"}
            ]
        case "q4":
            sold = [(auction.category, bid.price) for auction, bid in winners(events)]
            return [
                (category, mean([price for one, price in sold if one == category]))
                for category in {one for one, _ in sold}
            ]
        case "q6":
            closed = sorted(winners(events), key=lambda won: (won[0].expires, won[0].id))
            return [
                (seller, mean([bid.price for auction, bid in closed if auction.seller == seller][-10:]))
                for seller in {auction.seller for auction, _ in closed}
            ]
        case "q9":
            return winners(events)
        case "q5":
            counts = {
                end: Counter(bid.auction for bid in bids if end - 10_000 <= bid.time < end)
                for end in ends(bids, 10_000, 2_000)
            }
            return [
                (end, auction, count)
                for end, found in counts.items()
                for auction, count in found.items()
                if count == max(found.values())
            ]
        case "q7":
            highest = {
                end: max(bid.price for bid in bids if end - 10_000 <= bid.time < end)
                for end in ends(bids, 10_000, 10_000)
            }
            return [bid for bid in bids if bid.price == highest[bid.time - bid.time % 10_000 + 10_000]]
        case "q8":
            return [
                (person.id, person.name, start)
                for person in people
                for start in [person.time // 10_000 * 10_000]
                if any(one.seller == person.id and 0 <= one.time - start < 10_000 for one in auctions)
            ]
        case "q11":
            return [
                Windowed(bidder, session[0], session[-1] + 1_000, len(session))
                for bidder in {bid.bidder for bid in bids}
                for session in sessions([bid.time for bid in bids if bid.bidder == bidder], 1_000)
            ]
        case "q12":
            return list(Counter(bid.bidder for bid in bids).items())
    raise AssertionError(name)


def ends(bids: Sequence[Bid], size: int, every: int) -> list[int]:
    """Return where windows end that hold a bid."""
    times = [bid.time for bid in bids]
    found = range(min(times) // every * every, max(times) + size + every, every)
    return [end for end in found if any(end - size <= time < end for time in times)]


def sessions(times: Iterable[int], gap: int) -> list[list[int]]:
    """Return times in groups, between which there is at least `gap`."""
    found: list[list[int]] = []
    for time in sorted(times):
        if found and time - found[-1][-1] < gap:
            found[-1].append(time)
        else:
            found.append([time])
    return found


# The questions, asked of the engine.


def told(name: str, records: Sequence[Any]) -> Iterable[Any]:
    """Return what can be compared: not when a bid has arrived, but that each has."""
    if name != "q12":
        return records
    assert all(start % 10_000 == 0 for _, start, _ in records)
    totals: Counter[int] = Counter()
    for person, _, count in records:
        totals[person] += count
    return totals.items()


def rehearsed(name: str, events: Sequence[Event]) -> Rehearsal:
    """The flow of a question over these events, in two splits that are read side by side."""
    halves = {"even": events[::2], "odd": events[1::2]}
    unstable = "it asks a clock" if name == "q12" else ""
    return Rehearsal(flow_of(name, len(events), cc.collect()), {"events": halves}, unstable=unstable)


@some_of(2, few=1)
@pytest.mark.parametrize("name", QUERIES)
def test_a_question_is_answered_as_by_a_batch_whatever_fails(name: str, seeds: range) -> None:
    events = SAMPLE[:EVENTS]
    expected = Counter(answers(name, events))
    assert expected
    flow, failed = rehearsed(name, events), 0
    for seed in seeds:
        options = replace(options_of(seed, (name,), EXACT, kinds=FAULTS), splits_per_task=1)
        world = flow.world(options)
        world.run()
        assert Counter(told(name, world.resource.records("answers"))) == expected, (name, seed)
        failed += world.seen["epoch"] > 1
    assert failed, "no world had a failover"


@pytest.mark.parametrize("name", QUERIES)
def test_a_question_is_answered_in_batches_as_well_whatever_becomes_of_attempts(
    tmp_path: Path, name: str
) -> None:
    events = SAMPLE[:EVENTS]
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow(f"nexmark-{name}")
    halves = ReplayedSource({"even": events[::2], "odd": events[1::2]})
    asked(flow.source(halves).named("events"), name).sink(out)
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=120),
        checkpoint_dir=tmp_path / "checkpoints",
        checkpoint_interval="10ms",
    )
    storm = FaultProfile(doubled=0.2, torn=0.1, lost=0.1)
    end, _ = run_batches(
        flow.compile(2, 128), settings, lambda graph, url: LocalJobs(graph, url, Random(7), storm)
    )
    assert end is not None
    assert end.outcome == "finished", end
    assert Counter(told(name, out.records())) == Counter(answers(name, events))


@pytest.mark.parametrize("name", QUERIES)
def test_the_oracle_has_answers_to_tell_apart(name: str) -> None:
    """Of other events, it gives others: else the engine could say anything."""
    assert Counter(answers(name, SAMPLE[:EVENTS])) != Counter(answers(name, SAMPLE[EVENTS : 2 * EVENTS]))


def test_questions_are_flows_by_name_for_the_command_line() -> None:
    assert nexmark.q3.name == "nexmark-q3"
    with pytest.raises(AttributeError):
        _ = nexmark.q99
