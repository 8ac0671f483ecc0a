"""File sinks under real SIGKILLs and a real lack of permission."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from crosscut.connectors.files.jsonl import write_jsonl
from crosscut.foundation.ids import CheckpointId
from crosscut.testing.sinks import open_writer, permit

BATCHES = 6


@dataclass(frozen=True)
class LogEntry:
    """All that a job log would know: the last complete checkpoint."""

    epoch: int = 0
    checkpoint_id: int = 0
    written: int = 0
    handles: tuple[Any, ...] = ()


def read_log(directory: Path) -> LogEntry:
    log = directory / "log.json"
    return LogEntry(**json.loads(log.read_text())) if log.exists() else LogEntry()


def append_log(directory: Path, entry: LogEntry) -> None:
    """Replace the last entry: like a real log's append it is there in full or not at all."""
    with (directory / "log.next").open("w") as file:
        json.dump(asdict(entry), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(directory / "log.next", directory / "log.json")


def visible(directory: Path) -> list[int]:
    """In the order of names; what is divided comes in none."""
    out = directory / "out"
    plain, divided = (
        [
            orjson.loads(line)["i"]
            for file in sorted(out.glob(pattern))
            for line in file.read_bytes().splitlines()
        ]
        for pattern in ("*.jsonl", "last=*/*.jsonl")
    )
    assert plain == sorted(plain)
    return sorted(plain + divided)


def run_job(directory: Path, seed: int, stop_at: int) -> None:
    """Recover, then write and take checkpoints, some of them aborted, until `stop_at` records.

    A byte on standard output after every step lets the parent choose a moment.
    """
    choices = random.Random(seed)
    last = read_log(directory)
    epoch, checkpoint_id, written = last.epoch + 1, last.checkpoint_id, last.written
    # Claimed before anything is written, as in a job; also if it never completes a checkpoint.
    append_log(directory, LogEntry(epoch, last.checkpoint_id, last.written, last.handles))
    # Every other life divides its output: a transaction is several files then.
    sink = write_jsonl(directory / "out", partition_by="last" if epoch % 2 else ())
    writer = open_writer(sink, epoch, restore=last.checkpoint_id, handles=list(last.handles))
    report(b"R")
    pending: list[Any] = []
    while written < stop_at:
        for _ in range(choices.randint(1, BATCHES)):
            size = choices.choice((1, 10, 3_000))
            records = range(written, written + size)
            writer.write([{"i": i, "last": i % 5, "padding": "x" * 50} for i in records])
            written += size
            report(b"w")
        checkpoint_id += 1
        transaction = writer.rotate(CheckpointId(checkpoint_id))
        report(b"r")
        pending.append(writer.prepare(transaction))
        report(b"p")
        if choices.random() < 0.25:
            continue
        append_log(directory, LogEntry(epoch, checkpoint_id, written, tuple(pending)))
        report(b"c")
        if choices.random() < 0.75:
            writer.commit(permit(checkpoint_id, epoch), pending)
            pending = []
            report(b"C")
    writer.close()


def report(step: bytes) -> None:
    os.write(sys.stdout.fileno(), step)


def start(directory: Path, seed: int, stop_at: int) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, __file__, str(directory), str(seed), str(stop_at)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE)


def test_output_is_the_committed_prefix_however_often_the_writer_is_killed(tmp_path: Path) -> None:
    """F1, F4, F6, I1, I2, I3: SIGKILL at random moments, then a new process recovers."""
    seed = random.SystemRandom().randrange(2**32)
    choices = random.Random(seed)
    for life in range(15):
        with start(tmp_path, choices.randrange(2**32), stop_at=10**9) as process:
            assert process.stdout is not None
            # The child runs on while we read, so the kill hits any line of it, not just reports.
            for _ in range(choices.choice((0, 1, 2, 5, 20, 60))):
                assert process.stdout.read(1)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        found, entry = visible(tmp_path), read_log(tmp_path)
        assert len(set(found)) == len(found), f"seed {seed}, life {life}: visible twice"
        # Of the last transaction some files may be there, and others not yet: the next life shows them.
        assert not found or found[-1] < entry.written, f"seed {seed}, life {life}: visible before complete"
    entry = read_log(tmp_path)
    with start(tmp_path, 1, stop_at=0) as process:
        assert process.wait() == 0
    assert visible(tmp_path) == list(range(entry.written)), f"seed {seed}"
    with start(tmp_path, choices.randrange(2**32), stop_at=entry.written + 50_000) as process:
        assert process.stdout is not None
        process.stdout.read()
        assert process.wait() == 0
    with start(tmp_path, 2, stop_at=0) as process:
        assert process.wait() == 0
    final = read_log(tmp_path)
    assert final.written > entry.written
    assert visible(tmp_path) == list(range(final.written)), f"seed {seed}"
    # I11: nothing that was staged in any of the lives is left.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.json", "out"]
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.suffix != ".jsonl"]
    assert [path.suffix for path in left] == [".ledger"]


def test_a_directory_without_permission_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    """D4: EACCES; in a process that is not root, whoever runs the tests."""
    code = (
        "import os, sys\n"
        "from crosscut.connectors.files import write_jsonl\n"
        "from crosscut.errors import ConnectorError\n"
        "os.geteuid() or os.setuid(65534)\n"
        "try:\n"
        "    write_jsonl(sys.argv[1]).check()\n"
        "except ConnectorError as error:\n"
        "    sys.exit(str(error))\n"
    )
    (tmp_path / "out").mkdir(mode=0o500)
    arguments = [sys.executable, "-c", code, str(tmp_path / "out")]
    found = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "Permission denied; let the user that runs the workers write there" in found.stderr


if __name__ == "__main__":
    run_job(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
