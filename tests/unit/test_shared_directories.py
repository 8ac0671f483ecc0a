"""Directories that all hosts of a job have to share."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import crosscut as cc
from crosscut.errors import ConnectorError, SettingsError
from crosscut.net.causes import failure_cause
from crosscut.spark.cluster.checks import check_directories_are_shared
from crosscut.spark.cluster.placing import directories_to_share
from crosscut.store.shared_directories import (
    TOKEN_FILE,
    SharedDirectories,
    SharedDirectory,
    check_shared,
    local_directories,
    share,
)


def shared(*paths: Path, token: str = "ours") -> SharedDirectories:
    return share(
        tuple(SharedDirectory(f"out{index}", str(path)) for index, path in enumerate(paths)), token, at_once
    )


def never(seconds: float) -> None:
    raise AssertionError("the token is there at once")


def at_once(seconds: float) -> None:
    pass


def test_a_token_that_the_driver_has_written_is_found(tmp_path: Path) -> None:
    check_shared(shared(tmp_path / "a", tmp_path / "b"), never)


def test_a_token_may_show_a_little_later(tmp_path: Path) -> None:
    one = shared(tmp_path)
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
    one = shared(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / TOKEN_FILE).unlink()
    if found == "another one is":
        (tmp_path / "b" / TOKEN_FILE).write_text("of another host")
    with pytest.raises(ConnectorError, match=f"'out1': {tmp_path}/b on host .*here {found}") as caught:
        check_shared(one, at_once)
    assert caught.value.is_permanent and caught.value.operator == "out1"


def test_a_host_without_the_directory_is_refused_for_good(tmp_path: Path) -> None:
    one = shared(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    with pytest.raises(ConnectorError, match="here none is") as caught:
        check_shared(one, at_once)
    assert caught.value.is_permanent


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
def test_a_file_system_in_trouble_is_no_directory_of_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    one = shared(tmp_path)

    def read_text(self: Path) -> str:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(ConnectorError, match=f"'out0': can't read .*{errno.errorcode[number]}") as caught:
        check_shared(one, at_once)
    assert not caught.value.is_permanent and caught.value.is_transient
    cause = failure_cause(caught.value)
    assert cause.is_transient and cause.is_from_outside and not cause.is_permanent


def test_a_file_system_that_recovers_while_a_worker_looks_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = shared(tmp_path)

    def read_text(self: Path) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    def sleep(seconds: float) -> None:
        monkeypatch.undo()

    monkeypatch.setattr(Path, "read_text", read_text)
    check_shared(one, sleep)


def test_a_second_driver_passes_on_the_token_that_is_there(tmp_path: Path) -> None:
    """A start that is refused afterwards, or another job with the same directory, ends no running job."""
    first = shared(tmp_path)
    second = shared(tmp_path, token="theirs")
    check_shared(first, never)
    check_shared(second, never)
    assert [one.name for one in tmp_path.iterdir()] == [TOKEN_FILE]


def test_each_directory_keeps_a_token_of_its_own(tmp_path: Path) -> None:
    shared(tmp_path / "a")
    shared(tmp_path / "b", token="theirs")
    check_shared(shared(tmp_path / "a", tmp_path / "b", tmp_path / "c", token="third"), never)
    tokens = [(tmp_path / name / TOKEN_FILE).read_text() for name in "abc"]
    assert tokens == ["ours", "theirs", "third"]


def test_drivers_that_start_at_once_agree_on_a_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: shared(tmp_path, token=f"of {number}"), range(32)))
    assert len({one.tokens for one in found}) == 1
    assert [one.name for one in tmp_path.iterdir()] == [TOKEN_FILE]


def test_a_file_system_without_hard_links_gets_a_token_that_no_driver_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    first = shared(tmp_path)
    shared(tmp_path, token="theirs")
    check_shared(first, never)
    assert [one.name for one in tmp_path.iterdir()] == [TOKEN_FILE]


def test_an_empty_token_is_refused_since_any_directory_could_have_it(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).touch()
    with pytest.raises(ConnectorError, match=f"'out0': {tmp_path}/{TOKEN_FILE} is empty: delete it"):
        shared(tmp_path)


def test_a_directory_that_the_driver_can_not_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConnectorError, match=f"'out0': can't write to {tmp_path}/file/out: .*directory"):
        shared(tmp_path / "file" / "out")


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
