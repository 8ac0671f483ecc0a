"""Data sources that others have published, as sources: they know nothing of Crosscut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import crosscut as cc
from crosscut.contracts.connectors import EndOfSplit, Wait

ITEMS = StructType([StructField("id", LongType()), StructField("name", StringType())])


def taken(reader: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        some = reader.read(count - len(found))
        if isinstance(some, EndOfSplit):
            break
        found += some if isinstance(some, list) else []
    return found


class Service:
    """Items over HTTP: all, or those with a greater id."""

    def __init__(self) -> None:
        self.items = [{"id": i, "name": f"item {i}"} for i in range(1, 6)]
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                since = int(parse_qs(urlsplit(self.path).query).get("since", ["0"])[0])
                data = json.dumps([one for one in service.items if one["id"] > since]).encode()  # type: ignore[operator]
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/items"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


def test_a_service_is_read_page_by_page_and_ends(service: Service) -> None:
    rest = pytest.importorskip("spark_rest_api_reader")
    source = cc.spark.source(rest.RestApiDataSource, {"url": service.url}, ITEMS, read="batch")
    rows = [row for split in source.splits(2) for row in taken(source.reader(split, split.start), 99)]
    assert [(row.id, row.name) for row in rows] == [(i, f"item {i}") for i in range(1, 6)]


def test_a_service_is_followed_by_its_cursor(service: Service) -> None:
    rest = pytest.importorskip("spark_rest_api_reader")
    options = {
        "url": service.url,
        "stream_cursor_field": "id",
        "stream_cursor_param": "since",
        "stream_initial_value": "0",
    }
    source = cc.spark.source(rest.RestApiDataSource, options, ITEMS)
    (split,) = source.splits(2)
    reader = source.reader(split, split.start)
    assert [row.id for row in taken(reader, 5)] == [1, 2, 3, 4, 5]
    while not isinstance(reader.read(9), Wait) or reader.position["end"] is not None:
        pass
    # Another process goes on where this one stands.
    again = source.reader(split, json.loads(json.dumps(reader.position)))
    reader.close()
    service.items.append({"id": 6, "name": "item 6"})
    assert [row.id for row in taken(again, 1)] == [6]
    again.close()


def test_xml_is_read_in_arrow_batches(tmp_path: Path) -> None:
    xml = pytest.importorskip("superxml.datasource")
    for number in range(2):
        items = "".join(f"<item><id>{number * 10 + i}</id><name>x{i}</name></item>" for i in range(3))
        (tmp_path / f"{number}.xml").write_text(f"<items>{items}</items>")
    columns = [
        {"name": "id", "kind": "text", "path": ["id"], "type": "int64"},
        {"name": "name", "kind": "text", "path": ["name"], "type": "utf8"},
    ]
    options = {"path": str(tmp_path), "rowTag": "item", "columns": json.dumps(columns)}
    source = cc.spark.source(xml.SuperXmlSource, options, ITEMS, records="dicts")
    rows = [row for split in source.splits(2) for row in taken(source.reader(split, split.start), 99)]
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 10, 11, 12]
    assert {row["name"] for row in rows} == {"x0", "x1", "x2"}
