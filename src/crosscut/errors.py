"""The one exception tree.

A message says what failed, which ids, what was expected and found, and what to do. Ids are
attributes as well. Expected outcomes (stale, fenced, already committed) are values, never
exceptions. Every exception here survives pickling, because Spark carries them between processes.
"""

from __future__ import annotations

from typing import Any


class CrosscutError(Exception):
    """Base of all errors of this library."""

    def __init__(self, message: str, **ids: Any) -> None:
        super().__init__(message)
        self.message = message
        self.ids = ids
        for name, value in ids.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (type(self), self.message, self.ids))

    def __str__(self) -> str:
        return self.message


def _rebuilt(kind: type[CrosscutError], message: str, ids: dict[str, Any]) -> CrosscutError:
    return kind(message, **ids)


class FlowError(CrosscutError):
    """The flow is not valid: what the user wrote cannot be run."""


class SettingsError(CrosscutError):
    """A setting is out of range, contradicts another or does not fit the cluster."""


class ProtocolError(CrosscutError):
    """A protocol machine got an event that cannot happen; the machine is unchanged."""


class WireError(CrosscutError):
    """Bytes from a peer are not what the wire format allows; the connection is closed."""


class StateError(CrosscutError):
    """State could not be encoded or decoded."""


class StoreError(CrosscutError):
    """The checkpoint store failed, or holds something other than was written."""


class AuthenticityError(StoreError):
    """An entry of the job log, or a savepoint, was not written with the key that this process has, if any."""


class SpillError(CrosscutError):
    """Records that do not fit into memory could not be written to disk, or read back."""


class ConnectorError(CrosscutError):
    """A source or sink failed.

    Attributes:
        operator: uid of the source or sink; the task adds it to an error that lacks it.
        record: repr of the record to blame, shortened, or "" if no single record is.
        is_permanent: Every attempt meets the same error, because the record or the configuration is refused
            rather than the service down. Set it where that is certain: the third such failure of a
            source or sink in a row ends the job, where a service that is down has all restarts to come back.
    """

    operator: str = ""
    record: str = ""
    is_permanent: bool = False


class HistoryError(ConnectorError):
    """Visible output of a sink does not belong to the checkpoints that a job goes on from, or somebody else
    writes in its name. No restart can mend that."""


class RefusedRecordError(ConnectorError):
    """The system behind a sink never takes this record: a type, a length, a constraint, a limit of size.

    Trying again does not help. Correct the flow, or give the sink a place for such records with
    `stream.sink(sink, dead_letters=...)`.

    Attributes:
        record: repr of the record, shortened.
        reason: What the system says of it.
    """

    record: str
    reason: str
    is_permanent = True


class UserCodeError(CrosscutError):
    """A function of the flow raised; carries the operator, the record and the traceback as text.

    Attributes:
        operator: uid of the operator.
        record: repr of the record, shortened, or None if no single record is to blame.
        traceback: the user's traceback as text.
        is_first: the operator had taken no other record since the job was last restored.
        is_certain: it comes again for certain: the function had looked at nothing but its record, or the
            user's own lines raised a ValueError.
    """

    operator: str
    record: str | None
    traceback: str
    is_first: bool = False
    is_certain: bool = False


class WorkersError(CrosscutError):
    """Spark did not run the workers that the job needs, or lost them for good."""


class CheckpointError(CrosscutError):
    """A checkpoint that was asked for has failed; the job may well run on."""


class JobFailedError(CrosscutError):
    """The job failed for good; the first cause is in the message and in `__cause__` where known."""


class InternalError(CrosscutError):
    """An invariant of Crosscut's own code does not hold. This is a bug; please report it."""


def invariant(condition: bool, message: str, **ids: Any) -> None:
    """Raise InternalError unless `condition` holds (never compiled away, unlike `assert`)."""
    if not condition:
        raise InternalError(message, **ids)
