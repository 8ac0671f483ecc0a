"""`crosscut simulate app.py:flow`: good flows pass, bad ones are told what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.proof.simulate import main

from crosscut.cli.commands import program
from crosscut.foundation.ids import CheckpointId
from crosscut.operators.process import Process
from crosscut.state.keyed import KeyedState
from crosscut.state.table import Table
from crosscut.testing.simulator import command, user_flow
from crosscut.testing.simulator.shrink import Life

HEAD = """
import crosscut as cc
words = [f"w{i % 5}" for i in range(40)]
numbers = cc.generate(lambda i: (words[i % 40], i), count=40)
flow = cc.Flow("mine")
"""


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[object]:
    """Writes a module and simulates the flow in it."""
    loaded = []

    def run(text: str, *options: str, name: str = "app_of_a_user") -> Result:
        loaded.append(name)
        sys.modules.pop(name, None)
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + text)
        return CliRunner().invoke(program, ["simulate", f"{path}:flow", "--seeds", "25", *options])

    before = list(sys.path)
    yield run
    sys.path[:] = before
    for name in loaded:
        sys.modules.pop(name, None)


def test_frames_between_records_pass(simulate) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")
    done = simulate(
        "import polars as pl\n"
        "frame = flow.source(cc.generate(lambda i: {'w': words[i % 40], 'n': i}, count=40))"
        ".frame({'w': 'string', 'n': 'int64'})\n"
        "frame.filter(pl.col('n') % 3 > 0).with_columns(n=pl.col('n') * 2).sink(cc.collect())\n"
        "rows = frame.drop('w').rows().key_by(lambda r: r['n'] % 4)\n"
        "rows.sum(lambda r: r['n'], emit='final').sink(cc.collect())\n"
        "totals = frame.key_by('w').agg(pl.len(), total=pl.col('n').sum(), emit='final')\n"
        "totals.filter(pl.col('total') > 5).rows().sink(cc.collect())",
        *(word for one in ("aligned", "unaligned", "switching", "halting") for word in ("--snapshots", one)),
    )
    assert done.exit_code == 0, done.output
    assert "0 of 25 failed" in done.output
    assert "wrong" not in done.output and "differ" not in done.output


def test_a_flow_that_depends_on_its_records_alone_passes(simulate) -> None:  # type: ignore[no-untyped-def]
    done = simulate(
        "flow.source(numbers).key_by(lambda r: r[0]).sum(lambda r: r[1], emit='final').sink(cc.collect())",
        *(word for one in ("aligned", "unaligned", "switching", "halting") for word in ("--snapshots", one)),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "40 records sampled from 1 sources" in done.output
    assert "0 of 25 failed; with 95 % confidence, fewer than 11.29 % of all worlds would" in done.output
    assert "wrong" not in done.output and "differ" not in done.output and "at-least-once" not in done.output


PROCESS = """
class Runs(cc.KeyedProcess):
    count = cc.ValueState(default=0)
    numbers = cc.ListState()
    by_parity = cc.MapState()
    most = cc.ReducingState(max)

    def on_record(self, record, ctx):
        word, number = record
        self.count.set(self.count.get() + 1)
        self.numbers.append(number)
        self.by_parity[number % 2] = self.by_parity.get(number % 2, 0) + 1
        self.most.add(number)
        if len(self.numbers) == 3:
            yield ctx.key, self.count.get(), self.numbers.get(), dict(self.by_parity), self.most.get()
            self.numbers.clear()
            if number > 30:
                self.by_parity.clear()

flow.source(numbers).key_by(lambda r: r[0]).process(Runs()).sink(cc.collect())
"""


CONNECTED = """
class Pairs(cc.ConnectedProcess):
    left, right = cc.ListState(), cc.MapState()

    def on_record(self, record, ctx):
        self.left.append(record)
        return [(record, self.right[name]) for name in self.right]

    def on_other(self, record, ctx):
        self.right[record[1]] = record
        return [(other, record) for other in self.left]

class Rules(Pairs):
    rules = cc.BroadcastState()

def source(name):
    numbers = cc.generate(lambda i: (words[i % 40], i), count=12)
    return flow.source(numbers).named(name)
"""


def test_a_process_of_two_keyed_streams_passes(simulate) -> None:  # type: ignore[no-untyped-def]
    keyed = "source({!r}).key_by(lambda r: r[0])".format
    done = simulate(f"{CONNECTED}\n{keyed('a')}.connect({keyed('b')}).process(Pairs()).sink(cc.collect())")
    assert done.exit_code == 0, done.output
    assert "0 of 25 failed" in done.output and "differ" not in done.output


def test_a_flow_with_states_of_tasks_is_not_judged(simulate) -> None:  # type: ignore[no-untyped-def]
    flow = "source('a').key_by(lambda r: r[0]).connect(source('b').broadcast()).process(Rules())"
    done = simulate(f"{CONNECTED}\n{flow}.sink(cc.collect())")
    assert done.exit_code == 2
    assert "has a process with states of a task" in done.output


def test_a_process_with_states_of_every_kind_passes(simulate) -> None:  # type: ignore[no-untyped-def]
    protocols = ("aligned", "unaligned", "switching", "halting")
    done = simulate(PROCESS, *(word for one in protocols for word in ("--snapshots", one)))
    assert done.exit_code == 0, done.output
    assert "wrong" not in done.output and "differ" not in done.output, done.output


@pytest.mark.parametrize("name", ["numbers", "count"])
def test_a_state_of_a_process_that_is_not_in_the_snapshot_is_noticed(
    simulate,  # type: ignore[no-untyped-def]
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Table.rows

    def rows(self: Table, checkpoint_id: CheckpointId, since: CheckpointId) -> Iterator[object]:
        return (rows for rows in plain(self, checkpoint_id, since) if self is not left_out.get(id(self)))

    left_out: dict[int, Table] = {}
    encoded = KeyedState.encoded

    def without(self: KeyedState, checkpoint_id: CheckpointId, since: CheckpointId) -> Iterator[bytes]:
        left_out[id(self.tables[name])] = self.tables[name]
        return encoded(self, checkpoint_id, since)

    monkeypatch.setattr(Table, "rows", rows)
    monkeypatch.setattr(KeyedState, "encoded", without)
    done = simulate(PROCESS, "--snapshots", "aligned")
    assert done.exit_code == 1, done.output


def test_a_random_number_is_noticed_and_no_failure(simulate) -> None:  # type: ignore[no-untyped-def]
    done = simulate(
        "import random\n"
        "flow.source(numbers).map(lambda r: (r, random.random())).sink(cc.collect())",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "two runs in two processes differ: sink '3-sink', record 1: (('w0', 0), 0." in done.output
    assert "exactly-once all the same" in done.output


def test_an_order_that_is_left_to_chance_is_noticed_and_no_failure(simulate) -> None:  # type: ignore[no-untyped-def]
    """The order of the keys in a dict is that in which records of two sources meet."""
    done = simulate(
        """
def add(seen, record):
    seen[record[0]] = None
    return seen
others = cc.generate(lambda i: (f"o{i}", i), count=40)
both = flow.source(numbers).union(flow.source(others)).key_by(lambda r: "all")
both.aggregate(dict, add, list).sink(cc.collect())
"""
    )
    assert done.exit_code == 0, done.output
    assert "records met in another order: sink '" in done.output


def test_a_global_variable_that_a_function_changes_is_wrong(simulate) -> None:  # type: ignore[no-untyped-def]
    done = simulate(
        """
seen = set()
def is_new(record):
    is_known = record in seen
    seen.add(record)
    return not is_known
flow.source(numbers).filter(is_new).sink(cc.collect())
"""
    )
    assert done.exit_code == 1, done.output
    assert "wrong: sink '3-sink', record 1: ('w0', 0) and nothing" in done.output
    assert "keeps something\noutside of the job" in done.output


def test_what_a_failure_brings_to_light_is_told_with_its_faults_and_replayed(simulate) -> None:  # type: ignore[no-untyped-def]
    """Records of a split come in order, until the survivors of a failure go back to a checkpoint."""
    text = """
def rising():
    last = [-1]
    def is_in_order(record):
        falls_back = 0 < record[1] < last[0]
        last[0] = record[1]
        return not falls_back
    return is_in_order
for _ in range(4):
    rows = flow.source(cc.generate(lambda i: (words[i], i), count=40))
    rows.filter(rising()).sink(cc.collect())
"""
    done = simulate(text, "--snapshots", "aligned")
    assert done.exit_code == 1, done.output
    assert "I1: " in done.output and "every run without faults agrees" in done.output
    replay = next(line for line in done.output.splitlines() if line.startswith("replay: "))
    again = simulate(text, *replay.split(":flow", 1)[1].split())
    assert again.exit_code == 1 and "I1: " in again.output


def test_duplicates_under_at_least_once_are_told_and_no_failure(simulate) -> None:  # type: ignore[no-untyped-def]
    done = simulate(
        """
others = cc.generate(lambda i: (words[i % 40], i), count=40)
both = flow.source(numbers).rebalance().union(flow.source(others))
both.key_by(lambda r: r[0]).count(emit="final").sink(cc.collect())
""",
        "--snapshots", "at-least-once", "--seeds", "60",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "under snapshots='at-least-once', the output is not exact in " in done.output
    assert "of 60 worlds, as documented; for one, crosscut simulate " in done.output
    assert "lacks ('w" in done.output


SINKS = """
import json
from pathlib import Path
from tempfile import mkdtemp
from crosscut.testing.sinks import SinkTarget
flow.source(numbers).sink(cc.collect())

class Appending(cc.Sink):
    def __init__(self, path): self.path = path
    def writer(self, context): return Writer(self.path)

class Writer(cc.SinkWriter):
    def __init__(self, path): self.path, self.open = Path(path), []
    def recover(self, permit, handles): self.commit(permit, handles)
    def write(self, records): self.open += records
    def rotate(self, checkpoint_id):
        records, self.open = self.open, []
        return records or None
    def prepare(self, transaction): return transaction
    def commit(self, permit, handles):
        with self.path.open("a") as file:
            for handle in handles:
                file.writelines(json.dumps(record) + "\\n" for record in handle)

def target():
    path = Path(mkdtemp(dir=DIRECTORY)) / "out"
    def visible():
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return SinkTarget(Appending(str(path)), visible)
"""


def test_a_sink_of_ones_own_that_is_not_idempotent_is_wrong(simulate, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = f"DIRECTORY = {str(tmp_path)!r}\n" + SINKS
    done = simulate(text, "--sink", f"{tmp_path / 'app_of_a_user.py'}:target", "--seeds", "1")
    assert done.exit_code == 1, done.output
    assert "check_commit_may_be_repeated (F1: the reply to a commit is lost" in done.output
    assert "check_nothing_is_visible_before_commit" not in done.output
    assert "checks passed" in done.output


def test_a_sink_target_has_to_be_a_function(simulate, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = simulate("", "--sink", f"{tmp_path / 'app_of_a_user.py'}:words")
    assert done.exit_code == 2
    assert "expected a function that returns a crosscut.testing.sinks.SinkTarget" in done.output


def test_a_sink_is_checked_without_a_flow(tmp_path: Path) -> None:
    path = tmp_path / "app_of_a_user.py"
    path.write_text(f"{HEAD}DIRECTORY = {str(tmp_path)!r}\n{SINKS}")
    done = CliRunner().invoke(program, ["simulate", "--sink", f"{path}:target"])
    assert done.exit_code == 1, done.output
    assert "checks passed" in done.output and "worlds in" not in done.output


def test_without_flow_and_sink_there_is_nothing_to_simulate() -> None:
    done = CliRunner().invoke(program, ["simulate"])
    assert done.exit_code == 2
    assert "pass a flow as APP.PY:FLOW, or a sink with --sink" in done.output
    assert "python -m tests.proof.simulate" in done.output


def test_a_single_world_is_shown_by_its_seed() -> None:
    beyond = CliRunner().invoke(main, ["--seed", "3", "--faults", "0,10000"])
    assert beyond.exit_code == 2
    assert "the world of seed 3 has no fault 10000: its plan has" in beyond.output
    done = CliRunner().invoke(main, ["--seed", "3", "--faults", "none"])
    assert (done.exit_code, done.output) == (0, "seed 3: nothing is wrong\n")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_with_what_was_found_until_then(jobs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = command.Simulation._note

    def interrupted(self: command.Simulation, life: Life) -> None:
        if self.lived_count == 3:
            raise KeyboardInterrupt
        plain(self, life)

    monkeypatch.setattr(command.Simulation, "_note", interrupted)
    done = CliRunner().invoke(main, ["--size", "small", "--seeds", "1000", "--jobs", jobs])
    assert not active_children()
    assert done.exit_code == 130
    assert done.output.startswith("3 worlds in ") and "0 of 3 failed" in done.output


def test_a_loop_that_takes_long_is_simulated_with_fewer_records(
    simulate, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    """200 tokens that go round 15 times are more than a world has the time for."""
    monkeypatch.setattr(user_flow, "LIVENESS_MS", 30_000)
    done = simulate(
        """
def step(loop):
    less = loop.key_by(lambda r: r[1] % 12).reduce(lambda _, r: r).map(lambda u: (u[1][0], u[1][1] - 1))
    return less.filter(lambda r: r[1] > 0), less.filter(lambda r: r[1] == 0)

flow.source(cc.generate(lambda i: (i, 15), count=200)).iterate(step).sink(cc.collect())
""",
        "--snapshots", "aligned", "--seeds", "1",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "40 records sampled from 1 sources" in done.output
    assert "0 of 1 failed" in done.output


def test_a_flow_that_never_comes_to_an_end_in_a_world_is_an_error(
    simulate, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(user_flow, "LIVENESS_MS", 1)
    done = simulate("flow.source(numbers).sink(cc.collect())")
    assert done.exit_code == 2, done.output
    assert "flow 'mine' can't be simulated: without any fault, and with no more than 2 records" in done.output


BUDGETS = """
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

class Budget(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.left = handle.getValueState("left", "n INT")

    def handleInitialState(self, key, initialState, timerValues):
        self.left.update(((self.left.get() or (0,))[0] + initialState.budget,))
        self.handle.registerTimer(1_000_000)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.left.update(((self.left.get() or (0,))[0] - row.n,))
            yield Row(key=key[0], left=self.left.get()[0])

    def handleExpiredTimer(self, key, timerValues, expired):
        yield Row(key=key[0], left=self.left.get()[0])

    def close(self):
        pass

budgets = {"w1": Row(budget=100), **{f"quiet{i}": Row(budget=i) for i in range(7)}}
rows = flow.source(numbers).map(lambda r: Row(key=r[0], n=r[1])).assign_timestamps(lambda row: row.n)
spent = rows.key_by(lambda row: row.key).transform_with_state(
    Budget(), "key STRING, left INT", "EventTime", initial_state=budgets
)
spent.sink(cc.collect())
"""


def test_initial_state_is_given_to_each_key_once_whatever_fails(simulate, monkeypatch: Any) -> None:  # type: ignore[no-untyped-def]
    done = simulate(BUDGETS)
    assert done.exit_code == 0 and "order" not in done.output, done.output

    def again(self: Process, owns: Any) -> None:
        plain(self, owns)
        for key in self._to_begin:
            self._state.tables["initial state taken in"].delete(key)

    plain = Process.own
    monkeypatch.setattr(Process, "own", again)
    done = simulate(BUDGETS)
    assert done.exit_code == 1 and "Row(key='quiet" in done.output, done.output


RAISING = {
    "a map": (
        "def halves(r): return 10 // (3 - r[1])\n"
        "flow.source(numbers).map(halves).sink(cc.collect())",
        "operator '2-map' raised ZeroDivisionError: integer division or modulo by zero\n  record: ('w3', 3)",
        "return 10 // (3 - r[1])",
    ),
    "a filter that would end the process": (
        "def leave(r): raise SystemExit(0)\nflow.source(numbers).filter(leave).sink(cc.collect())",
        "operator '2-filter' raised SystemExit: 0\n  record: ('w0', 0)\n",
        "def leave(r): raise SystemExit(0)",
    ),
    "a result at the end": (
        "def mean(total): return total / 0\n"
        "keyed = flow.source(numbers).key_by(len)\n"
        "keyed.aggregate(0, lambda a, r: a + 1, mean, emit='final').sink(cc.collect())",
        "operator '3-aggregate' raised ZeroDivisionError: division by zero\n  record: (2, 40)\n",
        "def mean(total): return total / 0",
    ),
    "a source": (
        "def made(i): return 10 // (3 - i)\nflow.source(cc.generate(made, count=8)).sink(cc.collect())",
        "operator '1-source' raised ZeroDivisionError: integer division or modulo by zero\n  record: ",
        "def made(i): return 10 // (3 - i)",
    ),
    "what is no key": (
        "flow.source(numbers).key_by(list).count().sink(cc.collect())",
        "operator '2-key_by' raised FlowError: ['w0', 0] of type list can't be a key",
        "record: ('w0', 0)",
    ),
    # The sequential run that comes first has the records of one source before those of the other.
    "one that depends on which record comes first": (
        """
def add(seen, record):
    if seen and seen[0][0] == "other":
        raise LookupError("the other one came first")
    return [*seen, record]
others = cc.generate(lambda i: ("other", i), count=40)
both = flow.source(numbers).union(flow.source(others)).rebalance().map(lambda r: r)
both.key_by(lambda r: r[1]).aggregate(tuple, add, len).sink(cc.collect())
""",
        "raised LookupError: the other one came first\n  record: ('w",
        'raise LookupError("the other one came first")',
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", RAISING)
def test_a_function_that_raises_is_named_with_its_record_and_its_line(simulate, what: str) -> None:  # type: ignore[no-untyped-def]
    text, message, line = RAISING[what]
    done = simulate(text)
    assert done.exit_code == 2, done.output
    assert done.output.startswith("crosscut: flow 'mine' can't be simulated: ")
    assert message in done.output
    assert line in done.output
    assert "Traceback" not in done.output and "crosscut/testing" not in done.output
