"""Server-sent events and posts, against a real HTTP server that keeps its promises, or does not."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.connectors import EndOfSplit, Source
from crosscut.contracts.refused_records import SinkWithDeadLetters
from crosscut.errors import ConnectorError, RefusedRecordError
from crosscut.store.checkpoint_store import open_store
from crosscut.testing.proxy import TcpProxy
from crosscut.testing.sink_histories import (
    check_a_driver_that_was_overtaken_is_refused,
    check_newer_output_is_refused,
    check_two_drivers_of_one_epoch_exclude_each_other,
)
from crosscut.testing.sink_stalls import check_a_system_that_never_answers_is_an_error
from crosscut.testing.sink_targets import TASK
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage
from crosscut.testing.sources import SOURCE_CHECKS, next_batch, read_source
from crosscut.worker.commit_progress import StoredProgress

pytest.importorskip("httpx", reason="pip install 'crosscut[http]'")

EVENTS = 150


class Server(ThreadingHTTPServer):
    """Streams `EVENTS` events, some a connection, from `Last-Event-ID` on; takes posts, each key once.

    Attributes:
        posts: The keys and bodies that have had an effect.
        fails: How to answer the next requests instead: a status, or "lose" for an effect without an answer.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.posts: dict[str, Any] = {}
        self.requests: list[dict[str, str]] = []
        self.fails: list[int | str] = []
        self.refuses: Callable[[Any], bool] = lambda body: False
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no news."""

    def records(self) -> list[Any]:
        """Return what was posted, in order."""
        return [one for body in self.posts.values() for one in (body if isinstance(body, list) else [body])]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests.append(dict(self.headers))
        first = int(self.headers.get("Last-Event-ID", "0"))
        match self.path:
            case "/events" if first < EVENTS:
                self.answer(200, events(first, min(EVENTS, first + 40)), "text/event-stream; charset=utf-8")
            case "/without-ids":
                self.answer(200, b"data: 1\n\n", "text/event-stream")
            case "/broken":
                self.answer(200, b"id: 1\ndata: {\n\n", "text/event-stream")
            case "/page":
                self.answer(200, b"hello", "text/html")
            case "/events":
                self.answer(204, b"", "text/plain")
            case _:
                self.answer(401, b"who are you?", "text/plain")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(dict(self.headers))
        failing = self.server.fails.pop(0) if self.server.fails else 0
        if self.server.refuses(json.loads(body)):
            failing = 422
        if isinstance(failing, int) and failing:
            self.answer(failing, f"not now, {self.headers.get('X-Key', '')}".encode(), "text/plain")
            return
        self.server.posts.setdefault(self.headers["Idempotency-Key"], json.loads(body))
        if failing == "lose":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.answer(200, b"", "text/plain")

    def answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # In pieces, so that events and letters are cut anywhere.
        for start in range(0, len(body), 37):
            self.wfile.write(body[start : start + 37])
            self.wfile.flush()


def events(first: int, end: int) -> bytes:
    texts = [f'id: {i + 1}\ndata: {{"i": {i},\ndata:"text": "ü€"}}\n\n' for i in range(first, end)]
    return (": a comment\nretry: 1\n\n" + "".join(texts)).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as one:
        one.thread.start()
        yield one
        one.shutdown()
        one.thread.join()


# Events.


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_a_stream_that_is_replayed_conforms(check: Callable[[Source], None], server: Server) -> None:
    check(cc.http.events(f"{server.url}/events", replays=True, decode="json"))


def test_events_are_read_on_from_the_last_one_over_many_connections(server: Server) -> None:
    found = read_source(cc.http.events(f"{server.url}/events", replays=True, decode="event"))
    assert [int(one.id) for one in found] == list(range(1, EVENTS + 1))
    assert (found[3].event, json.loads(found[3].data)) == ("message", {"i": 3, "text": "ü€"})
    assert [one.get("Last-Event-ID") for one in server.requests] == [None, "40", "80", "120", "150"]


def failure_of(source: Source) -> str:
    (split,) = source.splits(1)
    reader = source.reader(split, split.start)
    try:
        with pytest.raises(ConnectorError) as failed:
            while not isinstance(next_batch(reader, 9), EndOfSplit):
                pass
        return str(failed.value)
    finally:
        reader.close()


def test_what_is_no_stream_is_named_without_its_secrets(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12."""
    monkeypatch.setenv("TOKEN", "hunter2")
    url = server.url.replace("//", "//user:hunter3@")
    source = cc.http.events(
        f"{url}/nothing?key=hunter4", replays=False, headers={"X-Key": cc.environment("TOKEN")}
    )
    said = f"{failure_of(source)}{source!r}{source.describe()}"
    assert "the server answers 401 of type 'text/plain'" in said
    assert "hunter" not in said
    assert server.requests[0]["X-Key"] == "hunter2"
    assert "answers 200 of type 'text/html'" in failure_of(
        cc.http.events(f"{server.url}/page", replays=False)
    )


def test_events_that_reading_can_not_go_on_after_are_refused_where_they_must(server: Server) -> None:
    url = f"{server.url}/without-ids"
    assert "an event has no id of its own" in failure_of(cc.http.events(url, replays=True))
    source = cc.http.events(url, replays=False)
    (split,) = source.splits(1)
    reader = source.reader(split, split.start)
    assert next_batch(reader, 1) == ["1"]
    reader.close()


def test_an_event_that_can_not_be_decoded_is_named(server: Server) -> None:
    said = failure_of(cc.http.events(f"{server.url}/broken", replays=True, decode="json"))
    assert "event '1' can't be decoded by decode='json': JSONDecodeError" in said


def test_a_server_that_is_not_there_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crosscut.connectors.http.event_source.PATIENCE_S", 0.05)
    monkeypatch.setattr("crosscut.connectors.http.event_source._RETRY_MS", 10)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
        assert "it has been failing for 0.05 s: ConnectError" in failure_of(cc.http.events(url, replays=True))


# Posts.

_HISTORIES = {
    # A receiver of posts can't be asked what it has.
    check_newer_output_is_refused,
    check_two_drivers_of_one_epoch_exclude_each_other,
    check_a_driver_that_was_overtaken_is_refused,
}


@pytest.mark.parametrize("batch_records", [1, 7])
@pytest.mark.parametrize(
    "check", [one for one in SINK_CHECKS if one not in _HISTORIES], ids=lambda check: check.__name__
)
def test_posts_to_a_receiver_that_honours_keys_conform(
    check: Callable[[SinkTarget], None], batch_records: int, server: Server
) -> None:
    """F1, F2, F4, F6, F8, C1, I1, I2, I3."""
    sink = cc.http.sink(server.url, honours_keys=True, batch_records=batch_records)
    target = SinkTarget(
        sink,
        server.records,
        lambda i: {"i": i, "text": "ü\n" * (i % 3)},
        refused=lambda i: ({i}, float("nan"), {1: i, "1": i})[i],
        shown=lambda one: one,
    )
    check(target)


def test_a_receiver_that_never_answers_is_an_error(server: Server) -> None:
    """P8: silent, or slow for ever."""
    with TcpProxy("127.0.0.1", server.server_port) as proxy:

        def stall(*, slow: bool) -> Callable[[], None]:
            proxy.stall(slow=slow)
            return proxy.flow

        sink = cc.http.sink(f"http://{proxy.address}", honours_keys=True, timeout="3s")
        stalls = [partial(stall, slow=False), partial(stall, slow=True)]
        check_a_system_that_never_answers_is_an_error(
            SinkTarget(sink, server.records, lambda i: {"i": i}, stalls=stalls)
        )


def test_a_post_whose_answer_is_lost_is_made_again_with_its_key_and_no_effect(server: Server) -> None:
    """F1: and what was answered is not posted again by the same process."""
    sink = cc.http.sink(server.url, honours_keys=True, batch_records=2)
    writer = open_writer(sink, 1)
    handle = stage(writer, [1, 2, 3, 4, 5], 1)
    server.fails = [0, "lose", 503]
    for said in ("has no answer: RemoteProtocolError", "was answered 503: 'not now, '"):
        with pytest.raises(ConnectorError, match=said):
            writer.commit(permit(1), [handle])
    writer.commit(permit(1), [handle])
    writer.close()
    open_writer(sink, 2, restore=1, handles=[handle]).close()
    assert list(server.posts.values()) == [[1, 2], [3, 4], [5]]
    keys = [one["Idempotency-Key"][-1] for one in server.requests]
    assert keys == ["0", "1", "1", "1", "2", "0", "1", "2"]
    assert {one["Crosscut-Epoch"] for one in server.requests} == {"1", "2"}


@pytest.fixture
def notes_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each request that is answered noted at once."""
    monkeypatch.setattr(import_module("crosscut.connectors.http.sink"), "NOTED_EVERY_S", 0.0)


def noted_in(directory: Path, key: bytes = b"") -> StoredProgress:
    """Return what a new process gets."""
    return StoredProgress(open_store(str(directory / "store")), TASK, key)


def test_what_is_answered_is_not_posted_again_by_another_process(
    server: Server, tmp_path: Path, notes_each: None
) -> None:
    """C21, F1: it is known from the checkpoint directory, for each second of posting."""
    sink = cc.http.sink(server.url, honours_keys=True, batch_records=1)
    writer = open_writer(sink, 1, progress=noted_in(tmp_path))
    handles = [stage(writer, records, n) for n, records in ((1, ["a", "b"]), (2, ["c", "d", "e"]))]
    server.fails = [0, 0, 0, 0, 503]
    with pytest.raises(ConnectorError, match="was answered 503"):
        writer.commit(permit(2), handles)
    writer.close()
    server.requests.clear()
    open_writer(sink, 2, restore=2, handles=handles, progress=noted_in(tmp_path)).close()
    assert server.records() == ["a", "b", "c", "d", "e"]
    assert [one["Idempotency-Key"][-3:] for one in server.requests] == ["1-2"]


def test_a_note_counts_for_the_transaction_that_it_names_and_no_other(
    server: Server, tmp_path: Path, notes_each: None
) -> None:
    """N1: a directory from a backup holds the note of a transaction with the same key and other records."""
    url = server.url
    sink, other = (cc.http.sink(url, honours_keys=False, batch_records=1) for _ in range(2))
    writer = open_writer(sink, 1, progress=noted_in(tmp_path))
    writer.commit(permit(1), [stage(writer, ["a", "b"], 1)])
    writer.close()
    server.posts.clear()
    for records, n in ((["c", "d"], 1), (["a", "b"], 2)):
        staging = open_writer(other, 1)
        handle = stage(staging, records, n)
        staging.close()
        open_writer(other, 2, restore=n, handles=[handle], progress=noted_in(tmp_path)).close()
    assert server.records() == ["c", "d", "a", "b"]


def test_a_note_that_the_job_has_not_signed_is_ignored(
    server: Server, tmp_path: Path, notes_each: None, caplog: pytest.LogCaptureFixture
) -> None:
    """S: who can write to the checkpoint directory and has no key must not make a sink leave out records."""
    sink = cc.http.sink(server.url, honours_keys=True, batch_records=1)
    writer = open_writer(sink, 1, progress=noted_in(tmp_path, b"key"))
    handle = stage(writer, ["a", "b"], 1)
    writer.commit(permit(1), [handle])
    writer.close()
    server.requests.clear()
    for key, count in ((b"key", 0), (b"other", 2)):
        open_writer(sink, 2, restore=1, handles=[handle], progress=noted_in(tmp_path, key)).close()
        assert len(server.requests) == count
    assert "it was not signed with the key of the job log" in caplog.text


@pytest.mark.parametrize(
    ("transactions", "failures"),
    [
        ([["a", "bad"], ["b", "c"]], [[0, 0, 0, 503]]),
        ([["bad", "a", "b"]], [[0, 503], [0, 503]]),
        ([["bad", "a"], ["b", "c"]], [[0, 503], [0, 0, 503], [503]]),
    ],
    ids=["first attempt", "second attempt", "third attempt"],
)
def test_a_refused_record_is_a_dead_letter_although_its_request_was_answered(
    transactions: list[list[str]],
    failures: list[list[int | str]],
    server: Server,
    tmp_path: Path,
    notes_each: None,
) -> None:
    """P6: letters of a commit are written after it. No note may pass them, however often it is tried."""
    server.refuses = lambda body: body == "bad"
    posts = cc.http.sink(server.url, honours_keys=True, batch_records=1)
    sink = SinkWithDeadLetters(posts, cc.files.write_jsonl(tmp_path / "letters"))
    newest = len(transactions)
    writer = open_writer(sink, 1, progress=noted_in(tmp_path))
    handles = [stage(writer, records, n) for n, records in enumerate(transactions, start=1)]
    for server.fails in failures:
        with pytest.raises(ConnectorError, match="was answered 503"):
            writer.commit(permit(newest), handles)
    writer.close()
    server.fails = []
    open_writer(sink, 2, restore=newest, handles=handles, progress=noted_in(tmp_path)).close()
    files = (tmp_path / "letters").glob("*.jsonl")
    letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [one["record"] for one in letters] == ["bad"]
    assert server.records() == ["a", "b", "c"][: sum(map(len, transactions)) - 1]


def test_once_its_dead_letters_are_written_a_commit_is_noted_again(
    server: Server, tmp_path: Path, notes_each: None
) -> None:
    server.refuses = lambda body: body == "bad"
    posts = cc.http.sink(server.url, honours_keys=True, batch_records=1)
    sink = SinkWithDeadLetters(posts, cc.files.write_jsonl(tmp_path / "letters"))
    writer = open_writer(sink, 1, progress=noted_in(tmp_path))
    writer.commit(permit(1), [stage(writer, ["bad"], 1)])
    handle = stage(writer, ["a", "b"], 2)
    server.fails = [0, 503]
    with pytest.raises(ConnectorError, match="was answered 503"):
        writer.commit(permit(2), [handle])
    writer.close()
    server.requests.clear()
    open_writer(sink, 2, restore=2, handles=[handle], progress=noted_in(tmp_path)).close()
    assert [one["Idempotency-Key"][-3:] for one in server.requests] == ["1-1"]


def test_posts_go_on_where_nothing_can_be_noted(
    server: Server, tmp_path: Path, notes_each: None, caplog: pytest.LogCaptureFixture
) -> None:
    """D4: a note saves repetitions, and is not worth a failure."""
    writer = open_writer(cc.http.sink(server.url, honours_keys=True), 1, progress=noted_in(tmp_path))
    (tmp_path / "store" / "commits").write_text("in the way")
    writer.commit(permit(1), [stage(writer, ["a", "b"], 1)])
    writer.close()
    assert server.records() == ["a", "b"]
    assert "is not recorded: can't write" in caplog.text


@pytest.mark.parametrize("batch_records", [1, 7, 500])
def test_records_that_the_receiver_refuses_are_set_aside_one_by_one(
    batch_records: int, server: Server
) -> None:
    """P6, C20: all others are posted, in order, each once; also if the answer to the last request is lost."""
    bad = {3, 4, 11, 29}
    server.refuses = lambda body: bool(bad.intersection(body if isinstance(body, list) else [body]))
    sink = cc.http.sink(server.url, honours_keys=True, batch_records=batch_records)
    writer = open_writer(sink, 1)
    letters: list[tuple[Any, str]] = []
    writer.set_aside = lambda record, reason: letters.append((record, reason))
    handle = stage(writer, list(range(30)), 1)
    assert list(writer.pending_records([handle])) == list(range(30))
    server.fails = [0, "lose"]
    with suppress(ConnectorError):
        writer.commit(permit(1), [handle])
    writer.commit(permit(1), [handle])
    writer.commit(permit(1), [handle])
    writer.close()
    assert server.records() == [i for i in range(30) if i not in bad]
    assert [record for record, _ in letters] == sorted(bad)
    assert all("was answered 422: 'not now" in reason for _, reason in letters)
    # Another process does not know what was answered, and uses the same keys.
    again = open_writer(sink, 2)
    again.set_aside = lambda record, reason: None
    again.commit(permit(1, 2), [handle])
    again.close()
    assert server.records() == [i for i in range(30) if i not in bad]


def test_a_refused_record_without_dead_letters_is_named_and_final(server: Server) -> None:
    """P6: what is refused at commit stops the job until it has a place."""
    server.refuses = lambda body: "bad" in body
    writer = open_writer(cc.http.sink(server.url, honours_keys=True), 1)
    handle = stage(writer, ["good", "bad", "late"], 1)
    with pytest.raises(RefusedRecordError, match=r"record 'bad' is refused: .* was answered 422") as refused:
        writer.commit(permit(1), [handle])
    assert refused.value.is_permanent
    writer.close()


@pytest.mark.parametrize(("status", "is_permanent"), [(401, True), (404, True), (307, True), (429, False)])
def test_an_answer_about_no_record_fails_the_commit_as_a_whole(
    status: int, is_permanent: bool, server: Server
) -> None:
    """C24: a wrong token is no reason to set all records aside; too many requests are no reason to end."""
    writer = open_writer(cc.http.sink(server.url, honours_keys=True), 1)
    writer.set_aside = lambda record, reason: pytest.fail(f"{record!r} is set aside: {reason}")
    server.fails = [status]
    handle = stage(writer, ["a", "b"], 1)
    with pytest.raises(ConnectorError, match=f"was answered {status}") as failed:
        writer.commit(permit(1), [handle])
    assert failed.value.is_permanent is is_permanent
    writer.commit(permit(1), [handle])
    writer.close()
    assert server.records() == ["a", "b"]


@contextmanager
def misbehaving(*pieces: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """Serve these pieces to each connection; give the URL."""
    is_over = threading.Event()

    def serve() -> None:
        with suppress(OSError):
            while True:
                with listening.accept()[0] as connection, suppress(OSError):
                    connection.recv(65_536)
                    for piece in pieces:
                        connection.sendall(piece)
                        if is_over.wait(pause_s):
                            return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            is_over.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_receiver_that_answers_for_ever_has_one_deadline(head: bytes) -> None:
    """P8: slow for ever: each byte comes well before a time-out of reads."""
    with misbehaving(head, *[b"x"] * 10_000, pause_s=0.05) as url:
        writer = open_writer(cc.http.sink(url, honours_keys=True, timeout="5s"), 1)
        with pytest.raises(ConnectorError, match="has no answer: TimeoutError"):
            writer.commit(permit(1), [stage(writer, ["a"], 1)])
        writer.close()


def test_of_an_answer_without_end_little_is_read() -> None:
    """P8: also of one that is small until it is unpacked."""
    bomb = gzip.compress(bytes(50_000_000))
    head = b"HTTP/1.1 500 No\r\nContent-Encoding: gzip\r\n\r\n"
    with misbehaving(head, *[bomb] * 1_000) as url:
        writer = open_writer(cc.http.sink(url, honours_keys=True), 1)
        with pytest.raises(ConnectorError, match="was answered 500") as failed:
            writer.commit(permit(1), [stage(writer, ["a"], 1)])
        assert len(str(failed.value)) < 2_000
        writer.close()


def test_a_stream_of_events_that_falls_silent_is_connected_to_anew(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C22, P8: and it says so; nothing is lost of a server that replays."""
    monkeypatch.setattr("crosscut.connectors.http.event_source.SILENCE_S", 5.0)
    with TcpProxy("127.0.0.1", server.server_port) as proxy:
        proxy.stall(slow=False)
        source = cc.http.events(f"http://{proxy.address}/events", replays=True)
        (split,) = source.splits(1)
        reader = source.reader(split, split.start)
        while "nothing has come for 5 s" not in caplog.text:
            assert isinstance(reader.read(1), cc.Wait)
        proxy.flow()
        found: list[Any] = []
        while batch := next_batch(reader, 100):
            found += batch
        assert len(found) == EVENTS
        reader.close()


def test_a_stream_of_events_that_is_refused_is_refused_for_good(server: Server) -> None:
    """C24."""
    with pytest.raises(ConnectorError, match="answers 401") as failed:
        read_source(cc.http.events(f"{server.url}/nobody", replays=True))
    assert failed.value.is_permanent


def test_a_stream_of_events_that_is_compressed_is_unpacked_in_pieces() -> None:
    """D36, P8: a bomb is an event that is too large, and a stream that is honest is read."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n"
    text = "".join(f"id: {i + 1}\ndata: {i}\n\n" for i in range(1_000)).encode()
    with misbehaving(head, gzip.compress(text)) as url:
        source = cc.http.events(url, replays=True)
        (split,) = source.splits(1)
        reader = source.reader(split, split.start)
        found: list[Any] = []
        while len(found) < 1_000:
            found += next_batch(reader, 100)
        reader.close()
    assert found == [str(i) for i in range(1_000)]
    bomb = gzip.compress(b"data: " + bytes(1_000_000_000 // 20))
    with misbehaving(head, bomb) as url, pytest.raises(ConnectorError, match="larger than 16777216 bytes"):
        read_source(cc.http.events(url, replays=True))
    with (
        misbehaving(head, b"no gzip") as url,
        pytest.raises(ConnectorError, match="declares Content-Encoding gzip"),
    ):
        read_source(cc.http.events(url, replays=True))


def test_a_job_that_goes_on_from_an_older_copy_is_not_mistaken_for_a_repeat(server: Server) -> None:
    sink = cc.http.sink(server.url, honours_keys=True)
    for epoch, record in ((1, "first"), (2, "second")):
        writer = open_writer(sink, epoch)
        writer.commit(permit(1, epoch), [stage(writer, [record], 1)])
        writer.close()
    assert server.records() == ["first", "second"]


def test_no_request_is_logged_with_the_secrets_in_its_url(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    # Who has set a level keeps it.
    assert logging.getLogger("httpx").level in (logging.NOTSET, logging.WARNING)
    url = server.url.replace("://", "://me:hunter2@")
    writer = open_writer(cc.http.sink(f"{url}?token=hunter3", honours_keys=True), 1)
    writer.commit(permit(1), [stage(writer, ["a"], 1)])
    writer.close()
    events = cc.http.events(f"{url}/events?token=hunter3", replays=True)
    with pytest.raises(ConnectorError, match="the server answers 401"):
        read_source(events)
    assert server.records() == ["a"]
    assert "hunter" not in caplog.text


def test_what_can_not_be_posted_is_named_without_secrets(server: Server) -> None:
    sink = cc.http.sink(server.url, honours_keys=False, headers={"X-Key": "hunter2"})
    writer = open_writer(sink, 1)
    with pytest.raises(ConnectorError, match="can't be JSON"):
        writer.write([{1, 2}])
    with pytest.raises(ConnectorError, match="is no transaction of posts to"):
        writer.commit(permit(1), [{"checkpoint": 1}])
    server.fails = [403]
    with pytest.raises(ConnectorError, match=r"answered 403: 'not now, \*\*\*'"):
        writer.commit(permit(1), [stage(writer, ["a"], 1)])
    writer.close()
    assert "hunter2" not in repr(sink) + sink.describe()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cc.http.events("localhost:80", replays=True), "expected one such as 'https://"),
        (lambda: cc.http.events("ftp://me:hunter2@x/", replays=True), r"url='ftp://\*\*\*@x/"),
        (lambda: cc.http.events("http://x/", replays=True, decode="xml"), "expected 'text', 'json'"),  # type: ignore[arg-type]
        (
            lambda: cc.http.events("http://x/", replays=True, headers={"a b": ""}),
            "'a b' is not a valid header name",
        ),
        (
            lambda: cc.http.events("http://x/", replays=True, headers={"a": "b\n"}),
            "value of 'a' is not a single line of text",
        ),
        (lambda: cc.http.sink("http://x/", honours_keys=True, batch_records=0), "an int of at least 1"),
        (
            lambda: cc.http.sink("http://x/", honours_keys=True, key_header=":"),
            "':' is not a valid header name",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        make()


# What readers may rely on.


def explained(source: Source, sink: cc.Sink, capsys: pytest.CaptureFixture[str]) -> str:
    flow = cc.Flow("web")
    flow.source(source).named("in").sink(sink).named("out")
    flow.explain()
    return capsys.readouterr().out


def test_explain_says_what_is_lost_with_an_input_that_can_not_be_read_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exact = cc.http.sink("http://x/", honours_keys=True)
    text = explained(cc.http.events("http://x/", replays=False), exact, capsys)
    assert "guarantee: records may be lost after a failure, because of in\n" in text
    assert "  in: can't be read again; what it gave since the last checkpoint is lost in a failure\n" in text
    text = explained(cc.http.events("http://x/", replays=True), exact, capsys)
    assert "guarantee: exactly once\n" in text and "  in: read again from its positions" in text
    again = cc.http.sink("http://x/", honours_keys=False)
    text = explained(cc.socket("localhost:1"), again, capsys)
    assert "guarantee: records may be lost, or come again, after a failure, because of in, out\n" in text


# Lines.


def test_lines_come_from_whoever_listens_until_he_hangs_up() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        source = cc.socket(f"127.0.0.1:{listening.getsockname()[1]}")
        (split,) = source.splits(2)
        reader = source.reader(split, split.start)
        reader.read(1)
        with listening.accept()[0] as connection:
            connection.sendall("one\r\ntwo ü\n\nlast".encode())
        found = []
        while batch := next_batch(reader, 10):
            found += batch
        assert found == ["one", "two ü", "", "last"]
        assert reader.position == 4
        reader.close()


def test_lines_that_wait_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand of the longest would take more memory than a worker has."""
    monkeypatch.setattr("crosscut.connectors.ahead.BUFFERED_BYTES_MAX", 1_000)
    line = "x" * 399
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        source = cc.socket(f"127.0.0.1:{listening.getsockname()[1]}")
        (split,) = source.splits(1)
        reader = source.reader(split, split.start)
        reader.read(1)
        with listening.accept()[0] as connection:
            connection.sendall(f"{line}\n".encode() * 50)
        found: list[str] = []
        while batch := next_batch(reader, 10):
            assert len(batch) <= 2
            found += batch
        assert found == [line] * 50
        reader.close()


def test_lines_of_an_address_where_nobody_listens_or_that_are_none_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("crosscut.connectors.simple.socket_lines.PATIENCE_S", 0.02)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert "no connection within" in failure_of(cc.socket(address))
        monkeypatch.setattr("crosscut.connectors.simple.socket_lines.LINE_BYTES_MAX", 100)
        free.listen()
        source = cc.socket(address)
        (split,) = source.splits(1)
        reader = source.reader(split, 0)
        reader.read(1)
        with free.accept()[0] as connection, suppress(ConnectionError):
            connection.sendall(b"x" * 10_000)
            with pytest.raises(ConnectorError, match="a line is longer than 100 bytes"):
                next_batch(reader, 1)
        reader.close()
    for wrong in ("localhost", "localhost:", ":80", "a:b", "a:70000", None):
        with pytest.raises(ConnectorError, match="expected 'host:port'"):
            cc.socket(wrong)  # type: ignore[arg-type]


def test_lines_of_the_standard_input_reach_a_reader_and_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    out, into = os.pipe()
    with os.fdopen(out) as typed, os.fdopen(into, "wb", buffering=0) as keyboard:
        monkeypatch.setattr("sys.stdin", typed)
        source = cc.stdin()
        (split,) = source.splits(2)
        reader = source.reader(split, split.start)
        keyboard.write(b"one\n")
        assert next_batch(reader, 10) == ["one"]
        reader.close()
        # It is seen to be gone by what it is sent, which is lost until then: nobody knows how much.
        successor = source.reader(split, reader.position)
        typed_lines: list[str] = []
        found: list[str] = []
        while not found:
            typed_lines.append(f"line {len(typed_lines)}")
            keyboard.write(typed_lines[-1].encode() + b"\n")
            match successor.read(10):
                case cc.Wait(delay_ms):
                    threading.Event().wait(delay_ms / 1_000)
                case list(some):
                    found += some
        for number in range(20):
            typed_lines.append(f"later line {number}")
            keyboard.write(typed_lines[-1].encode() + b"\n")
        keyboard.close()
        while batch := next_batch(successor, 10):
            found += batch
        successor.close()
    assert found == typed_lines[-len(found) :] and len(found) > 20
    assert source.describe() == "lines from the standard input"
