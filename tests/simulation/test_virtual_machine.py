"""What a virtual process stands on: asyncio's contract, the network's, and what a kill and a stop do.

Programs that make sense on a real loop run on both, and have to see the same.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import events
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from crosscut.testing.simulator.clock import Action, Clock
from crosscut.testing.simulator.loop import Killed, run_in
from crosscut.testing.simulator.network import Network
from crosscut.testing.simulator.processes import Process

Seen = list[Any]
Program = Callable[[str, Seen], Coroutine[Any, Any, None]]
LOOPBACK = "127.0.0.1"
DEADLINE_US = 60_000_000


class Lab:
    """Processes and nothing else; chance is a seed's."""

    def __init__(self, seed: int = 0, *, whole: float = 0.5) -> None:
        self.clock = Clock()
        self.running: Process | None = None
        self.network = Network(self.clock, self)
        self.reports: list[tuple[str, BaseException | None]] = []
        self.ends: list[tuple[str, BaseException | None]] = []
        self._dice = random.Random(seed)
        self._whole = whole

    def coin(self) -> bool:
        return self._dice.random() < 0.5

    def latency_us(self) -> int:
        return 10 + self._dice.randrange(1_000)

    def cut(self, size: int) -> int:
        return size if size == 1 or self._dice.random() < self._whole else 1 + self._dice.randrange(size - 1)

    def now(self) -> datetime:
        return datetime(2020, 1, 1, tzinfo=UTC)

    def turn_us(self, process: Process) -> int:
        return 1 + self._dice.randrange(50)

    def call(self, process: Process, work: Action, name: str) -> None:
        def begin() -> None:
            with process:
                work()

        self.clock.after(self._dice.randrange(1_000), begin)

    def reported(self, process: Process, message: str, error: BaseException | None) -> None:
        self.reports.append((message, error))

    def exited(self, process: Process, error: BaseException | None) -> None:
        self.ends.append((process.name, error))

    def gone(self, process: Process) -> None:
        process.is_paused = False

    def process(self, name: str, main: Callable[[Process], Coroutine[Any, Any, None]]) -> Process:
        process = Process(self, name, name)
        process.run(lambda: main(process))
        return process

    def until(self, condition: Callable[[], bool] = lambda: False) -> None:
        while not condition() and self.clock.now_us < DEADLINE_US and self.clock.tick():
            pass


# Programs for both loops.


async def calls_come_in_the_order_of_their_making(_: str, seen: Seen) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, seen.append, "later")
    loop.call_later(0.01, seen.append, "sooner")
    loop.call_later(0.015, seen.append, "never").cancel()
    loop.call_soon(seen.append, 1)
    loop.call_soon(loop.call_soon, seen.append, 3)
    loop.call_soon(seen.append, 2)
    loop.call_soon(seen.append, "never").cancel()
    await asyncio.sleep(0.05)


async def tasks_take_turns(_: str, seen: Seen) -> None:
    async def count(name: str) -> str:
        for number in range(3):
            seen.append((name, number))
            await asyncio.sleep(0)
        return name

    seen.append(await asyncio.gather(count("a"), count("b")))


async def a_timeout_cancels_what_it_waits_for(_: str, seen: Seen) -> None:
    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wait()
    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    seen.append([type(one) for one in await asyncio.gather(task, return_exceptions=True)])


async def a_lock_is_handed_on_in_order(_: str, seen: Seen) -> None:
    lock, event = asyncio.Lock(), asyncio.Event()

    async def take(name: str) -> None:
        async with lock:
            seen.append(name)
            await event.wait()

    tasks = [asyncio.ensure_future(take(name)) for name in "abc"]
    await asyncio.sleep(0)
    event.set()
    await asyncio.wait(tasks)


async def a_call_in_a_thread_returns_or_raises(_: str, seen: Seen) -> None:
    loop = asyncio.get_running_loop()
    seen.append(await loop.run_in_executor(None, pow, 2, 5))
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(None, divmod, 1, 0)


class Witness(asyncio.Protocol):
    """Writes down what happens to one end of a connection."""

    def __init__(self, name: str, seen: Seen, answer: Callable[[asyncio.Transport, bytes], None]) -> None:
        self.name = name
        self.seen = seen
        self.answer = answer
        self.data = b""
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.seen.append((self.name, "made", transport.is_closing()))

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.answer(self.transport, self.data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.append((self.name, "lost", type(exc), self.data))
        self.over.set_result(None)


def silent(transport: asyncio.Transport, data: bytes) -> None:
    """Answer nothing."""


async def connected(
    host: str, seen: Seen, answer: Callable[[asyncio.Transport, bytes], None]
) -> tuple[Any, Witness, Witness]:
    """Return a server and both ends of a connection to it; what they see is not in one order."""
    loop = asyncio.get_running_loop()
    ends: list[Witness] = []
    there: Seen = []

    def accept() -> Witness:
        ends.append(Witness("server", there, answer))
        return ends[0]

    server = await loop.create_server(accept, host, 0)
    address = server.sockets[0].getsockname()
    _, client = await loop.create_connection(lambda: Witness("client", seen, silent), *address[:2])
    while not there:
        await asyncio.sleep(0.001)
    return server, client, ends[0]


async def bytes_arrive_in_order_and_the_end_comes_last(host: str, seen: Seen) -> None:
    server, client, there = await connected(host, seen, silent)
    for number in range(100):
        client.transport.write(bytes([number]) * number)
    client.transport.writelines([b"x", b"y"])
    client.transport.close()
    client.transport.write(b"never")
    await there.over
    await client.over
    seen.extend(there.seen)
    server.close()


async def a_server_that_closes_has_its_answer_read(host: str, seen: Seen) -> None:
    def answer(transport: asyncio.Transport, data: bytes) -> None:
        if data == b"question":
            transport.write(b"answer")
            transport.close()

    server, client, there = await connected(host, seen, answer)
    client.transport.write(b"ques")
    client.transport.write(b"tion")
    await client.over
    await there.over
    seen.extend(there.seen)
    server.close()


async def an_abort_is_told_to_both(host: str, seen: Seen) -> None:
    server, client, there = await connected(host, seen, silent)
    client.transport.abort()
    assert client.transport.is_closing()
    await client.over
    await there.over
    # Whether it looks like an end or like a reset, no protocol may depend on.
    seen.append([what for _, what, *_ in there.seen])
    server.close()


async def who_does_not_read_gets_it_later(host: str, seen: Seen) -> None:
    server, client, there = await connected(host, seen, silent)
    there.transport.pause_reading()
    client.transport.write(b"data")
    await asyncio.sleep(0.05)
    seen.append(there.data)
    there.transport.resume_reading()
    client.transport.close()
    await there.over
    await client.over
    seen.extend(there.seen)
    server.close()


async def nobody_listens_there(host: str, seen: Seen) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Witness, "server", seen, silent), host, 0)
    address = server.sockets[0].getsockname()[:2]
    server.close()
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(partial(Witness, "client", seen, silent), *address)
    seen.append("refused")


PROGRAMS: list[Program] = [
    calls_come_in_the_order_of_their_making,
    tasks_take_turns,
    a_timeout_cancels_what_it_waits_for,
    a_lock_is_handed_on_in_order,
    a_call_in_a_thread_returns_or_raises,
    bytes_arrive_in_order_and_the_end_comes_last,
    a_server_that_closes_has_its_answer_read,
    an_abort_is_told_to_both,
    who_does_not_read_gets_it_later,
    nobody_listens_there,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_program_sees_the_same_on_both_loops(program: Program) -> None:
    real: Seen = []
    asyncio.run(program(LOOPBACK, real))
    for seed in range(20):
        lab, virtual = Lab(seed), Seen()
        lab.process("host", lambda process, seen=virtual: program(process.host, seen))  # type: ignore[misc]
        lab.until(lambda lab=lab: bool(lab.ends))  # type: ignore[misc]
        assert lab.ends == [("host", None)] and lab.reports == []
        assert virtual == real != []


def test_what_a_callback_raises_is_reported_and_the_rest_goes_on() -> None:
    seen = Seen()

    async def main(_: Process) -> None:
        asyncio.get_running_loop().call_soon(divmod, 1, 0)
        asyncio.get_running_loop().call_soon(seen.append, "next")
        await asyncio.sleep(0.001)

    lab = Lab()
    lab.process("host", main)
    lab.until()
    ((message, error),) = lab.reports
    assert isinstance(error, ZeroDivisionError) and message == "a callback raises"
    assert seen == ["next"]


# The network.


def talk(lab: Lab, said: Seen, heard: Seen) -> tuple[Process, Process]:
    """Two processes: one says a number each millisecond, the other writes down what it hears."""
    address: list[Any] = []

    async def listening(process: Process) -> None:
        server = await process.loop.create_server(lambda: Witness("there", heard, silent), process.host, 0)
        address.extend(server.sockets[0].getsockname())
        heard.append(witness := asyncio.get_running_loop().create_future())
        await witness

    async def saying(process: Process) -> None:
        while not address:
            await asyncio.sleep(0.001)
        made = partial(Witness, "here", said, silent)
        transport, _ = await process.loop.create_connection(made, *address)
        for number in range(200):
            transport.write(bytes([number]))
            said.append(number)
            await asyncio.sleep(0.001)
        await asyncio.get_running_loop().create_future()

    return lab.process("listener", listening), lab.process("speaker", saying)


def text_heard(listener: Process) -> bytes:
    return b"".join(end.protocol.data for end in listener.transports if isinstance(end.protocol, Witness))


def lost(seen: Seen) -> list[Any]:
    return [one for one in seen if isinstance(one, tuple) and one[1] == "lost"]


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_process_is_noticed_and_what_it_said_is_heard_up_to_some_byte(seed: int) -> None:
    lab, said, heard = Lab(seed), Seen(), Seen()
    _, speaker = talk(lab, said, heard)
    lab.until(lambda: len(said) > 50)
    speaker.die("killed", loses=True)
    lab.until(lambda: bool(lost(heard)))
    ((_, _, error, data),) = lost(heard)
    assert error is ConnectionResetError
    assert data == bytes(range(len(data))) and len(data) <= 50


def test_what_a_process_has_written_survives_it() -> None:
    lab, said, heard = Lab(), Seen(), Seen()
    _, speaker = talk(lab, said, heard)
    lab.until(lambda: len(said) > 50)
    speaker.die("killed", loses=False)
    lab.until(lambda: bool(lost(heard)))
    assert lost(heard)[0][3] == bytes(range(len([one for one in said if isinstance(one, int)])))


def test_a_clogged_line_carries_everything_later() -> None:
    lab, said, heard = Lab(), Seen(), Seen()
    listener, speaker = talk(lab, said, heard)
    lab.until(lambda: len(said) > 50)
    line = lab.network.line(speaker.host, listener.host)
    line.clog()
    lab.until(lambda: len(said) > 100)
    assert len(text_heard(listener)) <= 51
    line.unclog()
    lab.until(lambda: len(text_heard(listener)) == 200)
    assert text_heard(listener) == bytes(range(200))


def test_a_half_open_connection_says_nothing_until_somebody_notices() -> None:
    lab, said, heard = Lab(), Seen(), Seen()
    listener, _ = talk(lab, said, heard)
    lab.until(lambda: len(said) > 50)
    (end,) = listener.transports
    assert end.peer is not None
    for stream in (end.out, end.peer.out):
        stream.is_silent = True
    lab.until(lambda: len(said) > 150)
    assert len(text_heard(listener)) <= 51 and not lost(heard) and not lost(said)
    for stream in (end.out, end.peer.out):
        stream.break_silence()
    lab.until(lambda: bool(lost(heard) and lost(said)))
    assert lost(heard)[0][2] is TimeoutError is lost(said)[0][2]


# Processes.


def test_a_stopped_process_does_nothing_and_then_everything() -> None:
    lab, said, heard = Lab(), Seen(), Seen()
    listener, _ = talk(lab, said, heard)
    lab.until(lambda: len(text_heard(listener)) > 20)
    listener.pause()
    before = text_heard(listener)
    lab.until(lambda: len(said) > 150)
    assert text_heard(listener) == before
    listener.resume()
    lab.until(lambda: len(text_heard(listener)) == 200)
    assert text_heard(listener) == bytes(range(200))


def test_after_a_stop_sockets_or_timers_may_come_first() -> None:
    orders = set()
    for seed in range(20):
        lab, seen = Lab(seed), Seen()

        async def main(process: Process, seen: Seen = seen) -> None:
            process.loop.call_later(0.01, seen.append, "timer")
            process.pause()
            process.clock.after(500, lambda: process.do(lambda: seen.append("io")))
            await process.loop.create_future()

        process = lab.process("host", main)
        lab.until(lambda lab=lab: lab.clock.now_us > 20_000 or not lab.clock.tick())  # type: ignore[misc]
        process.resume()
        lab.until()
        orders.add(seen[0])
    assert orders == {"timer", "io"}


def test_a_process_may_die_between_any_two_operations_and_nothing_of_it_goes_on() -> None:
    """Not even what catches everything, or cleans up."""
    traces = []
    for dies_after in range(40):
        lab, seen = Lab(1), Seen()

        async def main(process: Process, seen: Seen = seen) -> None:
            step = 0
            try:
                while True:
                    try:
                        step += 1
                        await process.loop.run_in_executor(None, lambda: None)
                        process.request()
                        seen.append(step)
                    except BaseException:  # noqa: BLE001
                        process.request()
                        seen.append("caught")
            finally:
                await asyncio.sleep(0)
                process.request()
                seen.append("cleaned up")

        process = lab.process("host", main)
        process.dies_after = dies_after
        lab.until(lambda process=process: not process.is_alive)  # type: ignore[misc]
        before = list(seen)
        lab.until()
        assert seen == before == list(range(1, len(seen) + 1))
        assert lab.reports == [] and lab.ends == []
        traces.append(len(seen))
    assert traces == sorted(traces) and len(set(traces)) > 5


def test_one_request_of_a_dead_process_may_be_on_its_way() -> None:
    process = Process(Lab(), "host", "host")
    process.die("killed")
    process.last_requests = 1
    process.request()
    with pytest.raises(Killed):
        process.request()


def test_equal_seeds_are_equal_worlds_and_others_are_not() -> None:
    def trace(seed: int) -> tuple[int, ...]:
        lab, said, heard = Lab(seed), Seen(), Seen()
        listener, _ = talk(lab, said, heard)
        times = []
        for count in range(0, 200, 20):
            lab.until(lambda: len(text_heard(listener)) > count)  # noqa: B023
            times.append(lab.clock.now_us)
        return tuple(times)

    assert trace(1) == trace(1) != trace(2)


@pytest.mark.parametrize("is_kept", [False, True])
def test_asyncio_takes_for_the_running_loop_the_one_whose_turn_it_is_and_in_a_thread_none(
    is_kept: bool,
) -> None:
    lab = Lab()
    lab.clock.keeps_running_loop = is_kept
    seen: list[tuple[str, bool]] = []

    async def main(process: Process) -> None:
        for _ in range(20):
            seen.append((process.name, asyncio.get_running_loop() is process.loop))
            loop = await asyncio.wrap_future(process.calls.start(events._get_running_loop))
            seen.append(("a thread", loop is None))

    for name in ("one", "other"):
        lab.process(name, main)
    lab.until()
    run_in(None, lab.clock)
    assert len(seen) == 80 and all(is_right for _, is_right in seen)
    assert events._get_running_loop() is None
