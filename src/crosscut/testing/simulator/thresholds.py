"""Constants at which code takes another path, small enough that a world of a few records crosses them.

Blocks, slices and steps hold thousands of rows or a megabyte in a real job, and a world has neither.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

THRESHOLDS: dict[str, tuple[tuple[str, ...], str, tuple[int, ...]]] = {
    "bytes of a block that is stored": (("store.checkpoint_store",), "BLOCK_BYTES", (1, 100, 500)),
    "rows of an encoded block": (("state.table",), "ROWS_PER_BLOCK", (1, 2, 3)),
    "slots of an encoded block": (("state.slots",), "SLOTS_PER_BLOCK", (1, 2, 3)),
    "parts of a state": (("state.parts",), "PARTS_MAX", (2, 3)),
    "rows of a slice": (("state.slot_parts",), "SLICE_ROWS_MIN", (1, 3)),
    "slices of a state": (("state.slot_parts",), "SLICES", (2, 4)),
    "steps of background work": (("worker.background",), "SLICE_STEPS_MAX", (1, 2)),
    "keys in a step of final results": (("operators.keyed",), "_KEYS_PER_STEP", (1, 2)),
    "keys in a bucket of final results": (("operators.final_results",), "_KEYS_PER_BUCKET", (1, 2)),
    "timers that fire at once": (("operators.process",), "TIMERS_AT_ONCE_MAX", (1, 3)),
    "timers that fire at once at the end": (("operators.process",), "AT_THE_END_EACH", (1,)),
    "timers that are loaded in a step": (("state.timers",), "ROWS_PER_STEP", (1, 3)),
    "rows looked at for their age": (("operators.cells",), "ROWS_PER_BATCH", (1, 2)),
    "items of a local channel": (("task.flow_control", "worker.runner"), "LOCAL_ITEMS_MAX", (1, 2)),
    "items of a back edge": (("task.flow_control",), "BACK_EDGE_ITEMS_MAX", (1, 4)),
    "first rows of a channel": (("task.flow_control",), "FIRST_ROWS", (1, 3)),
    "bytes of a restored log in memory": (("task.inputs",), "MEMORY_BYTES_MAX", (0, 200)),
    "bytes of a written log in memory": (("task.channel_log",), "MEMORY_BYTES_MAX", (0, 200)),
    "bytes of a piece of a log": (("task.channel_log",), "SLICE_BYTES", (1, 50)),
    "bytes of a spilled segment": (("task.inputs",), "SEGMENT_BYTES", (1, 200)),
    "entries in a row that are differences": (("protocol.log.writer",), "DIFFERENCES_MAX", (0, 1, 3)),
    "bytes that are joined before they are sent": (("net.connections",), "_JOINED_BYTES_MAX", (0, 40)),
    "bytes of a shuffle block": (("microbatch.shuffle",), "SHUFFLE_BLOCK_BYTES", (1, 100)),
}
"""By what a threshold bounds: the modules that have it, its name there, and the values of worlds."""

NORMAL = 0.5
"""Of the worlds: so many have the thresholds of real jobs."""

LOWERED = 0.3
"""Of the thresholds in other worlds: so many are small."""


def drawn_thresholds(seed: int) -> tuple[tuple[str, int], ...]:
    """Return the thresholds that are small in the world of `seed`, with their values."""
    dice = random.Random(f"crosscut thresholds {seed}")
    if dice.random() < NORMAL:
        return ()
    return tuple(
        (name, dice.choice(values)) for name, (_, _, values) in THRESHOLDS.items() if dice.random() < LOWERED
    )


@contextmanager
def lowered(thresholds: tuple[tuple[str, int], ...]) -> Iterator[None]:
    """Have these values within the block, in the whole process."""
    places = []
    for threshold, value in thresholds:
        modules, name, _ = THRESHOLDS[threshold]
        places += [(import_module(f"crosscut.{module}"), name, value) for module in modules]
    before = [getattr(module, name) for module, name, _ in places]
    try:
        for module, name, value in places:
            setattr(module, name, value)
        yield
    finally:
        for (module, name, _), value in zip(places, before, strict=True):
            setattr(module, name, value)
