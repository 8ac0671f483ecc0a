"""A watched directory: each file is read once, whenever it comes and whatever is restarted."""

from __future__ import annotations

import glob
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import crosscut as cc
from crosscut.connectors.files.lines import Lines
from crosscut.connectors.files.watch import Watched
from crosscut.errors import ConnectorError, SettingsError
from crosscut.testing.s3 import S3Server
from crosscut.testing.sources import read_source, shipped

PARALLELISM = 3


def appear(directory: Path, name: str, lines: list[str]) -> None:
    hidden = directory / f".{name}"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(directory / name)


def watched(directory: Path, **options: Any) -> Watched[str]:
    return Watched(Lines(str(directory / "*.txt"), "/", split_bytes=60), 1.0, **options)


class Reading:
    """All splits of a source, as tasks read them, with what a job would have kept at its last checkpoint."""

    def __init__(self, source: cc.Source) -> None:
        self.source = source
        self.splits = list(source.splits(PARALLELISM))
        self.kept: dict[str, Any] = {one.split_id: one.start for one in self.splits}
        self.records: list[Any] = []
        self.committed = 0
        self.readers: list[cc.SplitReader] = []
        self.restart()

    def restart(self) -> None:
        self.close()
        del self.records[self.committed :]
        self.readers = [shipped(self.source).reader(one, self.kept[one.split_id]) for one in self.splits]

    def read(self, times: int = 1) -> None:
        for _ in range(times):
            for reader in self.readers:
                found = reader.read(7)
                assert not isinstance(found, cc.EndOfSplit)
                if isinstance(found, list):
                    self.records += found

    def until(self, condition: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + 60
        while time.monotonic() < ends_s:
            self.read()
            if condition():
                return
        raise AssertionError(f"{len(self.records)} records: {self.records[-3:]}")

    def checkpoint(self) -> None:
        positions = [json.loads(json.dumps(one.position)) for one in self.readers]
        self.kept = {one.split_id: at for one, at in zip(self.splits, positions, strict=True)}
        self.committed = len(self.records)

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["file", "file", "read", "checkpoint", "restart"]), max_size=25))
def test_each_file_is_read_once_whatever_is_restarted(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """I1, I2, against a list."""
    directory = tmp_path_factory.mktemp("in")
    reading = Reading(watched(directory))
    expected: list[str] = []
    try:
        for number, step in enumerate(steps):
            match step:
                case "file":
                    lines = [f"{number} {index}" for index in range(number % 4 * 8)]
                    expected += lines
                    appear(directory, f"{number}.txt", lines)
                case "read":
                    reading.read(9)
                case "checkpoint":
                    reading.checkpoint()
                case "restart":
                    reading.restart()
        reading.until(lambda: len(reading.records) >= len(expected))
        reading.read(50)
        assert sorted(reading.records) == sorted(expected)
    finally:
        reading.close()


def test_the_lines_of_a_file_come_in_order_and_a_name_that_comes_again_is_not_read_again(
    tmp_path: Path,
) -> None:
    reading = Reading(watched(tmp_path))
    lines = [f"line {index}" for index in range(50)]
    appear(tmp_path, "a.txt", lines)
    reading.until(lambda: len(reading.records) == 50)
    assert reading.records == lines
    reading.until(lambda: not any(one.position["open"] for one in reading.readers))  # type: ignore[index,call-overload]
    reading.checkpoint()
    appear(tmp_path, "a.txt", ["other"])
    appear(tmp_path, "b.txt", ["new"])
    reading.restart()
    reading.until(lambda: len(reading.records) > 50)
    reading.read(50)
    assert reading.records == [*lines, "new"]
    reading.close()


def test_a_link_to_a_file_that_has_been_read_is_no_new_file(tmp_path: Path) -> None:
    """P10. The usual "latest" appears after the file that it leads to, and moves on."""
    source = Watched(Lines(str(tmp_path / "**/*.txt"), "/"), 1.0)
    reading = Reading(source)
    (tmp_path / "b").mkdir()
    appear(tmp_path / "b", "1.txt", ["one"])
    reading.until(lambda: len(reading.records) == 1)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "0.txt").symlink_to("b/1.txt")
    appear(tmp_path / "b", "2.txt", ["two"])
    reading.until(lambda: len(reading.records) == 2)
    reading.checkpoint()
    reading.restart()
    (tmp_path / "0.txt").unlink()
    (tmp_path / "0.txt").symlink_to("b/2.txt")
    appear(tmp_path / "b", "3.txt", ["three"])
    reading.until(lambda: len(reading.records) == 3)
    reading.read(50)
    assert reading.records == ["one", "two", "three"]
    reading.close()


def test_files_that_are_gone_are_forgotten_only_where_there_is_no_room(tmp_path: Path) -> None:
    reading = Reading(watched(tmp_path, names_max=2))
    for number in range(12):
        appear(tmp_path, f"{number}.txt", [str(number)])
        reading.until(lambda number=number: len(reading.records) == number + 1)
        (tmp_path / f"{number}.txt").unlink()
    assert all(len(one.position["names"]) <= 2 for one in reading.readers)  # type: ignore[index,call-overload,arg-type]
    with pytest.raises(ConnectorError, match="move or delete those that have been read"):
        for number in range(20, 32):
            appear(tmp_path, f"{number}.txt", [str(number)])
        reading.until(lambda: len(reading.records) == 24)
    reading.close()


def test_a_file_that_is_moved_away_while_somebody_looks_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = glob.glob

    def slow(*arguments: Any, **named: Any) -> list[str]:
        found = listed(*arguments, **named)
        (tmp_path / "read.txt").unlink(missing_ok=True)
        return found

    reading = Reading(watched(tmp_path))
    appear(tmp_path, "read.txt", ["read"])
    reading.until(lambda: reading.records == ["read"])
    monkeypatch.setattr(glob, "glob", slow)
    appear(tmp_path, "new.txt", ["new"])
    reading.until(lambda: reading.records == ["read", "new"])
    reading.close()
    for thread in threading.enumerate():
        if thread.name.startswith("crosscut-watch"):
            # Another task may be looking, and so removing, still.
            thread.join()
    # Who reads what is there once has none to lose.
    (tmp_path / "read.txt").write_text("never\n")
    with pytest.raises(ConnectorError, match=r"can't read .*read\.txt"):
        read_source(cc.files.read_text(tmp_path / "*.txt"))


def test_a_file_that_a_pattern_finds_by_two_ways_is_read_once(tmp_path: Path) -> None:
    directory = tmp_path / "logs" / "logs"
    directory.mkdir(parents=True)
    (directory / "a.txt").write_text("a\n")
    source = cc.files.read_text(tmp_path / "**" / "logs" / "**" / "*.txt")
    assert read_source(source) == ["a"]
    assert read_source(Watched(source, 1.0, ends=True)) == ["a"]  # type: ignore[arg-type]


def test_only_files_can_be_watched_and_what_is_watched_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="expected a source of files"):
        cc.files.watch(cc.items([1]))
    with pytest.raises(SettingsError, match="expected a duration above 0"):
        cc.files.watch(cc.files.read_text("*.txt"), every=0)
    source = cc.files.watch(cc.files.read_text(tmp_path / "*.txt"))
    assert source.describe() == f"{tmp_path}/*.txt, watched"
    other = cc.Split("1", 0, {"path": "a"})
    with pytest.raises(ConnectorError, match="is not of a watched directory"):
        source.reader(other, 0)


def test_all_formats_can_be_watched(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "a.csv").write_text("n\n1\n")
    for source in (
        cc.files.read_jsonl(tmp_path / "*.jsonl"),
        cc.files.read_csv(tmp_path / "*.csv", types={"n": int}),
    ):
        assert read_source(Watched(source, 1.0, ends=True)) == [{"n": 1}]  # type: ignore[arg-type]


def test_objects_that_appear_in_s3_are_read_once(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    bucket, files = s3.bucket(), s3.files()
    files.pipe_file(f"{bucket}/in/a.txt", b"1\n2\n")
    reading = Reading(cc.files.watch(cc.files.read_text(f"{bucket}/in/*.txt"), every="1ms"))
    reading.until(lambda: reading.records == ["1", "2"])
    reading.checkpoint()
    files.pipe_file(f"{bucket}/in/b.txt", b"3\n")
    reading.restart()
    reading.until(lambda: reading.records == ["1", "2", "3"])
    reading.close()
