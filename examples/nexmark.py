"""Nexmark: people sell things at auctions and bid for them, and questions are asked of that while it goes on.

crosscut run examples/nexmark.py:q3

The events come from a generator: event i is always the same one, so that a source can be read again. They
carry the time at which they happened, and come a little out of order. The questions are those of the Nexmark
suite (Tucker, Tufte, Papadimos, Maier, *NEXMark: a benchmark for queries over data streams*, 2002, and its
later versions), by their numbers there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import crosscut as cc

EVENTS = 10_000

# The generator.

EVENTS_PER_S = 100
LATE_MS_MAX = 200
"""An event comes by so much later, at most, than one that happened after it."""
START_MS = 1_700_000_000_000

ROUND = 50
"""Of so many events in a row the first is a person, the next three are auctions, and the others bids."""
AUCTIONS_A_ROUND = 3
OPEN_AUCTIONS = 20
RECENT_PEOPLE = 50
HOT_SHARE = 2
"""Every so-manieth bid is for the newest hot auction."""
HOT_EVERY = 10

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne")
FIRST_CATEGORY, CATEGORIES = 10, 5


@dataclass(frozen=True, slots=True)
class Person:
    id: int
    name: str
    city: str
    state: str
    time: int


@dataclass(frozen=True, slots=True)
class Auction:
    id: int
    item: str
    initial_bid: int
    reserve: int
    seller: int
    category: int
    time: int
    expires: int


@dataclass(frozen=True, slots=True)
class Bid:
    auction: int
    bidder: int
    price: int
    time: int


Event = Person | Auction | Bid


class Chance:
    """Numbers that look drawn and depend on the event alone (splitmix64)."""

    def __init__(self, number: int) -> None:
        self._state = number * 0x9E3779B97F4A7C15

    def below(self, limit: int) -> int:
        """Return the next number, from 0 to `limit` - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((self._state ^ (self._state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return (mixed ^ (mixed >> 31)) % limit


def event(number: int) -> Event:
    """Return the event with this number."""
    chance = Chance(number)
    rounds, offset = divmod(number, ROUND)
    time = START_MS + number * 1_000 // EVENTS_PER_S - chance.below(LATE_MS_MAX)
    if offset == 0:
        home = chance.below(len(STATES))
        return Person(rounds, f"person {rounds}", CITIES[home], STATES[home], time)
    seller_or_bidder = rounds - chance.below(min(rounds + 1, RECENT_PEOPLE))
    if offset <= AUCTIONS_A_ROUND:
        auction = rounds * AUCTIONS_A_ROUND + offset - 1
        initial = 100 + chance.below(10_000)
        return Auction(
            auction,
            f"item {auction}",
            initial,
            initial + chance.below(10_000),
            seller_or_bidder,
            FIRST_CATEGORY + chance.below(CATEGORIES),
            time,
            time + 500 + chance.below(8_000),
        )
    opened = (rounds + 1) * AUCTIONS_A_ROUND
    if chance.below(HOT_SHARE) == 0:
        wanted = (opened - 1) // HOT_EVERY * HOT_EVERY
    else:
        wanted = opened - 1 - chance.below(min(opened, OPEN_AUCTIONS))
    return Bid(wanted, seller_or_bidder, 100 + chance.below(1_000_000), time)


# The questions. Each takes the stream of events and returns its answers.

Query = Callable[[cc.Stream[Event]], "cc.Stream[Any]"]


def bids(events: cc.Stream[Event]) -> cc.Stream[Bid]:
    return events.flat_map(lambda one: [one] if isinstance(one, Bid) else [])


def pass_through(events: cc.Stream[Event]) -> cc.Stream[Bid]:
    """0: every bid as it is."""
    return bids(events)


def in_euros(events: cc.Stream[Event]) -> cc.Stream[Bid]:
    """1: every bid in another currency, in whole units."""
    return bids(events).map(lambda bid: replace(bid, price=bid.price * 908 // 1_000))


def of_some_auctions(events: cc.Stream[Event]) -> cc.Stream[tuple[int, int]]:
    """2: auction and price of the bids for every 123rd auction."""
    return bids(events).filter(lambda bid: bid.auction % 123 == 0).map(lambda bid: (bid.auction, bid.price))


class LocalItems(cc.KeyedProcess[Person | Auction, tuple[str, str, str, int]]):
    """Joins a seller with the auctions that it has, whichever comes first."""

    seller = cc.ValueState[Person | None](default=None)
    waiting = cc.ListState[int]()

    def on_record(self, record: Person | Auction, ctx: Any) -> Iterable[tuple[str, str, str, int]]:
        if isinstance(record, Person):
            self.seller.set(record)
            for auction in self.waiting.get():
                yield record.name, record.city, record.state, auction
            self.waiting.clear()
        elif (seller := self.seller.get()) is not None:
            yield seller.name, seller.city, seller.state, record.id
        else:
            self.waiting.append(record.id)


def local_items(events: cc.Stream[Event]) -> cc.Stream[tuple[str, str, str, int]]:
    """3: who sells in category 10, in Oregon, Idaho or California?"""

    def wanted(one: Event) -> bool:
        match one:
            case Person():
                return one.state in ("OR", "ID", "CA")
            case Auction():
                return one.category == FIRST_CATEGORY
            case _:
                return False

    def seller(one: Any) -> int:
        return int(one.id if isinstance(one, Person) else one.seller)

    return events.filter(wanted).key_by(seller).process(LocalItems())


@dataclass(frozen=True, slots=True)
class Lot:
    """An auction, and the bids for it: all of them until it is known when it takes bids, then the best."""

    auction: Auction | None = None
    bids: tuple[Bid, ...] = ()

    def with_event(self, one: Auction | Bid) -> Lot:
        auction = one if isinstance(one, Auction) else self.auction
        found = (*self.bids, one) if isinstance(one, Bid) else self.bids
        if auction is not None:
            found = tuple(
                sorted(filter(lambda bid: auction.time <= bid.time <= auction.expires, found), key=rank)[:1]
            )
        return Lot(auction, found)


def rank(bid: Bid) -> tuple[int, int, int]:
    """The best bid comes first: the highest, of these the earliest."""
    return -bid.price, bid.time, bid.bidder


def winning_bids(events: cc.Stream[Event]) -> cc.Stream[tuple[Auction, Bid]]:
    """9: which bid has won each auction?"""

    def auction(one: Any) -> int:
        return int(one.auction if isinstance(one, Bid) else one.id)

    def won(lot: tuple[int, Lot]) -> list[tuple[Auction, Bid]]:
        auction, found = lot[1].auction, lot[1].bids
        return [(auction, found[0])] if auction is not None and found else []

    lots = events.filter(lambda one: not isinstance(one, Person)).key_by(auction)
    return lots.aggregate(Lot, Lot.with_event, emit="final").flat_map(won)


def average_price_by_category(events: cc.Stream[Event]) -> cc.Stream[tuple[int, float]]:
    """4: for how much are things of each category sold?"""
    prices = winning_bids(events).map(lambda won: (won[0].category, won[1].price))
    totals = prices.key_by(lambda one: one[0]).aggregate(
        lambda: (0, 0), lambda total, one: (total[0] + one[1], total[1] + 1), emit="final"
    )
    return totals.map(lambda one: (one[0], one[1][0] / one[1][1]))


LAST_SOLD = 10


def average_price_by_seller(events: cc.Stream[Event]) -> cc.Stream[tuple[int, float]]:
    """6: for how much has each seller sold its last ten things?"""

    def newest(sold: tuple[Any, ...], one: Any) -> tuple[Any, ...]:
        return tuple(sorted((*sold, one[1:]))[-LAST_SOLD:])

    sales = winning_bids(events).map(lambda won: (won[0].seller, won[0].expires, won[0].id, won[1].price))
    last = sales.key_by(lambda one: one[0]).aggregate(tuple, newest, emit="final")
    return last.map(lambda one: (one[0], sum(sale[2] for sale in one[1]) / len(one[1])))


QUERIES: dict[str, Query] = {
    "q0": pass_through,
    "q1": in_euros,
    "q2": of_some_auctions,
    "q3": local_items,
    "q4": average_price_by_category,
    "q6": average_price_by_seller,
    "q9": winning_bids,
}


def flow_of(name: str, events: int = EVENTS, sink: Any = None) -> cc.Flow:
    """Return the flow of one question, about so many events."""
    flow = cc.Flow(f"nexmark-{name}")
    answers = QUERIES[name](flow.source(cc.generate(event, count=events)).named("events"))
    answers.sink(sink or cc.files.jsonl(f"nexmark-{name}")).named("answers")
    return flow


def __getattr__(name: str) -> cc.Flow:
    if name not in QUERIES:
        raise AttributeError(name)
    return flow_of(name)
