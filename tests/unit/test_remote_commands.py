"""`crosscut stop` and `crosscut savepoint` from another terminal."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.test_web import TOKEN, Done, request

from crosscut.cli.commands import program
from crosscut.errors import StoreError
from crosscut.foundation.text import escaped
from crosscut.web.answers import Answers
from crosscut.web.commands import CommandPort
from crosscut.web.endpoint import NAME, Endpoint, read_endpoint, remove_endpoint, write_endpoint
from crosscut.web.page import VARIABLE, Page
from crosscut.web.record import write_record


class Ending(Done):
    """A job that writes down how it has ended once it is told to stop."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def stop(self) -> None:
        super().stop()

        def end() -> None:
            write_record(
                str(self._directory), {"job": {"status": "stopped", "at_ms": time.time_ns() // 10**6}}
            )

        threading.Thread(target=end).start()

    def take_checkpoint(self) -> str:
        self.done.append("checkpoint")
        return "checkpoint 7 is complete"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Page, Ending]]:
    actions = Ending(tmp_path)
    found = Page(lambda: {"job": {"at_ms": 0}}, None, actions)
    write_endpoint(str(tmp_path), found.endpoint)
    # Of an earlier run: it is not taken for the end of this one.
    write_record(str(tmp_path), {"job": {"status": "failed", "at_ms": 1}})
    yield found, actions
    found.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, list(arguments))


def test_a_job_is_stopped_and_its_end_awaited(page: tuple[Page, Ending], tmp_path: Path) -> None:
    result = run("stop", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.output == "the job stops, with a last checkpoint\nthe job has ended: stopped\n"
    assert page[1].done == ["stop"]


def test_a_savepoint_is_written_where_the_command_means(
    page: tuple[Page, Ending], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("savepoint", str(tmp_path), "monday")
    assert result.exit_code == 0, result.output
    assert page[1].done == [str(tmp_path / "monday")]
    assert run("savepoint", str(tmp_path), "s3://bucket/monday").exit_code == 0
    assert page[1].done[1] == "s3://bucket/monday"


def test_a_checkpoint_is_taken_and_what_became_of_it_is_said(
    page: tuple[Page, Ending], tmp_path: Path
) -> None:
    result = run("checkpoint", str(tmp_path))
    assert (result.exit_code, result.output) == (0, "checkpoint 7 is complete\n")
    assert page[1].done == ["checkpoint"]


def test_what_the_job_refuses_is_said_and_is_exit_code_2(
    page: tuple[Page, Ending], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> str:
        raise StoreError(f"{path} is there \x1b[31malready")

    monkeypatch.setattr(page[1], "take_savepoint", refused)
    result = run("savepoint", str(tmp_path), "/x")
    assert result.exit_code == 2
    assert "refuses: /x is there \\x1b[31malready" in result.output


def test_commands_send_a_token_of_this_run_and_the_users_own_one_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash another user may have the port that the file names."""
    monkeypatch.setenv(VARIABLE, TOKEN)
    actions = Ending(tmp_path)
    page = Page(lambda: {"job": {"at_ms": 0}}, None, actions)
    try:
        write_endpoint(str(tmp_path), page.endpoint)
        assert TOKEN not in (tmp_path / NAME).read_text()
        assert page.link.endswith(f"#{TOKEN}")
        assert run("stop", str(tmp_path), "--timeout", "0s").exit_code == 0
        assert actions.done == ["stop"]
    finally:
        page.close()
    received: list[str] = []

    class Squatter(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(str(self.headers))
            self.send_error(401)

        def log_message(self, *of: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Squatter) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/"
            write_endpoint(str(tmp_path), Endpoint(address, page.endpoint.token))
            result = run("stop", str(tmp_path))
        finally:
            server.shutdown()
    assert result.exit_code == 2
    assert len(received) == 1
    assert TOKEN not in received[0]


def test_another_page_that_has_the_port_by_now_is_not_taken_for_the_job(tmp_path: Path) -> None:
    actions = Ending(tmp_path)
    page = Page(lambda: {"job": {"at_ms": 0}}, None, actions)
    try:
        write_endpoint(str(tmp_path), Endpoint(page.endpoint.address, "of an earlier run"))
        result = run("stop", str(tmp_path))
    finally:
        page.close()
    assert result.exit_code == 2
    assert "another program now uses its port" in result.output
    assert actions.done == []


def test_a_job_that_is_not_there_or_does_not_answer_is_named(
    page: tuple[Page, Ending], tmp_path: Path
) -> None:
    page[0].close()
    result = run("stop", str(tmp_path))
    assert result.exit_code == 2
    assert "does not answer" in result.output
    (tmp_path / NAME).unlink()
    result = run("stop", str(tmp_path))
    assert result.exit_code == 2
    assert "is it running" in result.output
    result = run("stop", "s3://bucket/checkpoints")
    assert result.exit_code == 2
    assert "not local" in result.output
    assert "job.stop()" in result.output and "web=True" in result.output


@pytest.fixture
def port(tmp_path: Path) -> Iterator[tuple[CommandPort, Ending]]:
    actions = Ending(tmp_path)
    found = CommandPort("counts", str(tmp_path), actions)
    found.start()
    until((tmp_path / NAME).exists)
    yield found, actions
    found.close()


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_job_without_a_page_takes_commands_all_the_same(
    port: tuple[CommandPort, Ending], tmp_path: Path
) -> None:
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert run("savepoint", str(tmp_path), "/monday").exit_code == 0
    result = run("stop", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.output.endswith("the job has ended: stopped\n")
    assert port[1].done == ["/monday", "stop"]
    port[0].close()
    assert not (tmp_path / NAME).exists()
    result = run("stop", str(tmp_path))
    assert result.exit_code == 2
    assert "is it running" in result.output


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", 404),
        ("GET", "/page.js", 404),
        ("GET", "/metrics", 404),
        ("GET", "/api/job", 404),
        ("POST", "/api/state", 404),
        ("POST", "/api/restart", 404),
        ("GET", "/api/stop", 405),
        ("POST", "/api/stop", 200),
    ],
)
def test_the_port_of_commands_shows_nothing(tmp_path: Path, method: str, path: str, expected: int) -> None:
    actions = Ending(tmp_path)
    answers = Answers.of_commands(TOKEN, actions)
    assert answers.answer(request(path, method, content_type="application/json")).status == expected
    refused = answers.answer(
        request("/api/stop", "POST", "of somebody else", content_type="application/json")
    )
    assert refused.status == 401
    assert actions.done == (["stop"] if expected == 200 else [])


def test_a_job_without_a_port_for_commands_runs_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = CommandPort("counts", str(tmp_path / "missing"), Ending(tmp_path))
    with caplog.at_level("WARNING"):
        port.start()
        until(lambda: "can't find it" in caplog.text)
    port.close()
    never_begun = CommandPort("counts", str(tmp_path), Ending(tmp_path))
    never_begun.close()
    assert os.listdir(tmp_path) == []


def test_a_job_on_another_machine_is_sent_no_token(port: tuple[CommandPort, Ending], tmp_path: Path) -> None:
    """Its port on loopback is another program's here."""
    found = read_endpoint(str(tmp_path))
    write_endpoint(str(tmp_path), replace(found, host="elsewhere"))
    result = run("stop", str(tmp_path))
    assert result.exit_code == 2
    assert "runs on elsewhere" in result.output and "run the command there" in result.output
    # A page beyond loopback is one that any machine finds.
    public = Endpoint("http://192.0.2.1:4400/", "a" * 20, "elsewhere")
    write_endpoint(str(tmp_path), public)
    assert read_endpoint(str(tmp_path)) == public
    write_endpoint(str(tmp_path), found)


def test_the_file_is_for_its_owner_only_and_only_its_own_driver_removes_it(tmp_path: Path) -> None:
    first, second = Endpoint("http://127.0.0.1:1/", "a" * 20), Endpoint("http://127.0.0.1:2/", "b" * 20)
    write_endpoint(str(tmp_path), first)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    write_endpoint(str(tmp_path), second)
    remove_endpoint(str(tmp_path), first)
    assert read_endpoint(str(tmp_path)) == second
    remove_endpoint(str(tmp_path), second)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "fifo", "writable", "another's", "no JSON", "elsewhere"])
def test_no_token_is_sent_to_where_somebody_else_says(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / NAME
    content = json.dumps({"address": "http://127.0.0.1:1/", "token": "x", "host": ""})
    match kind:
        case "link":
            (tmp_path / "else").write_text(content)
            path.symlink_to(tmp_path / "else")
        case "fifo":
            os.mkfifo(path)
        case "writable":
            path.write_text(content)
            path.chmod(0o622)
        case "another's":
            path.write_text(content)
            uid = os.geteuid() + 1
            monkeypatch.setattr("os.geteuid", lambda: uid)
        case "no JSON":
            path.write_text("{")
        case _:
            path.write_text(json.dumps({"address": "file:///etc/passwd", "token": "x", "host": ""}))
    with pytest.raises(StoreError, match=NAME):
        read_endpoint(str(tmp_path))


def test_a_file_that_is_in_the_way_is_replaced_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("as it was")
    endpoint = Endpoint("http://127.0.0.1:1/", "a" * 20)
    write_endpoint(str(tmp_path), endpoint)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to(tmp_path / "victim")
    write_endpoint(str(tmp_path), endpoint)
    assert read_endpoint(str(tmp_path)) == endpoint
    assert (tmp_path / "victim").read_text() == "as it was"


def test_control_characters_are_written_out() -> None:
    assert escaped("a\tb\nc\x1b[31m\x07\x9b\u202e\r") == "a\tb\nc\\x1b[31m\\x07\\x9b\\u202e\\r"
    assert escaped("Grüße, 世界") == "Grüße, 世界"
