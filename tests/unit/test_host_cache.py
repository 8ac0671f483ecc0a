"""Parts on the disk of a host: a process takes a partition over there, and reads nothing from the store."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof import batches
from tests.proof.batches import FaultProfile, LocalJobs, run_batches

import crosscut as cc
from crosscut.contracts.settings import BackendName
from crosscut.errors import StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.graph.shipping import pack_graph
from crosscut.graph.specs import JobGraph
from crosscut.microbatch.batch_process import run_partition
from crosscut.microbatch.host_cache import (
    UNUSED_S,
    HostCache,
    directory_of,
    host_cache,
    name_of,
    outdated,
    remove_host_cache,
)
from crosscut.microbatch.ports import Routed
from crosscut.microbatch.shuffle import ShuffleBlock, decoded_result, encoded_result
from crosscut.microbatch.stage import StageOrder
from crosscut.protocol.snapshots import Part
from crosscut.state.rocksdb.database import FileContent
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.testing.simulator.sources import ReplayedSource

TASK = TaskId(VertexId("count"), 0)
CONTENT = bytes(range(256)) * 64
PATH = "parts/{}/{}-3-{:016x}"


def part(n: int, task: str = "count-0", number: int = 1) -> Part:
    return Part(PATH.format(n, task, number), 10, "", "", CheckpointId(n))


class Site:
    """A store, and two processes of one host that have it in common; modelled as two objects."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "host"
        self.directory.mkdir(mode=0o700)
        self.root = tmp_path / "store"
        self.one, self.other = (HostCache(self.store(), str(self.directory)) for _ in range(2))

    def store(self) -> CheckpointStore:
        return open_store(str(self.root))

    def written(self, n: int = 1, content: bytes = CONTENT) -> Part:
        return self.one.write_part(CheckpointId(n), TASK, Epoch(1), [content])

    def file(self, one: Part) -> Path:
        return self.directory / name_of(one)

    def lose_stored(self) -> None:
        for path in self.root.glob("parts/*/*"):
            path.unlink()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_one_process_has_written_another_one_reads_without_the_store(site: Site) -> None:
    written = site.written()
    site.lose_stored()
    assert site.other(written) == CONTENT
    assert [path.name for path in site.directory.iterdir()] == [name_of(written)]


def test_what_one_process_has_read_another_one_reads_without_the_store(site: Site) -> None:
    written = site.store().write_part(CheckpointId(1), TASK, Epoch(1), [CONTENT])
    assert site.one(written) == CONTENT
    site.lose_stored()
    assert site.other(written) == CONTENT


@pytest.mark.parametrize("damaged", [CONTENT[:-1], CONTENT[:-1] + b"!", b""])
def test_a_damaged_file_is_not_used_but_replaced(site: Site, damaged: bytes) -> None:
    written = site.written()
    site.file(written).write_bytes(damaged)
    assert site.other(written) == CONTENT
    assert site.file(written).read_bytes() == CONTENT


def test_a_damaged_file_without_a_stored_part_is_an_error(site: Site) -> None:
    written = site.written()
    site.file(written).write_bytes(CONTENT[:-1] + b"!")
    site.lose_stored()
    with pytest.raises(StoreError, match="it is missing"):
        site.other(written)


def test_an_older_part_of_the_same_size_is_not_taken_for_a_newer_one(site: Site, tmp_path: Path) -> None:
    older = site.written(1, CONTENT)
    newer = site.store().write_part(CheckpointId(2), TASK, Epoch(1), [CONTENT[::-1]])
    assert older.size_bytes == newer.size_bytes
    assert site.one(newer) == CONTENT[::-1]
    assert site.one.link(newer, str(tmp_path / "linked"))
    assert (tmp_path / "linked").read_bytes() == CONTENT[::-1]


def test_a_file_is_linked_and_not_copied_on_its_way_in_and_out(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "000007.sst"
    path.write_bytes(CONTENT)
    written = site.one.write_part(CheckpointId(1), TASK, Epoch(1), FileContent(str(path)))
    site.lose_stored()
    assert site.other.link(written, str(tmp_path / "linked"))
    inodes = {one.stat().st_ino for one in (path, site.file(written), tmp_path / "linked")}
    assert len(inodes) == 1


def test_a_file_of_another_size_is_replaced_before_it_is_linked(site: Site, tmp_path: Path) -> None:
    written = site.written()
    site.file(written).write_bytes(CONTENT[:-1])
    assert site.other.link(written, str(tmp_path / "linked"))
    assert (tmp_path / "linked").read_bytes() == CONTENT


def test_after_a_failure_what_the_host_has_of_the_task_is_read_from_the_store(site: Site) -> None:
    written = site.written()
    others = site.one.write_part(CheckpointId(1), TaskId(VertexId("count"), 10), Epoch(1), [CONTENT])
    site.one.distrust(TASK, [written])
    assert [path.name for path in site.directory.iterdir()] == [name_of(others)]
    assert site.other(written) == CONTENT


def test_after_a_failure_parts_that_other_tasks_have_written_are_read_from_the_store(
    site: Site, tmp_path: Path
) -> None:
    """After a rescaling, a task begins with parts of tasks that may be no more."""
    written = site.written()
    site.file(written).write_bytes(bytes(len(CONTENT)))
    site.other.distrust(TaskId(TASK.vertex, 7), [written])
    assert site.other.link(written, str(tmp_path / "linked"))
    assert (tmp_path / "linked").read_bytes() == CONTENT


def test_a_disk_that_takes_nothing_does_not_fail_what_the_store_has_taken(site: Site) -> None:
    site.directory.rmdir()
    written = site.written()
    assert site.other(written) == CONTENT
    assert not site.other.link(written, str(site.directory / "linked"))
    site.one.begin(TASK, CheckpointId(1), [written])
    site.one.distrust(TASK, [written])


def test_files_go_when_the_checkpoint_that_a_batch_begins_with_does_not_need_them(site: Site) -> None:
    older, kept = site.written(1), site.written(2)
    not_taken, newest, attempt = site.written(3), site.written(3), site.written(4)
    site.other.begin(TASK, CheckpointId(3), [kept, newest])
    left = {path.name for path in site.directory.iterdir()}
    assert left == {name_of(one) for one in (kept, newest, attempt)}
    assert not {name_of(older), name_of(not_taken)} & left


def test_only_files_of_the_same_task_up_to_the_checkpoint_are_outdated() -> None:
    mine = [part(1), part(2), part(3)]
    # Tasks whose names begin or end alike.
    others = [part(1, task) for task in ("count-1", "count-0-0", "a-count-0", "count-00", "coun-0")]
    names = [name_of(one) for one in (*mine, *others)]
    unfinished = f"{name_of(part(2))}.0123abcd.new"
    later = f"{name_of(part(9))}.0123abcd.new"
    found = outdated([*names, unfinished, later, "strange"], TASK, CheckpointId(2), [mine[1]])
    assert found == [name_of(mine[0]), unfinished]


@pytest.mark.parametrize("path", ["", "parts/1/state.bin", "parts/1/../../../etc/passwd", "/etc/passwd"])
def test_a_part_that_no_task_has_written_has_no_file(path: str) -> None:
    assert name_of(Part(path, 10, "", "", CheckpointId(1))) == ""


def test_a_directory_is_private_and_one_that_others_may_use_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, state_dir = str(tmp_path / "store"), str(tmp_path / "state")
    store = open_store(url)
    path = Path(directory_of(url, state_dir))
    parts = host_cache(store, url, state_dir)
    assert path.stat().st_mode & 0o777 == 0o700
    written = parts.write_part(CheckpointId(1), TASK, Epoch(1), [CONTENT])
    path.chmod(0o777)
    (path / name_of(written)).write_bytes(b"planted")
    parts = host_cache(store, url, state_dir)
    assert "others may use it" in caplog.text
    assert parts(written) == CONTENT
    assert not parts.link(written, str(tmp_path / "linked"))


def test_a_link_to_a_directory_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url, state_dir = str(tmp_path / "store"), str(tmp_path / "state")
    store = open_store(url)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    os.mkdir(state_dir)
    Path(directory_of(url, state_dir)).symlink_to(elsewhere)
    host_cache(store, url, state_dir).write_part(CheckpointId(1), TASK, Epoch(1), [CONTENT])
    assert "it is not a directory" in caplog.text
    assert not list(elsewhere.iterdir())


def test_directories_that_no_batch_has_used_for_long_are_removed_and_others_stay(tmp_path: Path) -> None:
    state_dir = str(tmp_path / "state")
    store = open_store(str(tmp_path / "store"))
    paths = {}
    for name in ("old", "used", "mine"):
        host_cache(store, name, state_dir)
        paths[name] = Path(directory_of(name, state_dir))
        long_ago = paths[name].stat().st_mtime - 2 * UNUSED_S
        os.utime(paths[name], (long_ago, long_ago))
        if name == "used":
            HostCache(store, str(paths[name])).begin(TASK, CheckpointId(1), ())
    host_cache(store, "mine", state_dir)
    assert {name for name, path in paths.items() if path.exists()} == {"used", "mine"}
    remove_host_cache("mine", state_dir)
    assert not paths["mine"].exists()


def test_a_directory_that_was_swept_is_made_again_by_the_next_batch(site: Site) -> None:
    shutil.rmtree(site.directory)
    site.one.begin(TASK, CheckpointId(0), ())
    assert site.directory.stat().st_mode & 0o777 == 0o700
    written = site.written()
    assert site.file(written).read_bytes() == CONTENT


def test_a_directory_that_somebody_else_has_made_after_a_sweep_is_not_used(
    site: Site, tmp_path: Path
) -> None:
    shutil.rmtree(site.directory)
    site.directory.mkdir()
    site.directory.chmod(0o777)
    site.one.begin(TASK, CheckpointId(0), ())
    written = site.written()
    assert not list(site.directory.iterdir())
    site.file(written).write_bytes(b"planted".ljust(len(CONTENT)))
    assert site.one(written) == CONTENT
    assert not site.one.link(written, str(tmp_path / "linked"))


# Whole jobs: each attempt in a process that is new.


def attempted(packed: bytes, pickled: bytes) -> tuple[int, list[Routed]]:
    order, shuffle_blocks = pickle.loads(pickled)
    return os.getpid(), list(run_partition("job", lambda: packed, order, shuffle_blocks))


class NewProcesses:
    """See `Jobs`: makes each attempt in a process of its own, and between batches does `harm`."""

    def __init__(self, graph: JobGraph, harm: Callable[[int], None]) -> None:
        self._packed = pack_graph(graph)
        self._harm = harm
        self.batches = 0
        self.attempts = 0
        self.pids: set[int] = set()

    def run(self, name: str, orders: Sequence[Sequence[StageOrder]], description: str) -> Iterator[bytes]:
        self._harm(self.batches)
        self.batches += 1
        said: list[Routed] = []
        for of_stage in orders:
            brought: dict[int, list[ShuffleBlock]] = {}
            for target, shuffle_block in said:
                brought.setdefault(target, []).append(shuffle_block)
            said = []
            for order in of_stage:
                said += self._attempt(order, brought.get(order.partition.index, []))
        yield from (encoded_result(index, shuffle_block) for index, shuffle_block in said)

    def _attempt(self, order: StageOrder, shuffle_blocks: list[ShuffleBlock]) -> list[Routed]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["crosscut.microbatch.batch_process"])
        with ProcessPoolExecutor(1, context) as pool:
            pid, said = pool.submit(attempted, self._packed, pickle.dumps((order, shuffle_blocks))).result()
        self.attempts += 1
        self.pids.add(pid)
        return said

    def cancel(self, name: str = "") -> None:
        """A run comes to its end by itself."""

    def lost(self) -> str:
        return ""

    def close(self) -> None:
        """Every process has ended."""


def counted(tmp_path: Path, state_backend: BackendName, harm: Callable[[Path, Path], None]) -> NewProcesses:
    """Run a job of some batches that changes all of its state, and check its output.

    Args:
        harm: Is done before each of them to the directories of the store and of the host.
    """
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("taken-over")
    rounds = 3
    flow.source(ReplayedSource({"s": [f"key-{n}" for _ in range(rounds) for n in range(1_000)]})).key_by(
        str
    ).count().sink(out)
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=1_000),
        parallelism=1,
        checkpoint_interval="10ms",
        checkpoint_dir=tmp_path / "checkpoints",
        state_backend=state_backend,
        state_dir=tmp_path / "state",
    )
    made: list[NewProcesses] = []
    host = ""

    def jobs(graph: JobGraph, url: str) -> Any:
        nonlocal host
        host = directory_of(url, str(settings.state_dir))
        made.append(NewProcesses(graph, lambda batch: harm(Path(url), Path(host))))
        return made[-1]

    end, _ = run_batches(flow.compile(1, 128), settings, jobs)
    assert end is not None
    assert end.outcome == "finished", end
    expected = Counter((f"key-{n}", count) for n in range(1_000) for count in range(1, rounds + 1))
    assert Counter(out.records()) == expected
    assert made[0].batches >= rounds
    assert len(made[0].pids) == made[0].attempts
    # The end of the job takes all of it along.
    assert not os.path.exists(host)
    return made[0]


@pytest.mark.parametrize("state_backend", ["memory", "rocksdb"])
def test_a_process_that_takes_a_partition_over_reads_nothing_from_the_store(
    tmp_path: Path, state_backend: BackendName
) -> None:
    lost = 0

    def lose_stored(store: Path, host: Path) -> None:
        nonlocal lost
        for path in store.glob("parts/*/*"):
            path.unlink()
            lost += 1

    counted(tmp_path, state_backend, lose_stored)
    assert lost >= 2


def test_files_of_a_database_that_were_damaged_on_a_host_change_no_output(tmp_path: Path) -> None:
    damaged = 0

    def damage(store: Path, host: Path) -> None:
        nonlocal damaged
        for path in host.glob("*"):
            content = bytearray(path.read_bytes())
            content[: len(content) // 2] = bytes(len(content) // 2)
            path.write_bytes(content)
            damaged += 1

    counted(tmp_path, "rocksdb", damage)
    assert damaged >= 2


def test_a_rescaled_job_does_not_go_on_with_files_of_a_database_that_were_damaged_on_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with parts of other tasks, of which it reads every row once."""
    state_dir, left = str(tmp_path / "state"), tmp_path / "left"
    monkeypatch.setattr(batches, "host_cache", lambda store, url, _: host_cache(store, url, state_dir))
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("rescaled")
    rounds = 4
    flow.source(ReplayedSource({"s": [f"key-{n}" for _ in range(rounds) for n in range(1_000)]})).key_by(
        str
    ).count().sink(out)
    failures: list[str] = []

    class Jobs(LocalJobs):
        """See `LocalJobs`; copies what the host has before the third batch."""

        def __init__(self, graph: JobGraph, url: str) -> None:
            super().__init__(graph, url, Random(1), FaultProfile(), "rocksdb", 1)
            self.host = Path(directory_of(url, state_dir))
            self.batches = 0
            if left.exists():
                for path in left.iterdir():
                    content = path.read_bytes()
                    (self.host / path.name).write_bytes(
                        bytes(len(content) // 2) + content[len(content) // 2 :]
                    )

        def run(self, name: str, orders: Sequence[Sequence[StageOrder]], description: str) -> Iterator[bytes]:
            self.batches += 1
            if self.batches > 2 and not left.exists():
                shutil.copytree(self.host, left)
            for data in super().run(name, orders, description):
                failure = decoded_result(data).failure
                failures.extend([] if failure is None else [failure.cause.message])
                yield data

    def ended(parallelism: int, until: Callable[[Any], bool]) -> Any:
        settings = cc.Settings(
            engine=cc.MicroBatch(records_max=1_000),
            parallelism=parallelism,
            checkpoint_interval="10ms",
            checkpoint_dir=tmp_path / "checkpoints",
            state_backend="rocksdb",
        )
        return run_batches(flow.compile(parallelism, 128), settings, Jobs, until)[0]

    assert ended(1, lambda _: left.exists()) is None
    assert list(left.iterdir())
    end = ended(2, lambda _: False)
    assert end.outcome == "finished", end
    assert all("Corruption" in one for one in failures)
    assert failures
    expected = Counter((f"key-{n}", count) for n in range(1_000) for count in range(1, rounds + 1))
    assert Counter(out.records()) == expected
