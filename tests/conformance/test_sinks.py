"""Every sink of ours conforms, and the suite finds sinks that do not.

Scenarios F1, F2, F4, F6, F8, C1 and invariants I1, I2, I3 are in the suite itself.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import crosscut as cc
from crosscut.connectors.files.collect import Collect, collect
from crosscut.connectors.files.partitions import values_of
from crosscut.contracts.connectors import (
    JSON,
    CommitPermit,
    CommittedOutput,
    Sink,
    SinkContext,
    SinkWriter,
)
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.protocol.log.history import check_history, check_not_set_back
from crosscut.testing.s3 import S3Server
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, check_random_lives

Check = Callable[[SinkTarget], None]


def jsonl_target(directory: Path) -> SinkTarget:
    def visible() -> list[Any]:
        files = sorted(directory.glob("**/*.jsonl"))
        return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]

    def take() -> list[Any]:
        taken = visible()
        for file in directory.glob("*.jsonl"):
            file.unlink()
        return taken

    return SinkTarget(
        cc.files.write_jsonl(directory),
        visible,
        lambda i: {"number": i, "text": "ü\u2028" * (i % 3)},
        take,
        refused=lambda i: ({1: i, "1": i}, {"number": float("nan")}, {"number": object()})[i],
    )


def collect_target(directory: Path) -> SinkTarget:
    directory.chmod(0o700)
    sink: Collect = collect(directory)

    def take() -> list[Any]:
        taken = sink.records()
        for file in directory.glob("*.pickle"):
            file.unlink()
        return taken

    return SinkTarget(sink, sink.records, lambda i: (i, frozenset({i})), take)


def gzip_target(directory: Path) -> SinkTarget:
    def visible() -> list[Any]:
        lines = [gzip.decompress(file.read_bytes()) for file in sorted(directory.glob("*.jsonl.gz"))]
        return [orjson.loads(line) for data in lines for line in data.splitlines()]

    return SinkTarget(
        cc.files.write_jsonl(directory, compression="gzip"),
        visible,
        lambda i: [i],
        taking(visible, directory),
        refused=lambda i: {i},
    )


def zstd_target(directory: Path) -> SinkTarget:
    library = pytest.importorskip("zstandard", reason="pip install 'crosscut[zstd]'")

    def visible() -> list[Any]:
        unpack = library.ZstdDecompressor().decompressobj
        texts = [unpack().decompress(file.read_bytes()) for file in sorted(directory.glob("*.txt.zst"))]
        return [line for text in texts for line in text.decode().splitlines()]

    sink = cc.files.write_text(directory, compression="zstd")
    return SinkTarget(sink, visible, "line {}".format, taking(visible, directory))


def csv_target(directory: Path) -> SinkTarget:
    def visible() -> list[Any]:
        found = []
        for path in sorted(directory.glob("*.csv")):
            with path.open(newline="", encoding="utf-8") as file:
                found += [(int(row["number"]), row["text"]) for row in csv.DictReader(file)]
        return found

    sink = cc.files.write_csv(directory, ["number", "text"])
    return SinkTarget(
        sink,
        visible,
        lambda i: (i, 'a "b",\n\rü' * (i % 3)),
        taking(visible, directory),
        refused=lambda i: ((i,), (i, b"raw"), (i, "\ud800"))[i],
    )


def text_target(directory: Path) -> SinkTarget:
    def visible() -> list[Any]:
        files = sorted(directory.glob("*.txt"))
        return [line for file in files for line in file.read_text(encoding="utf-8").split("\n")[:-1]]

    sink = cc.files.write_text(directory)
    return SinkTarget(
        sink,
        visible,
        "line {} \u2028".format,
        taking(visible, directory),
        refused=lambda i: ("two\nlines", i, "\ud800")[i],
    )


def parquet_target(directory: Path) -> SinkTarget:
    library = pytest.importorskip("pyarrow.parquet", reason="pip install 'crosscut[parquet]'")

    def visible() -> list[Any]:
        tables = [library.read_table(path) for path in sorted(directory.glob("*.parquet"))]
        return [(row["number"], row["text"]) for table in tables for row in table.to_pylist()]

    sink = cc.files.write_parquet(directory, {"number": "int64", "text": "string"})
    return SinkTarget(
        sink,
        visible,
        lambda i: (i, "ü" * (i % 3)),
        taking(visible, directory),
        refused=lambda i: ((1.5, ""), (2**70, ""), (i, 1))[i],
    )


def divided_target(directory: Path) -> SinkTarget:
    """In directories by two columns; in one of them are rows without a value."""
    library = pytest.importorskip("pyarrow.parquet", reason="pip install 'crosscut[parquet]'")

    def visible() -> list[Any]:
        found = []
        for path in sorted(directory.glob("**/*.parquet")):
            said = values_of(str(path.parent.relative_to(directory)))
            rows = library.ParquetFile(path).read().to_pylist()
            found += [(row["number"], said["text"], int(said["digit"] or 0)) for row in rows]
        return sorted(found)

    sink = cc.files.write_parquet(
        directory,
        {"number": "int64", "text": "string", "digit": "int8"},
        partition_by=["text", "digit"],
    )
    return SinkTarget(
        sink,
        visible,
        lambda i: (i, (None, "ü/=%", "..")[i % 3], i % 2),
        taking(visible, directory),
        refused=lambda i: ((1.5, "..", 1), (i, "x" * 300, 1), (i, "..", "no digit"))[i],
    )


def rolled_target(directory: Path) -> SinkTarget:
    """Several files a checkpoint, and directory."""

    def visible() -> list[Any]:
        found = [
            {**orjson.loads(line), "digit": int(path.parent.name.removeprefix("digit="))}
            for path in directory.glob("digit=*/*.jsonl")
            for line in path.read_bytes().splitlines()
        ]
        return sorted(found, key=lambda record: record["number"])

    sink: Any = cc.files.write_jsonl(directory, partition_by="digit")
    small = replace(sink, layout=replace(sink.layout, roll_bytes=40))
    return SinkTarget(
        small,
        visible,
        lambda i: {"number": i, "digit": i % 3},
        taking(visible, directory),
        refused=lambda i: ({"number": i}, {"digit": 1, "number": {i}}, {"digit": 1.5, "number": i})[i],
    )


def delta_target(directory: Path) -> SinkTarget:
    library = pytest.importorskip("deltalake", reason="pip install 'crosscut[delta]'")

    def visible() -> list[Any]:
        if not library.DeltaTable.is_deltatable(str(directory)):
            return []
        rows = library.DeltaTable(str(directory)).to_pyarrow_table().to_pylist()
        return sorted((row["number"], row["text"]) for row in rows)

    sink = cc.delta.sink(str(directory), {"number": "int64", "text": "string"}, partition_by="text")
    return SinkTarget(
        sink,
        visible,
        lambda i: (i, "ü/" * (i % 3 + 1)),
        refused=lambda i: (i, ""),
        shown=lambda row: (row["number"], row["text"]),
        backup=lambda: backup_of(directory),
    )


def iceberg_target(directory: Path) -> SinkTarget:
    library = pytest.importorskip("pyiceberg.catalog", reason="pip install 'crosscut[iceberg]'")
    catalog = {
        "type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"
    }  # fmt: skip

    def visible() -> list[Any]:
        with library.load_catalog("default", **catalog) as found:
            if not found.table_exists("shop.rows"):
                return []
            rows = found.load_table("shop.rows").scan().to_arrow().to_pylist()
        return sorted((row["number"], row["text"]) for row in rows)

    schema = {"number": "int64", "text": "string"}
    sink = cc.iceberg.sink("shop.rows", schema, catalog=catalog)
    # As a driver does it before anything starts.
    sink.check()
    return SinkTarget(
        sink,
        visible,
        lambda i: (i, "ü/" * (i % 3)),
        refused=lambda i: (i + 0.5, ""),
        shown=lambda row: (row["number"], row["text"]),
        backup=lambda: backup_of(directory),
    )


def backup_of(directory: Path) -> Callable[[], None]:
    """Copy the directory of a table; return what sets it back to that."""
    kept = directory.parent / f"{directory.name} before"
    shutil.copytree(directory, kept)

    def set_back() -> None:
        for path in sorted(directory.rglob("*"), reverse=True):
            before = kept / path.relative_to(directory)
            if path.name == "catalog.db":
                # The writer has it open.
                with closing(sqlite3.connect(before)) as one, closing(sqlite3.connect(path)) as other:
                    one.backup(other)
            elif not before.exists() and path.is_dir():
                path.rmdir()
            elif not before.exists():
                path.unlink()

    return set_back


def taking(visible: Callable[[], list[Any]], directory: Path) -> Callable[[], list[Any]]:
    def take() -> list[Any]:
        taken = visible()
        for file in directory.glob("**/part-*"):
            if ".crosscut" not in file.parts:
                file.unlink()
        return taken

    return take


@pytest.mark.parametrize(
    "make",
    [
        jsonl_target,
        collect_target,
        gzip_target,
        zstd_target,
        csv_target,
        text_target,
        parquet_target,
        divided_target,
        rolled_target,
        delta_target,
        iceberg_target,
    ],
)
@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_our_sinks_conform(check: Check, make: Callable[[Path], SinkTarget], tmp_path: Path) -> None:
    check(make(tmp_path))


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_objects_in_s3_conform(check: Check, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    url, files = f"{s3.bucket()}/out", s3.files()

    def visible() -> list[Any]:
        lines = [files.cat_file(key) for key in sorted(files.glob(f"{url}/*.jsonl"))]
        return [json.loads(line) for data in lines for line in data.splitlines()]

    def take() -> list[Any]:
        taken = visible()
        for key in files.glob(f"{url}/part-*"):
            files.rm_file(key)
        return taken

    target = SinkTarget(cc.files.write_jsonl(url), visible, lambda i: {"number": i}, take)
    if check is check_random_lives:
        # Each of its steps lists and reads all there is.
        check_random_lives(target, steps=40)
    else:
        check(target)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_visible_output_is_the_committed_prefix_in_any_life(seed: int, tmp_path: Path) -> None:
    directory = tmp_path / str(seed)
    check_random_lives(jsonl_target(directory), seed)


Owner = tuple[object, ...]


@dataclass
class Shelf:
    """Where a sink in memory keeps things: by transaction, and by logical task."""

    staged: dict[int, list[Any]] = field(default_factory=dict)
    owners: dict[int, tuple[Owner, int]] = field(default_factory=dict)
    visible: dict[int, list[Any]] = field(default_factory=dict)
    published: set[int] = field(default_factory=set)
    histories: dict[Owner, dict[tuple[Epoch, str], CheckpointId]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def records(self) -> list[Any]:
        return [record for _, part in sorted(self.visible.items()) for record in part]

    def take(self) -> list[Any]:
        records = self.records()
        self.visible.clear()
        return records

    def backup(self) -> Callable[[], None]:
        kept = deepcopy(vars(self))
        return lambda: vars(self).update(deepcopy(kept))


SHELVES: dict[int, Shelf] = defaultdict(Shelf)
NUMBERS = count()


@dataclass(frozen=True)
class PlantedBugSink(Sink):
    """A correct sink in memory, except for one bug."""

    shelf: int
    bug: str

    def writer(self, context: SinkContext) -> SinkWriter:
        return PlantedBugWriter(SHELVES[self.shelf], self.bug, context)

    def committed(self) -> Sequence[CommittedOutput]:
        return [
            CommittedOutput(
                "memory",
                lineage,
                uid,
                task,
                *who,
                CheckpointId(0) if self.bug == "tells of no commit" and n > 1 else n,
            )
            for (lineage, uid, task), history in SHELVES[self.shelf].histories.items()
            for who, n in history.items()
        ]


class PlantedBugWriter(SinkWriter):
    def __init__(self, shelf: Shelf, bug: str, context: SinkContext) -> None:
        self.shelf = shelf
        self.bug = bug
        self.context = context
        self.owner: Owner = (context.lineage, context.sink_uid, context.task)
        if bug == "sweeps other tasks":
            self.owner = (context.lineage, context.sink_uid, context.task.vertex)
        if bug == "sweeps other sinks":
            self.owner = (context.lineage, "", context.task)
        if bug == "sweeps other lineages":
            self.owner = ("", context.sink_uid, context.task)
        self.epoch = context.epoch
        self.restored: CommitPermit | None = None
        self.records: list[Any] = []

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        if self.bug not in ("never looks at its history", "looks at its history too late"):
            self.check_history(permit)
        self.check_not_set_back(permit)
        self.restored = permit
        self.shelf.histories[self.owner][self.mine] = CheckpointId(0)
        if self.bug == "looks at its history too late":
            self.check_history(permit)
        if self.bug == "aborts before it commits":
            self.sweep()
        if permit is not None and self.bug != "no commit on restore":
            self.commit(permit, handles)
        self.sweep()

    @property
    def mine(self) -> tuple[Epoch, str]:
        is_deaf = self.bug == "does not tell drivers apart"
        return self.epoch, "" if is_deaf else self.context.driver

    def check_history(self, permit: CommitPermit | None) -> None:
        context = replace(self.context, driver=self.mine[1])
        found = [
            CommittedOutput("memory", context.lineage, context.sink_uid, context.task, *who, n)
            for who, n in self.shelf.histories[self.owner].items()
        ]
        if self.bug == "does not fence older epochs":
            found = [one for one in found if one.epoch <= self.epoch]
        if self.bug == "goes on from any checkpoint":
            found = [replace(one, checkpoint_id=CheckpointId(0)) for one in found]
        check_history(context, permit, found)

    def check_not_set_back(self, permit: CommitPermit | None) -> None:
        if self.bug == "never looks whether it was set back":
            return
        if self.bug == "takes what is complete for committed" and permit is not None:
            permit = replace(permit, committed=permit.checkpoint_id)
        there = max(self.shelf.histories[self.owner].values(), default=CheckpointId(0))
        check_not_set_back(self.context, permit, there, "memory")

    def sweep(self) -> None:
        for number, (owner, epoch) in list(self.shelf.owners.items()):
            if owner == self.owner and epoch < self.epoch:
                self.shelf.staged.pop(number, None)

    def write(self, records: list[Any]) -> None:
        if self.bug == "keeps the caller's list" and not self.records:
            self.records = records
        else:
            self.records = self.records + records

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        records = self.records
        if not records and self.bug != "empty transactions":
            return None
        if self.bug != "cuts at prepare":
            self.records = []
        return checkpoint_id, records

    def prepare(self, transaction: Any) -> JSON:
        number = next(NUMBERS)
        checkpoint_id, records = transaction
        if self.bug == "cuts at prepare":
            records, self.records = self.records, []
        self.shelf.staged[number] = list(records)
        self.shelf.owners[number] = (self.owner, self.epoch)
        if self.bug == "visible when prepared":
            self.shelf.visible[number] = self.shelf.staged[number]
        return [number, checkpoint_id]

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        if self.bug != "never looks at its history":
            self.check_history(self.restored)
        if self.bug != "looks at its restart only whether it was set back":
            self.check_not_set_back(permit)
        for handle in handles[-1:] if self.bug == "commits its own only" else handles:
            assert isinstance(handle, list)
            number, checkpoint_id = handle
            assert isinstance(number, int) and isinstance(checkpoint_id, int)
            self.publish(number)
            history = self.shelf.histories[self.owner]
            history[self.mine] = max(history[self.mine], CheckpointId(checkpoint_id))

    def publish(self, number: int) -> None:
        shelf = self.shelf
        place = next(NUMBERS) if self.bug == "commits twice" else number
        is_known = number in (shelf.visible if self.bug == "forgets what was taken" else shelf.published)
        if self.bug == "commits the staged again":
            shelf.visible[place] = shelf.staged.get(number, [])
        elif not is_known or self.bug == "commits twice":
            if number not in shelf.staged:
                raise ConnectorError(f"transaction {number} is lost")
            shelf.visible[place] = shelf.staged[number]
        shelf.published.add(number)
        if self.bug not in ("commits twice", "forgets what was taken"):
            shelf.staged.pop(number, None)

    def close(self) -> None:
        if self.bug == "forgets what is prepared":
            self.shelf.staged.clear()


def planted(bug: str) -> SinkTarget:
    shelf = next(NUMBERS)
    return SinkTarget(
        PlantedBugSink(shelf, bug),
        lambda: SHELVES[shelf].records(),
        take=lambda: SHELVES[shelf].take(),
        backup=lambda: SHELVES[shelf].backup(),
    )


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_the_sink_without_a_bug_conforms(check: Check) -> None:
    check(planted("none"))


@pytest.mark.parametrize(
    "bug",
    [
        "visible when prepared",
        "commits twice",
        "commits the staged again",
        "commits its own only",
        "no commit on restore",
        "aborts before it commits",
        "sweeps other tasks",
        "sweeps other sinks",
        "sweeps other lineages",
        "cuts at prepare",
        "keeps the caller's list",
        "empty transactions",
        "forgets what is prepared",
        "forgets what was taken",
        "never looks at its history",
        "looks at its history too late",
        "goes on from any checkpoint",
        "does not tell drivers apart",
        "does not fence older epochs",
        "tells of no commit",
        "never looks whether it was set back",
        "looks at its restart only whether it was set back",
        "takes what is complete for committed",
    ],
)
def test_the_suite_finds_planted_bugs(bug: str) -> None:
    failed = []
    for check in SINK_CHECKS:
        try:
            check(planted(bug))
        except (AssertionError, ConnectorError):
            failed.append(check.__name__)
    assert failed, f"no check found the sink that {bug}"
