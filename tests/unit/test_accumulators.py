"""Updates of Spark accumulators come from tasks, and are loaded in the driver."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import accumulators

from crosscut.spark.accumulators import load_updates_as_data

TOKEN = "t" * 16
ID = 987_654_321


class Runs:
    """Unpickled, it makes a directory."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """To PySpark's own server, as the JVM has it."""
    monkeypatch.setattr(accumulators, "pickleSer", accumulators.pickleSer)
    load_updates_as_data()
    server: Any = accumulators._start_update_server(TOKEN, False)
    try:
        with socket.create_connection(server.server_address, timeout=60) as connection:
            # The token comes with a first list of updates.
            connection.sendall(TOKEN.encode() + struct.pack("!i", 0))
            assert connection.recv(1) == b"\x01"
            yield connection
    finally:
        server.shutdown()


def sent(connection: socket.socket, update: object) -> bytes:
    data = pickle.dumps(update)
    connection.sendall(struct.pack("!ii", 1, len(data)) + data)
    return connection.recv(1)


def test_an_update_that_would_run_code_is_refused_by_name_and_the_next_one_counts(
    connection: socket.socket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted = accumulators.Accumulator(ID, 0, accumulators.INT_ACCUMULATOR_PARAM)
    try:
        marker = tmp_path / "marker"
        assert sent(connection, (ID, Runs(marker))) == b"\x01"
        assert not marker.exists()
        assert "accumulator was refused" in caplog.text
        assert "mkdir" in caplog.text
        assert sent(connection, (ID, 3)) == b"\x01"
        assert counted.value == 3
    finally:
        del accumulators._accumulatorRegistry[ID]
