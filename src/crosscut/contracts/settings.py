"""Settings of a job: validated once, when made; immutable afterwards."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from crosscut.errors import SettingsError
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.logs import LogFormat, LogLevel
from crosscut.foundation.suggestions import advice_on_option
from crosscut.foundation.urls import path_text, shown_url

SnapshotKind = Literal["aligned", "unaligned", "switching", "at-least-once", "halting", "none"]
_SWITCHING = re.compile(r"aligned\s*,\s*unaligned\s+after\s+(.+)")
Encryption = Literal["auto", "required", "on", "off"]
BackendName = Literal["memory", "rocksdb"]
EngineName = Literal["continuous", "micro-batch", "auto"]
TriggerName = Literal["interval", "available_now", "once"]
Migration = Callable[[Any, Any], Any]
"""Takes a key and a value as they were, returns the value as it has to be."""


class Default(int):
    """A number that nobody has given, told apart from the same one that somebody has."""


def _checked_new(cls: type[Any], given: Mapping[str, Any], of: str = "") -> Any:
    known = [one.name for one in fields(cls) if one.init]
    for name in given:
        if name not in known:
            raise SettingsError(f"there is no setting {name!r}{of}{advice_on_option(name, known)}")
    # With slots the class is made a second time, which `super()` would not know.
    return object.__new__(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restart strategy: at most `failures` within `window`, after a delay.

    The delay doubles with each failure in a row and starts again once a checkpoint has been completed.

    Attributes:
        failures: Failures tolerated within the window; one more fails the job. 0: the first does.
        window: Duration; failures older than this are forgotten.
        delay: Duration before the first restart since a checkpoint was completed. Defaults to none at
            all: the first failure is most often a lost process, and waiting would not bring it back.
        delay_step: Duration before the second one in a row; doubles for each one after it.
        delay_max: Duration; the delay grows no further.
        same_record: The same record failing in the same operator so many times in a row fails the job, as it
            would fail for ever. 0: it counts as any other failure. What may come from outside is no fault of
            the record: an OSError (a refused connection, say), or a failure at the first record that an
            operator gets after a restart (but for a TypeError, NameError, ..., or where the function has
            looked at nothing but its record). A record that ends its process fails the job as soon as it is
            found; with 0 no worker looks for it.
    """

    failures: int = 10
    window: Duration = "5m"
    delay: Duration = 0
    delay_step: Duration = "100ms"
    delay_max: Duration = "10s"
    same_record: int = 3

    if not TYPE_CHECKING:
        # Type checkers report it themselves.
        def __new__(cls, **given: Any) -> Self:
            """Refuse unknown settings, before `__init__` does with less advice."""
            return _checked_new(cls, given, " of Restart")

    def __post_init__(self) -> None:
        _check_integer("restart.failures", self.failures, 0, 1_000_000)
        _check_integer("restart.same_record", self.same_record, 0, 1_000_000)
        for name in ("window", "delay", "delay_step", "delay_max"):
            self.milliseconds(name)

    def milliseconds(self, name: str) -> int:
        """Return the duration setting `name` in milliseconds."""
        return int(duration_ms(getattr(self, name), f"restart.{name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a flow is to run. Durations are "1s", "200ms", ... or a number of seconds.

    Attributes:
        parallelism: Tasks per vertex, and workers; each worker needs one Spark task slot. In micro-batches
            tasks wait for their turn in the slots that there are; where it is not given there, it is Spark's
            `spark.sql.shuffle.partitions` if that has been set, up to `max_parallelism`.
        engine: How the flow runs. "continuous": long-lived tasks, records over channels of our own, for
            latency. "micro-batch": a series of Spark jobs, a batch each, which Spark may retry, speculate on
            and scale; a task needs a slot only while it runs, and `checkpoint_interval` is the time between
            the starts of two batches. "auto": in batches while the job is far behind, in tasks that stay when
            it has caught up, and back, at checkpoints. It may change between two starts.
        batch_records_max: Records that all sources together read in one batch, within a quarter of
            `checkpoint_timeout`. A batch that is full is followed by the next one at once.
        trigger: Of micro-batches. "interval": one after the other, `checkpoint_interval` between the starts
            of two. "available_now": until one has read all that there is; then the job stops, as by
            `job.stop()`. "once": one batch, likewise.
        caught_up_at: Of "auto": with so many records waiting after a batch, or fewer, the job goes over to
            tasks that stay. A source that doesn't know how many wait counts as caught up with when a batch
            could have held more.
        behind_at: Of "auto": with more records waiting than that, for `behind_for`, it goes back to batches.
        behind_for: See there.
        batch_parallelism: Of "auto": tasks of each vertex in batches. None: as many as Spark can run at once,
            at least `parallelism`.
        checkpoint_dir: Directory (str or Path) or fsspec URL of the checkpoint store. One job owns one
            directory; starting a flow on a directory that holds its job resumes that job. Default:
            checkpoints/ and the flow's name.
        accept_changes: Resume although a source or sink says that it reads or writes something other than
            before: the job goes on with the splits it has, and commits its staged output.
        fresh: Begin with nothing although a sink has output of another history there already: what this job
            writes comes beside it. Without it such a start is refused; on a directory that holds the
            job it changes nothing.
        restore_from: A savepoint, or a checkpoint of another job (its checkpoint_dir, with `@7` for
            checkpoint 7), that the job begins with. Its own checkpoint_dir must be empty; a later start that
            says the same goes on from its newest checkpoint. Its state is unpickled, so a local
            directory that other users can write to, or one below it, causes a warning; with `strict` the job
            is refused.
        allow_dropped_state: Begin with it although the flow has no operator, or no state, for some of it.
        migrate_state: By uid, what turns the state of an operator into its new form: a function of key and
            value that returns the new value; of a process with several states such functions, by their names.
        checkpoint_interval: Between the starts of two checkpoints.
        checkpoint_pause: At least so long between the end of a checkpoint and the start of the next one; one
            that falls due in the pause starts at its end.
        checkpoints_in_flight: How many may be under way at once, if they take longer than the interval;
            completing one gives up the older ones.
        checkpoints_uncommitted: How many completed checkpoints may wait for a sink to commit them. With so
            many no other starts, and after a second sources wait: a slow sink slows the job down.
        checkpoint_timeout: A checkpoint that takes longer is aborted; the job runs on. If a sink's prepare
            or commit takes longer, the job goes back to its last checkpoint.
        checkpoint_failures: Checkpoints that may fail in a row before the job does.
        snapshots: How consistent cuts are taken. "aligned" (barriers; exactly once), "unaligned" (the
            barrier overtakes what waits; exactly once, under back pressure too), "aligned, unaligned
            after 100ms" (switches when alignment takes longer), "at-least-once" (no channel is ever
            blocked; records may count twice after a failure), "halting" (everything stops for each
            checkpoint; exactly once, and slow: a baseline to compare with), or "none" (no checkpoint until
            the end: a failure starts from the beginning; output is committed at the end).
        linger: How long a batch that is not full may wait for more records.
        latency_interval: How often a source task lets a mark follow its records, by which every task after
            it measures how long they take. A few bytes each. 0: never.
        batch_rows: Records in a full batch.
        restart: What happens after a failure.
        max_parallelism: Number of key groups; fixed for the life of the job's state.
        retain: Completed checkpoints that are kept.
        heartbeat_timeout: Silence after which a worker counts as lost. One call of a user's function may take
            seven tenths of it.
        start_timeout: How long Spark may take to give the job its workers; as long again they may take to
            restore their tasks, and the sources to say what there is to read.
        commit_attempts: Attempts at a commit, at growing intervals, before the job is restarted.
        channel_bytes: Bytes that may be queued in memory on each side of one channel.
        spill_bytes: Disk that each worker may use for records that come in on channels blocked for a
            snapshot, so that their senders need not wait. 0: they wait. Beyond it they wait, too.
        spill_dir: Directory, on each worker's machine, for these records and for full loops. Default: the
            system's directory for temporary files.
        state_backend: Where workers keep keyed state. "memory", or "rocksdb" for state that is larger than
            memory (needs `crosscut[rocksdb]`). It may change between two starts.
        state_dir: Directory, on each worker's machine, for state in RocksDB. Default: the system's directory
            for temporary files.
        state_cache_bytes: Memory of each worker for blocks of state in RocksDB that have been read. Default:
            none, the system's page cache has them; one beside it pays where a block takes long to decode.
        host: Address that the driver binds to and workers connect to. Default: loopback if Spark
            runs locally, else Spark's own driver host.
        strict: Refuse, instead of warning, a checkpoint_dir that others may write to; and to listen on a
            non-loopback address while `spark.authenticate` is off (whoever can talk to Spark could then
            read the job's secret), without encryption, or with it while Spark's own is off (whoever can
            read Spark's traffic could read the key).
        encryption: TLS 1.3 between workers and driver. "auto": if Spark encrypts the traffic between its own
            processes; else a warning beyond loopback, since whoever is on the way can then read records.
            "required": always, and the job is refused where the key would travel in the open. "on": always,
            with a warning there. "off": never. Without TLS, frames to other machines carry a seal: changes
            on the way are seen, nothing is hidden.
        web: Serve the page of the job, and its metrics for Prometheus, from the driver.
        web_port: The first port that is tried for it; the next free one is taken. 0: any.
        web_host: Address that it binds to. Default: loopback. There is no encryption: beyond loopback put a
            proxy with TLS in front of it.
        web_url: Where browsers find the page if a reverse proxy serves it, as
            "https://gateway.example/jobs/payments/". The proxy may hand on the path and the name of the host,
            or its own. Default: there is none.
        web_in_spark_ui: Serve the page under Spark's own UI, too, at /crosscut/ and the flow's name. There
            it is found wherever that is, also through the reverse proxy of a standalone master.
        log_level: Of what workers log, with `logging`: from here on it is shown on their standard error, and
            found on the driver.
        log_format: Of these lines: "text", or "json", one object a line.
    """

    parallelism: int = Default(2)
    engine: EngineName = "continuous"
    batch_records_max: int = 2_000_000
    trigger: TriggerName = "interval"
    caught_up_at: int = 10_000
    behind_at: int = 1_000_000
    behind_for: Duration = "30s"
    batch_parallelism: int | None = None
    checkpoint_dir: str | os.PathLike[str] | None = None
    accept_changes: bool = False
    fresh: bool = False
    restore_from: str | os.PathLike[str] | None = None
    allow_dropped_state: bool = False
    migrate_state: Mapping[str, Migration | Mapping[str, Migration]] | None = field(
        # A function can't be said on a command line.
        default=None,
        metadata={"is_option": False},
    )
    checkpoint_interval: Duration = "1s"
    checkpoint_pause: Duration = 0
    checkpoints_in_flight: int = 1
    checkpoints_uncommitted: int = 4
    checkpoint_timeout: Duration = "60s"
    checkpoint_failures: int = 10
    snapshots: str = "aligned"
    linger: Duration = "1ms"
    latency_interval: Duration = "1s"
    batch_rows: int = 1_000
    restart: Restart = field(default_factory=Restart)
    max_parallelism: int = 128
    retain: int = 3
    heartbeat_timeout: Duration = "10s"
    start_timeout: Duration = "60s"
    commit_attempts: int = 5
    channel_bytes: int = 4 * 1024 * 1024
    spill_bytes: int = 0
    spill_dir: str | os.PathLike[str] | None = None
    state_backend: BackendName = "memory"
    state_dir: str | os.PathLike[str] | None = None
    state_cache_bytes: int = 0
    host: str | None = None
    strict: bool = False
    encryption: Encryption = "auto"
    web: bool = False
    web_port: int = 4400
    web_host: str = "127.0.0.1"
    web_url: str = ""
    web_in_spark_ui: bool = False
    log_level: LogLevel = "WARNING"
    log_format: LogFormat = "text"

    if not TYPE_CHECKING:
        # Type checkers report it themselves.
        def __new__(cls, **given: Any) -> Self:
            """Refuse unknown settings, before `__init__` does with less advice."""
            return _checked_new(cls, given)

    def __post_init__(self) -> None:
        _check_integer("parallelism", self.parallelism, 1, 10_000)
        _check_integer("max_parallelism", self.max_parallelism, 1, 32_768)
        _check_integer("checkpoints_in_flight", self.checkpoints_in_flight, 1, 100)
        _check_integer("checkpoints_uncommitted", self.checkpoints_uncommitted, 1, 1_000)
        _check_integer("checkpoint_failures", self.checkpoint_failures, 0, 1_000_000)
        _check_integer("batch_rows", self.batch_rows, 1, 1_000_000)
        _check_integer("batch_records_max", self.batch_records_max, 1, 1 << 40)
        _check_integer("caught_up_at", self.caught_up_at, 0, 1 << 40)
        _check_integer("behind_at", self.behind_at, 1, 1 << 40)
        if self.batch_parallelism is not None:
            _check_integer("batch_parallelism", self.batch_parallelism, 1, self.max_parallelism)
        _check_integer("retain", self.retain, 1, 10_000)
        _check_integer("commit_attempts", self.commit_attempts, 1, 1_000)
        _check_integer("channel_bytes", self.channel_bytes, 64 * 1024, 1 << 30)
        _check_integer("web_port", self.web_port, 0, 65_535)
        _check_integer("spill_bytes", self.spill_bytes, 0, 1 << 50)
        _check_integer("state_cache_bytes", self.state_cache_bytes, 0, 1 << 40)
        if self.parallelism > self.max_parallelism:
            raise SettingsError(
                f"parallelism={self.parallelism} is above max_parallelism={self.max_parallelism}: "
                f"there would be tasks without a key group; raise max_parallelism (it can't be "
                f"changed once the job has state) or lower parallelism"
            )
        for name, known in (
            ("encryption", get_args(Encryption)),
            ("state_backend", get_args(BackendName)),
            ("log_level", get_args(LogLevel)),
            ("log_format", get_args(LogFormat)),
            ("engine", get_args(EngineName)),
            ("trigger", get_args(TriggerName)),
        ):
            if getattr(self, name) not in known:
                raise SettingsError(
                    f"{name}={getattr(self, name)!r}: expected one of {', '.join(map(repr, known))}"
                )
        for name, least_ms in (
            ("checkpoint_interval", 10),
            ("checkpoint_pause", 0),
            ("behind_for", 0),
            ("checkpoint_timeout", 100),
            ("linger", 0),
            ("latency_interval", 0),
            ("heartbeat_timeout", 200),
            ("start_timeout", 100),
        ):
            found_ms = duration_ms(getattr(self, name), name)
            if found_ms < least_ms:
                raise SettingsError(f"{name}={getattr(self, name)!r}: expected at least {least_ms} ms")
        if self.trigger != "interval" and self.engine != "micro-batch":
            raise SettingsError(
                f"trigger={self.trigger!r} says when micro-batches end; expected engine='micro-batch' with "
                f"it, found engine={self.engine!r}"
            )
        if self.caught_up_at >= self.behind_at:
            raise SettingsError(
                f"caught_up_at={self.caught_up_at} is not below behind_at={self.behind_at}: a job would go "
                f"from one engine to the other again and again; lower the one or raise the other"
            )
        kind, _ = self.snapshot_kind()
        if self.engine == "auto" and kind in ("none", "at-least-once"):
            raise SettingsError(
                f"snapshots={self.snapshots!r} with engine='auto', which goes from one engine to the "
                f"other at checkpoints that count each record once; expected 'aligned' or 'unaligned'"
            )
        if kind == "halting" and self.checkpoints_in_flight > 1:
            raise SettingsError(
                f"checkpoints_in_flight={self.checkpoints_in_flight}: with snapshots='halting' everything "
                f"stands still for one checkpoint; expected 1"
            )
        if self.checkpoints_in_flight > self.retain:
            raise SettingsError(
                f"checkpoints_in_flight={self.checkpoints_in_flight} is above retain={self.retain}: one "
                f"under way builds on a completed one, which must not be dropped meanwhile; raise retain"
            )
        self._take_path("checkpoint_dir", "a directory or an fsspec URL")
        self._take_path("restore_from", "a savepoint, or a directory with checkpoints")
        self._take_path("spill_dir", "a directory on the workers' machines")
        self._take_path("state_dir", "a directory on the workers' machines")
        if self.state_backend == "rocksdb" and find_spec("rocksdict") is None:
            raise SettingsError(
                "state_backend='rocksdb' needs rocksdict, which is not installed: install it with "
                "pip install 'crosscut[rocksdb]', on the workers too"
            )
        if self.host is not None and (not isinstance(self.host, str) or not self.host):
            raise SettingsError(f"host={self.host!r}: expected a host name or an address")
        if not _are_migrations(self.migrate_state):
            raise SettingsError(
                f"migrate_state={self.migrate_state!r}: expected for each uid a function, or functions by "
                f"the names of states, as in {{'counts': doubled}} or {{'visits': {{'seen': set_of}}}}"
            )
        if not isinstance(self.web_host, str) or not self.web_host:
            raise SettingsError(f"web_host={self.web_host!r}: expected an address of this machine")
        if not isinstance(self.web_url, str) or not _is_page_url(self.web_url):
            raise SettingsError(
                f"web_url={self.web_url!r}: expected the http or https URL of the page at a proxy, as "
                f"'https://gateway.example/jobs/payments/', without user, query or fragment"
            )
        for name in ("accept_changes", "allow_dropped_state", "fresh", "strict", "web", "web_in_spark_ui"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name}={getattr(self, name)!r}: expected True or False")
        if self.web_in_spark_ui and not self.web:
            raise SettingsError("web_in_spark_ui=True: there is no page to be found there; say web=True, too")
        if not isinstance(self.restart, Restart):
            raise SettingsError(f"restart={self.restart!r}: expected crosscut.Restart(...)")

    def _take_path(self, name: str, expected: str) -> None:
        """Check a setting that is a path, and keep it as a str."""
        value = getattr(self, name)
        if value is None:
            return
        # As dataclasses do it themselves: the object is not made yet.
        object.__setattr__(self, name, path_text(value, name, expected))

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.names()}
        for name in ("checkpoint_dir", "restore_from"):
            if isinstance(values[name], str):
                values[name] = shown_url(values[name])
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @property
    def is_parallelism_given(self) -> bool:
        """Whether somebody has said what `parallelism` is."""
        return not isinstance(self.parallelism, Default)

    def store_of(self, flow: str) -> str:
        """Return the directory or URL of the checkpoint store of the flow called `flow`."""
        return f"checkpoints/{flow}" if self.checkpoint_dir is None else os.fspath(self.checkpoint_dir)

    def milliseconds(self, name: str) -> float:
        """Return the duration setting `name` in milliseconds."""
        return duration_ms(getattr(self, name), name)

    def snapshot_kind(self) -> tuple[SnapshotKind, float]:
        """Return the protocol that `snapshots` names, and its alignment timeout in milliseconds (or 0).

        Raises:
            SettingsError: It names none.
        """
        found = self.snapshots if isinstance(self.snapshots, str) else repr(self.snapshots)
        match found:
            case "aligned" | "unaligned" | "at-least-once" | "halting" | "none":
                return found, 0.0
            case _:
                pass
        if switching := _SWITCHING.fullmatch(found):
            return "switching", duration_ms(switching[1], "snapshots: the time after 'unaligned after'")
        raise SettingsError(
            f"snapshots={self.snapshots!r}: expected 'aligned', 'unaligned', 'aligned, unaligned after "
            f"100ms' (or another duration), 'at-least-once', 'halting' or 'none'"
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all settings, in order."""
        return tuple(f.name for f in fields(cls))


def settings_with(settings: Settings | None, changed: Mapping[str, Any]) -> Settings:
    """Return `settings`, or else the defaults, with what has changed.

    Raises:
        SettingsError: There is no such setting, or its value is not as described.
    """
    if settings is None:
        return Settings(**changed)
    if not changed:
        return settings
    given = {one.name: getattr(settings, one.name) for one in fields(settings) if one.init}
    return Settings(**{**given, **changed})


def _are_migrations(given: object) -> bool:
    if given is None:
        return True
    return isinstance(given, Mapping) and all(
        callable(one) or (isinstance(one, Mapping) and one and all(map(callable, one.values())))
        for one in given.values()
    )


def _is_page_url(url: str) -> bool:
    if not url:
        return True
    try:
        found = urlsplit(url)
        _ = found.port
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and not any(one in url for one in '@?# "<>')
    return is_plain and found.scheme in ("http", "https") and bool(found.hostname)


def _check_integer(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SettingsError(f"{name}={value!r}: expected a whole number from {least} to {most}")
