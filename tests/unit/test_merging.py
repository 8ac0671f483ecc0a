"""Small files made into large ones: what is merged, what is left alone, and who notices."""

from __future__ import annotations

import csv
import fcntl
import importlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql.types import LongType, StructField, StructType

import crosscut as cc
from crosscut.cli.commands import program
from crosscut.connectors.files import committed_files as module
from crosscut.connectors.files import merged_content, parquet_limits
from crosscut.connectors.files.committed_files import committed_files
from crosscut.connectors.files.committed_output import committed_output
from crosscut.connectors.files.merging import OutputFile, bins, groups, merges_done
from crosscut.connectors.files.stage import file_below
from crosscut.contracts.connectors import JSON, Sink
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.spark.data.output_files import OutputOf, rows_of
from crosscut.testing.sinks import open_writer, permit, stage

ALL = CheckpointId(10**9)
NOW = "0s"


def small(path: str, size: int, n: int = 1, index: int = 0, uid: str = "out") -> OutputFile:
    return OutputFile(path, uid, "jsonl", CheckpointId(n), CheckpointId(n), index, size)


def committed(sink: Sink, batches: list[list[Any]], *, index: int = 1, uid: str = "sink") -> list[JSON]:
    """Commit a checkpoint for each batch, from 1 on, as one task; return the handles."""
    writer = open_writer(sink, 1, task=TaskId(VertexId("write-out"), index), sink_uid=uid)
    handles = [stage(writer, records, n) for n, records in enumerate(batches, 1)]
    writer.commit(permit(len(batches)), handles)
    writer.close()
    return handles


def lines_in(directory: Path) -> list[Any]:
    files = sorted(path for path in directory.rglob("*.jsonl") if ".crosscut" not in path.parts)
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".crosscut")


def test_files_go_together_by_directory_and_sink_in_the_order_of_checkpoints() -> None:
    files = [
        small("b", 1, n=2, index=0),
        small("c", 1, n=1, index=1),
        small("k=1/a", 1),
        small("a", 1, n=1, index=0),
        small("d", 1, uid="other"),
    ]
    assert [[one.path for one in group] for group in groups(files)] == [["d"], ["a", "c", "b"], ["k=1/a"]]


def test_neighbours_become_one_up_to_the_size_that_is_wanted_and_one_alone_is_left() -> None:
    sizes = [4, 3, 3, 4, 4, 4, 2]
    files = [small(str(n), size, n) for n, size in enumerate(sizes)]
    assert [[one.size_bytes for one in found] for found in bins(files, 10)] == [[4, 3, 3], [4, 4], [4, 2]]
    assert bins(files[:1], 10) == []


def test_no_merge_reaches_around_a_file_that_stays_as_it_is() -> None:
    """I5: who reads in the order of checkpoints would read that one too late."""
    files = [small(str(n), size, n) for n, size in enumerate([1, 1, 5, 1, 1, 1])]
    assert [[one.path for one in each] for each in bins(files, 10)] == [["0", "1"], ["3", "4", "5"]]


def test_lines_of_all_tasks_and_checkpoints_are_in_one_file_and_the_job_goes_on(tmp_path: Path) -> None:
    sink = cc.files.write_jsonl(tmp_path)
    handles = committed(sink, [[1, 2], [3], [4]])
    committed(sink, [[10], [11]], index=2)
    committed(sink, [["other"]], uid="other")
    (merged,) = cc.files.compact(tmp_path, older_than=NOW)
    assert len(merged.replaced) == 5
    assert merged.path.startswith("merged-000000000001-000000000003-sink-")
    assert lines_in(tmp_path) == [1, 2, 10, 3, 11, 4, "other"]
    assert cc.files.compact(tmp_path, older_than=NOW) == [], "one file is merged with nothing"
    # Commits are repeated after any failure: what is not there any more was taken, and is not lost.
    writer = open_writer(sink, 2, restore=3, handles=handles)
    handle = stage(writer, [5], 4)
    writer.commit(permit(4, 2), [*handles, handle])
    assert sorted(map(str, lines_in(tmp_path))) == ["1", "10", "11", "2", "3", "4", "5", "other"]
    writer.close()
    # What was merged is merged again.
    (again,) = cc.files.compact(tmp_path, older_than=NOW)
    assert merged.path in again.replaced
    assert lines_in(tmp_path) == [1, 2, 10, 3, 11, 4, 5, "other"]
    left = sorted(path.name for path in (tmp_path / ".crosscut" / "merges").iterdir())
    assert left == ["at-work.lock", "moving.lock"]


def test_young_files_large_files_and_what_is_no_output_are_left_alone(tmp_path: Path) -> None:
    committed(cc.files.write_jsonl(tmp_path), [["x" * 100], ["y" * 100], ["z"]])
    (tmp_path / "notes.jsonl").write_text("{}")
    before = names_in(tmp_path)
    assert cc.files.compact(tmp_path) == []
    assert cc.files.compact(tmp_path, older_than=NOW, target_bytes=150) == []
    assert names_in(tmp_path) == before


def test_parquet_is_merged_by_schema_and_within_each_directory(tmp_path: Path) -> None:
    library = pytest.importorskip("pyarrow.parquet", reason="pip install 'crosscut[parquet]'")
    schema = {"id": "int64", "k": "int8"}
    sink = cc.files.write_parquet(tmp_path, schema, partition_by="k", codec="zstd")
    committed(sink, [[(1, 0), (2, 1)], [(3, 0), (4, 1)]])
    wider = cc.files.write_parquet(tmp_path, {**schema, "more": "string"}, partition_by="k")
    committed(wider, [[(5, 0, "a")], [(6, 0, None)]], index=2)
    merged = cc.files.compact(tmp_path, older_than=NOW)
    assert sorted(os.path.dirname(one.path) for one in merged) == ["k=0", "k=0", "k=1"]
    found = {
        str(path.parent.name) + str(file.schema_arrow.names): file.read().to_pylist()
        for path in tmp_path.glob("k=*/*.parquet")
        if (file := library.ParquetFile(path))
    }
    assert found == {
        "k=0['id']": [{"id": 1}, {"id": 3}],
        "k=0['id', 'more']": [{"id": 5, "more": "a"}, {"id": 6, "more": None}],
        "k=1['id']": [{"id": 2}, {"id": 4}],
    }
    (path,) = tmp_path.glob("k=1/*.parquet")
    assert library.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_small_parquet_that_holds_large_tables_is_merged_in_pieces_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8. A few hundred bytes are gigabytes, and whoever can write output may put them there."""
    library = pytest.importorskip("pyarrow.parquet", reason="pip install 'crosscut[parquet]'")
    committed(cc.files.write_parquet(tmp_path, {"a": "string"}, codec="zstd"), [[("x" * 100_000,)] * 50] * 2)
    monkeypatch.setattr(parquet_limits, "BATCH_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(merged_content, "_ROW_GROUP_BYTES", 1_000_000)
    monkeypatch.setattr(parquet_limits, "PAGE_BYTES_MAX", 50_000)
    before = names_in(tmp_path)
    with pytest.raises(ConnectorError, match=r"\.parquet: row group 0, column 'a': a page of 1000\d\d bytes"):
        cc.files.compact(tmp_path, older_than=NOW)
    assert names_in(tmp_path) == before
    monkeypatch.setattr(parquet_limits, "PAGE_BYTES_MAX", 1_000_000)
    assert len(cc.files.compact(tmp_path, older_than=NOW)) == 1
    (path,) = tmp_path.glob("*.parquet")
    found = library.ParquetFile(path)
    assert found.metadata.num_row_groups >= 10
    assert found.read().to_pylist() == [{"a": "x" * 100_000}] * 100


def test_a_file_without_a_first_line_is_no_csv_with_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_content, "LINE_BYTES_MAX", 10_000)
    committed(cc.files.write_csv(tmp_path, ["a" * 20_000]), [[("x",)], [("y",)]])
    with pytest.raises(ConnectorError, match=r"\.csv: the first line is longer than 10000 bytes"):
        cc.files.compact(tmp_path, older_than=NOW, csv_header=True)


def test_csv_is_merged_only_if_somebody_says_what_its_first_lines_are(tmp_path: Path) -> None:
    committed(cc.files.write_csv(tmp_path, ["a", "b"]), [[(1, "x")], [(2, "y,\nz")]])
    assert cc.files.compact(tmp_path, older_than=NOW) == []
    assert len(cc.files.compact(tmp_path, older_than=NOW, csv_header=True)) == 1
    (path,) = tmp_path.glob("*.csv")
    with path.open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["a", "b"], ["1", "x"], ["2", "y,\nz"]]
    committed(cc.files.write_csv(tmp_path, ["b", "a"]), [[(3, "x")]], index=2)
    before = names_in(tmp_path)
    with pytest.raises(ConnectorError, match="their columns differ, or they have no header"):
        cc.files.compact(tmp_path, older_than=NOW, csv_header=True)
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_what_is_packed_is_packed_again_as_one(tmp_path: Path, compression: Any) -> None:
    """One member, or frame: some readers take no more of a file than the first."""
    if compression == "zstd":
        pytest.importorskip("zstandard", reason="pip install 'crosscut[zstd]'")
    committed(cc.files.write_jsonl(tmp_path / "a", compression=compression), [[1, 2], ["three"]])
    committed(cc.files.write_csv(tmp_path / "b", ["n"], compression=compression), [[(1,)], [(2,)]])
    assert [len(cc.files.compact(tmp_path / one, older_than=NOW, csv_header=True)) for one in "ab"] == [1, 1]
    found = [path.read_bytes() for one in "ab" for path in (tmp_path / one).iterdir() if path.is_file()]
    assert [unpacked(data, compression) for data in found] == [b'1\n2\n"three"\n', b"n\n1\n2\n"]


def unpacked(data: bytes, compression: str) -> bytes:
    """What is in the only member or frame of a file."""
    if compression == "zstd":
        one = importlib.import_module("zstandard").ZstdDecompressor().decompressobj()
    else:
        one = zlib.decompressobj(16 + zlib.MAX_WBITS)
    found: bytes = one.decompress(data)
    assert one.eof and not one.unused_data
    return found


def test_a_packed_file_that_was_cut_is_named_and_nothing_is_merged(tmp_path: Path) -> None:
    committed(cc.files.write_jsonl(tmp_path, compression="gzip"), [["x" * 100], ["y" * 100]])
    path = next(tmp_path.glob("*.gz"))
    path.write_bytes(path.read_bytes()[:-9])
    before = names_in(tmp_path)
    with pytest.raises(ConnectorError, match=rf"{path.name} can't be unpacked: "):
        cc.files.compact(tmp_path, older_than=NOW)
    assert names_in(tmp_path) == before


def test_a_file_that_a_reader_takes_meanwhile_keeps_the_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N3."""
    committed(cc.files.write_jsonl(tmp_path), [[1], [2], [3]])
    second = sorted(tmp_path.glob("*.jsonl"))[1]
    rename = os.rename

    def taken_before(source: Any, target: Any, **directories: Any) -> None:
        if source == second.name:
            monkeypatch.undo()
            second.unlink()
        rename(source, target, **directories)

    before = names_in(tmp_path)
    monkeypatch.setattr(os, "rename", taken_before)
    assert cc.files.compact(tmp_path, older_than=NOW) == []
    assert names_in(tmp_path) == [name for name in before if name != second.name]
    assert lines_in(tmp_path) == [1, 3]


def test_two_runs_at_once_and_what_is_no_directory_are_refused(tmp_path: Path) -> None:
    cc.files.compact(tmp_path)
    with (tmp_path / ".crosscut" / "merges" / "at-work.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConnectorError, match="another run merges files there"):
            cc.files.compact(tmp_path)
    with pytest.raises(ConnectorError, match="is no directory"):
        cc.files.compact(tmp_path / "nowhere")
    with pytest.raises(ConnectorError, match="in a local or shared directory only"):
        cc.files.compact("s3://bucket/out")


def test_whoever_reads_as_crosscut_does_waits_while_files_are_moved(tmp_path: Path) -> None:
    committed(cc.files.write_jsonl(tmp_path), [[1], [2]])
    cc.files.compact(tmp_path, older_than=NOW)
    with (tmp_path / ".crosscut" / "merges" / "moving.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused = pytest.raises(ConnectorError, match="run `crosscut files compact` there")
        with refused, merges_done(str(tmp_path), timeout_s=0):
            raise AssertionError
    with merges_done(str(tmp_path), timeout_s=0):
        pass


def test_files_that_follow_one_another_in_a_checkpoint_are_merged_in_their_order(tmp_path: Path) -> None:
    """I5."""
    sink = cc.files.write_jsonl(tmp_path, roll_bytes=1024 * 1024)
    writer = open_writer(sink, 1)
    for n in range(8):
        writer.write([[n, "x" * 1024 * 1024]])
    transaction = writer.rotate(CheckpointId(1))
    writer.commit(permit(1), [writer.prepare(transaction)])
    writer.close()
    assert [one[0] for one in lines_in(tmp_path)] == [*range(8)]
    (merged,) = cc.files.compact(tmp_path, older_than=NOW)
    assert len(merged.replaced) == 8
    assert [one[0] for one in lines_in(tmp_path)] == [*range(8)]


def test_files_that_are_merged_right_after_they_were_listed_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a query would leave out their records; now it finds no such file when it opens them."""
    committed(cc.files.write_jsonl(tmp_path), [[1], [2]])

    @contextmanager
    def merged_after(directory: str) -> Iterator[None]:
        with merges_done(directory):
            yield
        assert cc.files.compact(directory, older_than=NOW)

    monkeypatch.setattr(module, "merges_done", merged_after)
    assert [one.first for one in committed_files(str(tmp_path), "sink")] == [1, 2]


def test_whoever_lists_during_the_first_merge_of_all_is_told_to_list_again(tmp_path: Path) -> None:
    committed(cc.files.write_jsonl(tmp_path), [[1], [2]])
    with pytest.raises(ConnectorError, match="read it again"), merges_done(str(tmp_path)):
        assert cc.files.compact(tmp_path, older_than=NOW)
    with merges_done(str(tmp_path)):
        pass


def test_a_file_that_was_written_long_before_its_commit_is_as_young_as_that(tmp_path: Path) -> None:
    """Else who follows the output is not behind, and finds it merged with what was read."""
    committed(cc.files.write_jsonl(tmp_path), [[1], [2]])
    for path in tmp_path.glob("*.jsonl"):
        os.utime(path, (0, 0))
    assert cc.files.compact(tmp_path, older_than="10m") == []
    assert len(cc.files.compact(tmp_path, older_than=NOW)) == 1


def test_output_that_is_followed_is_each_checkpoint_once_or_an_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    committed(cc.files.write_jsonl(out), [[{"n": 1}], [{"n": 2}], [{"n": 3}]])
    (youngest,) = out.glob("part-00001-000000000003-*")
    os.utime(youngest, (2**32, 2**32))
    cc.files.compact(out, older_than=NOW)
    output = OutputOf("", "sink", str(out), "jsonl")
    schema = StructType([StructField("n", LongType())])

    def read(after: int, through: int) -> list[Any]:
        groups = output.files(CheckpointId(after), CheckpointId(through))
        return [row for paths in groups for row in rows_of(output, paths, schema)]

    assert [one.first for one in committed_files(str(out), "sink")] == [1, 3]
    assert read(0, 3) == [(1,), (2,), (3,)]
    assert read(2, 3) == [(3,)]
    for after, through in ((1, 3), (0, 1)):
        with pytest.raises(ConnectorError, match="was merged from files of checkpoints 1 to 2"):
            read(after, through)


def test_a_job_that_starts_anew_is_told_of_merged_output(tmp_path: Path) -> None:
    (tmp_path / "merged-000000000001-000000000004-sink-0123456789abcdef.jsonl").write_text("1\n")
    (found,) = committed_output(str(tmp_path), "jsonl")
    assert (found.sink_uid, found.checkpoint_id) == ("sink", 4)


def test_the_command_says_what_it_has_merged(tmp_path: Path) -> None:
    committed(cc.files.write_jsonl(tmp_path), [[1], [2]])
    run = CliRunner().invoke(program, ["files", "compact", str(tmp_path), "--older-than", "0"])
    assert run.exit_code == 0
    assert "2 files, 4 bytes" in run.output
    run = CliRunner().invoke(program, ["files", "compact", str(tmp_path)])
    assert run.output == "nothing to merge\n"


def trap_with(directory: Path, victim: Path, name: str) -> None:
    """Put a link into the directory of merges that leads to what is somebody else's."""
    merges = directory / ".crosscut" / "merges"
    match name:
        case "a merge":
            merges.mkdir(parents=True)
            (merges / "0123456789abcdef").symlink_to(victim)
        case "all merges":
            merges.parent.mkdir(exist_ok=True)
            merges.symlink_to(victim)
        case "a lock":
            merges.mkdir(parents=True)
            (merges / "at-work.lock").symlink_to(victim / "new")
        case "a plan":
            merges.mkdir(parents=True)
            (merges / "0123456789abcdef.json").symlink_to(victim / "plan.json")
        case "a plan for a merge":
            merges.mkdir(parents=True)
            (merges / "0123456789abcdef").symlink_to(victim)
            (merges / "0123456789abcdef.json").write_text((victim / "plan.json").read_text())
        case "a partition":
            merges.mkdir(parents=True)
            (directory / "k=1").symlink_to(victim)
            (merges / "0123456789abcdef").mkdir()
            (merges / "0123456789abcdef" / "merged").write_text("1\n")
            (merges / "0123456789abcdef.json").write_text((victim / "plan.json").read_text())
        case "a fifo":
            merges.mkdir(parents=True)
            os.mkfifo(merges / "moving.lock")
        case _:
            raise AssertionError(name)


@pytest.mark.parametrize(
    "name",
    ["a merge", "all merges", "a lock", "a plan", "a plan for a merge", "a partition", "a fifo"],
)
def test_no_link_among_merges_leads_to_files_of_somebody_else(tmp_path: Path, name: str) -> None:
    """Whoever may write output put it there; `crosscut files compact` is run by somebody with more rights."""
    out, victim = tmp_path / "out", tmp_path / "victim"
    (handle,) = committed(cc.files.write_jsonl(out), [[1]])
    victim.mkdir()
    final = handle["final"] if isinstance(handle, dict) else ""
    for one in ("0", "1", "merged", str(final)):
        (victim / one).write_text("x" * 8)
    plan = {"final": f"k=1/{final}", "files": [[f"k=1/{final}", 8]]}
    (victim / "plan.json").write_text(json.dumps(plan))
    before = {path.name: path.read_bytes() for path in victim.iterdir()}
    trap_with(out, victim, name)
    with suppress(ConnectorError):
        cc.files.compact(out, older_than=NOW)
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == before
    with suppress(ConnectorError):
        committed_files(str(out), "sink")


def test_a_file_that_has_become_a_link_is_not_read_into_the_output(tmp_path: Path) -> None:
    committed(cc.files.write_jsonl(tmp_path), [[1], [2]])
    secret = tmp_path.parent / "secret"
    secret.write_text('"secret"\n')
    first = sorted(tmp_path.glob("*.jsonl"))[0]
    with pytest.raises(OSError, match="links"):
        first.unlink()
        first.symlink_to(secret)
        file_below(tmp_path, first.name)
    assert cc.files.compact(tmp_path, older_than=NOW) == []
