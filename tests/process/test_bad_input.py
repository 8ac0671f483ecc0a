"""Bad input, bad settings, bad directories: one clear error each, nothing lost, no hang, no orphan."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jobs
import pytest
from jobs import DEADLINE_S, Armed, NumberedJob, is_gone, log_files, snapshot_of_tree, until
from passed_settings import as_argument
from proving import proven

import crosscut as cc
from crosscut.errors import ConnectorError, JobFailedError, RefusedRecordError, SettingsError, StoreError

Arm = Callable[..., Armed]

FEW_RESTARTS = cc.Restart(failures=3, delay_step="20ms", delay_max="50ms")


def settings_in(directory: Path, **more: Any) -> cc.Settings:
    return NumberedJob(directory, settings=more).all_settings()


def failure(
    job: Any, kind: type[cc.CrosscutError] | None = None, meanwhile: Callable[[], object] = lambda: None
) -> str:
    """Return the error that the job ends with: of one family, with what went wrong as its cause.

    Args:
        meanwhile: Called again and again.
    """

    def has_ended() -> bool:
        meanwhile()
        return bool(job.wait(0.05))

    with pytest.raises(JobFailedError) as caught:
        until(has_ended, f"the end of {job!r}")
    cause = caught.value.__cause__
    assert kind is None or type(cause) is kind, cause
    assert job.status == "failed"
    return str(caught.value)


# Input.


def words(directory: Path, pattern: str, **options: Any) -> cc.Flow:
    flow = cc.Flow("words")
    source = flow.source(cc.files.read_text(str(directory / pattern), **options))
    source.map(len).sink(cc.files.write_jsonl(directory / "out"))
    return flow


def test_no_file_that_matches_is_an_error_before_anything_starts(tmp_path: Path, started: Any) -> None:
    with pytest.raises(ConnectorError, match="no-such-"):
        started.flow(words(tmp_path, "no-such-*.txt"), settings_in(tmp_path))
    assert NumberedJob(tmp_path).completed() == []
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_utf_8_is_an_error_with_its_name_unless_errors_says_otherwise(
    tmp_path: Path, started: Any
) -> None:
    (tmp_path / "good.txt").write_bytes(b"one\ntwo\n")
    (tmp_path / "bad.txt").write_bytes(b"three\n\xff\xfe\n")
    job = started.flow(words(tmp_path, "*.txt"), settings_in(tmp_path, restart=FEW_RESTARTS))
    text = failure(job, ConnectorError)
    assert "bad.txt" in text
    assert "errors=" in text, "it says what to do"
    assert list((tmp_path / "out").glob("part-*")) == []
    again = settings_in(tmp_path / "again")
    assert started.flow(words(tmp_path, "*.txt", errors="replace"), again).wait(DEADLINE_S)
    lines = [line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().split()]
    assert sorted(lines) == ["2", "3", "3", "5"]


def test_a_file_that_goes_away_is_an_error_with_its_name(tmp_path: Path, started: Any, arm: Arm) -> None:
    """As unreadable as a file can be for root, who may run the tests."""
    (tmp_path / "gone.txt").write_bytes(b"one\n")
    flow = words(tmp_path, "*.txt")
    settings = settings_in(tmp_path, restart=FEW_RESTARTS)
    armed = arm("restore.begin:stop:1")
    job = started.flow(flow, settings)

    def stopped() -> list[int]:
        return [one.pid for one in job.workers() if jobs.state_of(one.pid) == "T"]

    (pid,) = until(stopped, "a worker to stop")
    (tmp_path / "gone.txt").unlink()
    os.kill(pid, signal.SIGCONT)
    assert armed.fired
    text = failure(job, ConnectorError)
    assert "gone.txt" in text
    assert "No such file" in text


# Records.


def test_a_record_that_can_not_be_sent_is_an_error_with_the_record(tmp_path: Path, started: Any) -> None:
    flow = cc.Flow("lambdas")
    # Some of these keys are of the other worker; within a worker, records are never pickled.
    numbers = flow.source(cc.generate(lambda i: (i, None), count=1_000))
    bad = numbers.map(lambda one: (one[0], lambda: 1) if one[0] in range(500, 560, 2) else one)
    bad.key_by(lambda one: one[0]).aggregate(int, lambda total, one: total + 1).sink(
        cc.files.write_jsonl(tmp_path / "out")
    )
    text = failure(started.flow(flow, settings_in(tmp_path)))
    assert "<function" in text
    assert "can't be sent to another worker" in text
    # An address is no name: the record looks like another one each time.
    assert "given up after" in text


@pytest.mark.parametrize("key", [1.5, *map(proven, (["a"], {"a": 1}, object()))])
def test_a_key_that_is_no_key_is_an_error_with_the_key(tmp_path: Path, started: Any, key: Any) -> None:
    """K2. Which values are keys, unit tests say."""
    flow = cc.Flow("keys")
    keyed = flow.source(cc.generate(lambda i: i, count=1_000)).key_by(lambda i: key if i == 500 else i)
    keyed.named("bad-keys").count().sink(cc.files.write_jsonl(tmp_path / "out"))
    text = failure(started.flow(flow, settings_in(tmp_path)))
    assert "'bad-keys'" in text
    assert f"of type {type(key).__name__} can't be a key" in text
    assert "failed 3 times in a row" in text


def test_a_record_that_is_not_json_is_an_error_with_the_record(tmp_path: Path, started: Any) -> None:
    flow = cc.Flow("json")
    source = flow.source(cc.generate(lambda i: i, count=1_000))
    source.map(lambda i: {1, 2} if i == 500 else i).sink(cc.files.write_jsonl(tmp_path / "out"))
    text = failure(started.flow(flow, settings_in(tmp_path)), RefusedRecordError)
    assert "record {1, 2} can't be written as JSON" in text
    assert "was refused 3 times in a row" in text
    assert list((tmp_path / "out").glob("part-*")) == []


# Settings.


@pytest.mark.parametrize(
    "wrong",
    [
        {"parallelism": 0},
        {"parallelism": 1.5},
        {"parallelism": 200},
        {"checkpoint_interval": "soon"},
        {"checkpoint_interval": "1ms"},
        {"checkpoint_dir": ""},
        {"snapshots": "sometimes"},
        {"heartbeat_timeout": -1},
        {"restart": 3},
        {"retain": 0},
    ],
    ids=lambda one: next(iter(one)),
)
def test_a_setting_out_of_range_is_an_error_with_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        cc.Settings(**wrong)


def test_more_workers_than_spark_has_slots_are_an_error_before_anything_starts(
    tmp_path: Path, started: Any
) -> None:
    slots = int(re.findall(r"\d+", started.spark.master)[0])
    numbered = NumberedJob(tmp_path, parallelism=slots + 1)
    with pytest.raises(SettingsError, match=rf"parallelism={slots + 1}, but Spark has {slots} task slots"):
        started(numbered)
    assert list(tmp_path.iterdir()) == []


def test_slots_that_others_hold_are_an_error_when_the_start_timeout_is_over(
    tmp_path: Path, started: Any
) -> None:
    """A Spark job of the program's own: nobody but Spark knows of it."""
    slots = int(re.findall(r"\d+", started.spark.master)[0])
    marks, gate = tmp_path / "marks", tmp_path / "gate"
    marks.mkdir()

    def hold(index: int) -> int:
        # Nothing of the tests' own modules: they are not there where it runs.
        (marks / str(index)).touch()
        while not gate.exists():
            threading.Event().wait(0.05)
        return index

    held = started.spark.parallelize(range(slots - 1), slots - 1).map(hold)
    holder = threading.Thread(target=held.collect)
    holder.start()
    try:
        until(lambda: len(list(marks.iterdir())) == slots - 1, "the other job to hold its slots")
        numbered = NumberedJob(tmp_path / "late", parallelism=2, settings={"start_timeout": "3s"})
        text = failure(started(numbered), cc.errors.WorkersError)
        assert f" of 2 workers registered within start_timeout=3 s; Spark has {slots} slots in all" in text
    finally:
        gate.touch()
        holder.join()
    # With the slots free again, the same directory is as good as new.
    again = NumberedJob(tmp_path / "late", count=2_000)
    assert started(again).wait(DEADLINE_S)
    again.check_output_is_exact()


# Directories.


def test_the_directory_of_another_job_is_refused_before_any_side_effect(tmp_path: Path, started: Any) -> None:
    """H3, I12: not a byte changes, no Spark job runs, the other job's output is not touched."""
    numbered = NumberedJob(tmp_path, count=2_000)
    assert started(numbered).wait(DEADLINE_S)
    before = snapshot_of_tree(tmp_path)
    spark_jobs = started.spark._jsc.sc().statusStore().jobsList(None).size()
    flow = cc.Flow("other")
    flow.source(cc.generate(lambda i: i)).map(str).sink(cc.files.write_jsonl(tmp_path / "other-out"))
    with pytest.raises(StoreError, match="it belongs to flow 'numbered', and this is flow 'other'") as caught:
        started.flow(flow, numbered.all_settings())
    assert "choose another checkpoint_dir" in str(caught.value)
    assert snapshot_of_tree(tmp_path) == before
    assert started.spark._jsc.sc().statusStore().jobsList(None).size() == spark_jobs


def test_another_flow_input_or_output_on_a_directory_is_refused_or_asked_for(
    tmp_path: Path, started: Any
) -> None:
    """N2: in words, and nothing is written."""
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\n")
    settings = settings_in(tmp_path)
    assert started.flow(words(tmp_path, "a.txt"), settings).wait(DEADLINE_S)
    before = snapshot_of_tree(tmp_path)

    other_name = cc.Flow("letters")
    source = other_name.source(cc.files.read_text(str(tmp_path / "a.txt")))
    source.map(len).sink(cc.files.write_jsonl(tmp_path / "out"))
    with pytest.raises(StoreError, match="it belongs to flow 'words', and this is flow 'letters'"):
        started.flow(other_name, settings)

    other_graph = cc.Flow("words")
    source = other_graph.source(cc.files.read_text(str(tmp_path / "a.txt")))
    source.map(str.strip).map(len).sink(cc.files.write_jsonl(tmp_path / "out"))
    with pytest.raises(StoreError, match="added: map '3-map'\n  renamed: sink '3-sink' is called '4-sink'"):
        started.flow(other_graph, settings)

    other_input = rf"source '1-source' is '{tmp_path}/b\.txt' in this flow, and was '{tmp_path}/a\.txt'"
    with pytest.raises(StoreError, match=rf"{other_input}.*--accept-changes"):
        started.flow(words(tmp_path, "b.txt"), settings)

    other_output = cc.Flow("words")
    source = other_output.source(cc.files.read_text(str(tmp_path / "a.txt")))
    source.map(len).sink(cc.files.write_jsonl(tmp_path / "elsewhere"))
    with pytest.raises(StoreError, match=rf"sink '3-sink' is '{tmp_path}/elsewhere' in this flow, and was"):
        started.flow(other_output, settings)
    assert snapshot_of_tree(tmp_path) == before

    accepted = started.flow(words(tmp_path, "b.txt"), settings_in(tmp_path, accept_changes=True))
    assert accepted.wait(DEADLINE_S) and accepted.status == "finished"
    assert snapshot_of_tree(tmp_path) == before, "it has read a.txt, and there is nothing to do"


def test_a_directory_in_the_memory_of_each_process_is_refused(tmp_path: Path, started: Any) -> None:
    """I12: the workers would write where nobody else can read."""
    numbered = NumberedJob(tmp_path, settings={"checkpoint_dir": "memory://checkpoints"})
    with pytest.raises(SettingsError, match="each worker process has a memory file system of its own"):
        started(numbered)


def test_the_same_flow_with_other_key_groups_is_refused_before_any_side_effect(
    tmp_path: Path, started: Any
) -> None:
    numbered = NumberedJob(tmp_path, count=2_000)
    assert started(numbered).wait(DEADLINE_S)
    before = snapshot_of_tree(tmp_path)
    with pytest.raises(StoreError, match="max_parallelism"):
        started(NumberedJob(tmp_path, count=2_000, settings={"max_parallelism": 64}))
    assert snapshot_of_tree(tmp_path) == before


def stopped_job(directory: Path, started: Any) -> NumberedJob:
    """Run half a job, so that there is something to restore."""
    numbered = NumberedJob(directory, held=True)
    job = started(numbered)
    # On a slow machine the first ones are small enough to stand in the manifest.
    until(
        lambda: (
            len(found := numbered.completed()) >= 3
            and any(part.path for one in found[-1].snapshots for part in one.snapshot.parts)
        ),
        "three checkpoints, with parts in files",
    )
    assert job.stop(DEADLINE_S)
    assert job.status == "stopped"
    numbered.open_gate()
    return numbered


def staged_files(directory: Path) -> list[Path]:
    try:
        return list(directory.glob(".crosscut/**/*.staged"))
    except FileNotFoundError:
        # A directory that went while it was looked through.
        return []


def committed_files(directory: Path) -> dict[str, bytes | None]:
    """Return what readers see; what the sink notes for itself is its own business."""
    return {
        name: data for name, data in snapshot_of_tree(directory).items() if not name.startswith(".crosscut")
    }


def torn(data: bytes) -> bytes:
    return data[: len(data) // 2]


def zero_filled(data: bytes) -> bytes:
    return data[:-20] + bytes(20)


def flipped(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


@pytest.mark.parametrize(
    "damage",
    [proven(torn), proven(zero_filled), flipped, None],
    ids=lambda one: getattr(one, "__name__", "gone"),
)
def test_a_damaged_part_ends_the_job_at_once_and_nothing_falls_back(
    tmp_path: Path, started: Any, damage: Callable[[bytes], bytes] | None
) -> None:
    """D1, D6, I12: the newest checkpoint can't be restored, so nothing is, and nothing changes.

    Which damage is seen, the tests of the store say.
    """
    numbered = stopped_job(tmp_path, started)
    newest = numbered.completed()[-1]
    path = next(part.path for one in newest.snapshots for part in one.snapshot.parts if part.path)
    stored = numbered.checkpoint_dir / path
    good = stored.read_bytes()
    if damage is None:
        stored.unlink()
    else:
        stored.write_bytes(damage(good))
    before = committed_files(numbered.out)
    text = failure(started(numbered), StoreError)
    assert f"part {path} in {numbered.checkpoint_dir} is damaged" in text
    assert "never falls back to an older checkpoint" in text
    assert "no restart can mend" in text
    assert numbered.completed()[-1] == newest
    assert committed_files(numbered.out) == before
    # Brought back from the backup, it is as if nothing had been.
    stored.write_bytes(good)
    assert started(numbered).wait(DEADLINE_S)
    numbered.check_output_is_exact()


@pytest.mark.parametrize("damage", [torn, proven(zero_filled), proven(flipped)], ids=lambda one: one.__name__)
def test_a_damaged_log_entry_is_an_error_before_anything_starts(
    tmp_path: Path, started: Any, damage: Callable[[bytes], bytes]
) -> None:
    """D1, I12. Which damage is seen, the tests of the store say."""
    numbered = stopped_job(tmp_path, started)
    newest = log_files(numbered.checkpoint_dir)[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    before = snapshot_of_tree(tmp_path)
    with pytest.raises(StoreError, match=f"{newest.name}, is damaged") as caught:
        started(numbered)
    assert "never goes on from an older entry" in str(caught.value)
    assert snapshot_of_tree(tmp_path) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system takes root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def filler(small_disk: Path) -> Path:
    return small_disk / "filler"


def fill(filler: Path) -> None:
    """Take all space there is; a job that deletes something gives some of it back."""
    with pytest.raises(OSError, match="No space left"), filler.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_costs_checkpoints_and_no_records(
    tmp_path: Path, started: Any, small_disk: Path, filler: Path
) -> None:
    """D4, I10, I15: checkpoints fail while it is full, and complete when there is space again."""
    numbered = NumberedJob(tmp_path, rate=None, held=True)
    (tmp_path / "checkpoints").symlink_to(small_disk)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 2, "two checkpoints")

    def has_failed() -> bool:
        fill(filler)
        return bool(job.report().checkpoints_failed >= 3)

    until(has_failed, "three failed checkpoints")
    assert job.report().restarts == 0
    filler.unlink()
    numbered.open_gate()
    until(lambda: job.wait(0.05), "the end of the job")
    numbered.check_output_is_exact()


def test_a_worker_lost_while_the_disk_is_full_costs_one_failover(
    tmp_path: Path, started: Any, small_disk: Path, filler: Path
) -> None:
    """A1, D4, P5, I15: the claim of the next epoch is tried until there is space again."""
    numbered = NumberedJob(tmp_path, rate=None, held=True)
    (tmp_path / "checkpoints").symlink_to(small_disk)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 2, "two checkpoints")

    def has_failed() -> bool:
        fill(filler)
        return bool(job.report().checkpoints_failed >= 1)

    until(has_failed, "a failed checkpoint")
    os.kill(started.watch(job)[0], signal.SIGKILL)
    until(lambda: job.report().restarts == 1, "the failover")
    # Longer than a driver that counts its attempts would try: 20 of them, 200 ms apart.
    ends_s = time.monotonic() + 6
    until(lambda: fill(filler) or time.monotonic() > ends_s, "the attempts at its claim")
    assert job.status == "claiming"
    filler.unlink()
    numbered.open_gate()
    until(lambda: job.wait(0.05), "the end of the job")
    assert job.report().restarts == 1
    numbered.check_output_is_exact()


def test_a_disk_that_stays_full_ends_the_job_with_the_reason(
    tmp_path: Path, started: Any, small_disk: Path, filler: Path
) -> None:
    """D4, I12; with space again the next start loses nothing."""
    numbered = NumberedJob(tmp_path, rate=None, held=True, settings={"checkpoint_failures": 3})
    (tmp_path / "checkpoints").symlink_to(small_disk)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 2, "two checkpoints")
    text = failure(job, meanwhile=lambda: fill(filler))
    assert "4 checkpoints in a row failed" in text
    assert "No space left on device; free space there" in text
    filler.unlink()
    numbered.open_gate()
    assert started(numbered).wait(DEADLINE_S)
    numbered.check_output_is_exact()


def test_a_full_disk_under_the_sink_ends_the_job_and_loses_nothing(
    tmp_path: Path, started: Any, small_disk: Path, filler: Path
) -> None:
    """D4, I2: records that can't be written are a failure of the task; what is committed stays."""
    numbered = NumberedJob(tmp_path, rate=None, held=True, settings={"restart": FEW_RESTARTS})
    (tmp_path / "out").symlink_to(small_disk)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 2, "two checkpoints")
    text = failure(job, ConnectorError, meanwhile=lambda: fill(filler))
    assert "No space left on device; free space on that file system" in text
    assert "given up after 4 failures" in text
    numbered.check_nothing_is_visible_too_early()
    filler.unlink()
    numbered.open_gate()
    # 40,000 lines are more than this disk holds: move on to a larger one, files and all.
    moved = tmp_path / "moved"
    subprocess.run(["cp", "-a", f"{small_disk}/.", str(moved)], check=True)
    (tmp_path / "out").unlink()
    (tmp_path / "out").symlink_to(moved)
    assert started(numbered).wait(DEADLINE_S)
    numbered.check_output_is_exact()


def test_a_file_size_limit_is_like_a_full_disk(tmp_path: Path) -> None:
    """D4, where mounting is not allowed: the limit holds for all files of driver and workers."""
    numbered = NumberedJob(tmp_path, count=60_000)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    arguments = [str(tmp_path), str(numbered.count), "1e9", as_argument({"checkpoint_interval": "1h"})]
    ran = subprocess.run(
        [sys.executable, jobs.__file__, *arguments],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    last = json.loads(ran.stdout.splitlines()[-1])
    assert last["status"] == "failed", ran.stderr
    assert "File too large; raise the file size limit" in last["error"]
    numbered.check_nothing_is_visible_too_early()


NOBODY = """
import os, sys
import crosscut as cc
import crosscut.spark.cluster.starting
from crosscut.spark.cluster.session import spark_context
# The start is nobody's: root may write everywhere. Nobody may not even read a codec or a module, perhaps.
"localhost".encode("idna")
context, _ = spark_context(2, "nobody")
flow = cc.Flow("nobody")
flow.source(cc.generate(lambda i: i)).sink(cc.files.write_jsonl(sys.argv[2]))
settings = cc.Settings(checkpoint_dir=sys.argv[1])
os.geteuid() or os.setuid(65534)
try:
    flow.start(settings, spark=context)
except cc.CrosscutError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize("place", ["checkpoints", "out"])
def test_a_directory_without_permission_is_an_error_before_anything_starts(place: str) -> None:
    """D4: in a process that is not root, whoever runs the tests."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o777)
        for one in ("checkpoints", "out"):
            (directory / one).mkdir()
            (directory / one).chmod(0o500 if one == place else 0o777)
        arguments = [str(directory / "checkpoints"), str(directory / "out")]
        ran = subprocess.run(
            [sys.executable, "-c", NOBODY, *arguments], capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert ran.returncode == 1
        assert "permission" in ran.stderr.lower()
        assert str(directory / place) in ran.stderr
        assert ("StoreError" if place == "checkpoints" else "ConnectorError") in ran.stderr
        assert list((directory / place).iterdir()) == []


# Ctrl-C.


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_ctrl_c_in_wait_takes_a_last_checkpoint_and_the_next_start_goes_on(
    tmp_path: Path, started: Any, whose: str
) -> None:
    """A script that is interrupted in `job.wait()`: stopped, not killed; nothing is done twice.

    PySpark's own answer to Ctrl-C is to cancel all Spark jobs, and the workers with them.
    """
    numbered = NumberedJob(tmp_path, rate=1e9, held=True)
    settings = {"checkpoint_interval": "1h", "held": True}
    arguments = [str(tmp_path), str(numbered.count), "1e9", as_argument(settings), whose]
    with subprocess.Popen(
        [sys.executable, jobs.__file__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            until(lambda: staged_files(tmp_path / "out"), "records in the sink")
            family = jobs.children_of(process.pid)
            # As a terminal does it: to every process of the group.
            os.killpg(process.pid, signal.SIGINT)
            output, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            # One that stays fails whichever test the garbage collector finds it in.
            process.kill()
    last = json.loads(output.splitlines()[-1])
    assert last == {"status": "stopped", "interrupted": True, "checkpoints": 1}, errors
    until(lambda: all(map(is_gone, family)), "all its processes to end")
    (completed,) = numbered.completed()
    assert not completed.is_final
    numbered.check_nothing_is_visible_too_early()
    assert list(numbered.out.glob("part-*")) != []
    numbered.open_gate()
    assert started(numbered).wait(DEADLINE_S)
    numbered.check_output_is_exact()
