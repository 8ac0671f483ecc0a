"""Rules of the unit log, each broken on purpose, and what that breaks.

A bug is planted into the text of a method that ships, so it stays next to the rule that it breaks. A few
are in the tasks, the sink or the performer, and so in the explored world.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.proof.unit_log.graphs import PAIR
from tests.proof.unit_log.walks import ANY, Habits
from tests.proof.unit_log.world import Host, UnitWorld

from crosscut.protocol.log.pending_append import PendingAppend
from crosscut.protocol.unit_log.appending import UnitLog
from crosscut.protocol.unit_log.entries import GroupContent
from crosscut.protocol.unit_log.numbers import NumberedReceiver, NumberedSender
from crosscut.protocol.unit_log.unit import Unit


@dataclass(frozen=True)
class Edit:
    """One piece of text in a method, and what stands there instead."""

    owner: type
    method: str
    old: str
    new: str


@dataclass(frozen=True)
class PlantedBug:
    """A bug.

    Attributes:
        invariant: What it breaks, as a pattern such as "U1|U3".
        habits: Of walks that come to it soon.
    """

    invariant: str
    edits: tuple[Edit, ...] = ()
    make: Callable[..., UnitWorld] = field(default=UnitWorld)
    habits: Habits = ANY


def edited(edits: tuple[Edit, ...]) -> dict[tuple[type, str], Any]:
    """Return the methods with the edits, by class and name.

    Raises:
        ValueError: The text to replace is not there exactly once.
    """
    found: dict[tuple[type, str], Any] = {}
    texts: dict[tuple[type, str], str] = {}
    for one in edits:
        key = one.owner, one.method
        text = texts.get(key) or textwrap.dedent(inspect.getsource(getattr(*key)))
        if text.count(one.old) != 1:
            raise ValueError(f"{one.method} has {text.count(one.old)} times {one.old!r}: expected one")
        texts[key] = text.replace(one.old, one.new)
    for key, text in texts.items():
        names: dict[str, Any] = {}
        code = compile(f"from __future__ import annotations\n{text}", f"<planted in {key[1]}>", "exec")
        exec(code, getattr(*key).__globals__, names)  # noqa: S102 - our own code
        found[key] = names[key[1]]
    return found


class StateFollowsItsEntry(Host):
    """What a group changes can be seen by the group after the next one."""

    logged = 0

    def content(self) -> GroupContent:
        content = super().content()
        self.count, self.logged = self.logged, self.count
        return content


_WAIT = 'case Fate.WAIT:\n            return [StartTimer(self._timer("retry-append"), RETRY_APPEND_MS)], None'
_APPEND = "return [*effects, *self._log.append(group)]"
_DUPLICATES = (
    Edit(NumberedReceiver, "_arrived", "if now == self.arrived:", "if False:"),
    Edit(NumberedReceiver, "_arrived", "skip = skipped(first, last, self.arrived)", "skip = 0"),
)
_READS_FIRST = (
    Edit(
        UnitLog,
        "_looked",
        "self.phase = LogPhase.SEALING\n        return [SealSegment(segment)], None",
        "self.phase, self._sealed = LogPhase.READING, None\n        return [ReadUnitTail()], None",
    ),
    Edit(
        UnitLog,
        "_read",
        "if self._has_files and entries and self._sealed != last.segment:",
        "if self._has_files and self._sealed is None:\n"
        "        self._early, self.phase = tail, LogPhase.SEALING\n"
        "        return [SealSegment(last.segment)], None\n"
        "    if False:",
    ),
    Edit(UnitLog, "handle", "return [ReadUnitTail()], None", "return self._read(self._early)"),
)

NOT_ASKED_AGAIN = (
    Edit(
        NumberedReceiver,
        "_refused",
        "return [AskResume(self._channel, connection, self.arrived)]",
        "return []",
    ),
)
"""A receiver that was refused waits for ever, though it has come as far meanwhile. For the search alone: each
later connection of a walk cures it."""

BUGS: dict[str, PlantedBug] = {
    "outputs leave before the log": PlantedBug(
        "U3",
        (
            Edit(
                NumberedSender,
                "handle",
                "self._emitted(count, payload, has_news=has_news)",
                "self._emitted(count, payload, has_news=has_news); self._ended = self.given\n"
                "            return self.logged()",
            ),
        ),
    ),
    "what is not logged is acknowledged": PlantedBug(
        "U4",
        (
            Edit(
                NumberedReceiver,
                "_arrived",
                "return [DeliverRecords(self._channel, skip)]",
                "return [DeliverRecords(self._channel, skip), AcknowledgeInputs(self._channel, now)]",
            ),
        ),
    ),
    "a resume is an acknowledgement": PlantedBug(
        "U2|U8",
        (
            Edit(
                NumberedSender,
                "_resume",
                "self._unsent = deque(lacking)",
                "self._unsent = deque(lacking); self._acknowledged(position)",
            ),
        ),
    ),
    "duplicates are not dropped": PlantedBug("U2", _DUPLICATES),
    "input positions are not logged": PlantedBug(
        "U2", (Edit(Unit, "_end_group", "by_channel(received), sent", "(), sent"),)
    ),
    "numbers begin anew": PlantedBug(
        "U1",
        (
            Edit(
                Unit,
                "_restored",
                "channel, given.get(channel, START), tuple(kept.get(channel, ()))",
                "channel, START, ()",
            ),
        ),
    ),
    "an unknown append is a refused one": PlantedBug(
        "U2",
        (
            Edit(
                UnitLog,
                "_next_step",
                _WAIT,
                "case Fate.WAIT:\n"
                "            self._steps[0] = (following(index), self._steps[0][1])\n"
                "            return self._begin(), None",
            ),
        ),
    ),
    "an unknown append is a durable one": PlantedBug(
        "U3|U4|U6",
        (Edit(UnitLog, "_next_step", _WAIT, "case Fate.WAIT:\n            return self._written(index)"),),
    ),
    "what is taken is ours": PlantedBug(
        "U3|U4|U6", (Edit(PendingAppend, "taken", "return Fate.READ", "return Fate.WRITTEN"),)
    ),
    "the segment is closed at a later index, unread": PlantedBug(
        "U2|U4",
        (
            Edit(
                UnitLog,
                "_followed",
                "UnitTailRead((*tail.entries, (index, group)), tail.leftover)",
                "tail",
            ),
        ),
        habits=Habits(has_files=False, slow="AppendUnitEntry"),
    ),
    "what closed a segment is deleted": PlantedBug(
        "U6",
        (
            Edit(
                Unit,
                "_replaced",
                "return [index for index in self._groups if index <= snapshot.index]",
                "kept = [index for index in self._groups if index <= snapshot.index]\n"
                "    after = [LogIndex(one.segment, one.number + 1) for one in kept]\n"
                "    after += [LogIndex(segment, 1) for segment in range(1, snapshot.index.segment)]\n"
                "    return [*kept, *(one for one in after if one < snapshot.index)]",
            ),
        ),
        habits=Habits(PAIR, has_files=False, slow="nothing", liked=("no answer", "compact", "launch")),
    ),
    "groups of a segment that goes on are deleted": PlantedBug(
        "U2|U4|U6",
        (
            Edit(
                UnitLog,
                "open_segment",
                "self._go_on_in_new_segment(UnitSegmentOpened(self._incarnation, last, snapshot))",
                "self._steps.append((self.next, UnitSegmentOpened(self._incarnation, last, snapshot)))",
            ),
        ),
        habits=Habits(liked=("compact",)),
    ),
    "an older claim wins": PlantedBug(
        "U6",
        (
            Edit(
                UnitLog,
                "_read",
                "if any(head.incarnation > self._incarnation for head in heads):",
                "if False:",
            ),
        ),
    ),
    "what is not logged is committed": PlantedBug(
        "U5",
        (
            Edit(
                Unit,
                "_end_group",
                _APPEND,
                "if content.sink is not None:\n"
                "        self._owed[index] = content.sink\n"
                "    return [*effects, *self._log.append(group), *self._commit_next()]",
            ),
        ),
    ),
    "the sink does not remember": PlantedBug("U5", make=partial(UnitWorld, remembers_commits=False)),
    "what is owed is not committed on restore": PlantedBug(
        "U8", (Edit(Unit, "_restored", "self._owed = dict(total.owed)", "self._owed = {}"),)
    ),
    "compaction forgets what is not acknowledged": PlantedBug(
        "U9",
        (
            Edit(
                Unit,
                "_snapshot",
                "tuple(one for end in self._senders.values() for one in end.kept())",
                "()",
            ),
        ),
        habits=Habits(liked=("compact",)),
    ),
    "compaction forgets what is not committed": PlantedBug(
        "U8",
        (Edit(Unit, "_snapshot", "tuple(owed.items())", "()"),),
        habits=Habits(PAIR, slow="AuthoriseCommit", liked=("compact",)),
    ),
    "groups are deleted before their snapshot counts": PlantedBug(
        "U2|U4",
        (
            Edit(
                Unit,
                "_snapshot_stored",
                "return self._open_segment()",
                "return [DeleteGroups(tuple(self._replaced(self._frozen))), *self._open_segment()]",
            ),
        ),
        habits=Habits(liked=("compact",)),
    ),
    "the snapshot is of a later moment": PlantedBug(
        "U1|U3|U4|U9",
        (
            Edit(
                Unit,
                "_snapshot_stored",
                "replace(self._frozen, parts=parts)",
                "replace(self._snapshot(index, GroupCommitted(self._incarnation, (), (), GroupContent())), "
                "parts=parts)",
            ),
        ),
        habits=Habits(PAIR, slow="nothing", liked=("compact",)),
    ),
    "the source is told before the log": PlantedBug(
        "U4",
        (
            Edit(
                Unit,
                "_end_group",
                _APPEND,
                "if content.positions:\n"
                "        effects.append(AcknowledgeSources(content.positions))\n"
                f"    {_APPEND}",
            ),
        ),
    ),
    "records after a gap are taken": PlantedBug(
        "U2",
        (Edit(NumberedReceiver, "_arrived", "if is_gap(first, news, self.arrived):", "if False:"),),
        habits=Habits(PAIR, liked=("repeat",)),
    ),
    "state follows its entry": PlantedBug("U2", make=partial(UnitWorld, host=StateFollowsItsEntry)),
    "what is sent is forgotten": PlantedBug(
        "U8",
        (
            Edit(
                NumberedSender,
                "_send",
                "effects.append(SendRecords(self._channel, self._connection, self._unsent.popleft()))",
                "effects.append(SendRecords(self._channel, self._connection, self._unsent.popleft()))\n"
                "        self._kept.remove(effects[-1].records)",
            ),
        ),
    ),
    "what has arrived is acknowledged": PlantedBug(
        "U4", (Edit(NumberedReceiver, "logged", "self.safe = self.taken", "self.safe = self.arrived"),)
    ),
    "news without records is not sent again": PlantedBug(
        "U2|U8",
        (
            Edit(
                NumberedSender,
                "_resume",
                "if is_after(one, position)",
                "if one.last > position.record",
            ),
        ),
    ),
    "an acknowledgement of records forgets the news after them": PlantedBug(
        "U2|U8|U9",
        (
            Edit(
                NumberedSender,
                "_acknowledged",
                "not is_after(self._kept[0], position)",
                "self._kept[0].last <= position.record",
            ),
        ),
    ),
    "news has no numbers": PlantedBug(
        "U2|U8|U9",
        (
            Edit(
                Unit,
                "_end_group",
                "by_channel(received), sent",
                "by_channel({one: replace(at, news=0) for one, at in received.items()}), sent",
            ),
        ),
    ),
    "the segment is read before it is sealed": PlantedBug(
        "U1|U6",
        _READS_FIRST,
        habits=Habits(PAIR, has_files=True, slow="SealSegment"),
    ),
    "a segment is sealed whosever it is": PlantedBug(
        "U10",
        (Edit(UnitLog, "_looked", "if owner is not None and owner > self._incarnation:", "if False:"),),
        habits=Habits(has_files=True),
    ),
    "the newest segment is sealed, whichever was looked at": PlantedBug(
        "U10", make=partial(UnitWorld, seals_newest=True), habits=Habits(has_files=True, slow="SealSegment")
    ),
    "the owner does not look for the seal": PlantedBug(
        "U1|U6", make=partial(UnitWorld, looks_for_seal=False)
    ),
    "groups beyond the cut count": PlantedBug(
        "U1|U3|U4",
        (Edit(UnitLog, "_counting", "or index <= cuts[index.segment]", "or True"),),
        habits=Habits(has_files=True),
    ),
}
