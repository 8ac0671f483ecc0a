"""Invariants: what a cut holds, when it is judged, and what the coordinator makes of a verdict."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.conversation import Talk, at, both

import crosscut as cc
from crosscut.contracts.invariants import Invariant, no_deadlock
from crosscut.driver.cuts import StoredCut
from crosscut.driver.invariants import InvariantChecker
from crosscut.errors import FlowError, ProtocolError, StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.graph.channels import inputs_of
from crosscut.graph.specs import JobGraph
from crosscut.host.calls import start_thread
from crosscut.monitoring.status import InvariantStatus
from crosscut.protocol.checkpoint.termination import Termination
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import BrokenInvariant, CutJudged, EntryAppended
from crosscut.protocol.job.coordinator import Phase
from crosscut.protocol.log.entries import CheckpointCompleted, JobFinished
from crosscut.protocol.messages import FailureCause, ShutDown, SourceDrained
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot
from crosscut.state.encoding import MAGIC, encode_block
from crosscut.state.keyed import MAIN
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.task.channel_log import encoded_log
from crosscut.task.items import LoggedBatch
from crosscut.wire.batches import encode_batch

EPOCH = Epoch(3)


def a_flow() -> cc.Flow:
    def body(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        counted = loop.named("head").key_by(str).count().named("counts")
        again = counted.filter(lambda update: update[1] < 3).named("again")
        return again, counted.filter(lambda update: update[1] >= 3).named("leaving")

    flow = cc.Flow("cuts")
    flow.source(cc.generate(str, count=9)).named("numbers").iterate(body).sink(cc.collect()).named("out")
    return flow


GRAPH = a_flow().compile(2, 8)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return open_store(str(tmp_path), inline_bytes=0)


def task(vertex: str, index: int) -> TaskId:
    return TaskId(VertexId(vertex), index)


class Stored:
    """Writes checkpoints of GRAPH into a store."""

    def __init__(self, store: CheckpointStore, graph: JobGraph = GRAPH) -> None:
        self._store = store
        self._graph = graph

    def state(self, n: int, one: TaskId, *blocks: dict[Any, Any]) -> Part:
        chunks = [encode_block(MAIN, list(block), list(block.values())) for block in blocks]
        return self._store.write_part(CheckpointId(n), one, EPOCH, [MAGIC, *chunks])

    def log(self, n: int, target: TaskId, *records: Any, by_sender: bool = False) -> tuple[TaskId, Part]:
        """Return whose snapshot holds the log, and the log, of records on their way to `target`."""
        channel = inputs_of(self._graph, target)[0]
        owner = channel.source if by_sender else target
        logged = LoggedBatch(channel, encode_batch(Batch(list(records))), len(records), by_sender)
        return owner, self._store.write_part(CheckpointId(n), owner, EPOCH, encoded_log([logged]))

    def checkpoint(self, n: int, snapshots: dict[TaskId, Snapshot]) -> CheckpointCompleted:
        tasks = [task(one.vertex_id, index) for one in self._graph.vertices for index in range(2)]
        found = tuple(TaskSnapshot(one, snapshots.get(one, Snapshot())) for one in sorted(tasks))
        return CheckpointCompleted(EPOCH, CheckpointId(n), found)

    def counts(self, n: int, counts: dict[Any, Any]) -> CheckpointCompleted:
        one = task("counts", 0)
        return self.checkpoint(n, {one: Snapshot(parts=(self.state(n, one, counts),))})


# What a cut holds.


def test_the_values_of_an_operator_are_those_of_all_its_tasks_and_later_parts_win(
    store: CheckpointStore,
) -> None:
    stored = Stored(store)
    first, second = task("counts", 0), task("counts", 1)
    older = stored.state(1, first, {"a": 1, "b": 2}, {"c": 3})
    newer = stored.state(2, first, {"b": 20})
    entry = stored.checkpoint(
        2,
        {
            first: Snapshot(parts=(older, newer)),
            second: Snapshot(parts=(stored.state(2, second, {("x", 1): 5}),)),
        },
    )
    cut = StoredCut(entry, GRAPH, store)
    assert cut.values("counts") == {"a": 1, "b": 20, "c": 3, ("x", 1): 5}
    assert (cut.checkpoint_id, cut.epoch) == (2, EPOCH)
    assert cut.values("counts") is cut.values("counts")


def test_records_on_their_way_are_found_by_where_they_go_whoever_has_logged_them(
    store: CheckpointStore,
) -> None:
    stored = Stored(store)
    head, counts = task("head", 0), task("counts", 1)
    (by_receiver, one), (by_sender, other) = (
        stored.log(1, head, "x", "y"),
        stored.log(1, counts, "z", by_sender=True),
    )
    assert by_receiver == head
    assert by_sender.vertex == "head"
    snapshots = {by_receiver: Snapshot(log=(one,), in_flight=2)}
    snapshots[by_sender] = Snapshot(log=(*snapshots.get(by_sender, Snapshot()).log, other), in_flight=3)
    cut = StoredCut(stored.checkpoint(1, snapshots), GRAPH, store)
    assert cut.in_flight("head") == ["x", "y"]
    assert cut.in_flight("counts") == ["z"]
    assert cut.in_flight("again") == []
    assert sorted(cut.in_flight()) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda cut: cut.values("count"), "no operator 'count'; it has 'numbers', 'head'"),
        (lambda cut: cut.values("again"), "operator 'again' has no keyed state"),
        (lambda cut: cut.in_flight("nowhere"), "no operator 'nowhere'"),
        (lambda cut: cut.in_flight("out"), "called directly by the one before it; ask for 'leaving'"),
    ],
)
def test_a_question_that_has_no_answer_says_what_to_ask(store: CheckpointStore, ask: Any, text: str) -> None:
    cut = StoredCut(Stored(store).checkpoint(1, {}), GRAPH, store)
    with pytest.raises(FlowError, match=text):
        ask(cut)


def quiet_snapshots() -> dict[TaskId, Snapshot]:
    return {task("numbers", index): Snapshot(ended=True) for index in range(2)}


def test_a_cut_is_quiet_if_every_source_has_ended_and_nothing_is_on_its_way(store: CheckpointStore) -> None:
    stored = Stored(store)
    assert StoredCut(stored.checkpoint(1, quiet_snapshots()), GRAPH, store).is_quiet
    one_source_goes_on = quiet_snapshots() | {task("numbers", 1): Snapshot()}
    assert not StoredCut(stored.checkpoint(1, one_source_goes_on), GRAPH, store).is_quiet
    one_is_on_its_way = quiet_snapshots() | {task("head", 1): Snapshot(in_flight=1)}
    assert not StoredCut(stored.checkpoint(1, one_is_on_its_way), GRAPH, store).is_quiet


def exhausted_snapshots(graph: JobGraph = GRAPH) -> dict[TaskId, Snapshot]:
    """Sources are drained, and nothing is on its way."""
    return {
        task(vertex.vertex_id, index): Snapshot(at_rest=True, drained=vertex.source is not None, ended=True)
        for vertex in graph.vertices
        for index in range(2)
    }


def test_a_deadlock_is_somebody_who_waits_where_nothing_can_come_any_more(store: CheckpointStore) -> None:
    stored = Stored(store)
    holds = no_deadlock("counts", waiting=lambda count: count < 3)
    one = task("counts", 0)
    over = exhausted_snapshots()

    def cut(n: int, counts: dict[str, int], **others: Snapshot) -> StoredCut:
        snapshots = over | {task(vertex, 1): other for vertex, other in others.items()}
        snapshots[one] = replace(over[one], parts=(stored.state(n, one, counts),))
        return StoredCut(stored.checkpoint(n, snapshots), GRAPH, store)

    assert not holds(cut(1, {"a": 3, "b": 2}))
    assert holds(cut(2, {"a": 3}))
    assert holds(cut(3, {"a": 3, "b": 2}, numbers=Snapshot(at_rest=True)))
    assert holds(cut(4, {"a": 3, "b": 2}, head=Snapshot(in_flight=1)))
    assert not holds(cut(5, {"a": 3, "b": 2}, out=Snapshot(in_flight=1)))


def test_whoever_waits_for_a_final_result_is_in_no_deadlock(store: CheckpointStore) -> None:
    """The sources are drained and nothing is on its way; what they wait for has yet to be said."""
    flow = cc.Flow("in-front")
    totals = flow.source(cc.generate(str, count=9)).named("numbers").key_by(str).count(emit="final")
    totals.named("totals").key_by(str).count().named("waiting").sink(cc.collect())
    graph = flow.compile(2, 8)
    stored = Stored(store, graph)
    holds = no_deadlock("waiting", waiting=lambda count: count < 3)
    waits = task("waiting", 0)
    over = exhausted_snapshots(graph)
    over[waits] = replace(over[waits], parts=(stored.state(1, waits, {"a": 1}),))
    cut = StoredCut(stored.checkpoint(1, over), graph, store)
    assert cut.is_quiet
    assert holds(cut)
    said = {task("totals", index): Snapshot(drained=True, ended=True, at_rest=True) for index in range(2)}
    assert not holds(StoredCut(stored.checkpoint(1, over | said), graph, store))


# When it is judged.


class Judging:
    """A checker, and the verdicts that it posts."""

    def __init__(self, store: CheckpointStore, *invariants: Invariant) -> None:
        self.verdicts: list[CutJudged] = []
        self._arrived = threading.Condition()
        self.threads: list[str] = []
        self.checker = InvariantChecker(invariants, GRAPH, store, self._post, self._start_thread)

    def _start_thread(self, work: Callable[[], None], name: str) -> None:
        self.threads.append(name)
        start_thread(work, name)

    def _post(self, verdict: CutJudged) -> None:
        with self._arrived:
            self.verdicts.append(verdict)
            self._arrived.notify_all()

    def wait_for(self, n: int) -> None:
        with self._arrived:
            assert self._arrived.wait_for(
                lambda: [one for one in self.verdicts if one.checkpoint_id == n], 30
            )

    def judged(self, *entries: CheckpointCompleted) -> tuple[InvariantStatus, ...]:
        for entry in entries:
            self.checker.offer(entry)
        assert self.checker.close(30)
        return self.checker.status()


class Gate:
    """A predicate that waits inside the first cut until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.seen: list[int] = []

    def __call__(self, cut: cc.Cut) -> bool:
        self.seen.append(cut.checkpoint_id)
        self.entered.set()
        assert self.opened.wait(30)
        return len(cut.values("counts")) > 0


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def test_a_predicate_that_is_false_or_raises_breaks_with_the_id_of_the_cut(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "crosscut")
    stored = Stored(store)
    judging = Judging(
        store,
        Invariant("small", lambda cut: sum(cut.values("counts").values()) < 10, "report"),
        Invariant("there", lambda cut: cut.values("counts")["a"], "stop"),
    )
    for n, counts in ((1, {"a": 1}), (2, {"a": 11}), (3, {"b": 12})):
        judging.checker.offer(stored.counts(n, counts))
        judging.wait_for(n)
    small, there = judging.judged()
    assert small == InvariantStatus("small", 3, 0, 2, CheckpointId(2), "the predicate returned False")
    assert (there.evaluated, there.broken, there.broken_at) == (3, 1, 3)
    assert "the predicate raised KeyError: 'a'" in there.message
    assert judging.verdicts == [
        CutJudged(CheckpointId(1)),
        CutJudged(CheckpointId(2), (BrokenInvariant("small", small.message, stop=False),)),
        CutJudged(
            CheckpointId(3),
            (
                BrokenInvariant("small", small.message, stop=False),
                BrokenInvariant("there", there.message, stop=True),
            ),
        ),
    ]
    assert caplog.text.count("invariant 'small' is broken on the cut of checkpoint 2") == 1


def test_a_slow_predicate_sees_only_the_newest_of_the_cuts_it_has_missed(
    store: CheckpointStore, gate: Gate
) -> None:
    stored = Stored(store)
    judging = Judging(store, Invariant("slow", gate, "report"))
    judging.checker.offer(stored.counts(1, {"a": 1}))
    assert gate.entered.wait(30)
    for n in (2, 3, 4):
        judging.checker.offer(stored.counts(n, {"a": 1}))
    gate.opened.set()
    assert judging.judged() == (InvariantStatus("slow", evaluated=2, skipped=2),)
    assert gate.seen == [1, 4]


def test_a_cut_whose_parts_retention_has_deleted_is_skipped_and_counted(
    store: CheckpointStore, gate: Gate
) -> None:
    stored = Stored(store)
    judging = Judging(store, Invariant("slow", gate, "stop"))
    entry = stored.counts(1, {"a": 1})
    judging.checker.offer(entry)
    assert gate.entered.wait(30)
    assert store.delete_parts(part.path for one in entry.snapshots for part in one.snapshot.parts) == []
    gate.opened.set()
    assert judging.judged() == (InvariantStatus("slow", skipped=1),)
    assert judging.verdicts == [CutJudged(CheckpointId(1), unjudged=("slow",))]


def test_a_cut_that_could_not_be_read_is_skipped_even_if_the_predicate_hides_it(
    store: CheckpointStore,
) -> None:
    def hiding(cut: cc.Cut) -> bool:
        try:
            return len(cut.values("counts")) > 0
        except cc.CrosscutError:
            return False

    entry = Stored(store).counts(1, {"a": 1})
    store.delete_parts(part.path for one in entry.snapshots for part in one.snapshot.parts)
    assert Judging(store, Invariant("hiding", hiding, "stop")).judged(entry) == (
        InvariantStatus("hiding", skipped=1),
    )


def test_a_part_that_does_not_match_its_digest_is_never_decoded(
    store: CheckpointStore, tmp_path: Path
) -> None:
    entry = Stored(store).counts(1, {"a": 1})
    for one in entry.snapshots:
        for part in one.snapshot.parts:
            path = tmp_path / part.path
            path.chmod(0o600)
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    # Decoded, it would be a StateError, and so a broken invariant.
    (found,) = Judging(store, Invariant("any", lambda cut: cut.values("counts"), "report")).judged(entry)
    assert found == InvariantStatus("any", skipped=1)


def test_state_that_the_driver_can_not_decode_breaks_the_invariant_that_asks_for_it(
    store: CheckpointStore,
) -> None:
    one = task("counts", 0)
    part = store.write_part(CheckpointId(1), one, EPOCH, [b"something else"])
    entry = Stored(store).checkpoint(1, {one: Snapshot(parts=(part,))})
    (found,) = Judging(store, Invariant("any", lambda cut: cut.values("counts"), "report")).judged(entry)
    assert found.broken_at == 1
    assert StateError.__name__ in found.message


def test_without_invariants_nothing_is_read_and_no_thread_is_started(store: CheckpointStore) -> None:
    judging = Judging(store)
    assert judging.judged(Stored(store).counts(1, {"a": 1})) == ()
    assert judging.threads == []
    assert judging.verdicts == []


def test_the_end_does_not_wait_for_a_predicate_that_never_returns(store: CheckpointStore, gate: Gate) -> None:
    judging = Judging(store, Invariant("slow", gate, "report"))
    judging.checker.offer(Stored(store).counts(1, {"a": 1}))
    assert not judging.checker.close(0.05)


# What the coordinator makes of it.


def broken(n: int, *, stop: bool) -> CutJudged:
    return CutJudged(CheckpointId(n), (BrokenInvariant("total", "it is 99", stop=stop),))


def test_a_broken_invariant_that_is_only_reported_changes_nothing() -> None:
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    assert talk.hear(broken(1, stop=False)) == []
    assert talk.coordinator.phase is Phase.RUNNING


def test_a_broken_invariant_that_stops_the_job_ends_it_as_failed_and_names_the_cut() -> None:
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    message = "invariant 'total' is broken on the cut of checkpoint 1: it is 99"
    assert talk.hear(broken(1, stop=True)) == [
        *both(ShutDown("the job has failed")),
        EndJob("failed", FailureCause("InvariantBroken", message)),
    ]


def test_a_verdict_on_a_cut_that_is_not_complete_is_impossible() -> None:
    talk = Talk()
    talk.running()
    with pytest.raises(ProtocolError, match="checkpoint 1 was judged, which is not complete"):
        talk.hear(CutJudged(CheckpointId(1)))


def test_a_repeated_verdict_is_dropped_and_counted() -> None:
    talk = Talk()
    talk.running()
    talk.complete(1, 2)
    talk.hear(CutJudged(CheckpointId(1)))
    assert talk.hear(broken(1, stop=True)) == []
    assert talk.coordinator.dropped["repeated verdict"] == 1


def finishing(*, awaits_verdict: bool) -> Talk:
    talk = Talk(awaits_verdict=awaits_verdict)
    talk.running()
    talk.complete(1, 2, drained=True)
    return talk


def appended(effects: list[Any]) -> list[Any]:
    return [one.entry for one in effects if hasattr(one, "entry")]


def test_a_job_with_a_stopping_invariant_has_not_finished_before_its_final_cut_is_judged() -> None:
    done = [JobFinished(Epoch(1), CheckpointId(1))]
    assert appended(finishing(awaits_verdict=False).committed(1)) == done
    talk = finishing(awaits_verdict=True)
    assert talk.committed(1) == []
    assert appended(talk.hear(CutJudged(CheckpointId(1)))) == done
    talk = finishing(awaits_verdict=True)
    assert talk.hear(CutJudged(CheckpointId(1))) == []
    assert appended(talk.committed(1)) == done
    talk = finishing(awaits_verdict=True)
    talk.committed(1)
    assert talk.hear(broken(1, stop=True))[-1].cause.kind == "InvariantBroken"


def test_a_job_whose_final_cut_is_not_judged_in_time_has_failed_and_says_so() -> None:
    """Another epoch would wait for the same verdict, and to finish without it would say that all is well."""
    talk = finishing(awaits_verdict=True)
    talk.committed(1)
    end = talk.fire("finish")[-1]
    assert (end.outcome, end.cause.kind) == ("failed", "InvariantNotJudged")
    assert "checkpoint 1: its invariants were not evaluated within" in end.cause.message
    assert "All output is committed" in end.cause.message


def test_output_that_is_not_committed_in_time_is_a_failure_like_any_other() -> None:
    talk = finishing(awaits_verdict=True)
    talk.fire("finish")
    assert talk.coordinator.phase is Phase.CLAIMING
    assert talk.coordinator.failures[-1].message.startswith("the output of the final checkpoint")


def test_a_final_cut_that_could_not_be_read_is_not_judged_either() -> None:
    talk = finishing(awaits_verdict=True)
    end = talk.hear(CutJudged(CheckpointId(1), unjudged=("total",)))[-1]
    assert (end.outcome, end.cause.kind) == ("failed", "InvariantNotJudged")
    assert "'total' could not be evaluated on it" in end.cause.message


def test_a_cut_in_the_middle_that_could_not_be_read_does_no_harm() -> None:
    talk = Talk(awaits_verdict=True)
    talk.running()
    talk.complete(1, 2)
    assert talk.hear(CutJudged(CheckpointId(1), unjudged=("total",))) == []


def test_a_failure_before_the_final_verdict_does_not_do_away_with_it() -> None:
    talk = finishing(awaits_verdict=True)
    talk.failed()
    talk.hear(EntryAppended(at(3)))
    assert appended(talk.ready(2)) == []
    assert talk.coordinator.phase is Phase.FINISHING
    assert appended(talk.hear(CutJudged(CheckpointId(1)))) == [JobFinished(Epoch(2), CheckpointId(1))]


def test_termination_is_open_then_drained_then_final() -> None:
    talk = Talk()
    talk.running()
    assert talk.coordinator.termination is Termination.OPEN
    for index in (0, 1):
        talk.message(index, SourceDrained(Epoch(1), task("numbers", index)))
    assert talk.coordinator.termination is Termination.DRAINED
    talk.acknowledge(1, drained=True)
    talk.hear(EntryAppended(at(2)))
    assert talk.coordinator.termination is Termination.FINAL


# What the user may write.


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("", bool), "expected a name"),
        ((7, bool), "expected a name"),
        (("twice", bool), "another one has that name"),
        (("no function", 5), "an object of type int: expected a function of a cut"),
        (("how", bool, "ignore"), "on_broken='ignore': expected 'report' or 'stop'"),
    ],
)
def test_an_invariant_that_can_not_be_is_refused_where_it_is_stated(
    arguments: tuple[Any, ...], text: str
) -> None:
    flow = a_flow()
    flow.invariant("twice", bool)
    with pytest.raises(FlowError) as failure:
        flow.invariant(*arguments)
    assert text in str(failure.value)
    assert [one.name for one in flow.invariants] == ["twice"]


def test_invariants_are_not_part_of_the_graph_that_is_sent_and_resumed() -> None:
    flow = a_flow()
    lock = threading.Lock()
    flow.invariant("locked", lambda _: lock.locked())
    assert flow.compile(2, 8).fingerprint == GRAPH.fingerprint
