"""The explored world of units: the real machines, and all that can happen to what they ask for.

A world has a log for each unit, incarnations that own it or believe so, connections, and a sink that
remembers the newest commit. Operations take any time, have unknown outcomes, and outlive the process that
asked for them. `actions` says what can happen next, `handle` makes it happen. What the world knows says
whether the rules hold:

U1  a number names one content for ever
U2  no record is lost, repeated or out of order at its receiver; news never goes back
U3  what leaves a unit is in its log: records
U4  ... acknowledgements, and source positions
U5  ... output of sinks, which is visible once
U6  only one incarnation owns a log: no group of another counts
U7  what is kept in memory has a bound
U8  once faults end, everything is processed, and nothing is kept or owed for ever
U9  the ends of all logs are a consistent cut, at any moment
U10 an older incarnation fences no newer one
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.proof.explorer.items import ensure
from tests.proof.unit_log.graphs import UnitGraph, UnitSite

from crosscut.errors import MissingRecordsError, ProtocolError
from crosscut.foundation.ids import ChannelId, Epoch, LogIndex
from crosscut.protocol import events as on_log
from crosscut.protocol.effects import CancelTimer, StartTimer
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log import effects as do
from crosscut.protocol.unit_log import events as on
from crosscut.protocol.unit_log.entries import (
    START,
    ChannelPosition,
    GroupCommitted,
    GroupContent,
    Incarnation,
    UnitEntry,
    UnitSegmentOpened,
    commit_number,
)
from crosscut.protocol.unit_log.folding import Fold, folded
from crosscut.protocol.unit_log.positions import advanced, by_channel
from crosscut.protocol.unit_log.replay import replayed
from crosscut.protocol.unit_log.unit import Unit

CHANNEL_BYTES = 40
OWED_MAX = 2
HOPS_MAX = 3

Process = tuple[str, int]
"""A unit and the number of one incarnation of it."""

Action = tuple[object, ...]


class Faults(NamedTuple):
    """What may go wrong, how often each.

    Attributes:
        crashes: An incarnation dies.
        zombies: A place is filled while its holder lives.
        repeats: A message comes once more, at any later time.
        unknown: An append or commit has an unknown outcome: applied, not applied, or applied later.
        cuts: A connection is replaced; the old one may still deliver.
        compactions: A log is compacted.
        failures: The store refuses an append, or can't store a snapshot.
    """

    crashes: int = 0
    zombies: int = 0
    repeats: int = 0
    unknown: int = 0
    cuts: int = 0
    compactions: int = 0
    failures: int = 0


NO_FAULTS = Faults()
MANY = Faults(crashes=4, zombies=3, repeats=3, unknown=6, cuts=4, compactions=4, failures=3)


class Connection(NamedTuple):
    channel: ChannelId
    sender: int
    receiver: int


class Message(NamedTuple):
    """A message on its way.

    Attributes:
        lane: Messages of one lane stay in order.
    """

    lane: tuple[int, int]
    process: Process
    event: on.UnitEvent
    payload: bytes = b""


@dataclass(frozen=True)
class SealLooked:
    """A group is in its file, and its owner is about to look for the seal."""

    index: LogIndex
    entry: GroupCommitted


Asked = (
    do.ReadNewestHead | do.SealSegment | do.ReadUnitTail | do.AppendUnitEntry | do.ReadUnitEntry
    | do.AuthoriseCommit | do.DeleteGroups | do.StoreUnitSnapshot | SealLooked
)  # fmt: skip


class Operation(NamedTuple):
    """What a process has asked for.

    Attributes:
        is_given_up: Its outcome is unknown to the process, which has gone on; it may yet be applied.
    """

    process: Process
    asked: Asked
    is_given_up: bool = False


@dataclass
class Queued:
    """What waits in one input queue: batches that have become one, with the newest news of them."""

    channel: ChannelId
    first: int
    values: list[str]
    news: int = 0
    news_value: str = ""


@dataclass
class Host:
    """The tasks of one incarnation: their state, and what the open group has so far."""

    site: UnitSite
    incarnation: int
    back_edges: frozenset[ChannelId]
    count: int = 0
    position: int = 0
    is_moved: bool = False
    queue: list[Queued] = field(default_factory=list)
    positions: dict[ChannelId, ChannelPosition] = field(default_factory=dict)
    """How far the group has taken its inputs."""
    taken: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    frozen: dict[LogIndex, int] = field(default_factory=dict)
    timers: set[on_log.Timer] = field(default_factory=set)
    arriving: bytes = b""
    """What the message that is being handled has brought."""
    arriving_news: int = 0

    @property
    def has_content(self) -> bool:
        return self.is_moved or bool(self.taken)

    def content(self) -> GroupContent:
        """Return the group, and begin another one. What was taken is for the world's records."""
        content = GroupContent(
            f"{self.count};{' '.join(self.taken)}".encode(),
            (("split", self.position),) if self.is_moved else (),
            " ".join(self.output) or None,
        )
        self.is_moved = False
        self.taken, self.output = [], []
        return content

    def ended(self) -> on.GroupEnded:
        """Return that the group ends."""
        positions, self.positions = self.positions, {}
        return on.GroupEnded(self.content(), by_channel(positions))

    def processed(self, value: str) -> tuple[ChannelId, str] | None:
        """Process a record; return what it sends, and where to. User code that is not deterministic: another
        incarnation makes another value, and another way."""
        self.count += 1
        number, path = value.split(":")
        made = f"{number}:{path}{self.site.name}{self.incarnation}"
        if not self.site.outputs:
            self.output.append(made)
            return None
        chosen = self.chosen(int(number), path)
        return chosen, made

    @property
    def onward(self) -> list[ChannelId]:
        """The outputs that close no cycle."""
        return [one for one in self.site.outputs if one not in self.back_edges]

    def chosen(self, number: int, path: str) -> ChannelId:
        outputs = self.onward
        back = [one for one in self.site.outputs if one in self.back_edges]
        is_back = back and len(path) < 2 * HOPS_MAX and (number + self.incarnation) % 3 == 0
        return back[0] if is_back else outputs[(number + self.incarnation) % len(outputs)]


class UnitWorld:
    """A world, at one moment.

    Args:
        host: The class of the tasks, perhaps with a bug.
        has_files: Logs are segment files rather than objects.
        remembers_commits: The sink has a marker.
        looks_for_seal: The performer does, after an append.
        seals_newest: It seals the segment that is the newest by then, rather than the one it was told.
    """

    def __init__(
        self,
        graph: UnitGraph,
        faults: Faults,
        *,
        has_files: bool = False,
        host: type[Host] = Host,
        remembers_commits: bool = True,
        looks_for_seal: bool = True,
        seals_newest: bool = False,
    ) -> None:
        self._graph = graph
        self._host = host
        self._has_files = has_files
        self._remembers_commits = remembers_commits
        self._looks_for_seal = looks_for_seal
        self._seals_newest = seals_newest
        self._left = dict(faults._asdict())
        self.logs: dict[str, dict[LogIndex, UnitEntry]] = {one.name: {} for one in graph.sites}
        self.units: dict[Process, Unit] = {}
        self.hosts: dict[Process, Host] = {}
        self.operations: list[Operation] = []
        self._wire: list[Message] = []
        self._connections: dict[int, Connection] = {}
        self._current: dict[tuple[ChannelId, int], int] = {}
        self._next_connection = 0
        self._seals: set[tuple[str, int]] = set()
        self._newest = dict.fromkeys(self.logs, 0)
        # What the world knows.
        self._contents: dict[tuple[ChannelId, int], str] = {}
        self._news: dict[tuple[ChannelId, int], str] = {}
        self._counted: dict[str, dict[LogIndex, GroupCommitted]] = {one.name: {} for one in graph.sites}
        self._safe: dict[ChannelId, ChannelPosition] = {}
        self._processed = dict.fromkeys(self.logs, 0)
        self._logged_positions = dict.fromkeys(self.logs, 0)
        self._forgotten = dict.fromkeys(self.logs, 0)
        """Up to where a source has been told that it may forget."""
        self._outputs: dict[tuple[str, LogIndex], str] = {}
        self._markers: dict[str, LogIndex] = {}
        self.visible: list[str] = []
        for one in graph.sites:
            self._launch(one.name)

    # What can happen.

    def actions(self) -> list[Action]:
        """Return all that can happen next."""
        return [*self._actions_of_units(), *self._actions_of_channels(), *self._actions_of_operations()]

    def progress(self) -> list[Action]:
        """Return those of the actions after which the world comes to its end, if faults end."""
        return [one for one in self.actions() if one[0] not in ("never", "crash", "refuse")]

    def _actions_of_units(self) -> list[Action]:
        found: list[Action] = []
        left = self._left
        for process, unit in self.units.items():
            host = self.hosts[process]
            if unit.is_running:
                if self._can_process(process):
                    unread = host.site.records - host.position
                    found += [("poll", process, count) for count in (1, 2) if count <= unread]
                    if host.queue:
                        found.append(("take", process))
                        if len(host.queue[0].values) > 1:
                            found.append(("take one", process))
                if unit.can_end_group and host.has_content:
                    found.append(("end group", process))
                if left["compactions"] and host.has_content:
                    found.append(("compact", process))
            found += [("timer", process, one) for one in sorted(host.timers) if one.kind == "retry-append"]
            if left["crashes"]:
                found.append(("crash", process))
        for name, newest in self._newest.items():
            if (name, newest) not in self.units or left["zombies"]:
                found.append(("launch", name))
        return found

    def _can_process(self, process: Process) -> bool:
        unit = self.units[process]
        outputs = self.hosts[process].site.outputs
        return unit.takes_input and not any(unit.is_full(one) for one in outputs)

    def _actions_of_channels(self) -> list[Action]:
        found: list[Action] = []
        running = [process for process, unit in self.units.items() if unit.is_running]
        for name, sender in running:
            for channel in self._graph.site(name).outputs:
                for target, receiver in running:
                    if target == channel.target.vertex and self._may_connect(channel, sender, receiver):
                        found.append(("connect", channel, sender, receiver))
        lanes: set[tuple[int, int]] = set()
        for at, message in enumerate(self._wire):
            if message.lane not in lanes:
                lanes.add(message.lane)
                found.append(("deliver", at))
            if self._left["repeats"]:
                found.append(("repeat", at))
        return found

    def _may_connect(self, channel: ChannelId, sender: int, receiver: int) -> bool:
        at = self._current.get((channel, sender))
        if at is None or self._connections[at].receiver < receiver:
            return True
        return self._connections[at].receiver == receiver and self._left["cuts"] > 0

    def _actions_of_operations(self) -> list[Action]:
        found: list[Action] = []
        for at, (process, asked, is_given_up) in enumerate(self.operations):
            found.append(("done", at))
            may_fail = not is_given_up and process in self.units
            if (
                may_fail
                and isinstance(asked, do.AppendUnitEntry | do.AuthoriseCommit)
                and self._left["unknown"]
            ):
                found += [("done, no answer", at), ("no answer", at)]
            if (
                may_fail
                and isinstance(asked, do.AppendUnitEntry | do.StoreUnitSnapshot)
                and self._left["failures"]
            ):
                found.append(("refuse", at))
            if is_given_up or process not in self.units:
                found.append(("never", at))
        return found

    # What happens.

    def handle(self, action: Action) -> list[object]:
        """Make `action` happen.

        Raises:
            Violation: Something that must hold doesn't.
        """
        match action:
            case ("poll", (str(name), int(number)), int(count)):
                self._poll((name, number), count)
            case ("end group", (str(name), int(number))):
                process = name, number
                self._tell(process, self.hosts[process].ended())
            case ("take", (str(name), int(number))):
                self._take((name, number))
            case ("take one", (str(name), int(number))):
                self._take((name, number), count=1)
            case ("compact", (str(name), int(number))):
                self._left["compactions"] -= 1
                self._tell((name, number), on.CompactionRequested())
            case ("timer", (str(name), int(number)), on_log.Timer() as timer):
                self.hosts[name, number].timers.discard(timer)
                self._tell((name, number), on_log.TimerFired(timer))
            case ("crash", (str(name), int(number))):
                self._left["crashes"] -= 1
                self._end((name, number))
            case ("launch", str(name)):
                if (name, self._newest[name]) in self.units:
                    self._left["zombies"] -= 1
                self._launch(name)
            case ("connect", ChannelId() as channel, int(sender), int(receiver)):
                self._connect(channel, sender, receiver)
            case ("deliver", int(at)):
                message = self._wire.pop(at)
                if message.process in self.units and self.units[message.process].is_running:
                    self._tell(message.process, message.event, message.payload)
            case ("repeat", int(at)):
                self._left["repeats"] -= 1
                self._next_connection += 1
                # It comes at any time, before those in front of it, too: on a connection that is over.
                message = self._wire[at]
                event = message.event
                if isinstance(event, on.RecordsArrived | on.ResumeAsked | on.ResumeRefused):
                    event = replace(event, connection=on.ConnectionId(0))
                self._wire.append(message._replace(lane=(-self._next_connection, 0), event=event))
            case ("never", int(at)):
                self.operations.pop(at)
            case ("no answer", int(at)):
                self._left["unknown"] -= 1
                self.operations[at] = self.operations[at]._replace(is_given_up=True)
                self._give_up(self.operations[at])
            case ("refuse", int(at)):
                self._left["failures"] -= 1
                self._refuse(self.operations.pop(at))
            case ("done" | "done, no answer" as how, int(at)):
                operation = self.operations.pop(at)
                if how != "done":
                    self._left["unknown"] -= 1
                self._perform_now(operation, is_answered=how == "done" and not operation.is_given_up)
                if how != "done":
                    self._give_up(operation)
            case _:
                raise ProtocolError(f"no such action: {action}")
        # They are performed in any order, so worlds that differ in it are the same.
        self.operations.sort(key=_place)
        return []

    def _launch(self, name: str) -> None:
        self._newest[name] += 1
        process = name, self._newest[name]
        site = self._graph.site(name)
        unit = Unit(
            Incarnation(Epoch(1), process[1]),
            site.inputs,
            site.outputs,
            60_000,
            "segment files" if self._has_files else "objects",
            back_edges=self._graph.back_edges,
            channel_bytes=CHANNEL_BYTES,
            commit_attempts=100,
            owed_max=OWED_MAX,
        )
        self.units[process], self.hosts[process] = unit, self._host(site, process[1], self._graph.back_edges)
        self._perform(process, unit.start())

    def _end(self, process: Process) -> None:
        del self.units[process], self.hosts[process]

    def _poll(self, process: Process, count: int) -> None:
        host = self.hosts[process]
        name, _ = process
        if host.position < self._forgotten[name]:
            ensure(
                not self._owns_log(process),
                f"U4: {name} needs position {host.position}, forgotten are {self._forgotten[name]}",
            )
            self._end(process)
            return
        first = host.site.number * 100 + host.position
        host.position += count
        host.is_moved = True
        # Each source says once that it is at its end.
        news = "~" if host.position == host.site.records else ""
        self._process(process, [f"{one}:" for one in range(first, first + count)], news)

    def _take(self, process: Process, count: int | None = None) -> None:
        """Have a task take a batch out of its queue, or only so many records of it."""
        host = self.hosts[process]
        queued = host.queue.pop(0)
        values, news, news_value = queued.values, queued.news, queued.news_value
        if count is not None:
            host.queue.insert(0, replace(queued, first=queued.first + count, values=values[count:]))
            values, news, news_value = values[:count], 0, ""
        channel, last = queued.channel, queued.first + len(values) - 1
        source = channel.source.vertex
        host.taken += [f"{source}/{number}/{value}" for number, value in enumerate(values, queued.first)]
        if news:
            host.taken.append(f"{source}/~{news}/{news_value}")
        position = host.positions.get(channel, self.units[process]._receivers[channel].taken)
        host.positions[channel] = advanced(position, last, news)
        self._process(process, values, news_value if channel not in self._graph.back_edges else "")

    def _process(self, process: Process, values: list[str], news: str) -> None:
        """Have the tasks of a unit process a batch, and pass on the news after it."""
        host, unit = self.hosts[process], self.units[process]
        sent: dict[ChannelId, list[str]] = {}
        for value in values:
            made = host.processed(value)
            if made is not None:
                sent.setdefault(made[0], []).append(made[1])
        if news:
            for channel in host.onward:
                sent.setdefault(channel, []).append(f"{news}{host.site.name}{host.incarnation}")
        for channel, records in sent.items():
            payload = " ".join(records).encode()
            has_news = records[-1].startswith("~")
            self._tell(process, on.RecordsEmitted(channel, len(records) - has_news, payload, has_news))
            if channel in self._graph.back_edges or process not in self.units:
                continue
            kept = sum(len(one.records.payload) for one in unit._senders[channel].kept())
            ensure(kept < CHANNEL_BYTES + len(payload) + 1, f"U7: {process} keeps {kept} bytes of {channel}")
        ensure(len(unit._owed) <= OWED_MAX + 2, f"U7: {process} owes {len(unit._owed)} commits")

    def _connect(self, channel: ChannelId, sender: int, receiver: int) -> None:
        at = self._current.get((channel, sender))
        if at is not None and self._connections[at].receiver == receiver:
            self._left["cuts"] -= 1
        self._next_connection += 1
        connection = on.ConnectionId(self._next_connection)
        self._connections[connection] = Connection(channel, sender, receiver)
        self._current[channel, sender] = connection
        self._tell((channel.source.vertex, sender), on.ChannelConnected(channel, connection))
        self._tell((channel.target.vertex, receiver), on.ChannelAccepted(channel, connection))

    def _tell(self, process: Process, event: on.UnitEvent, payload: bytes = b"") -> None:
        if process not in self.units:
            return
        host = self.hosts[process]
        host.arriving = payload
        host.arriving_news = event.news if isinstance(event, on.RecordsArrived) else 0
        try:
            effects = self.units[process].handle(event)
        except MissingRecordsError as error:
            ensure(not self._owns_log(process), f"U2: {process}: {error}")
            self._end(process)
            return
        self._perform(process, effects)

    def _owns_log(self, process: Process) -> bool:
        name, number = process
        heads = [one for one in self.logs[name].values() if isinstance(one, UnitSegmentOpened)]
        return heads[-1].incarnation.number == number

    def _perform(self, process: Process, effects: list[do.UnitEffect]) -> None:
        name, number = process
        for effect in effects:
            if process not in self.units:
                return
            host = self.hosts[process]
            match effect:
                case StartTimer(timer):
                    host.timers.add(timer)
                case CancelTimer(timer):
                    host.timers.discard(timer)
                case do.EndUnit(reason, is_fenced):
                    ensure(
                        not is_fenced or number < self._newest[name],
                        f"U10: {process} is fenced, and none is newer: {reason}",
                    )
                    self._end(process)
                case do.RestoreUnit():
                    self._restore(process, effect)
                case do.FreezeUnit(index):
                    host.frozen[index] = host.count
                case do.AcknowledgeSources(positions):
                    (position,) = [one for _, one in positions if isinstance(one, int)]
                    ensure(
                        position <= self._logged_positions[name],
                        f"U4: {name} tells its source {position}, logged is {self._logged_positions[name]}",
                    )
                    self._forgotten[name] = max(self._forgotten[name], position)
                case do.DeliverRecords(channel, skipped):
                    self._queue(host, channel, skipped, self.units[process]._receivers[channel].arrived)
                case do.SendRecords(channel, connection, records):
                    values, news_value = _contents(records.payload)
                    for record, value in enumerate(values, records.first):
                        self._check_sent(process, channel, record, value, self._contents)
                    if records.news:
                        self._check_sent(process, channel, records.news, news_value, self._news)
                    receiver = channel.target.vertex, self._connections[connection].receiver
                    event = on.RecordsArrived(channel, connection, records.first, records.last, records.news)
                    self._wire.append(Message((connection, 0), receiver, event, records.payload))
                case do.AskResume(channel, connection, position):
                    sender = channel.source.vertex, self._connections[connection].sender
                    asked = on.ResumeAsked(channel, connection, position)
                    self._wire.append(Message((connection, 1), sender, asked))
                case do.RefuseResume(channel, connection, position):
                    receiver = channel.target.vertex, self._connections[connection].receiver
                    refused = on.ResumeRefused(channel, connection, position)
                    self._wire.append(Message((connection, 0), receiver, refused))
                case do.AcknowledgeInputs(channel, position):
                    safe = self._safe.get(channel, START)
                    ensure(
                        position.record <= safe.record and position.news <= safe.news,
                        f"U4: {process} acknowledges {channel} {position}, logged is {safe}",
                    )
                    for at, (other, sender_number, receiver_number) in self._connections.items():
                        if other == channel and receiver_number == number:
                            sender = channel.source.vertex, sender_number
                            acknowledged = on.InputsAcknowledged(channel, position)
                            self._wire.append(Message((at, 1), sender, acknowledged))
                case _:
                    self.operations.append(Operation(process, effect))

    def _check_sent(
        self,
        process: Process,
        channel: ChannelId,
        number: int,
        value: str,
        contents: dict[tuple[ChannelId, int], str],
    ) -> None:
        logged = contents.get((channel, number))
        ensure(logged is not None, f"U3: {process} sends {channel} {number}, which is not logged")
        ensure(logged == value, f"U1: {process} sends {channel} {number} as {value}, logged is {logged}")

    def _queue(self, host: Host, channel: ChannelId, skipped: int, arrived: ChannelPosition) -> None:
        """Let what has arrived wait, as an input queue does: batches of one channel become one."""
        values, news_value = _contents(host.arriving)
        values = values[skipped:]
        news = host.arriving_news
        waiting = next((one for one in host.queue if one.channel == channel), None)
        if waiting is None:
            waiting = Queued(channel, arrived.record - len(values) + 1, [])
            host.queue.append(waiting)
        waiting.values += values
        if news:
            waiting.news, waiting.news_value = news, news_value

    def _restore(self, process: Process, effect: do.RestoreUnit) -> None:
        host = self.hosts[process]
        if effect.snapshot is not None:
            host.count = int(effect.snapshot.parts[0].inline)
        for group in effect.groups:
            host.count = _parsed(group)[0]
        host.position = next((one for _, one in effect.positions if isinstance(one, int)), 0)

    # Operations.

    def _perform_now(self, operation: Operation, *, is_answered: bool) -> None:
        process, asked, _ = operation
        name, _ = process
        log = self.logs[name]

        def answer(event: on.UnitEvent) -> None:
            if is_answered:
                self._tell(process, event)

        match asked:
            case do.ReadNewestHead():
                newest = max([one.segment for one in log], default=0)
                owner = log[LogIndex(newest, 0)].incarnation if newest else None
                answer(on.NewestHeadRead(newest, owner))
            case do.SealSegment(segment):
                newest = max([one.segment for one in log], default=0)
                self._seals.add((name, newest if self._seals_newest else segment))
                answer(on.SegmentSealed(segment))
            case do.ReadUnitTail():
                answer(self._tail(name))
            case do.AppendUnitEntry(index, GroupCommitted() as group) if self._has_files:
                # Readers see it from now on.
                log[index] = group
                if is_answered:
                    self.operations.append(Operation(process, SealLooked(index, group)))
            case do.AppendUnitEntry(index, entry):
                answer(self._put(name, index, entry))
            case SealLooked(index, group):
                is_sealed = (name, index.segment) in self._seals and self._looks_for_seal
                if not is_sealed:
                    self._count(name, index, group)
                answer(on.SealFound(index) if is_sealed else on_log.EntryAppended(index))
            case do.ReadUnitEntry(index):
                answer(on.UnitEntryRead(index, log.get(index)))
            case do.AuthoriseCommit(index, handle):
                self._show(name, index, str(handle))
                answer(on.UnitCommitted(index))
            case do.DeleteGroups(indices):
                for index in indices:
                    log.pop(index, None)
            case do.StoreUnitSnapshot(index):
                if process in self.hosts:
                    count = str(self.hosts[process].frozen.pop(index))
                    answer(on.UnitSnapshotStored(index, (Part("", len(count), "", count),)))

    def _give_up(self, operation: Operation) -> None:
        """Its process does not know whether it has been performed."""
        process, asked, _ = operation
        if process not in self.hosts:
            return
        match asked:
            case do.AuthoriseCommit(index):
                self._tell(process, on.UnitCommitFailed(index, "no answer"))
            case do.AppendUnitEntry(index, GroupCommitted()) if self._has_files:
                self._tell(process, on_log.EntryUncertain(index, "fsync: input/output error"))
            case _:
                (timer,) = [one for one in self.hosts[process].timers if one.kind == "log-call"]
                self.hosts[process].timers.discard(timer)
                self._tell(process, on_log.TimerFired(timer))

    def _refuse(self, operation: Operation) -> None:
        match operation.asked:
            case do.AppendUnitEntry(index):
                self._tell(operation.process, on_log.EntryRefused(index, "no space left on device"))
            case do.StoreUnitSnapshot(index):
                self._tell(operation.process, on.UnitSnapshotFailed(index, "no space left on device"))
            case _:
                raise ProtocolError(f"{operation.asked} is never refused")

    def _tail(self, name: str) -> on.UnitTailRead:
        entries = sorted(self.logs[name].items(), key=lambda one: one[0])
        snapshots = [
            one.snapshot for _, one in entries if isinstance(one, UnitSegmentOpened) and one.snapshot
        ]
        since = snapshots[-1].index if snapshots else LogIndex(0, 0)
        older = [index for index, one in entries if index <= since and isinstance(one, GroupCommitted)]
        return on.UnitTailRead(tuple(one for one in entries if one[0] > since), tuple(older))

    def _put(self, name: str, index: LogIndex, entry: UnitEntry) -> on.LogAnswer:
        log = self.logs[name]
        if index in log:
            return on_log.EntryTaken(index)
        if self._has_files and isinstance(entry, UnitSegmentOpened):
            # What the claimant has read counts, whether or not its writer knows.
            for before, group in sorted(log.items(), key=lambda one: one[0]):
                if before.segment == index.segment - 1 and isinstance(group, GroupCommitted):
                    if before <= entry.cut:
                        self._count(name, before, group)
                    ensure(
                        before <= entry.cut or self._counted[name].get(before) != group,
                        f"U6: {name} {before} counts, and a claim has cut it off at {entry.cut}",
                    )
        owner = max(
            [one.incarnation for one in log.values() if isinstance(one, UnitSegmentOpened)], default=None
        )
        log[index] = entry
        if isinstance(entry, GroupCommitted):
            is_again = self._counted[name].get(index) == entry
            ensure(
                is_again or entry.incarnation == owner,
                f"U6: group {index} of {name} is of {entry.incarnation}, the log is of {owner}",
            )
            self._count(name, index, entry)
        return on_log.EntryAppended(index)

    def _count(self, name: str, index: LogIndex, group: GroupCommitted) -> None:
        """A group is in the log, for ever."""
        counted = self._counted[name]
        if counted.get(index) == group:
            return
        ensure(index not in counted, f"U6: {name} {index} is of {group.incarnation}, and of another")
        counted[index] = group
        count, taken, news = _parsed(group)
        for source, number, value in news:
            channel = self._channel(source, name)
            before = self._safe.get(channel, START)
            ensure(number > before.news, f"U2: {name} takes news {number} of {channel} twice")
            self._check_taken(name, channel, number, value, self._news)
            self._safe[channel] = replace(before, news=number)
        for source, record, value in taken:
            channel = self._channel(source, name)
            before = self._safe.get(channel, START)
            ensure(record > before.record, f"U2: {name} takes {channel} {record} twice")
            ensure(record == before.record + 1, f"U2: {name} takes {channel} {record} after {before.record}")
            self._check_taken(name, channel, record, value, self._contents)
            self._safe[channel] = replace(before, record=record)
        for moved, reached in group.received:
            safe = self._safe.get(moved, START)
            ensure(reached == safe, f"U2: {name} logs {moved} {reached}, it has taken {safe}")
        for _, position in group.content.positions:
            ensure(
                isinstance(position, int) and position > self._logged_positions[name],
                f"U2: {name} reads up to {position} again",
            )
            self._processed[name] += int(str(position)) - self._logged_positions[name]
            self._logged_positions[name] = int(str(position))
        self._processed[name] += len(taken)
        ensure(
            count == self._processed[name],
            f"U2: the state of {name} counts {count}, it has processed {self._processed[name]}",
        )
        for one in group.sent:
            values, news_value = _contents(one.records.payload)
            for record, value in enumerate(values, one.records.first):
                logged = self._contents.setdefault((one.channel, record), value)
                ensure(logged == value, f"U1: {one.channel} {record} is {logged}, and {value}")
            if one.records.news:
                logged = self._news.setdefault((one.channel, one.records.news), news_value)
                ensure(logged == news_value, f"U1: news {one.records.news} of {one.channel} is {logged}")
        if group.content.sink is not None:
            self._outputs[name, index] = str(group.content.sink)

    def _check_taken(
        self,
        name: str,
        channel: ChannelId,
        number: int,
        value: str,
        contents: dict[tuple[ChannelId, int], str],
    ) -> None:
        ensure((channel, number) in contents, f"U3: {name} takes {channel} {number}, which is not logged")
        ensure(contents[channel, number] == value, f"U1: {name} takes {channel} {number} as {value}")

    def _channel(self, source: str, target: str) -> ChannelId:
        return next(one for one in self._graph.site(target).inputs if one.source.vertex == source)

    def _show(self, name: str, index: LogIndex, output: str) -> None:
        ensure(self._outputs.get((name, index)) == output, f"U5: output {index} is visible and not logged")
        newest = self._markers.get(name, LogIndex(0, 0))
        if commit_number(index) <= commit_number(newest) and self._remembers_commits:
            return
        self._markers[name] = index
        self.visible += output.split()
        ensure(len(set(self.visible)) == len(self.visible), f"U5: output {index} is visible twice")

    # Cuts.

    def check_cut(self) -> None:
        """Require that the job could start from its logs as they are.

        Raises:
            Violation: It couldn't.
        """
        totals = {}
        for name in self.logs:
            tail = self._tail(name).entries
            counting = [one for one in tail if self._counts(name, *one)]
            totals[name] = replayed(counting).total
        fold = folded([*totals.values()])
        ensure(isinstance(fold, Fold), f"U9: {fold}")
        if isinstance(fold, Fold):
            for one in fold.in_flight:
                values, news_value = _contents(one.sent.records.payload)
                if number := one.sent.records.news:
                    logged = self._news.get((one.sent.channel, number))
                    ensure(logged == news_value, f"U9: news {number} of {one.sent.channel} is {news_value}")
                for number, value in enumerate(values[one.skipped :], one.sent.records.first + one.skipped):
                    logged = self._contents.get((one.sent.channel, number))
                    ensure(logged == value, f"U9: {one.sent.channel} {number} is {value}, logged is {logged}")

    def _counts(self, name: str, index: LogIndex, entry: UnitEntry) -> bool:
        return not isinstance(entry, GroupCommitted) or self._counted[name].get(index) == entry

    # The end.

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way."""
        return not self.operations and not self._wire

    def end_faults(self) -> None:
        """From now on nothing goes wrong."""
        self._left = dict.fromkeys(self._left, 0)

    def check_end(self) -> None:
        """Require that all is done: nothing can happen any more.

        Raises:
            Violation: It isn't.
        """
        found = sorted(int(one.split(":")[0]) for one in self.visible)
        wanted = sorted(
            site.number * 100 + position for site in self._graph.sites for position in range(site.records)
        )
        ensure(found == wanted, f"U8: the output is of {found}, expected {wanted}")
        for (name, number), unit in self.units.items():
            if number != self._newest[name]:
                continue
            count = self.hosts[name, number].count
            ensure(
                count == self._processed[name],
                f"U2: the state of {name} counts {count}, it has processed {self._processed[name]}",
            )
            kept = [one for end in unit._senders.values() for one in end.kept()]
            ensure(not kept and not unit._owed, f"U8: {name} keeps {kept} and owes {unit._owed} for ever")
        for channel, number in self._news:
            newest = self._safe.get(channel, START).news
            ensure(number <= newest, f"U8: news {number} of {channel} is not taken, {newest} is the newest")


def _place(one: Operation) -> tuple[Process, str, LogIndex]:
    index = getattr(one.asked, "index", LogIndex(0, 0))
    return one.process, type(one.asked).__name__, index


def _contents(payload: bytes) -> tuple[list[str], str]:
    """Return the records in a payload, and the news after them or ""."""
    *values, last = payload.decode().split()
    return (values, last) if last.startswith("~") else ([*values, last], "")


Taken = list[tuple[str, int, str]]


def _parsed(group: GroupCommitted) -> tuple[int, Taken, Taken]:
    """Return the count in a group's section, and the records and the news that it took."""
    count, _, taken = group.content.sections.decode().partition(";")
    records: Taken = []
    news: Taken = []
    for source, number, value in (one.split("/") for one in taken.split()):
        (news if number.startswith("~") else records).append((source, int(number.lstrip("~")), value))
    return int(count), records, news
