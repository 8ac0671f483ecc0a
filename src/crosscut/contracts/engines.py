"""The engines that a flow can run under, with the settings that only one of them has."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from crosscut.contracts.checking import (
    check_duration,
    check_integer,
    check_name,
    checked_new,
    shows_fields,
    take_path,
)
from crosscut.errors import SettingsError
from crosscut.foundation.durations import Duration, duration_ms

EngineName = Literal["continuous", "micro-batch", "auto"]
TriggerName = Literal["interval", "available_now", "once"]


@shows_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous:
    """The engine of long-lived tasks, which send records over connections of their own, for latency.

    Attributes:
        linger: How long a batch that is not full may wait for more records.
        latency_interval: How often a source task sends a latency marker after its records, by which every
            later task measures how long they take. A few bytes each. 0: never.
        channel_bytes: Bytes that may be queued in memory on each side of one channel.
        spill_bytes: Disk that each worker may use for records that come in on channels blocked for a
            snapshot, so that their senders need not wait. 0: they wait. Beyond it they wait, too.
        spill_dir: Directory, on each worker's machine, for these records and for full loops. Default: the
            system's directory for temporary files.

    Examples:
        >>> import crosscut as cc
        >>> settings = cc.Settings(engine=cc.Continuous(linger="5ms", spill_bytes=10_000_000_000))
    """

    engine_name: ClassVar[EngineName] = "continuous"

    linger: Duration = "1ms"
    latency_interval: Duration = "1s"
    channel_bytes: int = 4 * 1024 * 1024
    spill_bytes: int = 0
    spill_dir: str | os.PathLike[str] | None = None

    if not TYPE_CHECKING:
        # Type checkers report it themselves.
        def __new__(cls, *unnamed: Any, **given: Any) -> Self:
            """Refuse unknown settings, before `__init__` does with less advice."""
            return checked_new(cls, unnamed, given, " of Continuous", engine_with_setting)

    def __post_init__(self) -> None:
        check_duration("linger", self.linger, 0)
        check_duration("latency_interval", self.latency_interval, 0)
        check_integer("channel_bytes", self.channel_bytes, 64 * 1024, 1 << 30)
        check_integer("spill_bytes", self.spill_bytes, 0, 1 << 50)
        take_path(self, "spill_dir", "a directory on the workers' machines")

    def milliseconds(self, name: str) -> float:
        """Return the duration setting `name` in milliseconds."""
        return duration_ms(getattr(self, name), name)


@shows_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The engine that runs a series of Spark jobs, one per batch, which Spark may retry and speculate on.

    Attributes:
        records_max: Records that all sources together read in one batch, within a quarter of
            `checkpoint_timeout`. A full batch is followed by the next one at once.
        trigger: "interval": one batch after the other, `checkpoint_interval` between the starts of two.
            "available_now": until one has read all that there is; then the job stops, as by `job.stop()`.
            "once": one batch, then the job stops.

    Examples:
        >>> import crosscut as cc
        >>> settings = cc.Settings(engine=cc.MicroBatch(trigger="available_now"), parallelism=8)
    """

    engine_name: ClassVar[EngineName] = "micro-batch"

    records_max: int = field(default=2_000_000, metadata={"option": "batch_records_max"})
    trigger: TriggerName = field(default="interval", metadata={"in_auto": False})

    if not TYPE_CHECKING:
        # Type checkers report it themselves.
        def __new__(cls, *unnamed: Any, **given: Any) -> Self:
            """Refuse unknown settings, before `__init__` does with less advice."""
            return checked_new(cls, unnamed, given, " of MicroBatch", engine_with_setting)

    def __post_init__(self) -> None:
        check_integer("records_max", self.records_max, 1, 1 << 40)
        check_name("trigger", self.trigger, TriggerName)


@shows_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """Both engines in turn: micro-batches while the job is far behind, long-lived tasks otherwise.

    Attributes:
        caught_up_at: With at most so many records waiting after a batch, the job changes to long-lived
            tasks. A source that does not know how many wait counts as caught up with when a batch could
            have held more.
        behind_at: With more records waiting than that, for `behind_for`, it changes back to micro-batches.
        behind_for: See `behind_at`.
        batch_parallelism: Tasks of each vertex in micro-batches. None: as many as Spark can run at once,
            and at least `parallelism`.
        continuous: Settings of the continuous engine.
        micro_batch: Settings of the micro-batch engine; its trigger stays "interval".

    Examples:
        >>> import crosscut as cc
        >>> settings = cc.Settings(engine=cc.Auto(caught_up_at=1_000, behind_for="2m"), parallelism=4)
    """

    engine_name: ClassVar[EngineName] = "auto"

    caught_up_at: int = 10_000
    behind_at: int = 1_000_000
    behind_for: Duration = "30s"
    batch_parallelism: int | None = None
    continuous: Continuous = field(default_factory=Continuous, metadata={"is_option": False})
    micro_batch: MicroBatch = field(default_factory=MicroBatch, metadata={"is_option": False})

    if not TYPE_CHECKING:
        # Type checkers report it themselves.
        def __new__(cls, *unnamed: Any, **given: Any) -> Self:
            """Refuse unknown settings, before `__init__` does with less advice."""
            return checked_new(cls, unnamed, given, " of Auto", partial(engine_with_setting, engine="auto"))

    def __post_init__(self) -> None:
        check_integer("caught_up_at", self.caught_up_at, 0, 1 << 40)
        check_integer("behind_at", self.behind_at, 1, 1 << 40)
        check_duration("behind_for", self.behind_for, 0)
        if self.batch_parallelism is not None:
            check_integer("batch_parallelism", self.batch_parallelism, 1, 32_768)
        for name, kind in (("continuous", Continuous), ("micro_batch", MicroBatch)):
            if not isinstance(getattr(self, name), kind):
                raise SettingsError(f"{name}={getattr(self, name)!r}: expected crosscut.{kind.__name__}(...)")
        if self.micro_batch.trigger != "interval":
            raise SettingsError(
                f"trigger={self.micro_batch.trigger!r} says when micro-batches end; expected "
                f"engine=crosscut.MicroBatch(...) with it, found crosscut.Auto(...)"
            )
        if self.caught_up_at >= self.behind_at:
            raise SettingsError(
                f"caught_up_at={self.caught_up_at} is not below behind_at={self.behind_at}: a job would go "
                f"from one engine to the other again and again; lower the one or raise the other"
            )

    @property
    def behind_for_ms(self) -> int:
        """`behind_for` in milliseconds."""
        return int(duration_ms(self.behind_for, "behind_for"))


EngineSettings = Continuous | MicroBatch | Auto
ENGINES: tuple[type[EngineSettings], ...] = (Continuous, MicroBatch, Auto)


def engine_of(given: object) -> EngineSettings:
    """Return the engine that the setting `engine` names or is.

    Raises:
        SettingsError: It is none.
    """
    if isinstance(given, Continuous | MicroBatch | Auto):
        return given
    for kind in ENGINES:
        if given == kind.engine_name:
            return kind()
    names = ", ".join(f"{kind.engine_name!r}" for kind in ENGINES)
    objects = ", ".join(f"crosscut.{kind.__name__}(...)" for kind in ENGINES)
    raise SettingsError(f"engine={given!r}: expected one of {names}, or {objects}")


def engine_with_setting(name: str, engine: object = None) -> str:
    """Return how the setting `name` is given if an engine has it, "" if none does.

    Args:
        engine: That the job is to have; None: not known.
    """
    is_auto = engine == Auto.engine_name or isinstance(engine, Auto)
    for kind in ENGINES:
        for one in fields(kind):
            if name not in (one.name, one.metadata.get("option")):
                continue
            place = f"crosscut.{kind.__name__}({one.name}=...)"
            if is_auto and kind is not Auto and one.metadata.get("in_auto", True):
                place = f"crosscut.Auto({kind.engine_name.replace('-', '_')}={place})"
            return f"engine={place}"
    return ""
