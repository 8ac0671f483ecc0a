"""Streams as a sink: exactly once by atomic batches, each with a marker message in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.rows import checked_row
from crosscut.connectors.nats.client import Servers, closed, failures, run
from crosscut.connectors.nats.destination import Destination
from crosscut.connectors.nats.marker import Marker
from crosscut.connectors.nats.messages import Encoding, encoder, is_subject
from crosscut.connectors.nats.writer import NatsWriter
from crosscut.contracts.connectors import CommittedOutput, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.callables import function_problem
from crosscut.foundation.suggestions import checks_options


@checks_options("nats.sink")
def sink(
    servers: str | Sequence[str],
    stream: str,
    subject: str | Callable[[Any], str],
    *,
    value: Callable[[Any], Any] | None = None,
    encode: Encoding | Callable[[Any], bytes] = "json",
    markers: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Sink:
    """Return a sink that publishes records to a JetStream stream, exactly once.

    Records are held in the snapshot until their checkpoint is complete. Then they are published in *atomic
    batches* of up to 999, each with a marker message that says how far this task has come, and that the
    server takes only if the marker before it is the last one. So nothing depends on a window of time, as it
    would with `Nats-Msg-Id`: a repeat is refused whenever it comes, and so is a process that was believed
    dead.

    The stream needs `allow_atomic` (nats-server 2.12 or newer), and one more subject for the markers; who
    reads the other subjects does not see them.

    Args:
        servers: "nats://host:4222", several with commas, or a list.
        stream: Its name; it must be there.
        subject: Where to publish, or a function that takes a record and returns it.
        value: Takes a record, returns what is encoded. Default: the record.
        encode: "json", "text", "bytes", or a function that returns bytes.
        markers: The first part of the subjects of markers. Default: "crosscut.STREAM". The stream must take
            "crosscut.STREAM.>", and keep the last message of each: leave room for that in its limits.
        options: See `crosscut.nats.source`.

    Raises:
        ConnectorError: An argument is not as described. Later: no server answers, the stream is not as it has
            to be, or a record can't be encoded or is too large.

    Examples:
        >>> import crosscut as cc
        >>> out = cc.nats.sink("nats://localhost:4222", "COUNTS", "counts.words")
    """
    for name, text in (("stream", stream), ("markers", "x" if markers is None else markers)):
        if not isinstance(text, str) or not text or set(text) & set(" *>\r\n\t"):
            raise ConnectorError(f"{name}={text!r}: expected a name without blanks and wildcards")
    if not callable(subject) and not is_subject(subject):
        raise ConnectorError(f"subject={subject!r}: expected one such as 'counts.words', or a function")
    if callable(subject) and (problem := function_problem(subject, "record")):
        raise ConnectorError(f"subject: {problem}")
    checked_row(value)
    encoder(encode)
    prefix = markers or f"crosscut.{stream}"
    return NatsSink(Servers(servers, options), stream, subject, value, encode, prefix)


@dataclass(frozen=True, eq=False)
class NatsSink(Destination, Sink):
    """See `sink`."""

    def __repr__(self) -> str:
        return f"crosscut.nats.sink({self.servers.shown!r}, {self.stream!r})"

    def check(self) -> None:
        """Raise ConnectorError if no server answers, or the stream is not as it has to be."""
        self._asked(self._check)

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what the markers say of this subject."""
        found: Sequence[CommittedOutput] = self._asked(self._committed)
        return found

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        return NatsWriter(self, context)

    def _asked(self, question: Callable[[Any], Any]) -> Any:
        async def asked() -> Any:
            connection = await self.servers.connected()
            try:
                return await question(connection)
            finally:
                await closed(connection)

        try:
            return run(asked())
        except failures() as error:
            raise ConnectorError(f"{self.where}: {self.servers.redacted(error)}") from None

    async def _check(self, connection: Any) -> None:
        errors, stream = required("nats.js.errors", "nats"), connection.jetstream()
        try:
            info = await stream.stream_info(self.stream)
        except errors.NotFoundError:
            raise ConnectorError(f"{self.where}: the stream does not exist: create it first") from None
        if not info.config.allow_atomic:
            raise ConnectorError(
                f"{self.where}: the stream accepts no atomic batches, which exactly-once output needs: "
                f"set its "
                f"allow_atomic (nats-server 2.12 or newer)"
            )
        for subject in (f"{self.markers}.marker", *([self.subject] if isinstance(self.subject, str) else ())):
            try:
                takes = await stream.find_stream_name_by_subject(subject)
            except errors.NotFoundError:
                takes = None
            if takes != self.stream:
                raise ConnectorError(
                    f"{self.where}: the stream does not take {subject!r}: it has the subjects "
                    f"{', '.join(info.config.subjects or ())}; add {self.markers + '.>'!r} for the markers"
                )

    async def _committed(self, connection: Any) -> list[CommittedOutput]:
        stream, found = connection.jetstream(), []
        info = await stream.stream_info(self.stream, subjects_filter=f"{self.markers}.>")
        for subject in sorted(info.state.subjects or {}):
            message = await stream.get_last_msg(self.stream, subject)
            marker = Marker.parsed(message.data, message.seq, self.where)
            if marker.target == self.target:
                found.append(marker.output(self.where))
        return found
