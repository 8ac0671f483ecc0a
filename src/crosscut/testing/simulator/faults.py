"""Carries out the plan of faults, in a running world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, assert_never

from crosscut.testing.simulator.driver import DriverProcess
from crosscut.testing.simulator.executor import Executor
from crosscut.testing.simulator.job_process import JobProcess
from crosscut.testing.simulator.memory_files import Fault
from crosscut.testing.simulator.network import Line, Stream, VirtualTransport
from crosscut.testing.simulator.options import PlannedFault
from crosscut.testing.simulator.processes import Process
from crosscut.testing.simulator.worker import WorkerProcess

if TYPE_CHECKING:
    from crosscut.testing.simulator.world import World

T = TypeVar("T")

NOTICED_US = 300_000
"""When the operating system notices that the peer of a data connection is gone (keepalive)."""

HANG_US = (100_000, 2_000_000, 30_000_000)
"""How long a call hangs: the last is longer than anybody waits."""

MISSED_US = 2_000_000
"""When Spark takes a machine that hangs for lost."""

OPERATIONS_MAX = 60
"""Of a process until it dies: it may be between any two."""


def suffer(world: World, fault: PlannedFault, passing: Process | None = None) -> bool:
    """Let `fault` happen now. Return whether there was anything for it to happen to.

    Args:
        passing: The process that has come along where the fault was waiting.

    Raises:
        Killed: `passing` is the one that dies.
    """
    return _to_a_process(world, fault, passing) or _to_the_rest(world, fault)


def _to_a_process(world: World, fault: PlannedFault, passing: Process | None) -> bool:
    """Strike a worker or a driver, where that is what the fault does."""
    choice = fault.choice
    worker = passing if isinstance(passing, WorkerProcess | Executor) else _picked(_victims(world), choice)
    running = [one for one in world.drivers if one.is_running]
    driver = next((one for one in running if one is passing), None) or _picked(running, choice)
    at_a_write = world.options.hosts_crash and passing is None and choice % 2 == 1
    match fault.kind:
        case "kill a worker" if worker is not None and at_a_write:
            world.outside.crash_at_a_write(worker)
        case "kill the driver" if driver is not None and at_a_write:
            world.outside.crash_at_a_write(driver)
        case "kill a worker" if worker is not None:
            if worker is passing:
                worker.kill(f"killed at {fault.moment}")
            if choice % 2:
                worker.dies_after = choice // 2 % OPERATIONS_MAX
            else:
                worker.die("killed", loses=choice % 3 == 0, is_killed=True)
        case "pause a worker" if worker is not None and not worker.is_paused:
            worker.pause()
            _later(world, 30_000 + choice % 7 * 100_000, worker.resume)
        case "freeze a worker" if worker is not None and not worker.is_paused:
            worker.pause()
            worker.is_frozen = True
            # Spark misses the executor, in the end, and starts another attempt beside the one that it lost.
            _later(world, MISSED_US, lambda: _missed(worker))
        case "kill the driver" if driver is not None:
            if driver is passing:
                driver.kill(f"killed at {fault.moment}")
            driver.dies_after = choice % OPERATIONS_MAX
        case "pause the driver and start another" if driver is not None:
            driver.pause()
            _later(world, 30_000 + choice % 10 * 100_000, driver.resume)
            world.new_driver()
        case "start a second attempt" if driver is not None:
            if driver.spark is None:
                return False
            driver.spark.launch(choice % driver.spark.parallelism)
        case "end the Spark job" if driver is not None:
            driver.end_spark_job("ended by the plan")
        case "stop the job" if driver is not None:
            driver.stop()
        case "cancel the job" if driver is not None:
            driver.cancel()
        case "ask for a checkpoint" if driver is not None:
            driver.ask_for_checkpoint()
            if choice % 5 == 4:
                driver.restart()
        case "start another driver":
            world.new_driver()
        case "speculate an attempt" if isinstance(driver, JobProcess):
            return driver.cluster.speculate(choice)
        case "lose shuffle blocks" if isinstance(driver, JobProcess):
            return driver.cluster.lose_blocks(choice)
        case "repeat a message" if isinstance(worker, WorkerProcess) and worker.sent:
            worker.resend(_recent(worker.sent, choice))
        case "repeat a word" if isinstance(worker, WorkerProcess) and worker.received:
            link, message = _recent(worker.received, choice)
            worker.driver.do(lambda: link.send_message(message))
        case _:
            return False
    return True


def _to_the_rest(world: World, fault: PlannedFault) -> bool:
    choice = fault.choice
    files, resource = world.files, world.resource
    match fault.kind:
        case "break a channel" | "half-open channel" | "slow channel":
            channel = _picked(_channels(world), choice)
            return channel is not None and _channel_fault(world, channel, fault)
        case "break a control link" | "half-open control link" | "slow control link":
            worker = _picked(_workers(world), choice)
            return worker is not None and _link_fault(world, worker, fault)
        case "partition two workers" | "partition two workers one way":
            return _partition(world, fault)
        case "clog some lines":
            return _clog(world, list(world.network.lines.values()), choice)
        case "refuse a log append":
            files.fail_next("put_if_absent", Fault.REFUSED)
        case "apply a log append without an answer":
            files.fail_next("put_if_absent", Fault.APPLIED)
        case "lose a log append without an answer":
            files.fail_next("put_if_absent", Fault.NOT_APPLIED)
        case "delay a log append without an answer":
            files.fail_next("put_if_absent", Fault.LATE)
            world.clock.after(30_000 + choice % 10 * 50_000, files.arrive)
        case "fail a read of the log":
            files.fail_next("read", Fault.REFUSED)
        case "take the log away":
            files.is_log_away = True
            _later(world, 400_000 * 4 ** (choice % 3), files.bring_log_back)
        case "refuse a part":
            refusal = (Fault.REFUSED, Fault.NOT_APPLIED, Fault.APPLIED)[choice % 3]
            files.fail_next("write_new", *[refusal] * (1 + choice % 2))
        case "refuse a delete":
            files.fail_next("delete", Fault.REFUSED)
        case "flip a bit in a read":
            files.next_read = "flipped"
        case "misdirect a read":
            files.next_read = "misdirected"
        case "tear a part":
            files.fail_next("write_new", Fault.TORN)
        case "rot a part":
            part = _picked([one for one in files.parts if one not in files.damaged], choice)
            if part is None:
                return False
            files.rot(part)
        case "slow store":
            world.outside.slow_store(10 if choice % 2 else 100, 50_000 + choice % 4 * 100_000)
        case "hang the store":
            world.outside.hangs["store"].append(HANG_US[choice % 3])
        case "hang a sink":
            world.outside.hangs["sink"].append(HANG_US[choice % 3])
        case "miss objects in a listing":
            files.listing = "misses objects"
        case "show deleted objects in a listing":
            files.listing = "shows deleted objects"
        case "fail a commit":
            resource.commit_faults.append("not applied")
        case "apply a commit without an answer":
            resource.commit_faults.append("applied")
        case "apply half a commit without an answer":
            resource.commit_faults.append("half applied")
        case "fail a prepare":
            resource.prepare_faults.append("no space left")
        case "slow sink":
            world.slow_sink_until_us = world.clock.now_us + 50_000 + choice % 4 * 150_000
        case "raise in user code":
            world.user_faults += 1
        case "fail a source" if world.sources:
            world.sources[choice % len(world.sources)].fail_next = 1
        case "jump the wall clock":
            world.wall_clock_s += (3_600, -3_600, -300)[choice % 3]
        case (
            "kill a worker" | "pause a worker" | "freeze a worker" | "kill the driver"
            | "pause the driver and start another" | "start a second attempt" | "end the Spark job"
            | "stop the job" | "cancel the job" | "ask for a checkpoint" | "repeat a message"
            | "repeat a word" | "fail a source" | "start another driver" | "speculate an attempt"
            | "lose shuffle blocks"
        ):  # fmt: skip
            return False
        case _:
            assert_never(fault.kind)
    return True


def _picked(candidates: Sequence[T], choice: int) -> T | None:
    return candidates[choice % len(candidates)] if candidates else None


def _recent(messages: Sequence[T], choice: int) -> T:
    """Return one of the last that were said, rather one of the very last."""
    return messages[-1 - choice % min(len(messages), (2, 5, 20)[choice % 3])]


def _workers(world: World) -> list[WorkerProcess]:
    return [one for one in world.workers.values() if one.is_alive]


def _victims(world: World) -> list[WorkerProcess | Executor]:
    """Return the processes that run tasks."""
    return [*_workers(world), *(one for one in world.executors if one.is_alive)]


def _missed(worker: WorkerProcess | Executor) -> None:
    """Spark takes a process for lost."""
    if isinstance(worker, Executor):
        worker.batches.lost(worker)
    else:
        worker.spark.exited(worker)


def _channels(world: World) -> list[VirtualTransport]:
    """Return both ends of what connects two workers."""
    return [
        end
        for end in world.network.ends
        if isinstance(end.process, WorkerProcess)
        and end.peer is not None
        and isinstance(end.peer.process, WorkerProcess)
    ]


def _link(world: World, worker: WorkerProcess) -> VirtualTransport | None:
    """Return the worker's end of its control link."""
    for end in worker.transports:
        if not isinstance(end, VirtualTransport) or end.peer is None:
            continue
        if isinstance(end.peer.process, DriverProcess):
            return end
    return None


def _later(world: World, delay_us: int, resume: Callable[[], None]) -> None:
    world.clock.after(delay_us, resume)


def _channel_fault(world: World, channel: VirtualTransport, fault: PlannedFault) -> bool:
    match fault.kind:
        case "break a channel":
            channel.broken(ConnectionResetError("reset by peer"), loses=fault.choice % 2 == 0)
        case "half-open channel":
            _silence(world, channel, NOTICED_US)
        case _:
            _delay(world, channel.out, fault.choice)
    return True


def _link_fault(world: World, worker: WorkerProcess, fault: PlannedFault) -> bool:
    link = _link(world, worker)
    if link is None or link.peer is None:
        return False
    match fault.kind:
        case "break a control link":
            link.broken(ConnectionResetError("reset by peer"), loses=fault.choice % 2 == 0)
        case "half-open control link":
            _silence(world, link, 10 * NOTICED_US)
        case _:
            _delay(world, link.peer.out if fault.choice % 2 else link.out, fault.choice)
    return True


def _silence(world: World, end: VirtualTransport, noticed_us: int) -> None:
    for stream in (end.out, end.peer.out) if end.peer is not None else ():
        stream.is_silent = True
        world.clock.after(noticed_us, stream.break_silence)


def _delay(world: World, stream: Stream, choice: int) -> None:
    stream.slow_us = 20_000 + choice % 5 * 60_000

    def over() -> None:
        stream.slow_us = 0

    world.clock.after(300_000, over)


def _partition(world: World, fault: PlannedFault) -> bool:
    """Cut two workers off from each other, also what they connect meanwhile; the driver sees both."""
    workers = _workers(world)
    if len(workers) < 2:
        return False
    one = workers[fault.choice % len(workers)]
    other = workers[(fault.choice + 1) % len(workers)]
    lines = [world.network.line(one.host, other.host), world.network.line(other.host, one.host)]
    if fault.kind == "partition two workers one way":
        lines.pop()
    for line in lines:
        line.clog()
        world.clock.after(50_000 + fault.choice % 5 * 150_000, line.unclog)
    return True


def _clog(world: World, lines: list[Line], choice: int) -> bool:
    """Clog some lines one after the other, and unclog them in another order (swizzle)."""
    some = [line for line in lines if world.coin()]
    for line in some:
        world.clock.after(world.below(30_000), line.clog)
        world.clock.after(30_000 + world.below(30_000 + choice % 5 * 60_000), line.unclog)
    return bool(some)
