"""NATS JetStream against a real server: streams are read from any place, and written once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.connectors import Source, Split
from crosscut.errors import ConnectorError, HistoryError
from crosscut.microbatch.bounded_splits import BoundedSplits
from crosscut.testing.proxy import TcpProxy
from crosscut.testing.sink_stalls import check_a_system_that_never_answers_is_an_error
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage
from crosscut.testing.sources import SOURCE_CHECKS, next_batch, read_source

pytest.importorskip("nats", reason="pip install 'crosscut[nats]'")

from crosscut.testing.nats import NatsServer

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as one:
        yield one


@pytest.fixture
def stream(server: NatsServer) -> str:
    """A stream S with the subjects s.> and those of markers."""
    return made(server, f"S{next(_numbers)}")


def made(server: NatsServer, name: str, **settings: Any) -> str:
    subjects = [f"{name.lower()}.>", f"crosscut.{name}.>"]
    settings = {"name": name, "subjects": subjects, "allow_atomic": True, **settings}
    server.call(lambda stream: stream.add_stream(**settings))
    return name


def publish(server: NatsServer, messages: list[tuple[str, str]]) -> None:
    async def published(stream: Any) -> None:
        for subject, text in messages:
            await stream.publish(subject, text.encode())

    server.call(published)


def texts(server: NatsServer, stream: str) -> list[str]:
    """Return what a reader of the subjects sees; of an empty stream nothing can be read."""
    source = cc.nats.source(
        server.url, stream, subjects=[f"{stream.lower()}.>"], stop="latest", decode="text"
    )
    return read_source(source)


# Reading.


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subjects", [(), ("{}.a", "{}.b.>")])
def test_a_stream_conforms(
    check: Callable[[Source], None], subjects: tuple[str, ...], server: NatsServer, stream: str
) -> None:
    name = stream.lower()
    publish(server, [(f"{name}.a" if i % 3 else f"{name}.b.{i % 2}", f"text {i}") for i in range(150)])
    publish(server, [(f"{name}.c", "of nobody")] * 5)
    chosen = [one.format(name) for one in subjects]
    check(cc.nats.source(server.url, stream, subjects=chosen, stop="latest", decode="text"))


def test_a_message_has_its_subject_its_place_and_its_time(server: NatsServer, stream: str) -> None:
    subject = f"{stream.lower()}.a"
    publish(server, [(subject, '{"a": 1}')])
    (found,) = read_source(cc.nats.source(server.url, stream, stop="latest", decode="message"))
    assert (found.subject, found.data, found.sequence) == (subject, b'{"a": 1}', 1)
    assert found.time > 1_700_000_000_000
    assert read_source(cc.nats.source(server.url, stream, stop="latest", decode="json")) == [{"a": 1}]
    latest = cc.nats.source(server.url, stream, start="latest", decode="text")
    (split,) = latest.splits(1)
    reader = latest.reader(split, split.start)
    publish(server, [(subject, "new")])
    assert next_batch(reader, 10) == ["new"]
    reader.close()


@pytest.mark.parametrize("subjects", [(), ("{}.a",)])
def test_a_reader_says_how_many_messages_wait(
    server: NatsServer, stream: str, subjects: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that the server still has: a batch ends only where nothing waits."""
    monkeypatch.setattr("crosscut.connectors.ahead.BUFFERED_MAX", 5)
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "_BATCH", 5)
    publish(server, [(f"{stream.lower()}.a", str(i)) for i in range(60)])
    named = [one.format(stream.lower()) for one in subjects]
    source = cc.nats.source(server.url, stream, subjects=named, decode="text")
    (split,) = source.splits(1)
    reader = source.reader(split, split.start)
    assert reader.lag is None
    found = 0
    while found < 60:
        found += len(next_batch(reader, 7))
        lag = reader.lag
        # One may be counted where it comes from and where it goes to.
        assert lag is not None and 60 - found <= lag <= 61 - found
    assert next_until(lambda: reader.lag == 0)
    reader.close()


def test_a_reader_of_a_stream_without_messages_says_that_none_waits(server: NatsServer, stream: str) -> None:
    source = cc.nats.source(server.url, stream)
    (split,) = source.splits(1)
    reader = source.reader(split, split.start)
    assert isinstance(reader.read(9), cc.Wait)
    assert next_until(lambda: reader.lag == 0)
    reader.close()


def next_until(condition: Callable[[], bool]) -> bool:
    """Wait until the thread of a reader has come so far."""
    deadline_s = time.monotonic() + 100
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return condition()


def failure_of(source: Source, split: Split, position: Any) -> str:
    reader = source.reader(split, position)
    try:
        with pytest.raises(ConnectorError) as failed:
            while next_batch(reader, 9):
                pass
        return f"{'for good: ' * failed.value.is_permanent}{failed.value}"
    finally:
        reader.close()


def test_messages_that_are_gone_are_named_with_the_range_that_is_lost(server: NatsServer) -> None:
    """F3: by a limit of the stream, at the start, and while it is read."""
    name = made(server, f"S{next(_numbers)}", max_msgs=10)
    publish(server, [(f"{name.lower()}.a", str(i)) for i in range(30)])
    source = cc.nats.source(server.url, name)
    (split,) = source.splits(1)
    assert split.start == 21
    gone = failure_of(source, split, 5)
    assert (
        gone.startswith("for good")
        and "messages 5 to 20 were removed by a limit of the stream or a purge before they were read" in gone
    )
    assert "ends at message 30, before 90, which this job has read up to" in failure_of(source, split, 90)
    reader = source.reader(split, split.start)
    assert next_batch(reader, 100)
    # Deleted one by one they are not lost by a limit; somebody wanted it.
    server.call(lambda stream: stream.delete_msg(name, 25))
    assert read_source(replace(source, stop="latest"))[4] == b"25"  # type: ignore[type-var]
    reader.close()


@pytest.mark.parametrize("subjects", [(), ("{}.a",)])
def test_messages_that_are_purged_while_nobody_takes_them_are_named_too(
    server: NatsServer, stream: str, subjects: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3: the server says then that nothing is left to be read, as it does at the end."""
    monkeypatch.setattr("crosscut.connectors.ahead.BUFFERED_MAX", 5)
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "_BATCH", 5)
    publish(server, [(f"{stream.lower()}.a", str(i)) for i in range(60)])
    named = [one.format(stream.lower()) for one in subjects]
    source = cc.nats.source(server.url, stream, subjects=named, decode="text", stop="latest")
    (split,) = source.splits(1)
    reader = source.reader(split, split.start)
    assert next_batch(reader, 1) == ["0"]
    server.call(lambda api: api.purge_stream(stream))
    with pytest.raises(ConnectorError, match=r"messages \d+ to 60.* were removed by a limit of the stream"):
        while next_batch(reader, 100):
            pass
    reader.close()


def test_a_server_that_crashes_and_comes_back_is_read_on(stream: str) -> None:
    with NatsServer() as own:
        made(own, "OWN")
        publish(own, [("own.a", str(i)) for i in range(3)])
        source = cc.nats.source(own.url, "OWN", decode="text")
        (split,) = source.splits(1)
        reader = source.reader(split, split.start)
        found = next_batch(reader, 100)
        own.kill()
        own.start()
        publish(own, [("own.a", str(i)) for i in range(3, 6)])
        while len(found) < 6:
            found += next_batch(reader, 100)
        assert found == [str(i) for i in range(6)]
        reader.close()


def test_a_batch_does_not_end_where_the_server_is_gone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `trigger="available_now"` the job would stop, and take what it has read for all there is."""
    monkeypatch.setattr("crosscut.connectors.ahead.BUFFERED_MAX", 5)
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "_BATCH", 5)
    with NatsServer() as own:
        made(own, "OWN")
        publish(own, [("own.a", str(i)) for i in range(60)])
        source = cc.nats.source(own.url, "OWN", decode="text")
        (split,) = source.splits(1)
        splits = BoundedSplits(source, [(split, split.start)], "own", 1_000)
        found: list[str] = []

        def waits() -> bool:
            records = splits.read(7)
            if isinstance(records, list):
                found.extend(records)
            return not isinstance(records, list)

        assert next_until(lambda: not waits() or len(found) > 0)
        own.kill()
        # Until the reader knows of it, and all that it had is taken.
        assert next_until(lambda: waits() and splits.lag is None)
        assert len(found) < 60 and not splits.is_enough
        own.start()
        assert next_until(lambda: waits() and splits.is_enough)
        assert found == [str(i) for i in range(60)]
        splits.close()


def test_what_can_not_be_read_is_refused_by_name(server: NatsServer, stream: str) -> None:
    """S12."""
    with pytest.raises(ConnectorError, match="NATS stream NOWHERE does not exist"):
        cc.nats.source(server.url, "NOWHERE").splits(1)
    queue = made(server, f"S{next(_numbers)}", retention="workqueue")
    with pytest.raises(ConnectorError, match=r"keeps messages only until .* \(retention 'workqueue'\)"):
        cc.nats.source(server.url, queue).splits(1)
    publish(server, [(f"{stream.lower()}.a", "{")])
    source = cc.nats.source(server.url, stream, decode="json")
    (split,) = source.splits(1)
    refused = failure_of(source, split, 1)
    assert refused.startswith("for good") and "message 1 of subject" in refused
    wrong = cc.nats.source(server.url.replace(server.password, "hunter2"), stream)
    with pytest.raises(ConnectorError) as failed:
        wrong.splits(1)
    assert "hunter2" not in f"{failed.value}{failed.value.__cause__}{wrong!r}{wrong.describe()}"
    assert server.password not in repr(source) + source.describe()


# Writing.


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_the_sink_conforms(check: Callable[[SinkTarget], None], server: NatsServer, stream: str) -> None:
    """F1, F2, F4, F6, F8, C1, I1, I2, I3, N1."""
    sink = cc.nats.sink(server.url, stream, f"{stream.lower()}.out", encode="text")
    sink.check()
    target = SinkTarget(
        sink,
        lambda: texts(server, stream),
        backup=server.backup,
        # Too large for the server.
        refused=lambda i: "x" * (2**20 + i),
        shown=lambda message: message["data"].decode(),
    )
    check(target)


def stalls(proxy: TcpProxy) -> list[Callable[[], Callable[[], None]]]:
    def stall(*, slow: bool) -> Callable[[], None]:
        proxy.stall(slow=slow)
        return proxy.flow

    return [partial(stall, slow=False), partial(stall, slow=True)]


def test_a_server_that_never_answers_is_an_error(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8."""
    monkeypatch.setattr("crosscut.connectors.nats.writer.CALL_TIMEOUT_S", 4.0)
    with TcpProxy("127.0.0.1", server.port) as proxy:
        url = server.url.replace(f":{server.port}", f":{proxy.port}")
        sink = cc.nats.sink(url, stream, f"{stream.lower()}.out", encode="text")
        check_a_system_that_never_answers_is_an_error(
            SinkTarget(sink, lambda: texts(server, stream), stalls=stalls(proxy))
        )


def test_a_reader_whose_server_falls_silent_says_so_and_does_not_know_its_lag(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C22, P8."""
    publish(server, [(f"{stream.lower()}.a", str(i)) for i in range(10)])
    with TcpProxy("127.0.0.1", server.port) as proxy:
        url = server.url.replace(f":{server.port}", f":{proxy.port}")
        source = cc.nats.source(url, stream, decode="text")
        (split,) = source.splits(1)
        reader = source.reader(split, split.start)
        assert next_batch(reader, 20) == [str(i) for i in range(10)]
        assert next_until(lambda: reader.lag == 0)
        proxy.stall(slow=False)
        monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "PATIENCE_S", 1.0)
        with pytest.raises(ConnectorError, match="nothing could be read for"):
            while True:
                next_batch(reader, 1)
        assert reader.lag is None
        reader.close()


class Clock:
    """The time module for a reader, which can be put on."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "time", one)
    return one


def test_an_old_answer_says_nothing_about_the_lag(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """C22: a reader that has no room asks nobody, and the stream grows."""
    monkeypatch.setattr("crosscut.connectors.ahead.BUFFERED_MAX", 5)
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "LAG_S", 1_000.0)
    publish(server, [(f"{stream.lower()}.a", str(i)) for i in range(20)])
    source = cc.nats.source(server.url, stream, decode="text")
    (split,) = source.splits(1)
    reader: Any = source.reader(split, split.start)
    assert next_batch(reader, 1) == ["0"]
    assert next_until(lambda: reader.buffered_count == 5 and reader.lag is not None)
    clock.ahead_s = 2_000.0
    assert reader.lag is None
    reader.close()


def test_the_time_that_the_job_takes_is_no_silence_of_the_server(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """C22: after hours without room, a server that is gone for a moment is tried again as ever."""
    monkeypatch.setattr("crosscut.connectors.ahead.BUFFERED_MAX", 5)
    # Batches that are full do not end by time, so the reader is within one when the server goes.
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "_BATCH", 10)
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "_FETCH_S", 30.0)
    with NatsServer() as own:
        made(own, "OWN")
        publish(own, [("own.a", str(i)) for i in range(60)])
        source = cc.nats.source(own.url, "OWN", decode="text")
        (split,) = source.splits(1)
        reader: Any = source.reader(split, split.start)
        found = next_batch(reader, 1)
        assert next_until(lambda: reader.buffered_count == 5)
        own.kill()
        clock.ahead_s = 10_000.0
        own.start()
        publish(own, [("own.a", str(i)) for i in range(60, 70)])
        while len(found) < 70:
            found += next_batch(reader, 100)
        assert found == [str(i) for i in range(70)]
        reader.close()


@pytest.mark.parametrize("dropped", [{"3", "4"}, {"8", "9"}], ids=["some", "the last ones"])
def test_messages_that_the_library_drops_are_fetched_again(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch, dropped: set[str]
) -> None:
    """C22, C26: it does so where its buffer is full, and tells nobody; nothing need come after them."""
    client = pytest.importorskip("nats.aio.client").Client
    taken = client._process_msg
    left = set(dropped)

    async def dropping(
        self: Any, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        if data.decode() in left:
            left.remove(data.decode())
        else:
            await taken(self, sid, subject, reply, data, headers)

    publish(server, [(f"{stream.lower()}.a", str(i)) for i in range(10)])
    monkeypatch.setattr(client, "_process_msg", dropping)
    source = cc.nats.source(server.url, stream, decode="text")
    (split,) = source.splits(1)
    reader = source.reader(split, split.start)
    found: list[str] = []
    while len(found) < 10:
        found += next_batch(reader, 10)
    assert found == [str(i) for i in range(10)] and not left
    reader.close()


def test_small_messages_after_large_ones_are_fetched_together_again(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C26."""
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "_BATCH", 16)
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "_BATCH_BYTES", 100_000)
    texts_sent = ["large" * 10_000] * 20 + [str(i) for i in range(100)]
    publish(server, [(f"{stream.lower()}.a", text) for text in texts_sent])
    source = cc.nats.source(server.url, stream, decode="text")
    (split,) = source.splits(1)
    reader: Any = source.reader(split, split.start)
    found: list[str] = []
    sizes = set()
    while len(found) < len(texts_sent):
        found += next_batch(reader, 1)
        sizes.add(reader._batch)
    assert found == texts_sent
    assert next_until(lambda: reader._batch == 16)
    assert min(sizes) < 16
    reader.close()


def test_large_messages_are_fetched_a_few_at_a_time(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C26: what waits is bounded in bytes, by the library too, and nothing is lost by that."""
    monkeypatch.setattr("crosscut.connectors.ahead.BUFFERED_BYTES_MAX", 300_000)
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "_BATCH_BYTES", 500_000)
    monkeypatch.setattr(sys.modules["crosscut.connectors.nats.source"], "_WAITING_BYTES", 1_000_000)
    texts_sent = [f"{i} " * 40_000 for i in range(60)]
    publish(server, [(f"{stream.lower()}.a", text) for text in texts_sent])
    source = cc.nats.source(server.url, stream, stop="latest", decode="text")
    assert read_source(source) == texts_sent


def test_wrong_credentials_are_no_reason_to_wait_a_minute(server: NatsServer, stream: str) -> None:
    """C24."""
    url = server.url.replace(server.password, "wrong")
    source = cc.nats.source(url, stream, decode="text")
    reader = source.reader(Split("messages", 1, {"subject": ">", "stop": None}), 1)
    with pytest.raises(ConnectorError) as failed:
        while True:
            next_batch(reader, 1)
    assert failed.value.is_permanent and "wrong" not in str(failed.value)
    reader.close()
    with pytest.raises(ConnectorError) as failed:
        open_writer(cc.nats.sink(url, stream, f"{stream.lower()}.out"), 1)
    assert failed.value.is_permanent


def test_a_checkpoint_of_many_batches_is_gone_on_with_where_it_stopped(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: the process dies between two batches, or does not hear that one was stored."""
    monkeypatch.setattr("crosscut.connectors.nats.writer.BATCH_MESSAGES", 10)
    sink = cc.nats.sink(server.url, stream, lambda n: f"{stream.lower()}.{n % 2}", encode="json")
    writer = open_writer(sink, 1)
    handle = stage(writer, list(range(95)), 1)
    calls = count()
    asked = writer._published  # type: ignore[attr-defined]

    async def dying(*arguments: Any) -> bool:
        done = await asked(*arguments)
        if next(calls) in (3, 6):
            raise TimeoutError("the answer is lost")
        return bool(done)

    monkeypatch.setattr(writer, "_published", dying)
    with pytest.raises(ConnectorError, match="the answer is lost"):
        writer.commit(permit(1), [handle])
    assert texts(server, stream) == [str(n) for n in range(40)]
    assert [one.checkpoint_id for one in sink.committed()] == [1]
    with pytest.raises(ConnectorError, match="the answer is lost"):
        writer.commit(permit(1), [handle])
    writer.close()
    with pytest.raises(HistoryError, match="would be written a second time"):
        open_writer(sink, 2)
    open_writer(sink, 2, restore=1, handles=[handle]).close()
    assert texts(server, stream) == [str(n) for n in range(95)]


def test_a_stream_of_another_kind_is_refused_before_the_job_starts(server: NatsServer, stream: str) -> None:
    name = stream.lower()
    with pytest.raises(ConnectorError, match="the stream does not exist"):
        cc.nats.sink(server.url, "NOWHERE", "a").check()
    plain = made(server, f"S{next(_numbers)}", allow_atomic=False)
    with pytest.raises(ConnectorError, match="accepts no atomic batches"):
        cc.nats.sink(server.url, plain, f"{plain.lower()}.a").check()
    with pytest.raises(ConnectorError, match="does not take 'elsewhere'"):
        cc.nats.sink(server.url, stream, "elsewhere").check()
    with pytest.raises(ConnectorError, match=r"add 'mine.>' for the markers"):
        cc.nats.sink(server.url, stream, f"{name}.a", markers="mine").check()


def test_records_that_do_not_fit_and_markers_that_are_gone_are_named(server: NatsServer, stream: str) -> None:
    sink = cc.nats.sink(server.url, stream, f"{stream.lower()}.a")
    writer = open_writer(sink, 1)
    with pytest.raises(ConnectorError, match="can't be encoded by encode='json'"):
        writer.write([{1}])
    with pytest.raises(ConnectorError, match="and the server takes at most"):
        writer.write(["x" * 2_000_000])
    handle = stage(writer, ["a"], 1)
    server.call(lambda one: one.purge_stream(stream))
    writer.close()
    with pytest.raises(ConnectorError, match="is missing; nothing was published"):
        open_writer(sink, 2, restore=1, handles=[handle])
    assert texts(server, stream) == []


def test_markers_are_not_among_the_messages_and_say_who_has_written(server: NatsServer, stream: str) -> None:
    sink = cc.nats.sink(server.url, stream, f"{stream.lower()}.a")
    writer = open_writer(sink, 1, driver="me")
    writer.commit(permit(1), [stage(writer, [{"a": 1}], 1)])
    writer.close()
    assert list(map(json.loads, texts(server, stream))) == [{"a": 1}]
    assert [(one.epoch, one.driver, one.checkpoint_id) for one in sink.committed()] == [(1, "me", 1)]
    assert list(cc.nats.sink(server.url, stream, f"{stream.lower()}.b").committed()) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cc.nats.source("", "S"), "servers: expected 'nats://host:4222'"),
        (lambda: cc.nats.source("nats://x", ""), "expected the name of a stream"),
        (lambda: cc.nats.source("nats://x", "S", subjects=["a", "a"]), "expected different subjects"),
        (lambda: cc.nats.source("nats://x", "S", start="now"), "expected 'earliest' or 'latest'"),  # type: ignore[arg-type]
        (lambda: cc.nats.source("nats://x", "S", decode="xml"), "expected 'bytes', 'text', 'json'"),  # type: ignore[arg-type]
        (lambda: cc.nats.source("nats://x", "S", options={"servers": "y"}), "set servers: leave them out"),
        (lambda: cc.nats.sink("nats://x", "S", "a.>"), "expected one such as 'counts.words'"),
        (lambda: cc.nats.sink("nats://x", "S T", "a"), "without blanks and wildcards"),
        (lambda: cc.nats.sink("nats://x", "S", "a", encode=7), "encode=7: expected"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        make()
