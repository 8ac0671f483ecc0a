"""Directories that all hosts of a job have to share."""

from __future__ import annotations

from pathlib import Path

import pytest

import crosscut as cc
from crosscut.errors import ConnectorError, SettingsError
from crosscut.spark.cluster.checks import check_directories_are_shared
from crosscut.spark.cluster.placing import directories_to_share
from crosscut.store.shared_directories import (
    TOKEN_FILE,
    SharedDirectories,
    SharedDirectory,
    check_shared,
    local_directories,
    write_tokens,
)


def written(*paths: Path, token: str = "ours") -> SharedDirectories:
    return write_tokens(
        tuple(SharedDirectory(f"out{index}", str(path)) for index, path in enumerate(paths)), token
    )


def never(seconds: float) -> None:
    raise AssertionError("the token is there at once")


def test_a_token_that_the_driver_has_written_is_found(tmp_path: Path) -> None:
    check_shared(written(tmp_path / "a", tmp_path / "b"), never)


def test_a_token_may_show_a_little_later(tmp_path: Path) -> None:
    one = written(tmp_path)
    (tmp_path / TOKEN_FILE).unlink()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            (tmp_path / TOKEN_FILE).write_text("ours")

    check_shared(one, sleep)
    assert len(slept) == 3


@pytest.mark.parametrize("found", ["none is", "another one is"])
def test_a_directory_without_it_is_refused_by_name_for_good(tmp_path: Path, found: str) -> None:
    one = written(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / TOKEN_FILE).unlink()
    if found == "another one is":
        (tmp_path / "b" / TOKEN_FILE).write_text("of an older run")
    with pytest.raises(ConnectorError, match=f"'out1': {tmp_path}/b on host .*here {found}") as caught:
        check_shared(one, lambda seconds: None)
    assert caught.value.is_permanent and caught.value.operator == "out1"


def test_a_later_driver_writes_a_token_of_its_own(tmp_path: Path) -> None:
    first = written(tmp_path)
    check_shared(written(tmp_path, token="theirs"), never)
    with pytest.raises(ConnectorError):
        check_shared(first, lambda seconds: None)
    assert [one.name for one in tmp_path.iterdir()] == [TOKEN_FILE]


def test_directories_of_the_store_and_of_file_sinks_are_to_be_shared_and_urls_are_not(tmp_path: Path) -> None:
    flow = cc.Flow("all")
    numbers = flow.source(cc.items([1]))
    numbers.sink(cc.files.write_jsonl(tmp_path / "out")).named("out")
    numbers.sink(cc.collect()).named("list")
    graph = flow.compile(2, 16)
    assert directories_to_share(graph, str(tmp_path / "store")) == (
        SharedDirectory("checkpoint_dir", str(tmp_path / "store")),
        SharedDirectory("out", str(tmp_path / "out")),
    )
    assert local_directories([("checkpoint_dir", "s3://bucket/store")]) == ()


def test_local_directories_on_a_cluster_are_refused_unless_somebody_says_that_hosts_share_them() -> None:
    directories = (SharedDirectory("checkpoint_dir", "/here/checkpoints/all"),)
    with pytest.raises(SettingsError, match=r"checkpoint_dir: /here/checkpoints/all.*shared=True"):
        check_directories_are_shared(directories, "/here/checkpoints/all", is_said=False)
    check_directories_are_shared(directories, "/here/checkpoints/all", is_said=True)
    check_directories_are_shared((), "s3://bucket/store", is_said=False)
    with pytest.warns(RuntimeWarning, match="the checkpoint directory is relative"):
        check_directories_are_shared(directories, "checkpoints/all", is_said=True)
