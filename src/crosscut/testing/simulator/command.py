"""What `crosscut simulate` does, but for showing it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from crosscut.errors import CrosscutError, FlowError, UserCodeError
from crosscut.flow.flow import Flow
from crosscut.graph.frames import AnyFrameSpec
from crosscut.graph.specs import SinkSpec
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.blame import error_text
from crosscut.testing.simulator.options import PROTOCOLS, Options, options_of
from crosscut.testing.simulator.sharing import shared
from crosscut.testing.simulator.shrink import Life, live, with_fewer_faults
from crosscut.testing.simulator.user_flow import Rehearsal, rehearsal, shown_difference
from crosscut.testing.simulator.violation import Violation
from crosscut.testing.simulator.world import World
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget

RECORDS_MAX = (200, 40, 8, 2)
TRIALS = 3

UNSTABLE = """\
its output depends on something else than the records (a clock, a random number), or on the order in which
records of different sources or tasks meet. It is exactly-once all the same: what was staged is kept, and
nothing is computed twice for readers to see. But it can't be compared, so loss and duplicates are not looked
for; what is checked is that cuts are whole, that nothing shows too early, and that the job ends"""
OUTSIDE_STATE = """\
the same records, processed again by the same functions, come out differently: a function keeps something
outside of the job, such as a global variable, a default argument or an attribute. It is in no checkpoint:
after a failure records are processed again, and meet what they have left there. Keep it in keyed state"""
BLAME = """\
every run without faults agrees, so either a function's result depends on what it has processed before, and
that is not in keyed state, or Crosscut is broken"""


class Simulation(ABC):
    """Worlds by their seeds, and what has happened in them.

    Args:
        command: How it was called, for the line that replays a failure.
        protocols: Of which snapshot protocols there may be.
        make: Makes a world.
    """

    def __init__(
        self, command: str, protocols: tuple[ProtocolKind, ...], make: Callable[[Options], World]
    ) -> None:
        self._command = command
        if protocols != PROTOCOLS:
            self._command += "".join(f" --snapshots {one}" for one in protocols)
        self._protocols = protocols
        self._make = make
        self.seen: Counter[str] = Counter()
        self.lived_count = self.failed_count = 0
        self._at_least_once_count = 0
        self._repeated: list[Life] = []
        self._started = time.monotonic()

    @abstractmethod
    def options(self, seed: int) -> Options:
        """Return the world of `seed`."""

    @abstractmethod
    def shrunk(self, options: Options, life: Life) -> Life:
        """Return a failure as small as a bounded search finds it."""

    @abstractmethod
    def report(self, life: Life) -> str:
        """Return a failure as text."""

    def lives(self, first_seed: int, seed_count: int, jobs: int = 1) -> Iterator[Life]:
        """Let the worlds live, in `jobs` processes at most, and yield them in order, failures made small."""
        for life, small in shared(self._lived, range(first_seed, first_seed + seed_count), jobs):
            self._note(life)
            yield small

    def _lived(self, seed: int) -> tuple[Life, Life]:
        """Return a life, and the same as small as it fails."""
        life = live(self.options(seed), None, self._make)
        small = self.shrunk(self.options(seed), life) if life.failure else life
        return life.printable(), small.printable()

    def one(self, options: Options, faults: tuple[int, ...] | None) -> Life:
        """Let one world live.

        Args:
            faults: Which of its plan; None: all.

        Raises:
            FlowError: It has not so many faults.
        """
        planned = len(options.faults)
        if beyond := [one for one in faults or () if not 0 <= one < planned]:
            raise FlowError(
                f"the world of seed {options.seed} has no fault {beyond[0]}: its plan has {planned}, from 0"
            )
        life = live(options, faults, self._make)
        self._note(life)
        return life

    def _note(self, life: Life) -> None:
        self.seen += life.seen
        self.lived_count += 1
        self.failed_count += bool(life.failure)
        self._at_least_once_count += life.options.snapshots == "at-least-once"
        if any(life.repeated):
            self._repeated.append(life)

    def duplicates(self) -> str:
        """Return what counted twice under "at-least-once", "" if nothing did."""
        if not self._repeated:
            return ""
        life = min(self._repeated, key=lambda one: len(one.options.faults))
        kinds = ", ".join(sorted({one.kind for one in life.options.faults})) or "no fault"
        return (
            f"under snapshots='at-least-once', the output is not exact in {len(self._repeated)} of "
            f"{self._at_least_once_count} worlds, as documented; for one, {self._command} {life.arguments} "
            f"({kinds}): {shown_difference(*life.repeated)}"
        )

    def summary(self) -> str:
        """Return what has happened, in a line or two."""
        faults = sum(count for name, count in self.seen.items() if name.startswith("fault: "))
        kinds = sum(1 for name in self.seen if name.startswith("fault: "))
        elapsed_s = time.monotonic() - self._started
        failed = f"{self.failed_count} of {self.lived_count} failed"
        if not self.failed_count and self.lived_count:
            # With this rate of failures, nothing would have been seen so many times in one of twenty cases.
            bound = 1 - 0.05 ** (1 / self.lived_count)
            failed += f"; with 95 % confidence, fewer than {100 * bound:.2f} % of all worlds would"
        return (
            f"{self.lived_count} worlds in {elapsed_s:.1f} s: {faults} faults of {kinds} kinds, "
            f"{self.seen['epoch']} epochs, {self.seen['job finished']} jobs finished; {failed}"
        )


class FlowSimulation(Simulation):
    """Worlds in which a user's flow runs.

    Attributes:
        notes: What is to be known of the flow; not wrong by itself.
        broken: What is wrong with it already without any fault.

    Raises:
        FlowError: It can't be simulated.
    """

    def __init__(self, flow: Flow, command: str, protocols: tuple[ProtocolKind, ...] = PROTOCOLS) -> None:
        self._flow = flow
        self.notes: list[str] = []
        self.broken: list[str] = []
        self._protocols = protocols
        super().__init__(command, protocols, self._rehearse(flow).world)

    def _rehearse(self, flow: Flow) -> Rehearsal:
        found = self._rehearsed(flow)
        records = sum(len(one) for splits in found.samples.values() for one in splits.values())
        self.notes.append(f"{flow.name}: {records} records sampled from {len(found.samples)} sources")
        sinks = [
            f"{node.uid!r} ({type(node.spec.sink).__name__})"
            for vertex in flow.compile(1, 1).vertices
            for node in vertex.chain
            if isinstance(node.spec, SinkSpec)
        ]
        self.notes.append(
            f"sinks replaced by a staged one in memory: {', '.join(sinks)}; --sink checks one of your own"
        )
        if found.unstable:
            self.notes.append(f"{found.unstable}\n{UNSTABLE}")
        if found.outside_state:
            self.broken.append(f"{found.outside_state}\n{OUTSIDE_STATE}")
        return found

    def _rehearsed(self, flow: Flow) -> Rehearsal:
        """Rehearse with as many records as a world has the time for: in a loop each may go round for long."""
        options = [self.options(seed) for seed in range(TRIALS)]
        for records_max in RECORDS_MAX:
            try:
                return rehearsal(flow, records_max, options)
            except UserCodeError as error:
                raise FlowError(f"flow {flow.name!r} can't be simulated: {error_text(error)}") from error
            except Violation as violation:
                why = violation
        raise FlowError(
            f"flow {flow.name!r} can't be simulated: without any fault, and with no more than {records_max} "
            f"records of each source, a world of it is not sound: {why}"
        ) from why

    def lives(self, first_seed: int, seed_count: int, jobs: int = 1) -> Iterator[Life]:
        # The threads of Polars are not there after a fork, and whoever asks them then waits for ever.
        return super().lives(first_seed, seed_count, 1 if _has_frames(self._flow) else jobs)

    def options(self, seed: int) -> Options:
        return replace(options_of(seed, (self._flow.name,), self._protocols), splits_per_task=1)

    def shrunk(self, options: Options, life: Life) -> Life:
        return with_fewer_faults(options, life, self._make)

    def report(self, life: Life) -> str:
        is_output = life.failure.startswith(("I1", "I2"))
        return life.report(f"{self._command} {life.arguments}") + (f"{BLAME}\n" if is_output else "")


def _has_frames(flow: Flow) -> bool:
    specs = (node.spec for vertex in flow.compile(1, 1).vertices for node in vertex.chain)
    return any(isinstance(one, AnyFrameSpec) for one in specs)


def broken_promises(target: Callable[[], SinkTarget]) -> list[str]:
    """Return what is wrong with a sink: for each check of the contract that it fails, which and how.

    Args:
        target: Makes the sink for one check; it writes to a location where nothing is yet.
    """
    found = []
    for check in SINK_CHECKS:
        promise = " ".join((check.__doc__ or check.__name__).split())
        try:
            check(target())
        except (AssertionError, Violation, CrosscutError) as error:
            found.append(f"{check.__name__} ({promise}): {error}")
        except Exception as error:  # noqa: BLE001 - the sink is the user's, and may raise anything
            found.append(f"{check.__name__} ({promise}): it raised {type(error).__name__}: {error}")
    return found
