"""All exceptions of Crosscut, as one tree.

Each class says when it is raised, gives an example, and says what to do: retry, fix or report. Catch
`CrosscutError` for all of them.

A message says what failed, which ids, what was expected and found, and what to do. Ids are
attributes as well. Expected outcomes (stale, fenced, already committed) are values, never
exceptions. Every exception here survives pickling, because Spark carries them between processes.
"""

from __future__ import annotations

from typing import Any


class CrosscutError(Exception):
    """Base of all errors of this library.

    Attributes:
        message: What failed, what was expected and found, and what to do.
        ids: The ids in the message, by name; each is an attribute as well.
    """

    def __init__(self, message: str, **ids: Any) -> None:
        super().__init__(message)
        self.message = message
        self.ids = ids
        for name, value in ids.items():
            setattr(self, name, value)

    _was_transient: bool | None = None
    """Of an unpickled error, which has lost its `__cause__`: whether the original was transient."""

    @property
    def is_transient(self) -> bool:
        """Whether trying again may help, though program, settings and input stay as they are.

        If False, the error needs a fix first, or nothing is known that would make it pass.
        """
        return False

    def _was_transient_before(self) -> bool | None:
        """Return `_was_transient`, or None if the error has a cause, which says more."""
        return self._was_transient if self.__cause__ is None else None

    def __reduce__(self) -> tuple[Any, ...]:
        # All attributes: some, such as `is_permanent` and notes, may have been set after the error was made.
        state = _only_picklable(vars(self))
        state["ids"] = _only_picklable(self.ids)
        state["_was_transient"] = self.is_transient
        return (_rebuilt, (type(self), self.args), state)

    def __str__(self) -> str:
        return self.message


def _rebuilt(kind: type[CrosscutError], args: tuple[Any, ...]) -> CrosscutError:
    # Without `__init__`: that of a subclass may take other arguments.
    error = kind.__new__(kind)
    error.args = args
    return error


def _only_picklable(values: dict[str, Any]) -> dict[str, Any]:
    """Return those of `values` that survive pickling; the others must not stop an error on its way."""
    import pickle  # noqa: S403 - only loads what it has just written

    found = {}
    for name, value in values.items():
        try:
            pickle.loads(pickle.dumps(value))  # noqa: S301
        except Exception:  # noqa: BLE001 - a class may raise anything when it is pickled
            continue
        # `add_note` on a copy must not change the original.
        found[name] = list(value) if name == "__notes__" else value
    return found


class FlowError(CrosscutError):
    """The flow is not valid.

    Raised by a method of a stream that gets wrong arguments, and by `flow.explain` and `flow.start` for a
    mistake that involves the whole graph.

    Example: a flow without a sink; `count()` on a stream without `key_by`.

    What to do: fix the flow. Nothing has run.
    """


class SettingsError(CrosscutError):
    """A setting or an option is out of range, contradicts another, or does not fit the cluster.

    Raised by `Settings`, by the constructors of sources and sinks, and by `flow.start`.

    Example: `parallelism=200` with `max_parallelism=128`.

    What to do: fix the setting that the message names.
    """


class ProtocolError(CrosscutError):
    """A protocol machine received an event that cannot happen; the machine is unchanged.

    Example: an acknowledgement for a checkpoint that was never triggered.

    What to do: report it. This is a bug of Crosscut.
    """


class MissingRecordsError(ProtocolError):
    """A channel between two workers goes on after records that its receiver does not have.

    Example: the log of a worker was replaced by a backup, so the other worker has forgotten what it lacks.

    What to do: restore the logs of all workers from one moment, or start from a savepoint. Without a backup,
    report it: a bug of Crosscut.
    """


class WireError(CrosscutError):
    """A peer sent bytes that the wire format does not allow; the connection is closed.

    Example: a program other than a worker connects to the job's port; a TLS handshake fails.

    What to do: usually nothing, since the job fails over by itself. If it recurs, look for other
    programs that use these ports, and compare the releases of Crosscut on the hosts.
    """

    @property
    def is_transient(self) -> bool:
        """True."""
        return True


class StateError(CrosscutError):
    """State could not be encoded or decoded.

    Example: a value in state that cannot be pickled; a class of a value that was renamed since the
    checkpoint.

    What to do: fix the code, for example restore the class, or pass `serializer=` or `migrate_state=`.
    Retrying does not help.
    """


class StoreError(CrosscutError):
    """The checkpoint store failed, or contains something other than was written.

    Example: access to the bucket is denied; a part has another SHA-256 than the log entry says.

    What to do: fix access to the store, and start the job again; it resumes. For a damaged or missing part
    restore that part from a backup. The job never falls back to an older checkpoint by itself.
    """

    @property
    def is_transient(self) -> bool:
        """Whether the file system or object store failed, and nothing is damaged, missing or forbidden."""
        if (before := self._was_transient_before()) is not None:
            return before
        is_outage = isinstance(self.__cause__, OSError) and may_pass(self.__cause__)
        return is_outage and not self.ids.get("damaged", False)


class AuthenticityError(StoreError):
    """An entry of the job log, or a savepoint, was not written with the key of this process, if it has one.

    Example: `CROSSCUT_LOG_KEY` was set only after the first start.

    What to do: set the key with which the job log was written, or use a new `checkpoint_dir`. If you
    trust the author of a savepoint, run `crosscut checkpoints seal`. Otherwise find out who has written
    there.
    """

    @property
    def is_transient(self) -> bool:
        """False."""
        return False


class SpillError(CrosscutError):
    """Records that do not fit into memory could not be written to disk, or read back.

    Example: the disk under `spill_dir` is full.

    What to do: free space, or choose another `spill_dir`, and start the job again; it resumes.
    """

    @property
    def is_transient(self) -> bool:
        """True: others may free space."""
        return True


class ConnectorError(CrosscutError):
    """A source or sink failed.

    Example: a broker does not respond; a line of a file is not JSON.

    What to do: unless `is_permanent`, nothing at first: the job retries within its restart strategy. If
    it has ended, repair the service, and start the job again. If `is_permanent`, fix the record, the
    configuration or the table that the message names.

    Attributes:
        operator: uid of the source or sink; the task adds it if it is missing.
        record: repr of the record that caused the error, shortened, or "" if no single record did.
        is_permanent: Every attempt fails in the same way, because the record or the configuration is refused.
            So does what a constructor of a source or sink raises of its arguments.
            Set it only if that is certain: the third such failure of a source or sink in a row ends the job,
            while a service that is down has all restarts to recover.
        may_recover: If False, no outage is known that explains the error, though it is not sure to recur.
    """

    operator: str = ""
    record: str = ""
    is_permanent: bool = False
    may_recover: bool = True

    @property
    def is_transient(self) -> bool:
        """Whether it is not `is_permanent`, and `may_recover`."""
        return not self.is_permanent and self.may_recover


class HistoryError(ConnectorError):
    """Visible output of a sink does not belong to the checkpoints from which the job resumes, or another job
    writes in its name.

    Example: the checkpoint directory was deleted, and its output was not; an old backup was restored.

    What to do: use the newest checkpoint directory, or choose another output location, or start with
    `fresh=True` to add to the output. Retrying does not help.
    """

    @property
    def is_transient(self) -> bool:
        """False."""
        return False


class RefusedRecordError(ConnectorError):
    """The system behind a sink refuses this record.

    Example: a text that is too long for its column; a message above the size limit of the topic.

    What to do: fix the flow, or set such records aside with `stream.sink(sink, dead_letters=...)`.
    Retrying does not help.

    Attributes:
        record: repr of the record, shortened.
        reason: The reason that the system gives.
    """

    record: str
    reason: str
    is_permanent = True


class UserCodeError(CrosscutError):
    """A function of the flow raised.

    Example: `lambda click: click["usr"]` on a record without that field.

    What to do: fix the function, or set such records aside with `on_error="dead letters"`, and start the job
    again; it resumes. While a service that the function calls is down, the job retries by itself.

    Attributes:
        operator: uid of the operator.
        record: repr of the record, shortened, or None if no single record caused the error.
        traceback: the user's traceback as text.
        is_first: the operator had processed no other record since the job was last restored.
        is_certain: the error will recur: the function uses only its record, or the user's own lines
            raised a ValueError, or, of a source or sink, any exception that no client library or service
            is behind.
        may_heal: it is certain only if no service is behind it: the function uses more than its record, and
            its own lines may have raised for a lookup that failed.
    """

    operator: str
    record: str | None
    traceback: str
    is_first: bool = False
    is_certain: bool = False
    may_heal: bool = False

    @property
    def is_transient(self) -> bool:
        """Whether the function failed because of the network or a file system.

        That is so if an `OSError` is among the causes of its exception, unless that is about a missing or
        forbidden file, a damaged one or a certificate. If the error is `is_certain`, an `OSError` counts only
        if the exception is one or was raised `from` one: one that was handled before is a coincidence.
        """
        if (before := self._was_transient_before()) is not None:
            return before
        return may_pass(self.__cause__, counts_handled=not self.is_certain)


class WorkersError(CrosscutError):
    """Spark did not run the workers that the job needs, or lost them permanently.

    Example: the cluster has fewer free slots than `parallelism`; Spark's JVM has died.

    What to do: provide slots, memory or another Spark as the message says, and start the job again; it
    resumes.
    """

    @property
    def is_transient(self) -> bool:
        """True: others may free slots. False for a Spark whose JVM ends at its start."""
        if (before := self._was_transient_before()) is not None:
            return before
        return bool(self.ids.get("may_pass", True))


class CheckpointError(CrosscutError):
    """A requested checkpoint, savepoint or stop has failed; the job may continue to run.

    Raised by `job.checkpoint`, `job.savepoint`, `job.stop(savepoint=...)`, and the commands that do the same.

    Example: the path of a savepoint is not empty; the checkpoint took longer than `checkpoint_timeout`.

    What to do: remove the cause that the message names, and retry. A failed savepoint leaves nothing behind.
    """

    @property
    def is_transient(self) -> bool:
        """True, unless `__cause__` is an error that is not."""
        if (before := self._was_transient_before()) is not None:
            return before
        cause = self.__cause__
        return not isinstance(cause, CrosscutError) or cause.is_transient


class JobFailedError(CrosscutError):
    """The job has failed and will not restart by itself.

    Raised by `job.wait`. The message has the first cause, and `__cause__` its error if it is known.

    Example: the same record failed in the same operator three times in a row.

    What to do: handle the error in `__cause__` as its class says, and start the job again; it resumes
    from its newest complete checkpoint.
    """

    @property
    def is_transient(self) -> bool:
        """Whether the failure that ended the job is one."""
        if (before := self._was_transient_before()) is not None:
            return before
        found = self.ids.get("cause")
        if getattr(found, "is_permanent", False):
            return False
        if getattr(found, "is_transient", False):
            # Also if it `is_final`: the same run can't use a lost Spark, but a new start makes a new one.
            return True
        if getattr(found, "is_final", False):
            return False
        cause = self.__cause__
        return isinstance(cause, CrosscutError) and cause.is_transient


class InternalError(CrosscutError):
    """An invariant of Crosscut's own code does not hold.

    What to do: report it, with the message and the traceback. This is a bug of Crosscut.
    """


_NEVER_PASS = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_NEVER_PASS_BY_NAME = frozenset(
    {("gzip", "BadGzipFile"), ("io", "UnsupportedOperation"), ("ssl", "SSLCertVerificationError")}
)
"""By module and name, since the protocol, which imports this module, must not import those."""


def outside_cause(error: BaseException | None, *, counts_handled: bool = True) -> OSError | None:
    """Return the OSError that `error` is, or was raised because of, or while it was handled.

    Args:
        counts_handled: If False, only what `error` is or was raised `from`.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError):
            return error
        seen.add(id(error))
        error = error.__cause__ or (
            error.__context__ if counts_handled and not error.__suppress_context__ else None
        )
    return None


def may_pass(error: BaseException | None, *, counts_handled: bool = True) -> bool:
    """Whether a failure of the operating system or the network is behind `error` that may pass by itself."""
    found = outside_cause(error, counts_handled=counts_handled)
    return found is not None and not never_passes(found)


def never_passes(error: BaseException) -> bool:
    """Whether `error` itself is an OSError that trying again doesn't cure, as when a file is forbidden."""
    names = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    return isinstance(error, _NEVER_PASS) or not names.isdisjoint(_NEVER_PASS_BY_NAME)


def invariant(condition: bool, message: str, **ids: Any) -> None:
    """Raise InternalError unless `condition` holds. Unlike `assert`, it is never compiled away."""
    if not condition:
        raise InternalError(message, **ids)


def __dir__() -> list[str]:
    return sorted(
        name for name, one in globals().items() if isinstance(one, type) and issubclass(one, CrosscutError)
    )
