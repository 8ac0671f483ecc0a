"""What a process of Spark's keeps between the attempts that it runs: graphs, states, batch sizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from crosscut.graph.shipping import unpack_graph
from crosscut.host.alarms import system_alarm
from crosscut.host.copies import ForkedCopies
from crosscut.host.installed_packages import note_packages_beside
from crosscut.host.interpreter_lock import WORKER_SWITCH_US, let_threads_run, switching_within
from crosscut.host.process import show_crashes
from crosscut.microbatch.host_cache import host_cache
from crosscut.microbatch.shuffle import ShuffleBlock
from crosscut.microbatch.stage import StageOrder, Surroundings, run_stage
from crosscut.microbatch.state_cache import StateCache
from crosscut.store.checkpoint_store import open_store
from crosscut.worker.backends import backend
from crosscut.worker.deployment import TaskSettings

JOBS_MAX = 4
"""Jobs that a process keeps something of; Spark gives it tasks of any."""

_COPIES_TIMEOUT_S = 20.0
"""A copy may take a part of this time. It can be long: batch processes send no heartbeats."""

_kept: dict[str, Surroundings] = {}


def surroundings_of(
    job: str, packed_graph: Callable[[], bytes], store_url: str, terms: TaskSettings
) -> Surroundings:
    """Return what this process has of a job, the one it is used for last being kept longest.

    Args:
        job: Names one run of a job; nothing is shared with another one.
        packed_graph: Returns the job's graph, the first time.
    """
    found = _kept.pop(job, None)
    if found is None:
        graph = unpack_graph(packed_graph())
        states = StateCache(
            backend(terms.state_backend, terms.state_dir, graph.max_parallelism, terms.state_cache_bytes)
        )
        parts = host_cache(open_store(store_url, create=False), store_url, terms.state_dir)
        found = Surroundings(
            graph,
            parts,
            states,
            {},
            new_alarm=system_alarm,
            copies=ForkedCopies(_COPIES_TIMEOUT_S),
            let_threads_run=let_threads_run,
        )
        show_crashes()
    _kept[job] = found
    while len(_kept) > JOBS_MAX:
        oldest = next(iter(_kept))
        _kept.pop(oldest).states.close()
    return found


def run_partition(
    job: str, packed_graph: Callable[[], bytes], order: StageOrder, shuffle_blocks: Iterable[ShuffleBlock]
) -> Iterator[tuple[int, ShuffleBlock]]:
    """Run one attempt at a partition in this process; see `run_stage`."""
    around = surroundings_of(job, packed_graph, order.store_url, order.terms)
    note_packages_beside()
    with switching_within(WORKER_SWITCH_US):
        yield from run_stage(order, around, shuffle_blocks)
