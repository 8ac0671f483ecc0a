"""Simulated scale: a chain of three shuffles from 10 to 10,000 tasks. What is the first bottleneck?

Real, at full size: the coordinator with all its messages, their codec, the log entry. Real, one of them:
a task with all its inputs and outputs, for what a barrier costs it. Modelled: the barrier's way through
all tasks (bench/barrier_model.py says how, and why: 10,000 tasks have 18.75 million channels), with the
measured costs, and two that are stated: `--hop-us` for the network, `--socket-us` for a read or write of
a socket with its turn of the event loop. Two workers share one connection, but the barriers of different
shuffles come at different times: each is a write of its own.

Prints a JSON line for each size, and writes them and the plot to bench/plots.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench import plot
from bench.barrier_model import Costs, barrier_latency_us
from bench.coordinating import VERTICES, Checkpointed, LargeJob, timed
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter
from crosscut.net.control import heartbeat_interval_s
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier
from crosscut.task.outputs import build_output
from crosscut.task.plan import TaskPlan
from crosscut.task.task import Task
from crosscut.wire.frames import (
    PEER_LIMITS,
    FrameDecoder,
    FrameType,
    decode_barrier,
    encode_barrier,
    encode_frame,
)

PARALLELISMS = (3, 10, 25, 50, 100, 250, 500, 1_000, 2_500)
SHUFFLES = len(VERTICES) - 1
CHECKPOINTS = 5
HEARTBEAT_TIMEOUT_S = 10.0
"""The default."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One size.

    Attributes:
        barrier_ms: Modelled: from the first trigger to the last capture, with nothing else to do.
        barrier_cpu_ms: Of one worker's thread, for all barriers that its tasks take and send.
        handle_us: Real task: one barrier in, with a batch behind it on every channel; without the socket.
        send_us: Likewise one barrier out.
        coordinator_ms: Processor time of the coordinator's thread for a checkpoint: machine and codec.
        machine_ms: Of that, the machine.
        entry_ms: Encoding the log entry, in another thread.
        heartbeats_share: Of the coordinator's thread, for heartbeats only.
        deploy_ms: Processor time of the coordinator's thread for the first deployment, when all are there.
        failover_ms: Likewise to deploy all tasks anew after the loss of one worker.
    """

    tasks: int
    parallelism: int
    channels: int
    sockets_per_worker: int
    barrier_ms: float
    barrier_cpu_ms: float
    handle_us: float
    send_us: float
    messages: int
    coordinator_ms: float
    machine_ms: float
    entry_bytes: int
    entry_ms: float
    heartbeats_share: float
    deploy_ms: float
    deploy_bytes: int
    failover_ms: float
    failover_bytes: int


def measure(parallelism: int, hop_us: float, socket_us: float) -> Measured:
    job = LargeJob(parallelism)
    # The first one builds no part on another: only the later ones are as in a job that runs.
    checkpoints = [job.checkpoint() for _ in range(CHECKPOINTS)][1:]
    heartbeats = statistics.median(job.heartbeats().cpu_s for _ in range(3))
    failover = job.failover()
    handle_us, send_us = barrier_costs_us(parallelism)

    def median(value: str) -> float:
        values: list[float] = [getattr(one, value) for one in checkpoints]
        return statistics.median(values)

    costs = Costs(
        hop_us=hop_us,
        trigger_us=trigger_us(checkpoints) + socket_us,
        start_us=handle_us + socket_us,
        send_us=send_us + socket_us,
        handle_us=handle_us + socket_us,
    )
    return Measured(
        tasks=len(job.tasks),
        parallelism=parallelism,
        channels=SHUFFLES * parallelism**2,
        sockets_per_worker=parallelism,
        barrier_ms=round(barrier_latency_us(parallelism, SHUFFLES, costs) / 1e3, 3),
        barrier_cpu_ms=round(SHUFFLES * parallelism * (costs.send_us + costs.handle_us) / 1e3, 3),
        handle_us=round(handle_us, 2),
        send_us=round(send_us, 2),
        messages=checkpoints[-1].messages,
        coordinator_ms=round(median("cpu_s") * 1e3, 3),
        machine_ms=round(median("machine_s") * 1e3, 3),
        entry_bytes=checkpoints[-1].entry_bytes,
        entry_ms=round(median("entry_s") * 1e3, 3),
        heartbeats_share=round(heartbeats / heartbeat_interval_s(HEARTBEAT_TIMEOUT_S, parallelism), 4),
        deploy_ms=round(job.deployed.cpu_s * 1e3, 3),
        deploy_bytes=job.deployed.bytes_out,
        failover_ms=round(failover.cpu_s * 1e3, 3),
        failover_bytes=failover.bytes_out,
    )


def trigger_us(checkpoints: Sequence[Checkpointed]) -> float:
    """Return what one TriggerCheckpoint costs the coordinator."""
    return statistics.median(one.trigger.cpu_s / one.trigger.messages_out for one in checkpoints) * 1e6


def barrier_costs_us(parallelism: int) -> tuple[float, float]:
    """Return the processor time of a real task for one barrier in, and for one barrier out.

    Under load: behind the barrier on each channel, a batch waits for the alignment to end.
    """
    here = TaskId(VertexId(VERTICES[1]), 0)
    inputs = tuple(ChannelId(0, TaskId(VertexId(VERTICES[0]), index), here) for index in range(parallelism))
    outputs = tuple(ChannelId(1, here, TaskId(VertexId(VERTICES[2]), index)) for index in range(parallelism))
    task = Task(
        TaskPlan(
            task_id=here,
            epoch=Epoch(1),
            protocol=AlignedBarriers(inputs),
            inputs={channel: InputQueue(channel) for channel in inputs},
            chain=(),
            outputs=[
                build_output(
                    "hash",
                    outputs,
                    batch_rows=1_000,
                    router=KeyRouter(parallelism, 32_768),
                    key_by_uid="",
                    task_index=0,
                )
            ],
            batch_rows=1_000,
            channel_bytes=1 << 20,
        )
    )
    # As on the connections between two workers, which carry the channels of all shuffles, both ways.
    decoders = {channel: FrameDecoder(PEER_LIMITS, sequenced=True) for channel in inputs}
    for decoder in decoders.values():
        decoder.expect_channels(2 * SHUFFLES)
    handled, sent = [], []
    # More often where there are few: the first time costs more than the others.
    for number in range(1, 4 + 200 // parallelism):
        frame = b"".join(encode_frame(FrameType.BARRIER, number, encode_barrier(CheckpointId(number))))

        def align(frame: bytes = frame) -> None:
            for channel, decoder in decoders.items():
                decoder.feed(frame)
                task.offer(channel, Barrier(decode_barrier(next(decoder).payload)))
                task.offer(channel, Batch([], []))
                if task.has_work:
                    task.run()

        handled.append(timed(align)[1])
        while task.has_work:
            task.run()
        barriers, task.task_effects.outbox = task.task_effects.outbox, []
        if len(barriers) != parallelism:
            raise RuntimeError(f"expected a barrier on each of {parallelism} outputs, found {len(barriers)}")
        sent.append(timed(partial(encoded_barriers, CheckpointId(number), parallelism))[1])
    scale = 1e6 / parallelism
    return statistics.median(handled) * scale, statistics.median(sent) * scale


def encoded_barriers(n: CheckpointId, count: int) -> list[tuple[bytes, bytes | memoryview]]:
    return [encode_frame(FrameType.BARRIER, n, encode_barrier(n)) for _ in range(count)]


def draw_plot(found: Sequence[Measured]) -> Path:
    def line(value: str, scale: float = 1) -> list[tuple[float, float]]:
        return [(one.tasks, getattr(one, value) / scale) for one in found]

    ends = (found[0].tasks, found[-1].tasks)
    time: dict[str, Sequence[tuple[float, float]]] = {
        "barrier, first trigger to last capture (model)": line("barrier_ms"),
        "coordinator's thread": line("coordinator_ms"),
        "encoding the log entry": line("entry_ms"),
        "an interval of 1 s": [(end, 1_000.0) for end in ends],
    }
    share: dict[str, Sequence[tuple[float, float]]] = {
        "coordinator: heartbeats": line("heartbeats_share"),
        "coordinator: a checkpoint a second": line("coordinator_ms", 1e3),
        "each worker: barriers of a checkpoint a second": line("barrier_cpu_ms", 1e3),
        "all of it": [(end, 1.0) for end in ends],
    }
    count: dict[str, Sequence[tuple[float, float]]] = {
        "barriers = channels": line("channels"),
        "messages of the coordinator": line("messages"),
        "sockets of each worker": line("sockets_per_worker"),
        "usual limit of open files": [(end, 1_024.0) for end in ends],
    }
    size: dict[str, Sequence[tuple[float, float]]] = {
        "one log entry": line("entry_bytes", 1e6),
        "the first deployment": line("deploy_bytes", 1e6),
        "deploying everything after the loss of a worker": line("failover_bytes", 1e6),
    }
    panels = [
        plot.Panel(
            "Time of one checkpoint", "tasks", "ms", time, frozenset({"an interval of 1 s"}), y_scale="log"
        ),
        plot.Panel(
            "Share of one thread", "tasks", "of a core", share, frozenset({"all of it"}), y_scale="log"
        ),
        plot.Panel("Numbers", "tasks", "", count, frozenset({"usual limit of open files"}), y_scale="log"),
        plot.Panel("Sizes", "tasks", "MB", size, y_scale="log"),
    ]
    return plot.write_plot("scale", panels)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parallelisms", type=int, nargs="+", default=list(PARALLELISMS))
    parser.add_argument("--hop-us", type=float, default=250, help="of the network, one way")
    parser.add_argument("--socket-us", type=float, default=10, help="of a thread, to read or write a socket")
    options = parser.parse_args()
    plot.check_installed()
    found = []
    for parallelism in options.parallelisms:
        found.append(measure(parallelism, options.hop_us, options.socket_us))
        print(json.dumps({"benchmark": "scale", **asdict(found[-1])}), flush=True)
    figures = {
        "hop_us": options.hop_us,
        "socket_us": options.socket_us,
        "found": [asdict(one) for one in found],
    }
    (plot.PLOTS / "scale.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(draw_plot(found))


if __name__ == "__main__":
    main()
