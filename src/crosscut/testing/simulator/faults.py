"""Carries out the plan of faults, in a running world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, assert_never

from crosscut.protocol.events import CancelRequested, CheckpointRequested, StopRequested
from crosscut.testing.simulator.network import Pipe
from crosscut.testing.simulator.options import PlannedFault
from crosscut.testing.simulator.worker import DataChannel, VirtualWorker
from crosscut.testing.stores import Fault

if TYPE_CHECKING:
    from crosscut.testing.simulator.world import World

T = TypeVar("T")

NOTICED_US = 1_500_000
"""When the operating system notices that the peer of a data connection is gone (keepalive)."""


def suffer(world: World, fault: PlannedFault) -> bool:
    """Let `fault` happen now. Return whether there was anything for it to happen to."""
    choice = fault.choice
    workers = [one for one in world.workers.values() if one.is_alive]
    worker = _picked(workers, choice)
    running = [one for one in world.drivers if one.is_running]
    driver = _picked(running, choice)
    match fault.kind:
        case "kill a worker":
            return worker is not None and _kill(worker, loses=choice % 3 == 0)
        case "pause a worker":
            return worker is not None and _pause(world, worker, 50_000 + choice % 7 * 300_000)
        case "start a second attempt" if driver is not None:
            driver.spark.launch(choice % world.options.parallelism)
        case "end the Spark job" if driver is not None:
            driver.do(driver.spark.end_job)
        case "kill the driver" if driver is not None:
            driver.dies_after = choice % 5
        case "pause the driver and start another" if driver is not None:
            driver.pause()
            world.clock.after(100_000 + choice % 10 * 200_000, driver.resume)
            world.new_driver()
        case "stop the job" if driver is not None:
            driver.do(lambda: driver.handle(StopRequested()))
        case "cancel the job" if driver is not None:
            driver.do(lambda: driver.handle(CancelRequested()))
        case "ask for a checkpoint" if driver is not None:
            request = world.clock.now_us
            driver.do(lambda: driver.handle(CheckpointRequested(request)))
        case "break a channel" | "half-open channel" | "slow channel":
            channel = _picked(_channels(workers), choice)
            return channel is not None and _channel_fault(world, channel, fault)
        case "break a control link" | "half-open control link" | "slow control link":
            return worker is not None and _link_fault(world, worker, fault)
        case "repeat a message" if worker is not None and worker.sent:
            message = worker.sent[choice % len(worker.sent)]
            worker.link.up.send(message)
        case "refuse a log append":
            world.files.fail_next("put_if_absent", Fault.REFUSED)
        case "apply a log append without an answer":
            world.files.fail_next("put_if_absent", Fault.APPLIED)
        case "lose a log append without an answer":
            world.files.fail_next("put_if_absent", Fault.NOT_APPLIED)
        case "delay a log append without an answer":
            world.files.fail_next("put_if_absent", Fault.LATE)
            world.clock.after(100_000 + choice % 10 * 50_000, world.files.arrive)
        case "fail a read of the log":
            world.files.fail_next("read", Fault.REFUSED)
        case "refuse a part":
            world.files.fail_next("write_new", (Fault.REFUSED, Fault.NOT_APPLIED, Fault.APPLIED)[choice % 3])
        case "flip a bit in a read":
            world.flip_next_part = True
        case "tear a part":
            world.files.fail_next("write_new", Fault.TORN)
        case "slow store":
            _slow(world, choice)
        case "fail a commit":
            world.resource.commit_faults.append("not applied")
        case "apply a commit without an answer":
            world.resource.commit_faults.append("applied")
        case "apply half a commit without an answer":
            world.resource.commit_faults.append("half applied")
        case "fail a prepare":
            world.resource.prepare_faults.append("no space left")
        case "raise in user code":
            world.user_faults += 1
        case "fail a source" if world.sources:
            world.sources[choice % len(world.sources)].fail_next = 1
        case "slow sink":
            world.slow_sink_until_us = world.clock.now_us + 500_000
        case (
            "start a second attempt" | "end the Spark job" | "kill the driver"
            | "pause the driver and start another" | "stop the job" | "cancel the job" | "repeat a message"
            | "fail a source" | "ask for a checkpoint"
        ):  # fmt: skip
            return False
        case _:
            assert_never(fault.kind)
    return True


def _picked(candidates: Sequence[T], choice: int) -> T | None:
    return candidates[choice % len(candidates)] if candidates else None


def _kill(worker: VirtualWorker, *, loses: bool) -> bool:
    worker.exit("killed", loses=loses)
    return True


def _pause(world: World, worker: VirtualWorker, duration_us: int) -> bool:
    if worker.is_paused:
        return False
    worker.pause()
    world.clock.after(duration_us, lambda: worker.resume() if worker.is_paused else None)
    return True


def _channels(workers: Sequence[VirtualWorker]) -> list[DataChannel]:
    return [channel for worker in workers for channel in worker.channels if channel.sender is worker]


def _channel_fault(world: World, channel: DataChannel, fault: PlannedFault) -> bool:
    match fault.kind:
        case "break a channel":
            channel.close("reset by peer", loses=fault.choice % 2 == 0)
        case "half-open channel":
            _silence(world, [channel.forward, channel.back], NOTICED_US)
        case _:
            _delay(world, channel.forward, fault.choice)
    return True


def _link_fault(world: World, worker: VirtualWorker, fault: PlannedFault) -> bool:
    link = worker.link
    match fault.kind:
        case "break a control link":
            link.close("reset by peer", loses=fault.choice % 2 == 0)
        case "half-open control link":
            _silence(world, [link.up, link.down], 10 * NOTICED_US)
        case _:
            _delay(world, link.down if fault.choice % 2 else link.up, fault.choice)
    return True


def _silence(world: World, pipes: list[Pipe], noticed_us: int) -> None:
    for pipe in pipes:
        pipe.is_silent = True
        world.clock.after(noticed_us, lambda one=pipe: one.break_silence("timed out"))  # type: ignore[misc]


def _delay(world: World, pipe: Pipe, choice: int) -> None:
    pipe.slow_us = 20_000 + choice % 5 * 60_000

    def over() -> None:
        pipe.slow_us = 0

    world.clock.after(500_000, over)


def _slow(world: World, choice: int) -> None:
    world.slow_store_us = 20_000 + choice % 4 * 150_000

    def over() -> None:
        world.slow_store_us = 0

    world.clock.after(600_000, over)
