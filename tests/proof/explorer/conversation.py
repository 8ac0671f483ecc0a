"""A counter-example as people read it: who did what, and what came of it."""

from __future__ import annotations

from tests.proof.explorer.event_time import WATERMARK
from tests.proof.explorer.graphs import times
from tests.proof.explorer.items import END, record_of
from tests.proof.explorer.search import Found
from tests.proof.explorer.task_table import Step
from tests.proof.explorer.world import State, World

from crosscut.protocol.log.entries import (
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.messages import DeployTasks


def conversation(world: World, found: Found) -> str:
    """Return the shortest way to what broke, a line a step, or "" if nothing did."""
    if not found.violation:
        return ""
    lines = [f"{world.graph.name}, {world.kind}: broken after {len(found.steps)} steps"]
    for number, (step, before, after) in enumerate(
        zip(found.steps, found.path, found.path[1:], strict=False), 1
    ):
        lines.append(f"{number:4} {_said(world, before, step)}{_consequences(world, before, after)}")
    return "\n".join([*lines, f"then: {found.violation}"])


def _said(world: World, before: State, step: Step) -> str:
    zombie = "zombie " if step.is_zombie else ""
    if step.who < 0:
        detail = ""
        if isinstance(step.action, tuple) and step.name.startswith("append"):
            detail = f" entry {step.action[0]}: {_entry(world, step.action[1])}"
        elif step.name == "timer":
            detail = f" {step.action.kind}"
        return f"{zombie}driver: {step.name}{detail}"
    task = world.graph.tasks[step.who].vertex
    side = world.sides.values[before[5] if step.is_zombie and before[5] else before[4]]
    match step.action:
        case ("process", int(channel)):
            value = world.tables[step.who].value(side[1 + step.who])
            queues = dict(zip(world.sites[step.who].inputs, value.queues, strict=True)) if value else {}
            source = world.graph.tasks[world.graph.channels[channel][0]].vertex
            items = queues.get(channel, ())
            what = _item(world, items[0]) if items else "an item"
            return f"{zombie}{task}: takes {what} from {source}"
        case ("transmit", int(channel)):
            value = world.tables[step.who].value(side[1 + step.who])
            unsent = dict(zip(world.sites[step.who].outputs, value.unsent, strict=True)) if value else {}
            target = world.graph.tasks[world.graph.channels[channel][1]].vertex
            items = unsent.get(channel, ())
            return f"{zombie}{task}: sends {_item(world, items[0]) if items else 'an item'} to {target}"
        case ("store" | "time_out", int(n)):
            return f"{zombie}{task}: {step.name} {n}"
        case DeployTasks(epoch, _, _, restore):
            return f"{task}: is deployed in epoch {epoch}, restored from {restore or 'nothing'}"
        case _:
            message = step.action if step.name == "hears" else None
            about: object = getattr(message, "checkpoint_id", "")
            return f"{zombie}{task}: {step.name} {type(message).__name__ if message else ''} {about}".rstrip()


def _item(world: World, item: int) -> str:
    if item == END:
        return "the end of input"
    if item >= WATERMARK:
        return f"watermark {item & ~WATERMARK}"
    return f"barrier {-item}" if item < 0 else f"record {world.graph.record_name(record_of(item)[0])}"


def _entry(world: World, number: int) -> str:
    match world.store.entries.values[number]:
        case EpochClaimed(epoch, _, driver):
            return f"epoch {epoch} is {driver}'s"
        case CheckpointCompleted(epoch, n, _, is_final):
            return f"{'final ' * is_final}checkpoint {n} of epoch {epoch} is complete"
        case JobFinished():
            return "the job has finished"
        case SegmentOpened(EpochClaimed(epoch, _, driver)):
            return f"the log goes on in a new segment, of epoch {epoch}, which is {driver}'s"
        case SegmentClosed(_, driver):
            return f"{driver} has closed the log"


def _consequences(world: World, before: State, after: State) -> str:
    old, new = world.store.value(before[0]), world.store.value(after[0])
    told = [_entry(world, one) for _, one in new.log[len(old.log) :]]
    if new.visible != old.visible:
        output = [
            f"{world.graph.record_name(record)} {times(new.visible, record)}x"
            for record in range(len(world.graph.routes))
            if times(new.visible, record)
        ]
        told.append(f"visible now: {', '.join(output)}")
    then, now = (world.drivers.coordinator(world.sides.values[one[4]][0]) for one in (before, after))
    if now.phase is not then.phase:
        told.append(f"the job is {now.phase.name}")
    return f"   [{'; '.join(told)}]" if told else ""
