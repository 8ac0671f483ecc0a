"""Messages that are waited for in a thread: none is late, lost, doubled or out of order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.kafka.reader import AWAITED_MS, IDLE_MS, PartitionReader, ReadOptions, SharedConsumer

ck = pytest.importorskip("confluent_kafka")

DEADLINE_S = 100.0
COUNT = 300


def message(partition: int, offset: int) -> Any:
    return ck.Message(topic="a", partition=partition, offset=offset, value=f"{partition}-{offset}".encode())


def reader_of(shared: SharedConsumer, partition: int, *, group: bool = False) -> PartitionReader:
    reading = ReadOptions("text", "fail", has_group=group)
    return PartitionReader(reading, shared, ("a", partition), 0, float("inf"))


class Client:
    """As the library's: `poll` waits for the next message, `consume` takes what there is.

    It tells whether two threads call it at the same time: then one waits for the other, and nobody knows the
    order of messages.
    """

    def __init__(self) -> None:
        self.coming: SimpleQueue[Any] = SimpleQueue()
        self.is_closed = False
        self.taken_by_two = False
        self.calls: list[tuple[str, int, int]] = []
        self.end = 7
        self._taking = threading.Lock()

    def incremental_assign(self, partitions: list[Any]) -> None:
        self._called("assign", partitions)

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self._called("unassign", partitions)

    def commit(self, offsets: list[Any], *, asynchronous: bool) -> None:
        self._called("commit", offsets)

    def _called(self, what: str, partitions: list[Any]) -> None:
        with self._taken():
            self.calls += [(what, one.partition, one.offset) for one in partitions]

    def get_watermark_offsets(self, partition: Any, *, cached: bool) -> tuple[int, int]:
        with self._taken():
            return 0, self.end

    @contextmanager
    def _taken(self) -> Iterator[None]:
        assert not self.is_closed
        is_alone = self._taking.acquire(blocking=False)
        self.taken_by_two |= not is_alone
        try:
            yield
        finally:
            if is_alone:
                self._taking.release()

    def poll(self, timeout: float) -> Any:
        with self._taken():
            try:
                found = self.coming.get(timeout=timeout)
            except Empty:
                return None
        if isinstance(found, BaseException):
            raise found
        return found

    def consume(self, count: int, timeout: float) -> list[Any]:
        found: list[Any] = []
        with self._taken():
            while len(found) < count and not self.coming.empty():
                found.append(self.coming.get())
        return found

    def close(self) -> None:
        # A thread that still waits there would use a client that is gone.
        self.is_closed = self._taking.acquire(blocking=False)


class Asking:
    """Reads as a task does: until there is nothing, and again when it is woken up."""

    def __init__(self, client: Client, *partitions: int, group: bool = False) -> None:
        self.shared = SharedConsumer(client, "servers")
        self.woken = threading.Event()
        self.idle = threading.Semaphore(0)
        self.readers = [reader_of(self.shared, one, group=group) for one in partitions]
        for one in self.readers:
            one.wake_by(self.woken.set)

    def until(self, is_enough: Callable[[list[list[str]]], bool]) -> list[list[str]]:
        seen: list[list[str]] = [[] for _ in self.readers]
        while not is_enough(seen):
            self.woken.clear()
            has_waited = True
            for reader, found in zip(self.readers, seen, strict=True):
                some = reader.read(100)
                if isinstance(some, list):
                    found += some
                    has_waited = False
                else:
                    assert isinstance(some, cc.Wait)
            if has_waited and not is_enough(seen):
                self.idle.release()
                assert self.woken.wait(DEADLINE_S), f"nobody was woken up after {seen}"
        return seen

    def close(self) -> None:
        for one in self.readers:
            one.close()


def test_messages_that_come_one_by_one_are_each_read_once_in_order_by_whoever_is_woken_up() -> None:
    client = Client()
    asking = Asking(client, 0, 1)

    def come() -> None:
        for offset in range(COUNT):
            if offset % 3 == 0:
                assert asking.idle.acquire(timeout=DEADLINE_S)
            client.coming.put(message(offset % 2, offset // 2))

    coming = threading.Thread(target=come)
    coming.start()
    seen = asking.until(lambda found: sum(map(len, found)) == COUNT)
    coming.join()
    assert seen == [[f"{partition}-{offset}" for offset in range(COUNT // 2)] for partition in (0, 1)]
    assert not client.taken_by_two
    asking.close()
    assert client.is_closed


def test_a_client_is_closed_only_after_the_thread_that_waits_for_its_messages() -> None:
    client = Client()
    asking = Asking(client, 0)
    assert asking.readers[0].read(1) == cc.Wait(AWAITED_MS), "nobody needs to look every few milliseconds"
    asking.close()
    assert client.is_closed
    assert "crosscut-kafka-next" not in [one.name for one in threading.enumerate()]


def test_what_a_task_wants_of_the_client_meanwhile_the_thread_does() -> None:
    client = Client()
    asking = Asking(client, 0, group=True)
    reader = asking.readers[0]
    assert reader.lag == 7
    assert isinstance(reader.read(1), cc.Wait)
    client.end = 8
    client.calls.clear()
    reader.acknowledge(5)
    other = reader_of(asking.shared, 1)
    other.close()
    assert reader.lag == 7, "as far as was known before; it is not asked for now"
    deadline_s = time.monotonic() + DEADLINE_S
    expected = [("commit", 0, 5), ("assign", 1, 0), ("unassign", 1, -1001)]
    while client.calls != expected:
        assert time.monotonic() < deadline_s, client.calls
    reader.acknowledge(6)
    asking.close()
    assert client.calls == [*expected, ("commit", 0, 6)], "also what is asked for last"
    assert not client.taken_by_two


def test_a_reader_that_nobody_has_waited_with_is_closed_as_well() -> None:
    client = Client()
    Asking(client, 0).close()
    assert client.is_closed


def test_what_goes_wrong_in_the_thread_is_raised_where_the_messages_are_read() -> None:
    client = Client()
    asking = Asking(client, 0)
    assert isinstance(asking.readers[0].read(1), cc.Wait)
    client.coming.put(ck.KafkaException("out of its mind"))
    assert asking.woken.wait(DEADLINE_S)
    with pytest.raises(ck.KafkaException, match="out of its mind"):
        asking.readers[0].read(1)
    asking.close()


def test_a_partition_that_has_nothing_is_asked_again_soon_when_others_had_something() -> None:
    """No thread waits then, and the others may be held back: nobody would wake the task up."""
    client = Client()
    asking = Asking(client, 0, 1)
    client.coming.put(message(1, 0))
    assert asking.readers[0].read(1) == cc.Wait(IDLE_MS)
    assert asking.readers[1].read(1) == ["1-0"]
    asking.close()


def test_where_nobody_can_be_woken_up_no_thread_waits() -> None:
    client = Client()
    shared = SharedConsumer(client, "servers")
    reader = reader_of(shared, 0)
    assert reader.read(1) == cc.Wait(IDLE_MS)
    assert "crosscut-kafka-next" not in [one.name for one in threading.enumerate()]
    reader.close()
