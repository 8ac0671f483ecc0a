"""What is kept in S3, over a network that cuts connections again and again, at any byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.proof.stores import checkpoint, claim, numbered, opened

import crosscut as cc
from crosscut.errors import StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, LogIndex, TaskId, VertexId
from crosscut.protocol.log.entries import LogEntry
from crosscut.protocol.log.writer import Appended, Taken, Unknown
from crosscut.protocol.snapshots import Part
from crosscut.store import CheckpointStore
from crosscut.store.files import Put
from crosscut.store.objects import ObjectFiles
from crosscut.testing.proxy import Storm, TcpProxy, Way
from crosscut.testing.s3 import S3Server
from crosscut.testing.sinks import SinkTarget, check_random_lives


@pytest.fixture
def storm(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    """A proxy in front of S3, which clients of this process go through."""
    fsspec = pytest.importorskip("s3fs", reason="pip install 'crosscut[s3]'").S3FileSystem
    server = urlsplit(s3.environment["AWS_ENDPOINT_URL"])
    assert server.hostname is not None and server.port is not None
    with TcpProxy(server.hostname, server.port) as proxy:
        # s3fs asks again by itself; that botocore does so too, after seconds, only takes time.
        for name, value in {
            **s3.environment,
            "AWS_ENDPOINT_URL": f"http://{proxy.address}",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            monkeypatch.setenv(name, value)
        # It keeps the file systems that it has made, with the address they had.
        fsspec.clear_instance_cache()
        yield proxy
        fsspec.clear_instance_cache()


def appended(store: CheckpointStore, index: LogIndex, entry: LogEntry) -> None:
    """Append as a driver does, which reads back what it does not know of."""
    while True:
        try:
            match store.append(index, entry):
                case Appended():
                    return
                case Taken() | Unknown():
                    found = store.read(index)
                    assert found in (None, entry)
                    if found == entry:
                        return
        except StoreError as error:
            assert not error.ids["damaged"], error


def test_entries_and_parts_are_there_once_and_whole_over_a_bad_network(s3: S3Server, storm: TcpProxy) -> None:
    """B4, I12: an answer that is lost is no answer, and what was asked for twice has happened once."""
    url = f"{s3.bucket()}/checkpoints"
    files = ObjectFiles(url)
    store = CheckpointStore(files, inline_bytes=0)
    storm.cut_when(Storm(3), again=True)
    entries: list[LogEntry] = [opened(1), claim(2), *(checkpoint(2, n) for n in range(1, 30))]
    parts: list[tuple[Part, bytes]] = []
    for index, entry in numbered(entries):
        appended(store, index, entry)
        content = [bytes([index.number]) * 700] * 3
        try:
            part = store.write_part(CheckpointId(index.number), TaskId(VertexId("v"), 0), Epoch(2), content)
        except StoreError as error:
            assert not error.ids["damaged"], error
        else:
            parts.append((part, b"".join(content)))
    assert storm.cuts > 10
    assert len(parts) > 10
    # To the server, as another driver finds it.
    storm.cut_when(lambda way, data, connection: None)
    store = CheckpointStore(ObjectFiles(url))
    assert [entry for _, entry in store.entries()] == entries
    for part, written in parts:
        assert store.read_part(part) == written


def test_a_lost_answer_does_not_make_a_store_unfit(s3: S3Server, storm: TcpProxy) -> None:
    """Of writers that want to create a file, the one that has done so may not hear of it, and asks again."""
    files = ObjectFiles(f"{s3.bucket()}/checkpoints")
    creating: list[int] = []

    def after_the_first(way: Way, data: bytes, connection: int) -> int | None:
        if way == "to server" and data.startswith(b"PUT") and b"/log/probe-" in data:
            creating.append(connection)
        return 0 if way == "to client" and connection in creating and b" 200 " in data[:20] else None

    storm.cut_when(after_the_first)
    assert files.put_if_absent("log/entry", b"content") is Put.CREATED
    assert storm.cuts == 1


def test_objects_conform_over_a_bad_network(s3: S3Server, storm: TcpProxy) -> None:
    """F1, F2, I1, I2, I3."""
    url, files = f"{s3.bucket()}/out", s3.files()

    def visible() -> list[Any]:
        lines = [files.cat_file(key) for key in sorted(files.glob(f"{url}/*.jsonl"))]
        return [json.loads(line) for data in lines for line in data.splitlines()]

    storm.cut_when(Storm(5), again=True)
    check_random_lives(SinkTarget(cc.files.write_jsonl(url), visible, lambda i: {"number": i}), steps=25)
    assert storm.cuts > 10
