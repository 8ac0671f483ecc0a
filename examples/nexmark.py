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

EVENTS_PER_S = 20
LATE_MS_MAX = 1_000
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
            time + 1_000 + chance.below(20_000),
        )
    opened = (rounds + 1) * AUCTIONS_A_ROUND
    if chance.below(HOT_SHARE) == 0:
        wanted = (opened - 1) // HOT_EVERY * HOT_EVERY
    else:
        wanted = opened - 1 - chance.below(min(opened, OPEN_AUCTIONS))
    return Bid(wanted, seller_or_bidder, 100 + chance.below(1_000_000), time)


# The questions. Each takes the stream of events and returns its answers.

Query = Callable[[cc.Stream[Event]], "cc.Stream[Any]"]


def people(events: cc.Stream[Event]) -> cc.Stream[Person]:
    return events.flat_map(lambda one: [one] if isinstance(one, Person) else [])


def auctions(events: cc.Stream[Event]) -> cc.Stream[Auction]:
    return events.flat_map(lambda one: [one] if isinstance(one, Auction) else [])


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

    def on_record(self, record: Person | Auction, ctx: cc.Context) -> Iterable[tuple[str, str, str, int]]:
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

    def wanted(one: Event) -> list[Person | Auction]:
        match one:
            case Person():
                return [one] if one.state in ("OR", "ID", "CA") else []
            case Auction():
                return [one] if one.category == FIRST_CATEGORY else []
            case _:
                return []

    def seller(one: Any) -> int:
        return int(one.id if isinstance(one, Person) else one.seller)

    return events.flat_map(wanted).key_by(seller).process(LocalItems())


def rank(bid: Bid) -> tuple[int, int, int]:
    """The best bid comes first: the highest, of these the earliest."""
    return -bid.price, bid.time, bid.bidder


class Lots(cc.KeyedProcess[Auction | Bid, tuple[Auction, Bid]]):
    """Keeps the best bid of each auction until it closes; a closed auction leaves nothing."""

    auction = cc.ValueState[Auction | None](default=None)
    best = cc.ValueState[Bid | None](default=None)
    early = cc.ListState[Bid]()
    """Bids that have come before their auction."""

    def on_record(self, record: Auction | Bid, ctx: cc.Context) -> None:
        auction = self.auction.get()
        if isinstance(record, Auction):
            self.auction.set(record)
            # Once the watermark is there, every bid that is in time has come.
            ctx.set_timer(record.expires + 1)
            for bid in self.early.get():
                self._offer(record, bid)
            self.early.clear()
        elif auction is not None:
            self._offer(auction, record)
        else:
            self.early.append(record)
            # No auction comes later than that after a bid for it.
            ctx.set_timer(record.time + LATE_MS_MAX)

    def _offer(self, auction: Auction, bid: Bid) -> None:
        best = self.best.get()
        is_in_time = auction.time <= bid.time <= auction.expires
        if is_in_time and (best is None or rank(bid) < rank(best)):
            self.best.set(bid)

    def on_timer(self, time: int, ctx: cc.Context) -> Iterable[tuple[Auction, Bid]]:
        auction, best = self.auction.get(), self.best.get()
        if auction is None:
            self.early.set([bid for bid in self.early.get() if bid.time + LATE_MS_MAX > time])
        elif time > auction.expires:
            if best is not None:
                yield auction, best
            self.auction.clear()
            self.best.clear()


def winning_bids(events: cc.Stream[Event]) -> cc.Stream[tuple[Auction, Bid]]:
    """9: which bid has won each auction, as soon as it has closed?"""

    def auction(one: Any) -> int:
        return int(one.auction if isinstance(one, Bid) else one.id)

    def lots(one: Event) -> list[Auction | Bid]:
        return [] if isinstance(one, Person) else [one]

    return events.flat_map(lots).key_by(auction).process(Lots())


def average_price_by_category(events: cc.Stream[Event]) -> cc.Stream[tuple[int, float]]:
    """4: for how much are things of each category sold?"""

    def added(total: tuple[int, int], one: tuple[int, int]) -> tuple[int, int]:
        return total[0] + one[1], total[1] + 1

    prices = winning_bids(events).map(lambda won: (won[0].category, won[1].price))
    totals = prices.key_by(lambda one: one[0]).aggregate((0, 0), added, emit="final")
    return totals.map(lambda one: (one[0], one[1][0] / one[1][1]))


LAST_SOLD = 10


def average_price_by_seller(events: cc.Stream[Event]) -> cc.Stream[tuple[int, float]]:
    """6: for how much has each seller sold its last ten things?"""

    def newest(sold: tuple[Any, ...], one: Any) -> tuple[Any, ...]:
        return tuple(sorted((*sold, one[1:]))[-LAST_SOLD:])

    sales = winning_bids(events).map(lambda won: (won[0].seller, won[0].expires, won[0].id, won[1].price))
    last = sales.key_by(lambda one: one[0]).aggregate(tuple, newest, emit="final")
    return last.map(lambda one: (one[0], sum(sale[2] for sale in one[1]) / len(one[1])))


Best = tuple[Any, ...]


def best(key: Callable[[Any], int]) -> Callable[[Best, Any], Best]:
    """Return what keeps all records with the highest `key`."""

    def kept(found: Best, one: Any) -> Best:
        if not found or key(one) > key(found[0]):
            return (one,)
        return (*found, one) if key(one) == key(found[0]) else found

    return kept


def hot_items(events: cc.Stream[Event]) -> cc.Stream[tuple[int, int, int]]:
    """5: every two seconds, which auctions have had the most bids in the last ten?

    An answer is (end of the ten seconds, auction, bids). The results of the first windows come at their last
    milliseconds, so those with the same end are in the same window of two seconds.
    """
    counts = bids(events).key_by(lambda bid: bid.auction).window(cc.sliding("10s", every="2s")).count()
    hottest = counts.key_by(lambda _: 0).window(cc.tumbling("2s")).aggregate((), best(lambda one: one.value))
    return hottest.flat_map(lambda found: [(one.end, one.key, one.value) for one in found.value])


def highest_bids(events: cc.Stream[Event]) -> cc.Stream[Bid]:
    """7: which were the highest bids of each ten seconds?"""
    highest = (
        bids(events).key_by(lambda _: 0).window(cc.tumbling("10s")).aggregate((), best(lambda bid: bid.price))
    )
    return highest.flat_map(lambda found: found.value)


def new_sellers(events: cc.Stream[Event]) -> cc.Stream[tuple[int, str, int]]:
    """8: who has come and opened an auction within the same ten seconds? (id, name, start of these)"""
    period = cc.tumbling("10s")
    sellers = auctions(events).key_by(lambda auction: auction.seller).window(period).count()
    joined = (
        people(events)
        .key_by(lambda person: person.id)
        .window_join(sellers.key_by(lambda one: one.key), period)
    )
    return joined.map(lambda one: (one.key, one.value[0].name, one.start))


def bids_by_session(events: cc.Stream[Event]) -> cc.Stream[Any]:
    """11: how many bids has each person made in each of its sessions? A pause of a second ends one."""
    return bids(events).key_by(lambda bid: bid.bidder).window(cc.session("1s")).count()


class Arrivals(cc.KeyedProcess[Bid, tuple[int, int, int]]):
    """Counts the bids of each person by the ten seconds of the clock in which they come."""

    counts = cc.MapState[int, int]()

    def on_record(self, record: Bid, ctx: cc.Context) -> None:
        start = ctx.now() // PERIOD_MS * PERIOD_MS
        self.counts[start] = self.counts.get(start, 0) + 1
        ctx.set_processing_timer(start + PERIOD_MS)

    def on_processing_timer(self, time: int, ctx: cc.Context) -> Iterable[tuple[int, int, int]]:
        yield ctx.key, time - PERIOD_MS, self.counts.pop(time - PERIOD_MS)


PERIOD_MS = 10_000


def bids_by_arrival(events: cc.Stream[Event]) -> cc.Stream[tuple[int, int, int]]:
    """12: how many bids of each person have come in each ten seconds? (person, start, bids)

    By the clock: the answer differs each time. Each bid counts once all the same: what has been staged is
    kept, and not computed again.
    """
    return bids(events).key_by(lambda bid: bid.bidder).process(Arrivals())


BY_EVENT_TIME: dict[str, Query] = {
    "q4": average_price_by_category,
    "q5": hot_items,
    "q6": average_price_by_seller,
    "q7": highest_bids,
    "q8": new_sellers,
    "q9": winning_bids,
    "q11": bids_by_session,
}
QUERIES: dict[str, Query] = {
    "q0": pass_through,
    "q1": in_euros,
    "q2": of_some_auctions,
    "q3": local_items,
    "q12": bids_by_arrival,
    **BY_EVENT_TIME,
}


def asked(events: cc.Stream[Event], name: str) -> cc.Stream[Any]:
    """Return the answers to one question."""
    if name in BY_EVENT_TIME:
        events = events.assign_timestamps(lambda one: one.time, out_of_orderness=LATE_MS_MAX)
    return QUERIES[name](events)


def flow_of(name: str, events: int = EVENTS, sink: Any = None) -> cc.Flow:
    """Return the flow of one question, about so many events."""
    flow = cc.Flow(f"nexmark-{name}")
    answers = asked(flow.source(cc.generate(event, count=events)).named("events"), name)
    answers.sink(sink or cc.files.write_jsonl(f"nexmark-{name}")).named("answers")
    return flow


def __getattr__(name: str) -> cc.Flow:
    if name not in QUERIES:
        raise AttributeError(name)
    return flow_of(name)
