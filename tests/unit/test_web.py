"""The page's server: who may see and do what, and what browsers can't do to a job."""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.reverse_proxy import ReverseProxy
from tests.unit.watched import Watched

from crosscut import Settings
from crosscut.errors import CheckpointError, SettingsError, StateError, StoreError
from crosscut.monitoring.metrics import JobMetrics
from crosscut.spark.cluster.ui import url_in_ui
from crosscut.web import recorder as recorder_module
from crosscut.web import server as server_module
from crosscut.web.answers import Answer, Answers, Request, StateSeen
from crosscut.web.page import VARIABLE, Page
from crosscut.web.record import NAME, read_record, write_record
from crosscut.web.recorder import Recorder
from crosscut.web.series import POINTS_MAX, Point, Series, point_of
from crosscut.web.server import PATIENCE_S, REQUESTS_MAX
from crosscut.web.shared import FRESH_S, Shared

TOKEN = "a-token-that-nobody-guesses"
STATIC = Path(__file__).parents[2] / "src" / "crosscut" / "web" / "static"
DEADLINE_S = 100.0


class Done:
    """What was done to a job."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def stop(self) -> None:
        self.done.append("stop")

    def stop_with_savepoint(self, path: str) -> str:
        self.done.append(f"stop, {path}")
        return f"the job has stopped; its savepoint is in {path}"

    def restart(self) -> None:
        self.done.append("restart")

    def take_checkpoint(self) -> str:
        raise CheckpointError("no checkpoint: <b>the disk</b> is full")

    def take_savepoint(self, path: str) -> str:
        self.done.append(path)
        return f"the savepoint is written: {path}"

    def state_of(self, uid: str, key: str | None) -> StateSeen:
        if uid == "missing":
            raise StateError("no such operator")
        return StateSeen((("seen", key or "all", "", "<b>1</b>"),), False)


def answers(actions: Any = None, *, is_local: bool = True) -> Answers:
    exposition = (b"crosscut_up 1", "text/plain")
    return Answers(TOKEN, lambda: b'{"job":1}', lambda accepted: exposition, actions, is_local=is_local)


def request(
    path: str, method: str = "GET", token: str | None = TOKEN, body: bytes = b"", **headers: str
) -> Request:
    given = {"host": "127.0.0.1:4400", **{name.replace("_", "-"): text for name, text in headers.items()}}
    if token is not None:
        given["authorization"] = f"Bearer {token}"
    return Request(method, path, given, body)


def post(path: str, body: Any = None, **headers: str) -> Request:
    content = json.dumps({} if body is None else body).encode()
    return request(path, "POST", body=content, **{"content_type": "application/json", **headers})


# Who may see what.


@pytest.mark.parametrize(
    "path", ["/metrics", "/api/job", "/api/stop", "/api/restart", "/api/checkpoint", "/api/savepoint"]
)
@pytest.mark.parametrize("token", [None, "", "another", TOKEN + "x", TOKEN[:-1], "\xe4"])
def test_nothing_of_the_job_is_told_or_done_without_the_token(path: str, token: str | None) -> None:
    actions = Done()
    for method in ("GET", "POST"):
        one = request(path, method, token, b'{"path": "/x"}', content_type="application/json")
        assert answers(actions).answer(one).status == 401
    assert answers(actions).answer(request(f"{path}?token={TOKEN}", token=None)).status == 401
    assert actions.done == []


def test_the_page_itself_needs_no_token_and_holds_nothing_of_the_job() -> None:
    for path in (
        "/",
        "/?x=1",
        "/page.js",
        "/graph.js",
        "/barrier.js",
        "/plots.js",
        "/elements.js",
        "/page.css",
    ):
        found = answers().answer(request(path, token=None))
        assert (found.status, b"127.0.0.1" in found.body) == (200, False)


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/static/page.js", "//page.js", "/page.js/", "/%2e%2e/x", "/api", "page.js", ""],
)
def test_no_path_leads_to_a_file(path: str) -> None:
    assert answers().answer(request(path)).status == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:4400", "", "10.0.0.1:4400"])
def test_a_name_that_somebody_else_has_lead_here_is_refused_where_only_this_machine_is_served(
    host: str,
) -> None:
    for path in ("/", "/api/job"):
        assert answers().answer(request(path, host=host)).status == 403
    assert answers(is_local=False).answer(request("/api/job", host="driver.example")).status == 200


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:4400", "[::1]"])
def test_this_machine_has_several_names(host: str) -> None:
    assert answers().answer(request("/api/job", host=host)).status == 200


def test_every_answer_forbids_scripts_of_others_and_frames() -> None:
    for one in (request("/"), request("/api/job"), request("/nothing"), request("/api/job", token=None)):
        headers = answers().answer(one).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_takes_nothing_from_elsewhere_and_makes_no_markup_of_texts() -> None:
    texts = {path.name: path.read_text() for path in STATIC.iterdir()}
    for name, text in texts.items():
        addresses = re.findall(r"https?://[^\"'\s]*", text)
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, name
    scripts = [name for name in texts if name.endswith(".js")]
    assert len(scripts) == 10
    for name in scripts:
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            "srcdoc",
        ):
            assert way not in texts[name], (name, way)
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", texts["page.html"])


@pytest.mark.parametrize("accepted", ["gzip, deflate, br", ""])
def test_a_long_document_is_sent_compressed_to_who_can_take_that(accepted: str) -> None:
    documents = [b"[" + b"1," * 20_000 + b"1]", b"[" + b"2," * 20_000 + b"2]"]
    given = iter([documents[0], documents[0], documents[1]])
    one = Answers(TOKEN, lambda: next(given), lambda accepted: (b"", ""))
    for expected in (documents[0], documents[0], documents[1]):
        found = one.answer(request("/api/job", accept_encoding=accepted))
        assert "Content-Security-Policy" in found.headers
        if accepted:
            assert found.headers["Content-Encoding"] == "gzip" and len(found.body) < 1_000
            assert gzip.decompress(found.body) == expected
        else:
            assert found.body == expected and "Content-Encoding" not in found.headers


# Who may do what.


def test_with_the_token_a_job_is_stopped_and_a_savepoint_written() -> None:
    actions = Done()
    assert answers(actions).answer(post("/api/stop")).status == 200
    told = answers(actions).answer(post("/api/savepoint", {"path": " /a/new "}))
    assert json.loads(told.body) == {"said": "the savepoint is written: /a/new"}
    assert actions.done == ["stop", "/a/new"]
    told = answers(actions).answer(post("/api/stop", {"savepoint": " /a/last "}))
    assert json.loads(told.body) == {"said": "the job has stopped; its savepoint is in /a/last"}
    assert actions.done[2:] == ["stop, /a/last"]


def test_state_is_looked_at_and_what_is_not_there_is_said() -> None:
    seen = answers(Done()).answer(post("/api/state", {"uid": "counts", "key": "ann"}))
    assert json.loads(seen.body) == {"rows": [["seen", "ann", "", "<b>1</b>"]], "has_more": False}
    seen = answers(Done()).answer(post("/api/state", {"uid": "counts", "key": ""}))
    assert json.loads(seen.body)["rows"][0][1] == "all"
    assert answers(Done()).answer(post("/api/state", {"uid": "missing", "key": ""})).status == 409


def test_what_fails_says_why() -> None:
    told = answers(Done()).answer(post("/api/checkpoint"))
    assert (told.status, told.content_type) == (409, "application/json")
    assert json.loads(told.body) == {"said": "no checkpoint: <b>the disk</b> is full"}


@pytest.mark.parametrize(
    ("one", "status"),
    [
        (request("/api/stop"), 405),
        (request("/api/job", "POST"), 405),
        (request("/", "POST"), 405),
        (post("/api/stop", origin="http://evil.example"), 403),
        (post("/api/stop", origin="null"), 403),
        (post("/api/stop", content_type="text/plain"), 415),
        (request("/api/stop", "POST", content_type="application/json", body=b"{"), 400),
        (request("/api/stop", "POST", content_type="application/json", body=b"[" * 4_000), 400),
        (post("/api/savepoint"), 400),
        (post("/api/savepoint", {"path": "  "}), 400),
        (post("/api/savepoint", {"path": ["/x"]}), 400),
        (post("/api/savepoint", []), 400),
        (post("/api/stop", {"savepoint": " "}), 400),
        (post("/api/stop", {"savepoint": ["/x"]}), 400),
        (post("/api/state", {"uid": 1, "key": ""}), 400),
        (post("/api/state", {"uid": "counts"}), 400),
    ],
)
def test_what_is_not_plainly_asked_for_is_not_done(one: Request, status: int) -> None:
    actions = Done()
    assert answers(actions).answer(one).status == status
    assert actions.done == []


def test_the_page_s_own_origin_may_act() -> None:
    actions = Done()
    assert answers(actions).answer(post("/api/stop", origin="http://127.0.0.1:4400")).status == 200


@pytest.mark.parametrize(
    ("forwarded", "status"),
    [
        ('by="1.2.3.4";for="5.6.7.8";host="driver:4040";proto=http', 200),
        ("for=5.6.7.8;host=elsewhere, for=7.7.7.7;Host=driver:4040", 200),
        ('for=5.6.7.8;host="driver:4041"', 403),
        ("for=host=driver:4040x", 403),
        ("", 403),
    ],
)
def test_a_proxy_that_does_not_hand_on_the_name_says_which_one_the_browser_has_used(
    forwarded: str, status: int
) -> None:
    actions = Done()
    asked = post("/api/stop", origin="http://driver:4040", forwarded=forwarded)
    assert answers(actions).answer(asked).status == status
    assert answers(actions).answer(post("/api/stop", origin="null", forwarded=forwarded)).status == 403
    assert answers(actions).answer(request("/", host="evil.example", forwarded=forwarded)).status == 403
    assert actions.done == ["stop"] * (status == 200)


@pytest.mark.parametrize(
    ("conf", "url"),
    [
        ({}, "http://driver:4040/crosscut/payments/"),
        ({"spark.ui.reverseProxy": "true"}, "http://driver:4040/crosscut/payments/"),
        ({"spark.ui.reverseProxyUrl": "https://gateway/spark"}, "http://driver:4040/crosscut/payments/"),
        (
            {"spark.ui.reverseProxy": "true", "spark.ui.reverseProxyUrl": "https://gateway/spark/"},
            "https://gateway/spark/proxy/app-7/crosscut/payments/",
        ),
    ],
)
def test_the_link_under_spark_s_ui_goes_through_the_proxy_of_its_master_where_there_is_one(
    conf: dict[str, str], url: str
) -> None:
    assert url_in_ui("payments", "http://driver:4040", "app-7", conf.get) == url


def test_a_page_in_spark_s_ui_that_there_is_not_is_refused() -> None:
    with pytest.raises(SettingsError, match="say web=True, too"):
        Settings(web_in_spark_ui=True)


def test_a_restart_is_asked_for_by_whom_the_token_knows() -> None:
    actions = Done()
    assert answers(actions).answer(post("/api/restart")).status == 200
    assert answers(actions).answer(request("/api/restart")).status == 405
    assert answers(actions).answer(post("/api/restart", origin="http://evil.example")).status == 403
    assert actions.done == ["restart"]


# Behind a reverse proxy.


@pytest.mark.parametrize("keeps_path", [True, False])
@pytest.mark.parametrize("keeps_host", [True, False])
def test_behind_a_reverse_proxy_a_page_is_seen_and_acts(keeps_path: bool, keeps_host: bool) -> None:
    actions = Done()
    with ReverseProxy("/jobs/7/", keeps_path=keeps_path, keeps_host=keeps_host) as proxy:
        page = Page(lambda: {"job": {"at_ms": 0}, "series": {}}, None, actions, url=proxy.url)
        proxy.target = page.port
        try:
            assert page.link.startswith(f"{proxy.url}#")
            name = proxy.url.split("/")[2]
            for path in ("", "page.js", "api/job"):
                status, _ = through(proxy, f"/jobs/7/{path}", page, Host=name)
                assert status == 200, path
            asked = {"Host": name, "Content-Type": "application/json"}
            assert through(proxy, "/jobs/7/api/stop", page, b"{}", Origin=f"http://{name}", **asked)[0] == 200
            assert actions.done == ["stop"]
            for origin in ("http://evil.example", "null"):
                assert through(proxy, "/jobs/7/api/stop", page, b"{}", Origin=origin, **asked)[0] == 403
            assert actions.done == ["stop"]
            assert get(page, Host="evil.example")[0] == 403
        finally:
            page.close()


@pytest.mark.parametrize("url", ["https://Gateway.Example/jobs/7", "https://gateway.example/jobs/7/"])
def test_the_address_of_the_page_may_be_typed_without_its_last_slash(url: str) -> None:
    behind = Answers(TOKEN, lambda: b"{}", lambda accepted: (b"", ""), url=url)
    for method, path in (("GET", "/jobs/7"), ("GET", "/jobs/7?x=1"), ("HEAD", "/jobs/7")):
        found = behind.answer(request(path, method, host="gateway.example"))
        assert (found.status, found.headers["Location"]) == (308, "https://gateway.example/jobs/7/")
    assert behind.answer(request("/jobs/7", host="evil.example")).status == 403
    assert behind.answer(request("/jobs/70", host="gateway.example")).status == 404
    assert answers().answer(request("/jobs/7")).status == 404


def test_under_spark_s_ui_the_page_finds_its_files_without_the_last_slash_as_well() -> None:
    def under(path: str, *, in_spark_ui: bool = True) -> Answer:
        one = Answers(TOKEN, lambda: b"{}", lambda accepted: (b"", ""), in_spark_ui=in_spark_ui)
        return one.answer(request(path))

    for path, script in (
        ("/crosscut/payments", b'src="./payments/page.js"'),
        ("/crosscut/payments?x=1", b'src="./payments/page.js"'),
        ("/crosscut/a:b", b'src="./a:b/page.js"'),
        ("/crosscut/<b\"c'", b'src="./&lt;b&quot;c&#x27;/page.js"'),
        ("/crosscut/payments/", b'src="page.js"'),
    ):
        found = under(path)
        assert found.status == 200 and script in found.body, path
    for path in ("/crosscut/payments/", "/crosscut/payments/page.js", "/crosscut/payments/api/job"):
        assert under(path).status == 200
        assert under(path, in_spark_ui=False).status == 404
    for path in ("/crosscut", "/crosscut/", "/crosscut/payments/no", "/crosscut//", "/other/payments/"):
        assert under(path).status == 404


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Gateway.Example:443/jobs/7", "https://gateway.example"),
        ("HTTP://gateway.example:80", "http://gateway.example"),
        ("https://gateway.example:8443/", "https://gateway.example:8443"),
        ("http://[FE80::1]/jobs/", "http://[fe80::1]"),
    ],
)
def test_the_name_of_a_proxy_is_known_as_browsers_write_it(url: str, origin: str) -> None:
    actions = Done()
    behind = Answers(TOKEN, lambda: b"{}", lambda accepted: (b"", ""), actions, url=url)
    for host in ("127.0.0.1:4400", origin.partition("://")[2]):
        assert behind.answer(post("/api/stop", origin=origin, host=host)).status == 200
    assert actions.done == ["stop", "stop"]
    assert behind.answer(post("/api/stop", origin="https://evil.example")).status == 403


def through(
    proxy: ReverseProxy, path: str, page: Page, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.server_address[1], timeout=DEADLINE_S)
    try:
        known = {"Authorization": f"Bearer {page.link.partition('#')[2]}"}
        connection.request("GET" if body is None else "POST", path, body, {**known, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "url",
    [
        "gateway/jobs",
        "ftp://gateway/",
        "https://",
        "https://user@gateway/",
        "https://gateway/?x=1",
        "https://gateway/#x",
        "https://gateway:port/",
        "https://g\u00e4teway/",
        "https://gate way/",
        7,
    ],
)
def test_only_a_plain_url_is_one_of_a_page(url: Any) -> None:
    with pytest.raises(SettingsError, match="web_url="):
        Settings(web_url=url)


def test_nothing_can_be_done_to_a_job_that_has_ended() -> None:
    assert answers().answer(post("/api/stop")).status == 409


# The server.


class Counted:
    """A document that is made anew whenever it is asked for."""

    def __init__(self) -> None:
        self.made = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self) -> dict[str, Any]:
        assert self.may_go_on.wait(DEADLINE_S)
        self.made += 1
        return {"job": {"at_ms": 0, "made": self.made}, "series": {}}


@pytest.fixture
def document() -> Counted:
    return Counted()


@pytest.fixture
def page(document: Counted) -> Iterator[Page]:
    now_s = [100.0]
    one = Page(document, None, None, clock_s=lambda: now_s[0])
    one.now_s = now_s  # type: ignore[attr-defined]
    yield one
    one.close()


def get(page: Page, path: str = "/api/job", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=DEADLINE_S)
    try:
        token = page.link.partition("#")[2]
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_hundred_browsers_have_one_answer_made_for_them(page: Page, document: Counted) -> None:
    document.may_go_on.clear()
    found: list[int] = []
    browsers = [
        threading.Thread(target=lambda: found.append(json.loads(get(page)[1])["job"]["made"]))
        for _ in range(REQUESTS_MAX // 2)
    ]
    for one in browsers:
        one.start()
    document.may_go_on.set()
    for one in browsers:
        one.join(DEADLINE_S)
    assert found == [1] * len(browsers)
    for _ in range(100 - len(browsers)):
        assert json.loads(get(page)[1])["job"]["made"] == 1
    page.now_s[0] += FRESH_S  # type: ignore[attr-defined]
    assert json.loads(get(page)[1])["job"]["made"] == 2


def test_who_scrapes_and_who_looks_at_the_page_have_the_job_looked_at_once(tmp_path: Path) -> None:
    talk = Watched()
    talk.running()
    # The first look of a process loads modules, and one that takes long is good for longer.
    talk.metrics()
    now, looked = [0.0], []

    def look() -> Any:
        looked.append(now[0])
        return talk.metrics()

    recorder, shared = Recorder("a job", look, str(tmp_path)), Shared(look, lambda: now[0])
    page = Page(lambda: recorder.document_of(shared()), shared, None, clock_s=lambda: now[0])
    try:
        for at in (0.0, 0.1, FRESH_S, FRESH_S + 0.1):
            now[0] = at
            for _ in range(3):
                assert b"crosscut_epoch" in get(page, "/metrics")[1]
                assert json.loads(get(page)[1])["job"]["name"] == "a job"
    finally:
        page.close()
    assert looked == [0.0, FRESH_S]


def test_what_takes_long_to_make_is_made_less_often() -> None:
    now, spent, made = [0.0], [0.0], []

    def make() -> int:
        spent[0] += 0.25
        made.append(now[0])
        return len(made)

    shared = Shared(make, lambda: now[0], lambda: spent[0])
    found = []
    for at in (0.0, FRESH_S, 2.4, 2.5, 4.9, 5.0):
        now[0] = at
        found.append(shared())
    assert (made, found) == ([0.0, 2.5, 5.0], [1, 1, 1, 2, 2, 3])


def test_silent_and_vanished_browsers_are_turned_away_and_the_others_served(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold a thread each for a while, a bounded number of them, and nothing else."""
    silent = [socket.create_connection(("127.0.0.1", page.port), DEADLINE_S) for _ in range(REQUESTS_MAX)]
    refused = socket.create_connection(("127.0.0.1", page.port), DEADLINE_S)
    refused.settimeout(DEADLINE_S)
    assert refused.recv(1) == b"", "closed at once, for all places are taken"
    refused.close()
    for one in silent:
        one.close()
    ends_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            assert get(page)[0] == 200
            break
        except (http.client.HTTPException, OSError):
            assert time.monotonic() < ends_s
    assert PATIENCE_S < DEADLINE_S


def test_a_request_that_comes_byte_by_byte_keeps_no_place(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE_S", 0.2)
    with socket.create_connection(("127.0.0.1", page.port), DEADLINE_S) as slow:
        slow.settimeout(0.05)
        ends_s, is_open = time.monotonic() + DEADLINE_S, True
        while is_open:
            assert time.monotonic() < ends_s
            try:
                slow.send(b"G")
                is_open = slow.recv(1) != b""
            except TimeoutError:
                continue
            except ConnectionError:
                is_open = False


@pytest.mark.parametrize("length", ["1000000000000", "-1", "x"])
def test_a_body_that_is_too_long_is_not_read(page: Page, length: str) -> None:
    assert get(page, "/api/job", **{"Content-Length": length})[0] == 413


def test_a_port_in_use_is_left_and_the_next_one_taken(page: Page, document: Counted) -> None:
    other = Page(document, None, None, port=page.port)
    try:
        assert page.port < other.port < page.port + 50
        assert get(other)[0] == 200
        assert page.link != other.link and page.link.split("#")[1] != other.link.split("#")[1]
    finally:
        other.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", other.port), DEADLINE_S)


def test_an_address_of_another_machine_is_refused_in_words(document: Counted) -> None:
    with pytest.raises(SettingsError, match=r"web_host='192\.0\.2\.1', web_port=0: can't listen there"):
        Page(document, None, None, host="192.0.2.1")


def test_the_token_can_be_chosen_and_must_not_be_short(
    document: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    page = Page(document, None, None)
    assert page.link.endswith(f"#{TOKEN}")
    page.close()
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(SettingsError, match="CROSSCUT_WEB_TOKEN has 5 characters: expected at least 16"):
        Page(document, None, None)


# The record and the series.


def test_a_record_is_what_was_written_last_and_nothing_else_lies_about(tmp_path: Path) -> None:
    talk = Watched()
    talk.running()
    metrics = talk.metrics()
    recorder = Recorder("a job", lambda: metrics, str(tmp_path))
    recorder.start()
    recorder.close()
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    found = read_record(str(tmp_path))
    assert found["job"] == json.loads(json.dumps(metrics.as_dict()))
    assert found["series"]["at_ms"][-1] == metrics.at_ms
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


def test_a_record_in_an_object_store_is_read_as_well() -> None:
    write_record("memory://seen-job/cp", {"job": {"name": "a job"}})
    assert read_record("memory://seen-job/cp")["job"] == {"name": "a job"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"holds no seen\.json: is it the checkpoint directory of a job\?"),
        (b"\xff", "can't be read"),
        (b"{", "can't be read"),
        (b"[" * 100_000, "can't be read"),
        (b"[]", "is of another release: expected format 1"),
        (b'{"format": 2}', "is of another release"),
    ],
)
def test_a_record_that_can_not_be_read_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    with pytest.raises(StoreError, match=said):
        read_record(str(tmp_path))


def test_a_directory_that_can_not_be_written_costs_the_job_nothing(tmp_path: Path) -> None:
    talk = Watched()
    recorder = Recorder("a job", talk.metrics, str(tmp_path / "gone"))
    recorder.start()
    recorder.close()
    assert recorder.document()["job"]["name"] == "a job"
    assert list(tmp_path.iterdir()) == []


def test_a_series_is_bounded_and_covers_all_of_a_long_life() -> None:
    series = Series()
    for second in range(36_000):
        series.note(Point(second * 1_000, 1, 5.0, 0.1, 0.0, 0, 0, None, None, None))
    points = series.points
    assert POINTS_MAX / 4 < len(points) <= POINTS_MAX
    assert points[0].at_ms < 100_000 and points[-1].at_ms > 35_800_000
    gaps = {later.at_ms - before.at_ms for before, later in pairwise(points)}
    assert len(gaps) == 1
    assert set(series.as_dict()) >= {"at_ms", "records_per_second", "blocked", "lag", "epoch"}


def test_a_point_says_null_where_nothing_is_known() -> None:
    talk = Watched()
    talk.running()
    point = point_of(talk.metrics())
    assert (point.lag, point.delay_ms, point.checkpoint_ms, point.records_per_second) == (
        None,
        None,
        None,
        0.0,
    )


def test_a_record_that_a_killed_driver_has_left_half_written_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f"temporary-{NAME}").write_text("{")
    write_record(str(tmp_path), {"job": 1})
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_record_is_not_written_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (tmp_path / f"temporary-{NAME}").symlink_to(elsewhere)
    write_record(str(tmp_path), {"job": 1})
    assert elsewhere.read_text() == "precious"
    assert read_record(str(tmp_path))["job"] == 1


def test_a_store_that_hangs_does_not_keep_a_job_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, hangs, goes_on = Watched(), threading.Event(), threading.Event()

    def hanging(directory: str, document: dict[str, Any]) -> int:
        hangs.set()
        goes_on.wait(DEADLINE_S)
        return 0

    monkeypatch.setattr(recorder_module, "write_record", hanging)
    monkeypatch.setattr(recorder_module, "LAST_TIMEOUT_S", 0.0)
    recorder = Recorder("a job", talk.metrics, str(tmp_path))
    recorder.start()
    recorder.close()
    assert hangs.wait(DEADLINE_S)
    assert not goes_on.is_set(), "close has returned"
    goes_on.set()


def test_the_record_takes_a_twentieth_of_a_processor_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def waited(wait_s: float) -> bool:
        waits.append(wait_s)
        return len(waits) == 3

    spent = count()
    recorder = Recorder("a job", Watched().metrics, str(tmp_path))
    monkeypatch.setattr(recorder._is_over, "wait", waited)
    monkeypatch.setattr(time, "thread_time", lambda: next(spent) / 10)
    recorder._run()
    assert waits == pytest.approx([1.0, 2.0, 2.0])


def test_who_was_fenced_leaves_the_record_to_the_driver_that_has_taken_over(tmp_path: Path) -> None:
    talk = Watched()
    write_record(str(tmp_path), {"job": "of the other driver"})
    fenced = replace(talk.metrics(), status="fenced")
    recorder = Recorder("a job", lambda: fenced, str(tmp_path))
    recorder.start()
    recorder.close()
    assert read_record(str(tmp_path))["job"] == "of the other driver"


def test_a_mistake_of_ours_in_looking_does_not_end_the_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    talk, looks = Watched(), count()

    def look() -> JobMetrics:
        if next(looks) < 2:
            raise KeyError("a task that nobody knows")
        return talk.metrics()

    recorder = Recorder("a job", look, str(tmp_path))
    is_over = iter((False, False, True))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorder._is_over, "wait", lambda _: next(is_over))
        recorder._run()
    assert read_record(str(tmp_path))["job"]["name"] == "a job"
    assert caplog.text.count("can't be looked at") == 1 and "a task that nobody knows" in caplog.text


def test_no_password_of_a_directory_is_told(caplog: pytest.LogCaptureFixture) -> None:
    directory = "nothing-knows-this://user:se-cret@host/jobs"
    with pytest.raises(StoreError) as told:
        read_record(directory)
    recorder = Recorder("a job", Watched().metrics, directory)
    with caplog.at_level(logging.INFO, "crosscut.job"):
        recorder.start()
        recorder.close()
    assert "se-cret" not in f"{told.value!r} {caplog.text}" and "can't be written down" in caplog.text


def test_a_record_at_a_file_url_is_for_its_owner_only(tmp_path: Path) -> None:
    write_record(f"file://{tmp_path}", {"job": 1})
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0
    assert read_record(f"file://{tmp_path}")["job"] == 1


def test_a_job_that_can_not_be_looked_at_says_why() -> None:
    def gone() -> bytes:
        raise StoreError("the record is gone")

    found = Answers(TOKEN, gone, lambda accepted: (b"", "")).answer(request("/api/job"))
    assert (found.status, json.loads(found.body)) == (503, {"said": "the record is gone"})


# Probes of a supervisor.


@pytest.mark.parametrize(
    ("status", "healthy", "ready"),
    [
        ("starting", 200, 503),
        ("running", 200, 200),
        ("claiming", 200, 503),
        ("finished", 200, 503),
        ("failed", 503, 503),
        ("fenced", 503, 503),
    ],
)
def test_probes_need_no_token_and_tell_the_status_alone(status: str, healthy: int, ready: int) -> None:
    answers = Answers(TOKEN, lambda: b"{}", lambda accepted: (b"", ""), status=lambda: status, is_local=False)
    for path, code in (("/healthz", healthy), ("/readyz", ready)):
        answer = answers.answer(Request("GET", path, {"host": "10.0.0.7:4400"}))
        assert (answer.status, answer.body) == (code, f"{status}\n".encode())
        assert answers.answer(Request("POST", path, {"host": "10.0.0.7:4400"})).status == 405


def test_a_record_that_is_served_has_no_probes() -> None:
    answers = Answers(TOKEN, lambda: b"{}", lambda accepted: (b"", ""))
    assert answers.answer(Request("GET", "/healthz", {"host": "127.0.0.1"})).status == 404
