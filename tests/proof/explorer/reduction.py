"""Which steps need no company: a partial-order reduction, and why it hides nothing.

Most of the interleavings of a small world differ in when a task takes a record, and nothing else ever
finds out. A step is *eager* if, wherever it is possible, it is enough to explore it alone: it commutes
with everything that anybody else could do first, and nothing that anybody does disables it. That is a
persistent set of one step (Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems",
1996, chapter 4). A world never comes back to a state it was in, so no step can be put off for ever, and
then every run has an explored one that differs only in the order of commuting steps: it ends in the same
state, and what raises in one raises in the other.

These steps are eager, in graphs as small as ours (one task a worker):

1. A task with one input, not a back edge, takes a *record* or the *end of input* from it.
   - It changes the task's count, its open transaction and the queues of its targets. Whoever sends
     to the task appends to the other end of the same queue, and whoever takes from a target's queue
     takes from its other end.
   - A capture would see the difference. But captures come with the barrier, and that is behind the
     record: channels are FIFO. Under the halting protocol they come by message, but only after the barrier.
   - The coordinator hears nothing of it and the store holds nothing of it, so a crash of any worker or of
     the driver makes the same state of both: every task goes back to a snapshot. A zombie worker takes no
     records any more, and is remembered without what only they would change (`without_data`).
2. A sink with several regular inputs does so, under the aligned protocol. Its output is a set, so
   the order between inputs makes no difference. A capture needs the barrier of each of them.
3. A task as in 1 takes a *barrier* and captures, under the aligned or the at-least-once protocol, in a
   world in which no checkpoint is ever aborted and no worker becomes a zombie (its past would be one).

None of this may be taken for granted: that captures wait for barriers is what the search is there to
show. So each assumption is tested at every step that is explored (`check_step`, `check_no_abort`). If one
breaks in any run, take the first step in it that breaks one. Up to there, all that was said holds, so an
explored run has the same step, and there `Unreducible` is raised. The search then starts again, with
nothing left out.

Reads and triggers of sources do not commute, nor do arrivals of barriers with records under the unaligned
protocols; what reaches the store or the coordinator is seen by every crash. All that is explored in full.
"""

from __future__ import annotations

from enum import Enum

from tests.proof.explorer.frozen import Site
from tests.proof.explorer.items import END
from tests.proof.explorer.tasks import ExploredTask

from crosscut.protocol.snapshot.choosing import ProtocolKind

ACTION = tuple[object, ...]


class Unreducible(Exception):
    """A protocol did something that the reduction relies on not being done."""


class Eager(Enum):
    """Whether a step needs no company."""

    NO = "it is explored together with all others"
    WITHOUT_ZOMBIES = "it is eager if no worker can become a zombie any more"
    ALWAYS = "it is eager"


def is_reducible(site: Site, kind: ProtocolKind) -> bool:
    """Whether any step of this task can be eager."""
    has_back_edge = any(site.graph.channels[one][2] for one in (*site.inputs, *site.outputs))
    if not site.inputs or has_back_edge or site.graph.holds:
        return False
    if len(site.inputs) == 1:
        return kind in ("aligned", "at-least-once", "halting")
    return kind == "aligned" and not site.outputs


def eagerness(site: Site, task: ExploredTask, channel: int, *, aborts: bool) -> Eager:
    """Say whether a task that `is_reducible` takes the first item of `channel` eagerly.

    Args:
        aborts: Whether a checkpoint may be aborted in this world.
    """
    item = task.queues[channel][0]
    if item >= 0 or item == END:
        return Eager.ALWAYS
    if aborts or len(site.inputs) > 1:
        return Eager.NO
    return Eager.WITHOUT_ZOMBIES


def check_step(before: ExploredTask, action: ACTION, after: ExploredTask) -> None:
    """Test what the reduction assumes of one step of a task that `is_reducible`.

    Raises:
        Unreducible: It does not hold.
    """
    site = before.site
    name = action[0]
    if name == "offer":
        changed = {one for one in site.inputs if before.queues[one] != after.queues[one]}
        if changed != {action[1]} or after.protocol != before.protocol or after.captured != before.captured:
            raise Unreducible(f"an arrival at {site.task_id} changes more than its queue")
        return
    own = action[1] if name == "process" else None
    blocked = {one for one in site.inputs if before.machine.is_blocked(site.graph.channel(one))}
    is_new_capture = after.captured.keys() - before.captured.keys()
    if is_new_capture and blocked | {own} != {*site.inputs, own}:
        raise Unreducible(f"{site.task_id} captures before it has the barrier of each input")
    newly = {one for one in site.inputs if after.machine.is_blocked(site.graph.channel(one))} - blocked
    if newly - {own}:
        raise Unreducible(f"{site.task_id} blocks a channel that has delivered nothing")


def check_no_abort(*, aborts: bool) -> None:
    """Test that no checkpoint is aborted in a world that was said to be without.

    Raises:
        Unreducible: It is.
    """
    if not aborts:
        raise Unreducible("a checkpoint is aborted in a world without any reason to")
