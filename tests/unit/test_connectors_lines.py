"""The lines source: what it finds, and how it says what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crosscut.connectors.files.lines import Lines, read_text
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, SplitReader
from crosscut.errors import ConnectorError, SettingsError
from crosscut.testing.sources import next_batch, read_source, read_split


def only_reader(source: Source) -> SplitReader:
    (split,) = source.splits(1)
    return source.reader(split, split.start)


def test_files_are_found_in_subdirectories_and_sorted(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "d.log", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "directory.txt").mkdir()
    source = Lines("**/*.txt", str(tmp_path))
    assert [split.split_id for split in source.splits(2)] == ["a.txt", "b.txt", "deep/er/c.txt"]
    assert read_source(source) == ["a.txt", "b.txt", "deep/er/c.txt"]


def test_a_relative_pattern_is_relative_to_the_directory_where_the_source_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    monkeypatch.chdir(tmp_path)
    source = read_text("*.txt")
    (split,) = source.splits(1)
    monkeypatch.chdir("/")
    assert list(source.splits(1)) == [split]
    assert (split.split_id, split.start, split.weight) == ("a.txt", 0, 4)
    assert read_split(source, split) == ["one"]


def test_a_file_whose_name_looks_like_a_pattern_is_found(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("found\n")
    assert read_source(read_text(tmp_path / "a[1].txt")) == ["found"]
    assert read_source(read_text(f"file://{tmp_path}/a[[]1].txt")) == ["found"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb\rc\n\r", ["a\r", "b\rc", "\r"]),
        ("a\x0bb\x0cc\x1cd\x85e\u2028f\u2029\n".encode(), ["a\x0bb\x0cc\x1cd\x85e\u2028f\u2029"]),
        (b"\xef\xbb\xbfa\n", ["\ufeffa"]),
    ],
)
def test_only_newline_with_or_without_carriage_return_ends_a_line(
    content: bytes, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(content)
    assert read_source(read_text(tmp_path / "a")) == expected


def test_a_byte_order_mark_is_dropped_at_the_start_of_the_file_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
    source = Lines(str(tmp_path / "a"), "/", encoding="utf-8-sig", chunk_bytes=5)
    assert read_source(source) == ["a", "\ufeffb"]


def test_the_number_of_lines_is_right_even_if_a_code_decodes_to_a_newline(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a+AAo-b\r\nc\n")
    reader = only_reader(read_text(tmp_path / "a", encoding="utf-7"))
    assert reader.read(1) == ["a\nb"]
    assert reader.position == 9
    assert reader.read(5) == ["c"]
    reader.close()


def test_a_big_file_becomes_ranges_of_whole_lines(tmp_path: Path) -> None:
    expected = [f"{i} {'x' * (i % 30)}" for i in range(1_000)]
    (tmp_path / "a").write_text("\n".join(expected))
    source = Lines(str(tmp_path / "a"), "/", split_bytes=4_000)
    splits = source.splits(1)
    assert len(splits) == -(-(tmp_path / "a").stat().st_size // 4_000) > 3
    assert sum(split.weight for split in splits) == (tmp_path / "a").stat().st_size
    assert read_source(source) == expected


def test_what_is_appended_after_the_start_of_the_job_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one\ntwo\n")
    source = read_text(path)
    (split,) = source.splits(1)
    with path.open("a") as file:
        file.write("three\n")
    assert read_split(source, split) == ["one", "two"]


def test_no_match_names_the_pattern_and_the_directory(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(ConnectorError, match=r"no file matches 'in/\*\*/\*\.txt', looked for in \S+/in:"):
        Lines("in/**/*.txt", str(tmp_path)).splits(1)
    with pytest.raises(ConnectorError, match=r"looked for in \S+/missing, which is not a directory"):
        Lines("missing/*.txt", str(tmp_path)).splits(1)
    with pytest.raises(ConnectorError, match="at least one regular file"):
        Lines("in", str(tmp_path)).splits(1)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    source = read_text(tmp_path / "a")
    (split,) = source.splits(1)
    (tmp_path / "a").unlink()
    with pytest.raises(ConnectorError, match=r"can't read \S+/a: No such file"):
        source.reader(split, 0)


@pytest.mark.parametrize("chunk_bytes", [4, 8, 300_000])
def test_a_byte_that_is_not_utf8_is_named_with_its_offset(chunk_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("ab\nü€\ncd".encode() + b"\xff\n")
    reader = only_reader(Lines(str(tmp_path / "a"), "/", chunk_bytes=chunk_bytes))
    with pytest.raises(ConnectorError, match=r"\S+/a: byte 11 \(0xff\) is not utf-8: .*errors='replace'"):
        while next_batch(reader, 1):
            pass
    reader.close()


def test_a_file_that_shrank_is_an_error_when_opened_and_while_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    source = Lines(str(tmp_path / "a"), "/", chunk_bytes=4)
    (split,) = source.splits(1)
    reader = source.reader(split, 0)
    assert reader.read(1) == ["one"]
    os.truncate(tmp_path / "a", 4)
    with pytest.raises(ConnectorError, match="has 4 bytes, expected at least 14"):
        reader.read(1)
    assert reader.position == 4
    reader.close()
    with pytest.raises(ConnectorError, match="has 4 bytes, expected at least 8"):
        source.reader(split, 8)


def test_a_line_that_is_too_long_is_named_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"{'x' * 100}\n{'y' * 101}\n")
    reader = only_reader(read_text(tmp_path / "a", line_bytes_max=100))
    assert next_batch(reader, 10) == ["x" * 100]
    with pytest.raises(ConnectorError, match=r"line at byte 101 is longer than 100 bytes.*line_bytes_max"):
        next_batch(reader, 10)
    reader.close()


def test_a_line_longer_than_a_chunk_is_read_in_bounded_steps(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x" * 1_000 + "\nend\n")
    source = Lines(str(tmp_path / "a"), "/", chunk_bytes=64, split_bytes=300)
    assert read_source(source) == ["x" * 1_000, "end"]


@pytest.mark.parametrize(
    "options",
    [
        {"errors": "no such handler"},
        {"errors": None},
        {"encoding": "no such encoding"},
        {"encoding": "utf-16"},
        {"encoding": "utf-32-le"},
        {"encoding": "cp037"},
        {"encoding": "base64"},
        {"line_bytes_max": 0},
        {"line_bytes_max": True},
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        read_text("a", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["", "memory://bucket/*.txt", "file://host/a", b"a", 7, "a\0b"])
def test_patterns_that_are_no_local_path_are_refused_at_once(pattern: str) -> None:
    with pytest.raises(ConnectorError, match="pattern of the lines source"):
        read_text(pattern)


def test_a_position_of_another_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    source = read_text(tmp_path / "a")
    (split,) = source.splits(1)
    positions: list[JSON] = [-1, "0", None, [0]]
    for position in positions:
        with pytest.raises(ConnectorError, match="not of a lines source"):
            source.reader(split, position)


def test_an_empty_file_is_a_split_without_records(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    reader = only_reader(read_text(tmp_path / "a"))
    assert reader.read(1) == EndOfSplit()
    assert reader.position == 0
    reader.close()
