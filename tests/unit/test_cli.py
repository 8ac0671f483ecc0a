"""The command line as far as it starts nothing: options, flows by name, looking into checkpoints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.proof.stores import numbered

from crosscut import Auto, Continuous, Job, MicroBatch, Restart, Settings
from crosscut.cli.commands import program
from crosscut.cli.options import settings_from, settings_options
from crosscut.cli.target import load_flow
from crosscut.contracts.engines import ENGINES
from crosscut.errors import CheckpointError, FlowError, SettingsError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.graph.identity import identity_of
from crosscut.protocol.log.entries import (
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    LogEntry,
    SegmentOpened,
)
from crosscut.protocol.log.identity import Claimant, FlowIdentity
from crosscut.protocol.snapshots import Part, PendingTransaction, Snapshot, TaskSnapshot
from crosscut.spark.cluster import session
from crosscut.store import open_store

ROOT = Path(__file__).parents[2]
APP = """
import crosscut as cc

def counted():
    made = cc.Flow("made")
    made.source(cc.generate(lambda i: i)).key_by(lambda i: i).count().sink(cc.files.write_jsonl("out"))
    return made

flow = counted()
number = 3
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's file; what loading it does to the process is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    path = tmp_path / "some_app.py"
    path.write_text(APP)
    yield path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(
            (str(tmp_path), str(ROOT / "examples"))
        ):
            del sys.modules[name]


def invoked(*arguments: object) -> Result:
    # Whatever the width of the terminal that the tests are started in.
    return CliRunner(env={"COLUMNS": None}).invoke(program, [str(one) for one in arguments])


def parsed(*arguments: str) -> Settings:
    found = []

    @click.command()
    @settings_options()
    def command(**values: object) -> None:
        found.append(settings_from(values))

    command.main(list(arguments), standalone_mode=False)
    return found[0]


# Quick to start.


def test_the_command_line_loads_neither_pyspark_nor_rich() -> None:
    code = "import json, sys, crosscut.cli.commands; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(ran.stdout)).isdisjoint({"pyspark", "py4j", "rich", "asyncio"})


def test_python_can_run_the_package() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "crosscut", "--help"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("Usage: crosscut [OPTIONS] COMMAND")


# Settings.


def test_no_option_means_the_default_settings() -> None:
    assert parsed() == Settings()


def test_every_setting_has_an_option_with_a_help_text_and_is_in_the_guide() -> None:
    text = invoked("run", "--help-all").output
    guide = (ROOT / "docs" / "guide" / "running.md").read_text(encoding="utf-8")
    names = [name for name in Settings.names() if name not in ("restart", "migrate_state")]
    names += [f"restart_{name}" for name in Restart.__match_args__ or Restart.__slots__]
    names += [one.metadata.get("option", one.name) for kind in ENGINES for one in fields(kind)]
    names = [name for name in names if name not in ("continuous", "micro_batch")]
    assert len(names) > 20
    for name in names:
        option = f"--{name.replace('_', '-')}"
        assert re.search(rf"{option} .*\w", text), option
        assert option in guide, option


def test_options_become_settings_of_the_right_types() -> None:
    assert parsed(
        *("--parallelism", "4", "--checkpoint-dir", "here", "--checkpoint-interval", "200ms"),
        *("--linger", "0.5", "--snapshots", "none", "--restart-failures", "0", "--restart-window", "1m"),
        *("--strict", "--host", "127.0.0.1"),
    ) == Settings(
        parallelism=4,
        checkpoint_dir="here",
        checkpoint_interval="200ms",
        engine=Continuous(linger=0.5),
        snapshots="none",
        restart=Restart(failures=0, window="1m"),
        strict=True,
        host="127.0.0.1",
    )


def test_options_of_an_engine_become_its_settings() -> None:
    assert parsed("--engine", "micro-batch", "--trigger", "once", "--batch-records-max", "7") == Settings(
        engine=MicroBatch(trigger="once", records_max=7)
    )
    both = parsed("--engine", "auto", "--behind-for", "2m", "--linger", "5ms", "--batch-records-max", "7")
    assert both.engine == Auto(
        behind_for="2m", continuous=Continuous(linger="5ms"), micro_batch=MicroBatch(records_max=7)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trigger", "once"], "--trigger is an option of --engine micro-batch; found --engine contin"),
        (
            ["--engine", "micro-batch", "--linger", "5ms"],
            "--linger is an option of --engine continuous or auto; found --engine micro-batch",
        ),
        (
            ["--engine", "auto", "--trigger", "once"],
            "--trigger is an option of --engine micro-batch; found --engine auto",
        ),
        (
            ["--engine", "micro-batch", "--batch-records-max", "0"],
            "--batch-records-max: records_max=0: expected a whole number from 1",
        ),
        (["--parallelism", "many"], "'many' is not a valid integer"),
        (["--linger", "5 parsecs"], "'5 parsecs' is not a duration"),
        (["--snapshots", "sometimes"], "snapshots='sometimes': expected 'aligned'"),
        (["--parallelism", "0"], "parallelism=0: expected a whole number from 1"),
        (["--checkpoint-interval", "1ms"], "checkpoint_interval='1ms': expected at least 10 ms"),
        (["--restart-failures", "-1"], "--restart-failures: restart.failures=-1: expected"),
        (["--paralelism", "2"], "No such option"),
    ],
)
def test_a_wrong_option_is_one_clear_message_and_exit_code_2(
    app: Path, arguments: list[str], message: str
) -> None:
    result = invoked("run", app, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


# Flows by name.


@pytest.mark.parametrize("name", ["", ":flow", ":counted"])
def test_a_flow_is_found_by_file_and_name_also_if_a_function_makes_it(app: Path, name: str) -> None:
    assert load_flow(f"{app}{name}").name == "made"
    assert str(app.parent) == sys.path[0], "modules next to the file can be imported"


def test_a_flow_is_found_by_module(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(app.parent)
    (app.parent / "some_package").mkdir()
    (app.parent / "some_package" / "inner.py").write_text(APP)
    assert load_flow("some_package.inner:flow").name == "made"


def test_what_is_no_flow_is_refused_with_what_there_is(app: Path) -> None:
    with pytest.raises(FlowError, match=r"has no 'nothing'; it has 'flow'\. Name"):
        load_flow(f"{app}:nothing")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py:flow", "there is no file nowhere.py"),
        ("no_such_module:flow", "No module named 'no_such_module'"),
        ("number", "is of type int: expected a crosscut.Flow"),
    ],
)
def test_a_target_that_can_not_be_used_says_why(app: Path, target: str, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        load_flow(f"{app}:{target}" if target == "number" else target)


def test_a_file_that_would_hide_another_module_is_refused(app: Path) -> None:
    path = app.parent / "json.py"
    path.write_text(APP)
    with pytest.raises(FlowError, match="the name of another module; rename it"):
        load_flow(str(path))


def test_an_error_of_the_users_code_shows_their_frames_and_not_ours(app: Path) -> None:
    app.write_text("def broken():\n    return 1 / 0\n\nbroken()\n")
    result = invoked("run", app)
    assert result.exit_code == 2
    assert "ZeroDivisionError: division by zero" in result.stderr
    assert f'"{app}", line 2, in broken' in result.stderr
    assert "cli/target.py" not in result.stderr
    assert "Traceback" in invoked("--debug", "run", app.rename(app.with_name("other.py"))).stderr


def test_a_mistake_in_the_flow_is_shown_with_its_line(app: Path) -> None:
    app.write_text("import crosscut as cc\n\nflow = cc.Flow('no name')\n")
    result = invoked("explain", app)
    assert result.exit_code == 2
    assert f"{app}, line 3: flow name 'no name' is not usable" in result.stderr


def test_explain_shows_the_graph(app: Path) -> None:
    result = invoked("explain", app, "--parallelism", 3)
    assert result.exit_code == 0
    assert "vertices: 2, each of 3 tasks" in result.stdout


def test_explain_says_what_logs_of_workers_do_with_the_flow(app: Path) -> None:
    result = invoked("explain", app, "--snapshots", "logged")
    assert result.exit_code == 0 and 'snapshots="logged":' in result.output
    assert "logged" not in invoked("explain", app).output


@pytest.mark.parametrize("name", ["word_count", "orders"])
def test_the_examples_can_be_explained(app: Path, name: str) -> None:
    assert invoked("explain", ROOT / "examples" / f"{name}.py:flow").exit_code == 0


def claimed_for(app: Path, directory: Path, *, completes: bool) -> Path:
    """Return `directory` as the flow of `app` leaves it behind."""
    graph = load_flow(str(app)).compile(2, 128)
    entry = EpochClaimed(
        *(Epoch(1), Lineage("abc"), "driver", graph.fingerprint, 2, 128, CheckpointId(1)),
        *(identity_of(graph), Claimant("host1", 11)),
    )
    done = CheckpointCompleted(Epoch(1), CheckpointId(5), ())
    return store_with(directory, entry, *((done,) if completes else ()))


@pytest.mark.parametrize(
    ("completes", "text"), [(False, "the job starts from the beginning"), (True, "goes on from checkpoint 5")]
)
def test_explain_says_whether_the_flow_can_go_on_from_a_directory(
    app: Path, tmp_path: Path, completes: bool, text: str
) -> None:
    directory = claimed_for(app, tmp_path / "store", completes=completes)
    result = invoked("explain", app, "--checkpoint-dir", directory)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].endswith(text)
    assert "the job log is not authenticated" in result.stdout.splitlines()[-2]


def test_explain_shows_what_is_different_from_what_is_in_a_directory(app: Path, tmp_path: Path) -> None:
    """H3."""
    directory = claimed_for(app, tmp_path / "store", completes=True)
    changed = app.with_name("changed_app.py")
    changed.write_text(APP.replace(".key_by(", ".map(str).named('text').key_by("))
    result = invoked("explain", changed, "--checkpoint-dir", directory)
    assert result.exit_code == 2
    assert "without a name: 1-source, 4-count, 5-sink" in result.stdout
    assert "added: map 'text'\n  renamed: key_by '2-key_by' is called '3-key_by'" in result.stderr
    assert "changed: '3-key_by' reads from 'text' (forward), and read from '1-source'" in result.stderr
    assert "claimed by pid 11 on host1" in result.stderr


def test_a_finished_job_says_so_before_it_starts_spark(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In Python as on the command line; and a directory of another job is refused as early."""
    monkeypatch.setattr(session, "spark_context", lambda *_: pytest.fail("Spark would be started"))
    graph = load_flow(str(app)).compile(2, 128)
    entry = EpochClaimed(
        *(Epoch(1), Lineage("abc"), "driver", graph.fingerprint, 2, 128, CheckpointId(1)),
        *(identity_of(graph), Claimant("host1", 11)),
    )
    done = CheckpointCompleted(Epoch(1), CheckpointId(5), (), is_final=True)
    finished = JobFinished(Epoch(1), CheckpointId(5))
    directory = store_with(tmp_path / "store", entry, done, finished)
    result = invoked("run", app, "--plain", "--checkpoint-dir", directory)
    assert result.exit_code == 0, result.output
    # The terminal's lines are cut wherever the path makes them too long.
    assert f"nothing to do: the job in {directory} has finished before" in " ".join(result.output.split())
    job = load_flow(str(app)).start(Settings(checkpoint_dir=directory))
    assert isinstance(job, Job)
    assert (job.status, job.wait(), job.stop(), job.workers(), job.checkpoints()) == (
        *("finished", True, True, [], []),
    )
    assert job.report().phase == "ended"
    assert job.cancel() is None
    with pytest.raises(CheckpointError, match="is not running: finished"):
        job.checkpoint()
    assert f"job 'made' in {directory} has already finished, so nothing is read" in caplog.text
    other = store_with(tmp_path / "other", replace(entry, flow=FlowIdentity("another")))
    result = invoked("run", app, "--plain", "--checkpoint-dir", other)
    assert result.exit_code == 2
    assert "it belongs to flow 'another', and this is flow 'made'" in result.stderr


# Checkpoints.

SOURCE, COUNTS = TaskId(VertexId("lines"), 0), TaskId(VertexId("counts"), 0)


def claim(epoch: int) -> EpochClaimed:
    claimant = Claimant("host1", 10 + epoch, "2026-01-02T03:00:00")
    return EpochClaimed(
        *(Epoch(epoch), Lineage("abc"), f"driver-{epoch}", "f" * 64, 1, 128, CheckpointId(1)),
        *(FlowIdentity("words"), claimant),
    )


def completed(n: int, *, is_final: bool = False) -> CheckpointCompleted:
    positions = [["a.txt", 0, None, 1, 17], ["b.txt", 0, None, 1, 0], ["c.txt", 0, None, 1, 0]]
    snapshots = (
        TaskSnapshot(SOURCE, Snapshot(positions=[] if is_final else positions, drained=is_final)),  # type: ignore[arg-type]
        TaskSnapshot(
            COUNTS,
            Snapshot(
                parts=(Part("parts/1/x", 3_000, "0" * 64), Part(f"parts/{n}/y", 500, "0" * 64)),
                pending=(PendingTransaction(CheckpointId(n), "handle"),),
                freeze_us=1_500,
                state_keys=1_750,
            ),
        ),
    )
    return CheckpointCompleted(Epoch(2), CheckpointId(n), snapshots, is_final, 42, "2026-01-02T03:04:05.678")


def store_with(directory: Path, *entries: LogEntry) -> Path:
    store = open_store(str(directory))
    head, *rest = entries
    assert isinstance(head, EpochClaimed)
    for index, entry in numbered((SegmentOpened(head, None), *rest)):
        store.append(index, entry)
    return directory


def test_checkpoints_are_listed_with_epochs_sizes_and_times(tmp_path: Path) -> None:
    directory = store_with(
        tmp_path / "store",
        claim(1),
        claim(2),
        completed(1),
        completed(2, is_final=True),
        JobFinished(Epoch(2), CheckpointId(2)),
    )
    lines = invoked("checkpoints", "ls", directory).stdout.splitlines()
    assert "lineage abc, parallelism 1, 128 key groups" in lines[0]
    assert lines[0].endswith("finished")
    assert [line.split() for line in lines if "pid" in line] == [
        ["1", "words,", "pid", "11", "on", "host1,", "since", "2026-01-02", "03:00:00", "UTC", "1"],
        ["2", "words,", "pid", "12", "on", "host1,", "since", "2026-01-02", "03:00:00", "UTC", "1"],
    ]
    row = ["2026-01-02", "03:04:05", "42", "ms", "2", "3.5", "kB"]
    assert [line.split()[:9] for line in lines if "03:04:05" in line] == [["1", "2", *row], ["2", "2", *row]]
    assert lines[-1].split()[-1] == "yes"


def test_only_the_newest_are_listed_if_asked(tmp_path: Path) -> None:
    directory = store_with(tmp_path / "store", claim(2), *map(completed, range(1, 9)))
    text = invoked("checkpoints", "ls", directory, "--last", 3).stdout
    assert text.count("03:04:05") == 3
    assert "not finished: the next start resumes it" in text


def test_a_checkpoint_is_shown_with_its_snapshots(tmp_path: Path) -> None:
    directory = store_with(tmp_path / "store", claim(2), completed(1), completed(2))
    lines = invoked("checkpoints", "show", directory, 1).stdout.splitlines()
    assert any("3 left: a.txt at 17, b.txt at 0, ..." in line for line in lines)
    assert lines[-1].split() == ["counts[0]", "2", "3.5", "kB", "1,750", "2", "1"]
    newest = invoked("checkpoints", "show", directory).stdout
    assert newest.splitlines()[1].split()[0] == "2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "nowhere"], "nowhere: there is no such directory"),
        (["ls", "."], "no job in this directory"),
        (["show", "."], "no completed checkpoint in this directory"),
        (["show", ".", "7"], "no checkpoint 7 in this directory"),
    ],
)
def test_a_directory_without_a_job_is_told_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoked("checkpoints", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


# Demo, as far as it starts nothing.


def test_the_demo_refuses_a_directory_in_use_and_a_text_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    used = invoked("demo", "--dir", tmp_path)
    assert used.exit_code == 2
    assert "is not empty" in used.stderr
    missing = invoked("demo", "--dir", tmp_path / "new", "--input", tmp_path / "*.txt")
    assert missing.exit_code == 2
    assert "no file matches" in missing.stderr


def test_settings_that_do_not_fit_are_refused_before_anything_starts() -> None:
    with pytest.raises(SettingsError, match="max_parallelism"):
        settings_from({"parallelism": 200})
