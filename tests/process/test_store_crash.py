"""The local store under real processes: killed while it appends, racing, out of space and of permission."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from jobs import DEADLINE_S
from tests.proof.stores import StoreConformance, at

from crosscut.protocol.log.segments import claim_of
from crosscut.store import open_store

APPENDER = """
import sys
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.store import open_store
from tests.proof.stores import at, checkpoint, opened

store = open_store(sys.argv[1])
store.append(at(0), opened(1))
index = store.tail()[-1][0].number + 1
while True:
    part = store.write_part(CheckpointId(index), TaskId(VertexId("vertex"), 0), Epoch(1), [b"x" * 3000] * 3)
    print("part", part.path, part.size_bytes, part.sha256, flush=True)
    since = at(index - 1) if index % 5 > 1 else None
    store.append(at(index), checkpoint(1, index, (part,)), since)
    print("entry", index, flush=True)
    index += 1
"""

RACER = """
import sys
from crosscut.protocol.log.writer import Appended, Taken
from crosscut.store import open_store
from tests.proof.stores import at, claim, opened

store = open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    entry = claim(number, sys.argv[2]) if number else opened(0, sys.argv[2])
    outcome = store.append(at(number), entry)
    assert outcome in (Appended(at(number)), Taken(at(number))), outcome
    if outcome == Appended(at(number)):
        print(number)
"""

FULL_DISK = """
import resource, signal, sys
from crosscut.errors import StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.protocol.log.writer import Appended
from crosscut.store import open_store
from tests.proof.stores import at, checkpoint, opened, refused

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(sys.argv[1])
task = TaskId(VertexId("vertex"), 0)
write = lambda: store.write_part(CheckpointId(1), task, Epoch(1), [b"x" * 1000] * 1000)
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, unlimited[1]))
error = refused(write)
print(error)
assert not error.damaged and store.list_parts() == []
resource.setrlimit(resource.RLIMIT_FSIZE, (100, unlimited[1]))
print(refused(lambda: store.append(at(0), opened(1))))
assert store.read(at(0)) is None and store.tail() == []
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
assert store.append(at(0), opened(1)) == Appended(at(0))
assert store.read_part(write()) == b"x" * 1_000_000
"""

NO_PERMISSION = """
import os, sys
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.store import open_store
from tests.proof.stores import at, checkpoint, opened, refused

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)  # permissions bind everybody but root
root = sys.argv[1]
store = open_store(root)
write = lambda: store.write_part(CheckpointId(1), TaskId(VertexId("vertex"), 0), Epoch(1), [b"x" * 5000])
part = write()
for directory in ("log", "parts", "parts/1"):
    os.chmod(f"{root}/{directory}", 0o500)
print(refused(lambda: store.append(at(0), opened(1))))
print(refused(write))
print(*store.delete_parts([part.path]))
assert store.read(at(0)) is None and store.read_part(part) == b"x" * 5000
os.chmod(f"{root}/log", 0o000)
print(refused(lambda: store.read(at(0))))
os.chmod(root, 0o500)
print(refused(lambda: open_store(root)))
print(refused(lambda: open_store(f"{root}/new")))
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def output_of(script: str, *arguments: object) -> list[str]:
    with start(script, *arguments) as process:
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    return output.splitlines()


def test_what_a_killed_process_reported_is_whole_and_no_torn_entry_ever_has_a_name(tmp_path: Path) -> None:
    """A3, D1: SIGKILL at any point of append and write_part; the next process goes on with the same log."""
    reported_index = 0
    for round_number in range(12):
        with start(APPENDER, tmp_path) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3 + 7 * round_number)]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        store = open_store(str(tmp_path))
        words = [line.split() for line in lines if line.endswith("\n")]
        for _, path, size, digest in (word for word in words if word[0] == "part"):
            content = (tmp_path / path).read_bytes()
            assert len(content) == int(size) and sha256(content).hexdigest() == digest
        reported_index = max(int(word[1]) for word in words if word[0] == "entry")
        segment = tmp_path / "log" / f"{1:020d}"
        named = sorted(path for path in os.listdir(segment) if path.endswith(".json"))
        assert len(named) in (reported_index, reported_index + 1)
        assert [index for index, _ in store.entries()] == [at(index) for index in range(len(named) + 1)]
        assert named == [f"{index:020d}.json" for index in range(1, len(named) + 1)]
    assert reported_index > 100


def test_of_processes_that_append_at_the_same_indexes_exactly_one_wins_each(tmp_path: Path) -> None:
    """B5: two drivers coexist."""
    drivers, rounds = ("first", "second", "third"), 400
    processes = [start(RACER, tmp_path, driver, rounds) for driver in drivers]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    winners: dict[int, list[str]] = {number: [] for number in range(rounds)}
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for driver, process in zip(drivers, processes, strict=True):
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        for line in output.splitlines():
            winners[int(line)].append(driver)
    store = open_store(str(tmp_path))
    for index, entry in store.entries():
        claim = claim_of(entry)
        assert claim is not None and winners[index.number] == [claim.driver]
    assert store.read(at(rounds - 1)) is not None
    left = [path for path in (tmp_path / "log").rglob("*") if path.is_file() and path.suffix != ".json"]
    assert left == []


def test_a_full_disk_is_named_and_leaves_nothing_behind_and_the_next_attempt_works(tmp_path: Path) -> None:
    """D4: the limit on the size of files stands for the size of the disk."""
    part, entry = output_of(FULL_DISK, tmp_path)
    assert f"can't write {tmp_path}/parts/1/vertex-0-1-" in part and "File too large; free space" in part
    assert "bytes to " + f"{tmp_path}/log/{1:020d}.json: File too large; free space" in entry
    assert sorted(os.listdir(tmp_path / "log")) == [f"{1:020d}.json"]


def test_missing_permission_is_named_and_says_what_to_do() -> None:
    """D4."""
    with tempfile.TemporaryDirectory() as parent:
        # Not below pytest's own directory, which another user than root can't enter.
        os.chmod(parent, 0o777)
        lines = output_of(NO_PERMISSION, f"{parent}/store")
        denied = "Permission denied; give this user permission"
        assert len(lines) == 6
        assert f"{parent}/store/log/{1:020d}.json: {denied}" in lines[0]
        assert f"{parent}/store/parts/1/vertex-0-1-" in lines[1] and denied in lines[1]
        assert lines[2].startswith("can't delete ") and "Permission denied" in lines[2]
        assert "can't read" in lines[3] and denied in lines[3]
        assert "no permission to write there" in lines[4]
        assert "/store/new: Permission denied; choose a directory that this user may write to" in lines[5]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a small file system: {mounted.stderr.strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's tmpfs")
def test_a_disk_that_is_really_full_is_named(small_disk: Path) -> None:
    """D4."""
    suite = StoreConformance()
    suite.open = lambda: open_store(str(small_disk))  # type: ignore[method-assign]
    (part, *_) = (suite.write(b"x" * 50_000), suite.write(b"y" * 50_000))
    with pytest.raises(Exception, match="No space left on device; free space there") as caught:
        suite.write(b"z" * 500_000)
    assert f"{small_disk}/parts/1/vertex-0-1-" in str(caught.value)
    assert len(suite.open().list_parts()) == 2
    assert suite.open().read_part(part) == b"x" * 50_000
    assert stat.S_IMODE((small_disk / "parts").stat().st_mode) == 0o700
