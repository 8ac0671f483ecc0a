"""`crosscut broker`: starts a broker, keeps its data if it is asked to, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jobs import children_of, is_gone, until

import crosscut as cc
from crosscut.testing.sinks import open_writer, stage
from crosscut.testing.sources import read_source

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("msgspec", reason="pip install 'crosscut[kafka]'")

READY_S = 300.0


class Command:
    """The command in a process of its own, and what it has printed."""

    def __init__(self, temporary: Path, arguments: Sequence[str]) -> None:
        temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "crosscut", "broker", *arguments],
            env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line.rstrip())

    @property
    def servers(self) -> str:
        """The address, once it is ready."""

        def said() -> list[str]:
            assert self.process.poll() is None or self.lines, "it has ended"
            return [line.split()[3].rstrip(";") for line in self.lines if line.startswith("Kafka is at")]

        until(said, "the broker to be ready", READY_S)
        return said()[0]

    def ended(self, number: signal.Signals) -> int:
        """Send a signal to it, and to nobody else; return its code."""
        family = children_of(self.process.pid)
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(READY_S)
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        until(lambda: all(map(is_gone, family)), "the broker to be gone", READY_S)
        return code


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Any]:
    started: list[Command] = []

    @contextmanager
    def command(*arguments: str) -> Iterator[Command]:
        started.append(Command(tmp_path / "temporary", arguments))
        yield started[-1]

    yield command
    for one in started:
        one.ended(signal.SIGTERM)
    assert list((tmp_path / "temporary").glob("crosscut-broker-*")) == []


def test_it_creates_topics_and_keeps_them_from_one_start_to_the_next(commands: Any, tmp_path: Path) -> None:
    directory = str(tmp_path / "kept")
    with commands("--topic", "orders:3", "--port", "0", "--dir", directory) as command:
        servers = command.servers
        assert "topic orders: 3 partitions" in command.lines
        writer = open_writer(cc.kafka.sink(servers, "orders", guarantee="at least once"), 1)
        stage(writer, [1, 2], 1)
        writer.close()
        cc.kafka.sink(servers, "orders").check()
        port = servers.rpartition(":")[2]
        with commands("--port", port) as second:
            assert second.process.wait(READY_S) == 2
            assert any(f"port {port} is in use" in line for line in second.lines)
        assert command.ended(signal.SIGINT) == 0
    with commands("--topic", "orders:3", "--topic", "new", "--port", "0", "--dir", directory) as command:
        servers = command.servers
        assert {"topic orders: there already", "topic new: 1 partition"} <= set(command.lines)
        source = cc.kafka.source(servers, "orders", decode="json", stop="latest")
        assert len(source.splits(1)) == 3
        assert sorted(read_source(source)) == [1, 2]
        assert command.ended(signal.SIGTERM) == 0


def test_it_says_so_if_the_broker_ends_and_can_be_interrupted_while_it_starts(commands: Any) -> None:
    with commands("--port", "0") as command:
        assert command.servers
        (broker,) = children_of(command.process.pid)
        os.kill(broker, signal.SIGKILL)
        assert command.process.wait(READY_S) == 2
        until(lambda: any("the Kafka broker has ended" in line for line in command.lines), "the reason")
    with commands("--port", "0") as command:
        until(lambda: "starting the broker" in command.lines, "the start", READY_S)
        assert command.ended(signal.SIGINT) in (0, 130)
