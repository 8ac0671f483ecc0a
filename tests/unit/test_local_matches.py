"""Files that a pattern matches: each once, whatever leads to it."""

from __future__ import annotations

import glob
import gzip
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import crosscut as cc
from crosscut.connectors.files.local_matches import local_matches
from crosscut.errors import ConnectorError
from crosscut.testing.sources import read_source


def made(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    return directory


def names(directory: Path, pattern: str) -> list[str]:
    return [one.name for one in local_matches(pattern, str(directory), may_vanish=False)]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two days, a link to the newest, one to a file of another day, one to the parent, one to the outside."""
    made(tmp_path, "logs/25/app.log", "logs/26/app.log", "other/app.log")
    (tmp_path / "logs/latest").symlink_to("26")
    (tmp_path / "logs/25/now.log").symlink_to("../26/app.log")
    (tmp_path / "logs/25/up").symlink_to("..")
    (tmp_path / "logs/26/up").symlink_to("../..")
    (tmp_path / "logs/elsewhere").symlink_to("../other")
    return tmp_path


@pytest.mark.parametrize(
    "pattern", ["logs/*/*.log", "logs/**/*.log", "**/*.log", "logs/**", "**/logs/**/*.log"]
)
def test_a_file_that_several_links_lead_to_is_found_once(logs: Path, pattern: str) -> None:
    """P10."""
    outside = "other/app.log" if pattern.startswith("**") else str(logs.resolve() / "other/app.log")
    if pattern == "**/*.log":
        assert names(logs, pattern) == ["logs/25/app.log", "logs/26/app.log", outside]
    else:
        assert set(names(logs, pattern)) == {outside, "logs/25/app.log", "logs/26/app.log"}
    assert len(read_source(cc.files.read_text(logs / pattern))) == 3


def test_a_file_is_named_as_itself_even_where_only_a_link_matches(logs: Path) -> None:
    """So a second link, made later, is no second file."""
    assert names(logs, "logs/latest/*.log") == ["logs/latest/app.log"]
    assert names(logs, "logs/l*t/*.log") == ["logs/26/app.log"]
    assert names(logs, "logs/25/n*.log") == [str(logs.resolve() / "logs/26/app.log")]


def test_a_link_is_opened_by_its_own_name_which_says_how_it_is_packed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(gzip.compress(b"packed\n"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt.gz").symlink_to("../blob")
    assert read_source(cc.files.read_text(tmp_path / "in/*")) == ["packed"]


def test_hard_links_are_one_file(tmp_path: Path) -> None:
    made(tmp_path, "a/one.txt", "b/two.txt")
    os.link(tmp_path / "a/one.txt", tmp_path / "b/again.txt")
    assert names(tmp_path, "*/*.txt") == ["a/one.txt", "b/two.txt"]


def test_links_in_front_of_the_first_wildcard_are_how_the_place_is_called(tmp_path: Path) -> None:
    made(tmp_path, "v1/a.txt")
    (tmp_path / "current").symlink_to("v1")
    assert names(tmp_path, "current/*.txt") == ["current/a.txt"]


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone.txt").symlink_to("nowhere")
    with pytest.raises(ConnectorError, match=r"gone\.txt"):
        cc.files.read_text(tmp_path / "*.txt").splits(1)


LEVELS = st.sampled_from(["a", "b", ".c", "d.txt"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.sets(st.lists(LEVELS, min_size=1, max_size=4).map("/".join), max_size=8),
    pattern=st.lists(st.sampled_from(["**", "*", "a", "b", "*.txt", ".c"]), min_size=1, max_size=4).map(
        "/".join
    ),
)
def test_without_links_a_pattern_matches_what_glob_matches(
    files: set[str], pattern: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("files")
    for name in files:
        if not any(other.startswith(f"{name}/") for other in files):
            made(directory, name)
    expected = [
        name
        for name in set(glob.glob(pattern, root_dir=directory, recursive=True))
        if (directory / name).is_file()
    ]
    assert names(directory, pattern) == sorted(expected)
