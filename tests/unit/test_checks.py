"""What is refused before a job starts."""

import os
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from pyspark import SparkConf

import crosscut as cc
from crosscut.contracts.settings import Encryption
from crosscut.errors import SettingsError
from crosscut.spark.cluster.checks import (
    Protection,
    check_checkpoint_dir,
    check_checkpoint_dir_is_private,
    check_log_key_stays_here,
    check_origin_is_private,
    losses_borne,
    ordinal,
    protection,
)
from crosscut.spark.cluster.finished import status_if_finished


@pytest.mark.parametrize("url", ["memory://checkpoints", "memory:/checkpoints", "memory:"])
def test_a_checkpoint_directory_in_the_memory_of_one_process_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="each worker process has a memory file system of its own"):
        check_checkpoint_dir(url)


@pytest.mark.parametrize("url", ["checkpoints", "/var/memory", "s3://memory/checkpoints", "file:///memory"])
def test_any_other_directory_is_not(url: str) -> None:
    check_checkpoint_dir(url)


@pytest.mark.parametrize("inside", ["", "log", "parts"])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_checkpoint_directory_that_others_may_write_to_is_warned_of_and_refused_if_strict(
    tmp_path: Path, inside: str, mode: int
) -> None:
    """M6: whoever writes there runs code in the workers."""
    for name in ("log", "parts"):
        (tmp_path / name).mkdir(mode=0o700)
    check_checkpoint_dir_is_private(str(tmp_path), strict=True)
    (tmp_path / inside).chmod(mode)
    with pytest.warns(RuntimeWarning, match=f"has mode {mode:04o}"):
        check_checkpoint_dir_is_private(str(tmp_path), strict=False)
    with pytest.raises(SettingsError, match="can run code in the workers"):
        check_checkpoint_dir_is_private(f"file://{tmp_path}", strict=True)


def test_a_checkpoint_directory_of_another_user_is_refused_if_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M6."""
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(SettingsError, match="belongs to user id"):
        check_checkpoint_dir_is_private(str(tmp_path), strict=True)


def test_a_directory_that_goes_while_it_is_looked_at_is_nothing_to_complain_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that runs removes directories of parts."""
    for name in ("gone", "open"):
        (tmp_path / name).mkdir()
    look = os.lstat

    def lstat(path: str, **of: Any) -> os.stat_result:
        if str(path).endswith("gone"):
            raise FileNotFoundError(path)
        return look(path, **of)

    monkeypatch.setattr("os.lstat", lstat)
    check_origin_is_private(tmp_path, strict=True)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(SettingsError, match="open belongs to"):
        check_origin_is_private(tmp_path, strict=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("place", ["log/1", "parts/2/counts"])
def test_a_file_that_another_user_has_put_into_a_directory_is_warned_of_and_refused_if_strict(
    tmp_path: Path, place: str, is_link: bool
) -> None:
    """M6: also when nobody else can write to the directory any more."""
    for directory in (tmp_path / place, tmp_path / place / "x", tmp_path / "log", tmp_path / "parts"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    own, other = tmp_path / place / "own", tmp_path / place / "x" / "other"
    for path in (own, other):
        path.touch(mode=0o600)
    (tmp_path / place / "link").symlink_to(own)
    (tmp_path / place / "dangling").symlink_to(tmp_path / "nowhere")
    check_checkpoint_dir_is_private(str(tmp_path), strict=True)
    check_origin_is_private(tmp_path, strict=True)
    if is_link:
        other.unlink()
        other.symlink_to(own)
    os.lchown(other, 65_534, 65_534)
    named = f"{other} belongs to user id 65534"
    with pytest.warns(RuntimeWarning, match=named):
        check_checkpoint_dir_is_private(str(tmp_path), strict=False)
    with pytest.raises(SettingsError, match=named):
        check_checkpoint_dir_is_private(str(tmp_path), strict=True)
    with pytest.warns(RuntimeWarning, match=named):
        check_origin_is_private(f"{tmp_path}@7", strict=False)
    with pytest.raises(SettingsError, match=named):
        check_origin_is_private(tmp_path, strict=True)


def test_a_file_that_others_may_change_is_refused_if_strict(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "0.parquet").touch(mode=0o600)
    check_origin_is_private(tmp_path, strict=True)
    (tmp_path / "state" / "0.parquet").chmod(0o620)
    with pytest.raises(SettingsError, match=r"0\.parquet belongs .* mode 0620"):
        check_origin_is_private(tmp_path, strict=True)


@pytest.mark.parametrize("url", ["s3://bucket/checkpoints", "/no/such/directory"])
def test_where_there_is_no_local_directory_there_is_nothing_to_check(url: str) -> None:
    check_checkpoint_dir_is_private(url, strict=True)


def decided(encryption: Encryption, *, spark: bool, loopback: bool) -> str:
    found = protection(encryption, spark_encrypts=spark, is_loopback=loopback)
    what = "encrypted" if found.is_encrypted else "open"
    return f"{what}, refused" if found.is_refused else f"{what}, complaint" if found.complaint else what


def test_what_becomes_of_each_setting_of_encryption() -> None:
    """S1, S2: nothing to other machines goes in the open without a word."""
    assert {
        (encryption, spark, loopback): decided(encryption, spark=spark, loopback=loopback)
        for encryption, spark, loopback in product(get_args(Encryption), (True, False), (True, False))
    } == {
        ("auto", True, True): "encrypted",
        ("auto", True, False): "encrypted",
        ("auto", False, True): "open",
        ("auto", False, False): "open, complaint",
        ("required", True, True): "encrypted",
        ("required", True, False): "encrypted",
        ("required", False, True): "encrypted",
        ("required", False, False): "encrypted, refused",
        ("on", True, True): "encrypted",
        ("on", True, False): "encrypted",
        ("on", False, True): "encrypted",
        ("on", False, False): "encrypted, complaint",
        ("off", True, True): "open",
        ("off", True, False): "open, complaint",
        ("off", False, True): "open",
        ("off", False, False): "open, complaint",
    }


def test_a_complaint_about_encryption_says_who_can_do_what_and_what_to_set() -> None:
    assert protection("off", spark_encrypts=False, is_loopback=False) == Protection(
        False,
        "encryption='off', and connections to other machines are not encrypted: anyone on the path can read "
        "all records, and anyone who can read Spark's traffic has the job's secret and can run code in the "
        "workers; set spark.ssl.rpc.enabled=true, or spark.authenticate=true and "
        "spark.network.crypto.enabled=true, and leave encryption at 'auto'",
    )


@pytest.mark.parametrize("inside", ["", "state", "state/counts"])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_savepoint_that_others_may_write_to_is_warned_of_and_refused_if_strict(
    tmp_path: Path, inside: str, mode: int
) -> None:
    """M6: to restore it is to run what whoever writes there has pickled."""
    (tmp_path / "state" / "counts").mkdir(parents=True, mode=0o700)
    (tmp_path / "state").chmod(0o700)
    check_origin_is_private(tmp_path, strict=True)
    (tmp_path / inside).chmod(mode)
    for name in (str(tmp_path), f"{tmp_path}@7", f"file://{tmp_path}"):
        with pytest.warns(RuntimeWarning, match=f"has mode {mode:04o}"):
            check_origin_is_private(name, strict=False)
        with pytest.raises(SettingsError, match="can run code in the workers"):
            check_origin_is_private(name, strict=True)


def test_a_start_with_restore_from_looks_at_who_may_write_there(tmp_path: Path) -> None:
    origin = tmp_path / "savepoint"
    origin.mkdir(mode=0o700)
    origin.chmod(0o777)
    flow = cc.Flow("restored")
    flow.source(cc.items([1])).sink(cc.collect())
    settings = cc.Settings(checkpoint_dir=tmp_path / "new", restore_from=origin, strict=True)
    with pytest.raises(SettingsError, match="restore_from"):
        status_if_finished(flow, settings)


def test_a_spark_whose_executors_get_the_log_key_is_warned_of_and_refused_if_strict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = "k" * 32
    conf = SparkConf(loadDefaults=False).setMaster("spark://elsewhere:7077")
    # Of a context the check asks no more than this, if its master is not local.
    context: Any = SimpleNamespace(getConf=lambda: conf, master=conf.get("spark.master"))
    monkeypatch.setenv("CROSSCUT_LOG_KEY", key)
    check_log_key_stays_here(context, strict=True)
    conf.setExecutorEnv("CROSSCUT_LOG_KEY", key)
    remedy = r"remove spark\.executorEnv\.CROSSCUT_LOG_KEY from its configuration"
    with pytest.warns(RuntimeWarning, match=remedy):
        check_log_key_stays_here(context, strict=False)
    with pytest.raises(SettingsError, match=remedy) as refused:
        check_log_key_stays_here(context, strict=True)
    assert key not in str(refused.value)
    monkeypatch.delenv("CROSSCUT_LOG_KEY")
    check_log_key_stays_here(context, strict=True)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(1, "1st"), (2, "2nd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st"), (33, "33rd")],
)
def test_a_number_of_losses_is_shown_in_english(number: int, shown: str) -> None:
    assert ordinal(number) == shown


@pytest.mark.parametrize(("given", "borne"), [(None, 4), ("", 4), ("7", 7), ("1000000", 1_000_000)])
def test_how_many_losses_of_a_worker_spark_bears(given: str | None, borne: int) -> None:
    assert losses_borne({"spark.task.maxFailures": given}.get) == borne
