"""Settings of a job: validated once, when made; immutable afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from crosscut.contracts.checking import (
    check_duration,
    check_integer,
    check_name,
    checked_new,
    shows_fields,
    take_path,
)
from crosscut.contracts.engines import (
    Auto,
    Continuous,
    EngineName,
    EngineSettings,
    MicroBatch,
    engine_of,
    engine_with_setting,
)
from crosscut.contracts.snapshot_protocols import Aligned, Logged, SnapshotKind, logged_of, protocol_of
from crosscut.errors import SettingsError
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.logs import LogFormat, LogLevel
from crosscut.foundation.urls import shown_repr, shown_url

Encryption = Literal["auto", "required", "on", "off"]
BackendName = Literal["memory", "rocksdb"]
Migration = Callable[[Any, Any], Any]
"""Takes a key and a value as they were, returns the value as it has to be."""


class Default(int):
    """A default number, told apart from the same number given by the user."""


@shows_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restart strategy: at most `failures` within `window`, after a delay.

    The delay doubles with each failure in a row and starts again once a checkpoint has been completed.

    Attributes:
        failures: Failures tolerated within the window, and in a row without a completed checkpoint; one more
            fails the job. 0: the first does. With the default delays, 100 in a row last for a quarter of an
            hour.
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
        last_delay: Duration; at least this long before the last restart that `same_record` allows, unless the
            error is certain to be a mistake. Your own lines may raise because of a service that is down: a
            shorter outage does not end the job then.

    Examples:
        >>> import crosscut as cc
        >>> settings = cc.Settings(restart=cc.Restart(failures=20, window="10m"))
    """

    failures: int = 100
    window: Duration = "5m"
    delay: Duration = 0
    delay_step: Duration = "100ms"
    delay_max: Duration = "10s"
    same_record: int = 3
    last_delay: Duration = "10s"

    if not TYPE_CHECKING:
        # Type checkers report it themselves.
        def __new__(cls, *unnamed: Any, **given: Any) -> Self:
            """Refuse unknown settings, before `__init__` does with less advice."""
            return checked_new(cls, unnamed, given, " of Restart")

    def __post_init__(self) -> None:
        check_integer("restart.failures", self.failures, 0, 1_000_000)
        check_integer("restart.same_record", self.same_record, 0, 1_000_000)
        for name in ("window", "delay", "delay_step", "delay_max", "last_delay"):
            self.milliseconds(name)

    def milliseconds(self, name: str) -> int:
        """Return the duration setting `name` in milliseconds."""
        return int(duration_ms(getattr(self, name), f"restart.{name}"))


@shows_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a flow is to run. Durations are "1s", "200ms", ... or a number of seconds.

    Attributes:
        parallelism: Tasks per vertex, and workers; each worker needs one Spark task slot. In micro-batches
            tasks wait for their turn in the slots that there are; where it is not given there, it is Spark's
            `spark.sql.shuffle.partitions` if that has been set, up to `max_parallelism`.
        engine: How the flow runs: an engine with its own settings, or the name of one with their defaults.
            `crosscut.Continuous` or "continuous": long-lived tasks, for latency. `crosscut.MicroBatch` or
            "micro-batch": a series of Spark jobs, one per batch; `checkpoint_interval` is the time between
            the starts of two. `crosscut.Auto` or "auto": in batches while the job is far behind, in
            long-lived tasks when it has caught up, and back, at checkpoints. It may change between two
            starts.
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
        checkpoint_failures: Checkpoints that may fail in a row before the job does. Default: any number; if
            they fail for as long as `outage_timeout`, the job goes back to the newest one.
        outage_timeout: How long the checkpoint store may refuse or hang, or checkpoints may fail in a row,
            before that is a failure of the job. It tries again meanwhile, at growing intervals. At least 1
            s; to end a job after some failed checkpoints instead, set `checkpoint_failures`.
        snapshots: How consistent cuts are taken by the continuous engine. "aligned" (barriers; exactly
            once), "unaligned" (the barrier overtakes what waits; exactly once, under back pressure too),
            `crosscut.Aligned(unaligned_after="100ms")` (switches when alignment takes longer; as text
            "aligned, unaligned after 100ms"), "at-least-once" (no channel is ever blocked; records may
            count twice after a failure), "halting" (everything stops for each checkpoint; exactly once, and
            slow: a baseline to compare with), "none" (no checkpoint until the end: a failure starts from
            the beginning; output is committed at the end), or "logged" (no checkpoints: each worker has a
            log, and output is committed with each entry; see `crosscut.Logged`. Without loops, sources that
            find splits while they run, invariants, savepoints, and another parallelism, so far).
        batch_rows: Records in a full batch.
        restart: What happens after a failure.
        max_parallelism: Number of key groups; fixed for the life of the job's state.
        retain: Completed checkpoints that are kept.
        heartbeat_timeout: Silence after which a worker counts as lost. One call of a user's function may take
            seven tenths of it.
        start_timeout: How long Spark may take to give the job its workers; as long again they may take to
            restore their tasks, and the sources to say what there is to read.
        commit_attempts: Attempts at a commit, at growing intervals, before the job is restarted.
        state_backend: Where workers keep keyed state. "memory", or "rocksdb" for state that is larger than
            memory (needs `crosscut[rocksdb]`). It may change between two starts.
        state_dir: Directory, on each worker's machine, for state in RocksDB. Default: the system's directory
            for temporary files.
        state_cache_bytes: Memory of each worker for blocks of state in RocksDB that have been read. Default:
            none, the system's page cache has them; one beside it pays where a block takes long to decode.
        host: Address that the driver binds to and workers connect to. Default: loopback if Spark
            runs locally, else Spark's own driver host.
        shared: All hosts of the cluster share the local directories of the job: `checkpoint_dir` and those
            of file sinks. Without it they are refused on a master that is not local. Each worker looks for a
            token that the driver writes there (`.crosscut-shared`), and is refused by name if it finds none.
        strict: Refuse, instead of warning, a checkpoint_dir that others may write to; and to listen on a
            non-loopback address while `spark.authenticate` is off (anyone who can talk to Spark could then
            read the job's secret), without encryption, or with it while Spark's own is off (anyone who can
            read Spark's traffic could read the key).
        encryption: TLS 1.3 between workers and driver. "auto": if Spark encrypts the traffic between its own
            processes; else a warning beyond loopback, since anyone on the path can then read records.
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

    Examples:
        >>> import crosscut as cc
        >>> settings = cc.Settings(parallelism=4, checkpoint_interval="500ms", engine="micro-batch")
    """

    parallelism: int = Default(2)
    engine: EngineName | EngineSettings = "continuous"
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
    checkpoint_failures: int | None = None
    outage_timeout: Duration = "15m"
    snapshots: str | Aligned | Logged = "aligned"
    batch_rows: int = 1_000
    restart: Restart = field(default_factory=Restart, metadata={"is_option": False})
    max_parallelism: int = 128
    retain: int = 3
    heartbeat_timeout: Duration = "10s"
    start_timeout: Duration = "60s"
    commit_attempts: int = 5
    state_backend: BackendName = "memory"
    state_dir: str | os.PathLike[str] | None = None
    state_cache_bytes: int = 0
    host: str | None = None
    shared: bool = False
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
        def __new__(cls, *unnamed: Any, **given: Any) -> Self:
            """Refuse unknown settings, before `__init__` does with less advice."""
            return checked_new(cls, unnamed, given, elsewhere=partial(_place_of, engine=given.get("engine")))

    def __post_init__(self) -> None:
        check_integer("parallelism", self.parallelism, 1, 10_000)
        check_integer("max_parallelism", self.max_parallelism, 1, 32_768)
        check_integer("checkpoints_in_flight", self.checkpoints_in_flight, 1, 100)
        check_integer("checkpoints_uncommitted", self.checkpoints_uncommitted, 1, 1_000)
        if self.checkpoint_failures is not None:
            check_integer("checkpoint_failures", self.checkpoint_failures, 0, 1_000_000)
        check_integer("batch_rows", self.batch_rows, 1, 1_000_000)
        check_integer("retain", self.retain, 1, 10_000)
        check_integer("commit_attempts", self.commit_attempts, 1, 1_000)
        check_integer("web_port", self.web_port, 0, 65_535)
        check_integer("state_cache_bytes", self.state_cache_bytes, 0, 1 << 40)
        if self.parallelism > self.max_parallelism:
            raise SettingsError(
                f"parallelism={self.parallelism} is above max_parallelism={self.max_parallelism}: "
                f"there would be tasks without a key group; raise max_parallelism (it can't be "
                f"changed once the job has state) or lower parallelism"
            )
        check_name("encryption", self.encryption, Encryption)
        check_name("state_backend", self.state_backend, BackendName)
        check_name("log_level", self.log_level, LogLevel)
        check_name("log_format", self.log_format, LogFormat)
        for name, least_ms in (
            ("checkpoint_interval", 10),
            ("checkpoint_pause", 0),
            ("checkpoint_timeout", 100),
            ("heartbeat_timeout", 200),
            ("start_timeout", 100),
            ("outage_timeout", 1_000),
        ):
            check_duration(name, getattr(self, name), least_ms)
        kind, _ = self.snapshot_kind()
        engine = self.engine_settings
        if isinstance(engine, Auto):
            if engine.batch_parallelism is not None and engine.batch_parallelism > self.max_parallelism:
                raise SettingsError(
                    f"batch_parallelism={engine.batch_parallelism} is above "
                    f"max_parallelism={self.max_parallelism}: there would be tasks without a key group; "
                    f"lower batch_parallelism, or raise max_parallelism (it can't be changed once the job "
                    f"has state)"
                )
            if kind in ("none", "at-least-once"):
                raise SettingsError(
                    f"snapshots={self.snapshots!r} with engine='auto', which goes from one engine to the "
                    f"other at checkpoints that count each record once; expected 'aligned', 'unaligned', "
                    f"'halting' or crosscut.Aligned(...)"
                )
        if kind == "logged":
            self._check_logged()
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
        take_path(self, "checkpoint_dir", "a directory or an fsspec URL")
        take_path(self, "restore_from", "a savepoint, or a directory with checkpoints")
        take_path(self, "state_dir", "a directory on the workers' machines")
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
                f"web_url={shown_repr(self.web_url)}: expected the http or https URL of the page at a "
                f"proxy, as 'https://gateway.example/jobs/payments/', without user, query or fragment"
            )
        for name in (
            "accept_changes",
            "allow_dropped_state",
            "fresh",
            "shared",
            "strict",
            "web",
            "web_in_spark_ui",
        ):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name}={getattr(self, name)!r}: expected True or False")
        if self.web_in_spark_ui and not self.web:
            raise SettingsError("web_in_spark_ui=True: there is no page to be found there; say web=True, too")
        if not isinstance(self.restart, Restart):
            raise SettingsError(f"restart={self.restart!r}: expected crosscut.Restart(...)")

    def _check_logged(self) -> None:
        if self.engine_name != "continuous":
            raise SettingsError(
                f"snapshots={self.snapshots!r} with engine={self.engine_name!r}: a batch is committed as a "
                f"whole in the job log already, and nothing leaves it before; expected engine='continuous'"
            )
        if self.state_backend != "memory":
            raise SettingsError(
                f"snapshots={self.snapshots!r} with state_backend={self.state_backend!r}: logs are restored "
                f"into memory alone so far; expected state_backend='memory', or snapshots='aligned'"
            )
        if self.restore_from is not None:
            raise SettingsError(
                f"snapshots={self.snapshots!r} with restore_from: logs begin with nothing so far; expected "
                f"an empty checkpoint_dir and no restore_from, or snapshots='aligned'"
            )

    @property
    def logged(self) -> Logged | None:
        """The logs of the workers; None: they have none."""
        return logged_of(self.snapshots)

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
        """Return the protocol that `snapshots` names, and its alignment timeout in milliseconds (or 0)."""
        return protocol_of(self.snapshots)

    @property
    def engine_settings(self) -> EngineSettings:
        """The engine with its settings, also where `engine` is only its name."""
        return engine_of(self.engine)

    @property
    def engine_name(self) -> EngineName:
        """The name of the engine."""
        return self.engine_settings.engine_name

    @property
    def continuous(self) -> Continuous:
        """Settings of the continuous engine; their defaults if the job never runs under it."""
        match self.engine_settings:
            case Auto(continuous=own):
                return own
            case Continuous() as own:
                return own
            case _:
                return Continuous()

    @property
    def micro_batch(self) -> MicroBatch:
        """Settings of the micro-batch engine; their defaults if the job never runs under it."""
        match self.engine_settings:
            case Auto(micro_batch=own):
                return own
            case MicroBatch() as own:
                return own
            case _:
                return MicroBatch()

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
    if not isinstance(settings, Settings):
        # Type checkers report it themselves.
        is_engine = isinstance(settings, Continuous | MicroBatch | Auto | str)
        advice = f"; say engine={settings!r}" if is_engine else ""
        raise SettingsError(f"settings={settings!r:.200}: expected crosscut.Settings(...){advice}")
    if not changed:
        return settings
    if changed.get("engine") == settings.engine_name:
        # The name of the engine that it is already: its own settings stay.
        changed = {**changed, "engine": settings.engine}
    given = {one.name: getattr(settings, one.name) for one in fields(settings) if one.init}
    return Settings(**{**given, **changed})


def _place_of(name: str, engine: object) -> str:
    """Return where a setting is that `Settings` does not have, "" if nowhere."""
    if name in (one.name for one in fields(Aligned)):
        return f"snapshots=crosscut.Aligned({name}=...)"
    if name in (one.name for one in fields(Logged)):
        return f"snapshots=crosscut.Logged({name}=...)"
    return engine_with_setting(name, engine)


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
