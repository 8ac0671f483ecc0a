"""What the logs of workers are made of: files where they can grow safely, else objects."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.simulation.conversation import claim

import crosscut as cc
from crosscut.driver.engine_run import Network
from crosscut.driver.job_spec import identity, task_settings
from crosscut.errors import SettingsError
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.log.entries import SegmentOpened
from crosscut.spark.cluster.unit_logs import as_found, check_keys_are_not_overheard, stored_kind, with_log
from crosscut.store import mounts
from crosscut.store.checkpoint_store import open_store
from crosscut.store.log_key import VARIABLE

LOCAL = "x / ext4 rw 0 0\n"


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_proc_mounts", lambda: LOCAL)


def chosen(
    url: object, snapshots: str | cc.Logged = "logged", found: str = "", *, is_local: bool = True
) -> tuple[str, str]:
    settings, why = with_log(cc.Settings(snapshots=snapshots), str(url), found, is_local=is_local)
    assert settings.logged is not None
    return settings.logged.log, why


def test_a_local_directory_gets_files(tmp_path: Path) -> None:
    assert chosen(tmp_path) == chosen(tmp_path / "not there yet") == ("files", "")
    assert chosen(f"file://{tmp_path}") == ("files", "")


def test_the_rest_gets_objects_and_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, why = chosen("s3://bucket/job")
    assert kind == "objects" and "object store" in why
    kind, why = chosen(tmp_path, is_local=False)
    assert kind == "objects" and "other hosts" in why
    monkeypatch.setattr(mounts, "_proc_mounts", lambda: "server:/x / nfs4 rw 0 0\n")
    kind, why = chosen(tmp_path)
    assert kind == "objects" and "found nfs4" in why


def test_a_directory_that_others_write_to_gets_objects(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    kind, why = chosen(tmp_path)
    assert kind == "objects" and "no write permission for others" in why


def test_files_that_were_asked_for_are_refused_where_they_can_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = cc.Logged(log="files")
    assert chosen(tmp_path, files) == ("files", "")
    with pytest.raises(SettingsError, match=r"log='files'.*object store"):
        chosen("s3://bucket/job", files)
    with pytest.raises(SettingsError, match=r"log='files'.*Spark in local mode"):
        chosen(tmp_path, files, is_local=False)
    monkeypatch.setattr(mounts, "_proc_mounts", lambda: "server:/x / nfs4 rw 0 0\n")
    with pytest.raises(SettingsError, match=r"log='files'.*found nfs4.*log='objects'"):
        chosen(tmp_path, files)


def test_objects_are_used_where_they_were_asked_for(tmp_path: Path) -> None:
    assert chosen(tmp_path, cc.Logged(log="objects")) == ("objects", "")
    # The claim refuses it.
    assert chosen(tmp_path, cc.Logged(log="objects"), "segment files") == ("objects", "")


def test_a_directory_goes_on_with_the_logs_that_it_has(tmp_path: Path) -> None:
    assert chosen(tmp_path, found="objects") == ("objects", "")
    assert chosen(tmp_path, found="segment files") == ("files", "")
    with pytest.raises(SettingsError, match="the logs of this job are files: workers may be on other hosts"):
        chosen(tmp_path, found="segment files", is_local=False)


def test_what_a_directory_has_is_in_its_job_log(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    assert stored_kind(str(directory)) == ""
    store = open_store(str(directory))
    assert stored_kind(str(directory)) == ""
    store.append(LogIndex(1, 0), SegmentOpened(replace(claim(), unit_log="segment files"), None))
    assert stored_kind(str(directory)) == "segment files"


def test_a_job_that_may_have_finished_is_known_by_the_logs_that_it_has() -> None:
    settings = cc.Settings(snapshots="logged")
    assert as_found(settings, "segment files").logged == cc.Logged(log="files")
    assert as_found(settings, "objects").logged == cc.Logged(log="objects")
    assert as_found(settings, "") is settings
    asked = cc.Settings(snapshots=cc.Logged(log="objects"))
    assert as_found(asked, "segment files") is asked
    aligned = cc.Settings()
    assert as_found(aligned, "segment files") is aligned
    assert with_log(aligned, "s3://bucket", "", is_local=False) == (aligned, "")


def test_workers_and_the_claim_are_told_the_same() -> None:
    flow = cc.Flow("f")
    flow.source(cc.generate(lambda n: n, count=1)).sink(cc.collect())
    graph = flow.compile(2, 8)
    for log, kind in (("files", "segment files"), ("objects", "objects")):
        settings = cc.Settings(snapshots=cc.Logged(log=log))  # type: ignore[arg-type]
        spec = task_settings(settings).unit_log
        assert spec is not None and (spec.kind, spec.interval_ms) == (kind, 20)
        assert identity(graph, settings).unit_log == kind
    own = task_settings(cc.Settings(snapshots=cc.Logged(log="files", interval="7ms"))).unit_log
    assert own is not None and own.interval_ms == 7


def test_another_log_is_refused() -> None:
    with pytest.raises(SettingsError, match="log='kafka': expected 'auto', 'files' or 'objects'"):
        cc.Logged(log="kafka")  # type: ignore[arg-type]


def test_keys_are_not_sent_where_somebody_could_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def network(*, is_encrypted: bool, is_loopback: bool) -> Network:
        return Network(
            host="host",
            workers_host=None,
            is_encrypted=is_encrypted,
            seals_frames=not is_encrypted and not is_loopback,
            is_local=is_loopback,
        )

    open_to_others = network(is_encrypted=False, is_loopback=False)
    check_keys_are_not_overheard(open_to_others)
    monkeypatch.setenv(VARIABLE, "k" * 40)
    with pytest.raises(SettingsError, match=rf"{VARIABLE}.*not encrypted; set encryption='on'"):
        check_keys_are_not_overheard(open_to_others)
    check_keys_are_not_overheard(network(is_encrypted=True, is_loopback=False))
    check_keys_are_not_overheard(network(is_encrypted=False, is_loopback=True))
