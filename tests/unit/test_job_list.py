"""The list of the jobs of a store: what is in it, who may see it, and what can't be read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner
from tests.unit.test_seen import watched

from crosscut.cli.commands import program
from crosscut.errors import StoreError
from crosscut.web.answers import Request
from crosscut.web.job_list import JobList
from crosscut.web.record import NAME, write_record


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("clicks", "payments"):
        (tmp_path / name).mkdir()
        write_record(str(tmp_path / name), {"job": watched().metrics().as_dict(), "series": {"at_ms": []}})
    (tmp_path / "no job").mkdir()
    (tmp_path / "a file").touch()
    return tmp_path


@pytest.fixture
def jobs(store: Path) -> Iterator[JobList]:
    one = JobList(str(store))
    yield one
    one.close()


def request(jobs: JobList, path: str, *, has_token: bool = True, host: str = "127.0.0.1") -> Request:
    token = jobs.link.partition("#")[2]
    return Request("GET", path, {"host": host} | ({"authorization": f"Bearer {token}"} if has_token else {}))


def listed(jobs: JobList) -> list[Any]:
    answer = jobs.answer(request(jobs, "/api/jobs"))
    assert answer.status == 200
    found: list[Any] = json.loads(answer.body)["jobs"]
    return found


def test_each_directory_with_a_record_is_listed(jobs: JobList) -> None:
    lines = listed(jobs)
    assert [one["directory"] for one in lines] == ["clicks", "payments"]
    assert {one["name"] for one in lines} == {watched().metrics().name}
    assert all(one["status"] == "running" and one["age_ms"] > 0 for one in lines)


def test_a_record_that_can_not_be_read_is_said_and_the_others_are_listed(store: Path, jobs: JobList) -> None:
    (store / "clicks" / NAME).write_text("{")
    (store / "old").mkdir()
    (store / "old" / NAME).write_text(json.dumps({"format": 1, "job": {}}))
    job = watched().metrics().as_dict()
    for name, summary, at_ms in (("nan", {"records_per_second": math.nan}, 1), ("late", {}, 1e999)):
        (store / name).mkdir()
        odd = {"format": 1, "job": {**job, "at_ms": at_ms, "summary": {**job["summary"], **summary}}}
        (store / name / NAME).write_text(json.dumps(odd))
        assert jobs.answer(request(jobs, f"/jobs/{name}/api/job")).status == 503
    found = {one["directory"]: one for one in listed(jobs)}
    assert [found[one]["status"] for one in ("late", "nan")] == ["unreadable"] * 2
    assert [found[one]["status"] for one in ("clicks", "old")] == ["unreadable"] * 2
    assert found["payments"]["status"] == "running"
    assert "can't be read" in found["clicks"]["last_error"]
    assert "another release" in found["old"]["last_error"]


def test_the_page_of_a_job_is_below_its_name_and_shows_that_job(jobs: JobList) -> None:
    assert b"page.js" in jobs.answer(request(jobs, "/jobs/clicks/", has_token=False)).body
    answer = jobs.answer(request(jobs, "/jobs/clicks/api/job"))
    assert json.loads(answer.body)["job"]["name"] == watched().metrics().name
    assert json.loads(answer.body)["can_act"] is False
    moved = jobs.answer(request(jobs, "/jobs/clicks"))
    assert (moved.status, moved.headers["Location"]) == (308, "/jobs/clicks/")


@pytest.mark.parametrize("path", ["/api/jobs", "/jobs/clicks/api/job", "/jobs/missing/api/job"])
def test_without_the_token_nothing_is_told_not_even_which_jobs_there_are(jobs: JobList, path: str) -> None:
    assert jobs.answer(request(jobs, path, has_token=False)).status == 401
    assert jobs.answer(request(jobs, path, host="evil.example")).status == 403


@pytest.mark.parametrize("name", ["missing", "no%20job", "..", "%2e%2e", "clicks%2F..%2Fclicks", "a%20file"])
def test_only_what_is_listed_has_a_page(jobs: JobList, name: str) -> None:
    assert jobs.answer(request(jobs, f"/jobs/{name}/api/job")).status == 404


@pytest.mark.parametrize("path", ["/api/stop", "/jobs/clicks/api/stop"])
def test_nothing_can_be_done_to_a_job(jobs: JobList, path: str) -> None:
    asked = request(jobs, path)
    asked = Request("POST", path, {**asked.headers, "content-type": "application/json"}, b"{}")
    assert jobs.answer(asked).status in (405, 409)


def test_a_store_is_a_url_as_well() -> None:
    record = {"job": watched().metrics().as_dict(), "series": {"at_ms": []}}
    fsspec.filesystem("memory").makedirs("/listed/clicks")
    write_record("memory://listed/clicks", record)
    jobs = JobList("memory://listed")
    try:
        assert [one["directory"] for one in listed(jobs)] == ["clicks"]
    finally:
        jobs.close()


def test_a_directory_whose_name_is_no_text_is_left_out(store: Path, jobs: JobList) -> None:
    odd = os.path.join(os.fsencode(store), b"\xff")
    os.mkdir(odd)
    write_record(os.fsdecode(odd), {"job": watched().metrics().as_dict(), "series": {"at_ms": []}})
    assert [one["directory"] for one in listed(jobs)] == ["clicks", "payments"]


def test_a_store_that_is_gone_is_said(store: Path, jobs: JobList) -> None:
    store.rename(store.parent / "moved")
    for path in ("/api/jobs", "/jobs/clicks/api/job"):
        answer = jobs.answer(request(jobs, path))
        assert (answer.status, b"can't be listed" in answer.body) == (503, True)


def test_a_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't be listed: FileNotFoundError"):
        JobList(str(tmp_path / "missing"))


def test_jobs_are_listed_in_a_terminal(store: Path) -> None:
    found = CliRunner().invoke(program, ["ls", str(store)], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    title, *lines = found.output.splitlines()
    assert title.split()[:3] == ["directory", "job", "status"]
    assert [line.split()[0] for line in lines] == ["clicks", "payments"]
    assert all(" running " in line and " ago " in line for line in lines)
    data = json.loads(CliRunner().invoke(program, ["ls", "--json", str(store)]).output)
    assert [one["directory"] for one in data["jobs"]] == ["clicks", "payments"]
    (store / "clicks" / NAME).write_text("{")
    assert "unreadable" in CliRunner().invoke(program, ["ls", str(store)]).output
    empty = CliRunner().invoke(program, ["ls", str(store / "no job")])
    assert "there is no job in" in empty.output and empty.exit_code == 0
    missing = CliRunner().invoke(program, ["ls", str(store / "missing")])
    assert missing.exit_code == 2 and "can't be listed" in missing.output
