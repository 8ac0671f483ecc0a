"""Draws a flow from a seed: any operator after any other, loops in loops and one after the other."""

from __future__ import annotations

import random
from typing import Literal, get_args

from tests.proof.flows.adding import with_another
from tests.proof.flows.description import Description
from tests.proof.flows.oracle import TooMuchError, expected_output
from tests.proof.flows.steps import (
    FINAL_ONLY,
    UPDATES_ONLY,
    Aggregate,
    AggregateName,
    Attempt,
    AttemptName,
    Broadcast,
    CallName,
    Count,
    Counted,
    CountedName,
    Deduplicate,
    Filter,
    FilterName,
    FlatMap,
    FlatMapName,
    FoldName,
    ForEach,
    HowName,
    Join,
    JoinName,
    KeyBy,
    KeyName,
    Leave,
    Loop,
    Map,
    MapAsync,
    MapName,
    Merge,
    Mortal,
    Newest,
    OrderName,
    Pairs,
    Process,
    RateLimit,
    Rebalance,
    Reduce,
    ReduceName,
    Remember,
    Rules,
    SaidName,
    Side,
    Sink,
    Source,
    Split,
    StateName,
    Step,
    Sum,
    SumName,
    Tally,
    TimedSource,
    TireName,
    TopN,
    Union,
    Window,
    WindowName,
    WithinName,
    part_count,
)
from tests.proof.flows.timing import with_time
from tests.proof.flows.ways import downstream, has_determined_times, is_dealt, is_open, resolved, unread

from crosscut.errors import FlowError
from crosscut.graph.specs import Emit

Action = Literal[
    "map",
    "filter",
    "flat_map",
    "split",
    "attempt",
    "map_async",
    "rate_limit",
    "for_each",
    "remember",
    "merge",
    "union",
    "rebalance",
    "broadcast",
    "keyed",
    "loop",
    "leave",
    "source",
    "sink",
]
ACTIONS: tuple[Action, ...] = get_args(Action)
KEYLESS: tuple[Action, ...] = ("rate_limit", "for_each", "remember", "merge")
WORK_MAX = 1_200
"""Records that all steps of a drawn flow are given, with `PARALLELISM_MAX`."""
PARALLELISM_MAX = 3
STEPS_MAX = 14
WINDOWS_EVERY = 6
"""Of so many seeds one may have windows and joins: then no record of a source is ever late."""
MOMENT_SHARE = 0.5
"""Of those, so many also let one record of each key and time pass."""
TIMED_SHARE = 0.4
"""Of all flows, so many have time in them."""
ANOTHER_SHARE = 0.2
"""So many have a step of those that `adding` knows."""


def drawn_flow(seed: int) -> Description:
    """Return the flow that `seed` stands for, the same in every process."""
    attempt = 0
    while True:
        dice = random.Random(f"crosscut flow {seed} {attempt}")
        attempt += 1
        try:
            has_windows = seed % WINDOWS_EVERY == WINDOWS_EVERY - 1
            description = _Drawing(dice, is_timed=has_windows).description()
            # By dice of its own, as what follows: with or without, the rest of the flow is the same.
            moment_dice = random.Random(f"crosscut moment {seed} {attempt}")
            if has_windows and moment_dice.random() < MOMENT_SHARE:
                description = _with_moment(description, moment_dice)
            time_dice = random.Random(f"crosscut time {seed} {attempt}")
            if not has_windows and time_dice.random() < TIMED_SHARE:
                description = with_time(description, time_dice)
            dice_of_another = random.Random(f"crosscut another {seed} {attempt}")
            if dice_of_another.random() < ANOTHER_SHARE:
                description = with_another(description, dice_of_another)
            expected = expected_output(description, PARALLELISM_MAX, WORK_MAX)
        except (TooMuchError, FlowError):
            continue
        # A flow that puts out nothing shows nothing, but for one in a while.
        if any(expected.records.values()) or dice.random() < 0.05:
            return description


def _with_moment(description: Description, dice: random.Random) -> Description:
    """Return the flow with a `deduplicate` that forgets what is known of a key after a millisecond."""
    steps = description.steps
    streams = [one for one in range(len(steps)) if is_open(steps, one) and has_determined_times(steps, one)]
    end = len(steps)
    # Two streams bring more that is alike, one perhaps long after the other.
    union = Union((dice.choice(streams), dice.choice(streams)))
    key_by = KeyBy(end, dice.choice(get_args(KeyName)), dice.choice((1, 2, 3)))
    return Description((*steps, union, key_by, Deduplicate(end + 1, "a moment"), Sink(end + 2)))


class _Drawing:
    def __init__(self, dice: random.Random, *, is_timed: bool) -> None:
        self._dice = dice
        self._is_timed = is_timed
        self._steps: list[Step] = []
        self._open_loops: list[int] = []
        # Swarm testing: a flow has much of some operators and none of others.
        self._weights = {action: dice.choice((0, 0, 1, 2)) for action in ACTIONS}
        for action in ("keyed", "loop", "leave"):
            self._weights[action] += 3
        # So that what has no keys does not crowd out all else.
        self._weights |= {action: self._weights[action] // 2 for action in KEYLESS}
        self._final_share = dice.choice((0.0, 0.3, 0.7, 1.0))
        # Some flows are one long way, others branch.
        self._newest_share = dice.choice((0.4, 0.7, 1.0))
        # Some loops are in each other, others one after the other.
        self._depth_max = dice.choice((1, 1, 2, 3))

    def description(self) -> Description:
        dice = self._dice
        self._source()
        for _ in range(dice.randint(1, STEPS_MAX)):
            self._act(dice.choices(ACTIONS, [self._weights[one] for one in ACTIONS])[0])
        while self._open_loops:
            self._leave()
        self._end_all()
        return Description(tuple(self._steps))

    def _act(self, action: Action) -> None:
        dice = self._dice
        match action:
            case "map":
                stream = self._any()
                names = [one for one in get_args(MapName) if one != "energise" or not self._may_turn(stream)]
                self._add(Map(stream, dice.choice(names), dice.randint(1, 3)))
            case "filter":
                names = [one for one in get_args(FilterName) if one != "none" or dice.random() < 0.2]
                self._add(Filter(self._any(), dice.choice(names), dice.randrange(3)))
            case "flat_map":
                self._add(FlatMap(self._any(), dice.choice(get_args(FlatMapName)), dice.randint(1, 2)))
            case "split":
                self._with_sides(Split(self._any(), dice.choice((1, 1, 2, 3))))
            case "attempt":
                self._with_sides(
                    Attempt(self._any(), dice.choice(get_args(AttemptName)), dice.choice((2, 3, 5)))
                )
            case "map_async":
                call, order = dice.choice(get_args(CallName)), dice.choice(get_args(OrderName))
                self._with_sides(MapAsync(self._any(), call, dice.choice((1, 2, 5)), order))
            case "rate_limit":
                self._add(RateLimit(self._any(), dice.choice((1, 2, 5))))
            case "for_each":
                self._with_sides(ForEach(self._any(), dice.choice((2, 3, 5))))
            case "remember":
                self._add(Remember(self._any()))
            case "merge":
                self._add(Merge(self._any(), self._any()))
            case "union":
                count = dice.choice((2, 2, 2, 3))
                self._add(Union(tuple(self._any() for _ in range(count))))
            case "rebalance" | "broadcast":
                stream = self._any()
                if not is_dealt(tuple(self._steps), stream):
                    self._add(Rebalance(stream) if action == "rebalance" else Broadcast(stream))
            case "keyed":
                self._keyed()
            case "loop":
                if len(self._open_loops) < self._depth_max:
                    stream = self._any()
                    if not self._may_turn(stream) and dice.random() < 0.9:
                        stream = self._add(Map(stream, "energise", dice.randint(1, 4)))
                    self._open_loops.append(self._add(Loop(stream, dice.choice(get_args(TireName)))))
            case "leave":
                if self._open_loops:
                    self._leave()
            case "source":
                self._source()
            case "sink":
                self._add(Sink(self._any()))

    def _may_turn(self, stream: int) -> bool:
        """Whether what reads this stream may come to lie on a cycle."""
        found = {one for loop in self._open_loops for one in self._inside(loop)}
        return stream in found or resolved(tuple(self._steps), stream) in found

    def _add(self, step: Step) -> int:
        self._steps.append(step)
        return len(self._steps) - 1

    def _with_sides(self, step: Step) -> None:
        number = self._add(step)
        for part in range(part_count(step)):
            self._add(Side(number, part))

    def _any(self) -> int:
        """Return a stream to go on from: mostly the newest one, or one that nobody reads yet."""
        dice = self._dice
        steps = tuple(self._steps)
        open_streams = [one for one in range(len(steps)) if is_open(steps, one)]
        if dice.random() < self._newest_share:
            return open_streams[-1]
        lonely = [one for one in unread(steps) if is_open(steps, one)]
        return dice.choice(lonely if lonely and dice.random() < 0.7 else open_streams)

    def _source(self) -> None:
        dice = self._dice
        splits = tuple(dice.choice((0, 1, 2, 3, 5, 8)) for _ in range(dice.choice((1, 1, 2, 3))))
        kind = TimedSource if self._is_timed else Source
        self._add(kind(splits, dice.choice((0, 1, 2, 3))))

    def _keyed(self) -> None:
        dice = self._dice
        if self._is_timed and dice.random() < 0.7:
            self._timed()
            return
        stream = self._any()
        is_of_numbers = dice.random() < 0.1
        if is_of_numbers:
            stream = self._add(Map(stream, "number", 0))
        names = get_args(KeyName)
        # In a loop most keys hold the energy: else nothing that is counted goes round.
        holds_energy = bool(self._open_loops) and dice.random() < 0.5
        name: KeyName = "with energy" if holds_energy else dice.choice(names)
        modulus = dice.choice((1, 2, 3, 5))
        key_by = self._add(KeyBy(stream, name, modulus))
        if not is_of_numbers and dice.random() < 0.3:
            self._with_state(key_by, name, modulus)
            return
        for _ in range(dice.choice((1, 1, 1, 1, 2))):
            self._with_sides(self._folding(key_by, is_of_numbers=is_of_numbers))

    def _with_state(self, key_by: int, name: KeyName, modulus: int) -> None:
        """Add what keeps something for each key, and is no fold."""
        dice = self._dice
        match dice.choice(("counted", "deduplicate", "mortal", "pairs", "rules", "newest")):
            case "counted" if not self._may_turn(key_by):
                self._add(Counted(key_by, dice.choice(get_args(CountedName)), dice.choice((1, 2, 3))))
            case "deduplicate":
                steps = tuple(self._steps)
                upstream = (one for one in range(len(steps)) if key_by in downstream(steps, one))
                is_said_late = any(getattr(steps[one], "emit", "") == "final" for one in upstream)
                has_timers = not (is_said_late or self._may_turn(key_by))
                names: tuple[WithinName, ...] = get_args(WithinName)[: 2 if has_timers else 1]
                self._add(Deduplicate(key_by, dice.choice(names)))
            case "pairs":
                self._add(Pairs(key_by, self._add(KeyBy(self._any(), name, modulus))))
            case "newest" if not self._is_timed:
                self._add(Newest(key_by, self._add(KeyBy(self._any(), name, modulus))))
            case "rules":
                other = self._any()
                if is_dealt(tuple(self._steps), other):
                    other = self._add(Map(other, "same", 0))
                self._add(Rules(key_by, other, dice.choice(get_args(SaidName))))
            case _:
                self._add(Mortal(key_by, "event time" if self._is_timed else "processing time"))

    def _timed(self) -> None:
        """Add a window or a join, where it is determined which record has which time."""
        dice = self._dice
        steps = tuple(self._steps)
        streams = [
            one for one in range(len(steps)) if is_open(steps, one) and has_determined_times(steps, one)
        ]
        if not streams or self._open_loops:
            return
        name, modulus = dice.choice(get_args(KeyName)), dice.choice((1, 2, 3, 5))
        key_by = self._add(KeyBy(self._one_of(streams), name, modulus))
        size = dice.choice((20, 50, 90, 200))
        if dice.random() < 0.5:
            window, fold = dice.choice(get_args(WindowName)), dice.choice(get_args(FoldName))
            self._add(Window(key_by, window, size, fold))
            return
        other = self._add(KeyBy(self._one_of(streams), name, modulus))
        join: JoinName = dice.choice(get_args(JoinName))
        how: HowName = dice.choice(get_args(HowName) if join != "latest" else ("inner", "left"))
        self._add(Join(key_by, other, join, how, size))

    def _folding(self, key_by: int, *, is_of_numbers: bool) -> Step:
        dice = self._dice
        if is_of_numbers and dice.random() < 0.7:
            return Sum(key_by, "itself", "final")
        emit: Emit = "final" if dice.random() < self._final_share else "updates"
        unfit = {*(UPDATES_ONLY if emit == "final" else FINAL_ONLY), "itself"}
        # Half as often: what says nothing at the end.
        folds = ("count", "sum", "reduce", "aggregate", "top_n")
        match dice.choice((*folds, *folds, "process", "tally")):
            case "process":
                return Process(key_by, dice.choice((1, 2, 3)))
            case "top_n":
                return TopN(key_by, dice.choice((1, 2, 3)), emit)
            case "tally":
                return Tally(key_by, dice.choice(get_args(StateName)))
            case "sum":
                sums: list[SumName] = [one for one in get_args(SumName) if one not in unfit]
                return Sum(key_by, dice.choice(sums), emit)
            case "reduce":
                reduces: list[ReduceName] = [one for one in get_args(ReduceName) if one not in unfit]
                return Reduce(key_by, dice.choice(reduces), emit)
            case "aggregate":
                aggregates: list[AggregateName] = [one for one in get_args(AggregateName) if one not in unfit]
                return Aggregate(key_by, dice.choice(aggregates), emit)
            case _:
                return Count(key_by, emit)

    def _leave(self) -> None:
        dice = self._dice
        steps = tuple(self._steps)
        loop = self._open_loops.pop()
        streams = [one for one in self._inside(loop) if is_open(steps, one)]
        final = [one for one in self._inside(loop) if getattr(steps[one], "emit", "") == "final"]
        said_at_the_end = {one for number in final for one in downstream(steps, number)}
        turning = [one for one in streams if resolved(steps, one) not in said_at_the_end]
        again, out = self._one_of(turning), self._one_of(streams)
        if dice.random() < 0.4:
            # Either it goes round, or it leaves.
            argument = dice.randrange(3)
            stays = self._add(Filter(again, "others", argument))
            leaves = self._add(Filter(again, "multiples", argument))
            exhausted = self._add(Filter(stays, "exhausted", 0))
            again, out = stays, self._add(Union((leaves, exhausted)))
        self._add(Leave(loop, again, out))

    def _inside(self, loop: int) -> list[int]:
        """Return the steps whose streams come from a loop that is still open, its head among them."""
        steps = tuple(self._steps)
        found = downstream(steps, loop)
        return [number for number in range(loop, len(steps)) if resolved(steps, number) in found]

    def _one_of(self, streams: list[int]) -> int:
        """Return one, mostly of the last: that a loop has a long way is not left to luck."""
        return streams[-1] if self._dice.random() < 0.5 else self._dice.choice(streams)

    def _end_all(self) -> None:
        dice = self._dice
        steps = tuple(self._steps)
        for number in unread(steps):
            if isinstance(steps[number], KeyBy):
                self._add(Count(number, "updates"))
        loose = unread(tuple(self._steps))
        if len(loose) > 1 and dice.random() < 0.4:
            loose = [self._add(Union(tuple(loose)))]
        for one in loose:
            self._add(Sink(one))
        if not any(isinstance(step, Sink) for step in self._steps):
            self._add(Sink(self._any()))
