"""Carry out the drop of pending output: append the claim that lists it to the job log."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Collection
from typing import assert_never

from crosscut.driver.asking import Asking
from crosscut.errors import StoreError
from crosscut.host.failpoints import Failpoints
from crosscut.protocol.effects import AppendEntry, CancelTimer, ReadEntry, StartTimer
from crosscut.protocol.events import (
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    JobEvent,
    TimerFired,
)
from crosscut.protocol.job.dropping import NothingToDrop, dropping
from crosscut.protocol.log.entries import EpochClaimed, OpenOutput
from crosscut.protocol.log.identity import Claimant, shown
from crosscut.protocol.log.segments import claim_of
from crosscut.protocol.log.writer import Durable, LogWriter, Overtaken, Refused, Undecided, Verdict
from crosscut.store.checkpoint_store import CheckpointStore

_CALL_TIMEOUT_MS = 60_000


def drop_output(
    store: CheckpointStore, wanted: Collection[OpenOutput], claimant: Claimant, reason: str
) -> EpochClaimed:
    """Drop pending transactions of the newest completed checkpoint; return the durable claim. Blocks.

    A driver that is still running is fenced, and ends.

    Raises:
        StoreError: Nothing is dropped, and the message says why; or the store does not tell whether the
            claim is in the log, and the message says how to find out.
    """
    decision = dropping(store.tail(1), wanted, claimant, secrets.token_hex(8), reason)
    if isinstance(decision, NothingToDrop):
        raise StoreError(f"nothing was dropped: {decision.reason}")
    writer = LogWriter(decision.end, _CALL_TIMEOUT_MS)
    asking = Asking(store, lambda _: (), lambda: (), Failpoints(None, None))
    effects = deque(writer.append(decision.entry))
    while True:
        answer = _performed(asking, effects.popleft())
        if answer is None:
            continue
        more, verdict = writer.handle(answer)
        effects.extend(more)
        if verdict is not None:
            return _claimed(verdict, decision.entry)


def _performed(
    asking: Asking, effect: AppendEntry | ReadEntry | StartTimer | CancelTimer
) -> EntryAppended | EntryTaken | EntryUncertain | EntryRefused | EntryRead | TimerFired | None:
    match effect:
        case AppendEntry():
            return _answer(asking.append(effect))
        case ReadEntry(index):
            return _answer(asking.read(index))
        case StartTimer(timer, delay_ms) if timer.kind == "retry-append":
            time.sleep(delay_ms / 1_000)
            return TimerFired(timer)
        case StartTimer() | CancelTimer():
            # The limit of a call of the store: here each has returned before the next effect.
            return None
        case _:
            assert_never(effect)


def _answer(event: JobEvent) -> EntryAppended | EntryTaken | EntryUncertain | EntryRefused | EntryRead:
    match event:
        case EntryAppended() | EntryTaken() | EntryUncertain() | EntryRefused() | EntryRead():
            return event
        case _:
            raise StoreError(f"the store answered {type(event).__name__} to an entry of the job log")


def _claimed(verdict: Verdict, claim: EpochClaimed) -> EpochClaimed:
    match verdict:
        case Durable():
            return claim
        case Refused(_, reason):
            raise StoreError(f"nothing was dropped: the job log can't be written: {reason}")
        case Overtaken(_, index, winner):
            other = claim_of(winner)
            who = f" ({shown(other.claimant)})" if other is not None else ""
            raise StoreError(
                f"nothing was dropped: another process{who} wrote entry {index} of the job log first. Stop "
                f"the job, and try again"
            )
        case Undecided(_, reason):
            raise StoreError(
                f"it is unknown whether the output was dropped: the store does not answer ({reason}). "
                f"Check with `crosscut transactions ls` once it answers again"
            )
        case _:
            assert_never(verdict)
