"""Sources that keep something open on the driver while a job runs, such as a query of Spark."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable

from crosscut.contracts.connectors import JSON
from crosscut.contracts.dynamic_source import DynamicSource
from crosscut.foundation.type_variables import Record


class DriverSource(DynamicSource[Record]):
    """A dynamic source that the driver notifies of the life of its job."""

    @abstractmethod
    def begin(self, *, ends: bool) -> None:
        """The job owns its checkpoint directory.

        With `engine="auto"` the driver calls this again, after `stop`, each time it starts an engine.

        Args:
            ends: The source reads what is there when it begins, and then ends.
        """

    @abstractmethod
    def completed(self, known: JSON, unread: Iterable[JSON]) -> None:
        """A checkpoint is complete. May block; the driver makes one call at a time, in a thread.

        Args:
            known: What `discover` had returned by then.
            unread: The details of the splits that are not read to their end.
        """

    @abstractmethod
    def stop(self) -> Callable[[], None]:
        """The engine run is over: return a function that closes what the source keeps open for it.

        `stop` itself must not block; no call follows it, except another `begin`. The driver calls the
        function in a thread. It may block beyond the next `begin`, and closes nothing of the next run.
        """
