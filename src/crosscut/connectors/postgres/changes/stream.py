"""A connection over which Postgres streams its log, decoded: libpq's replication protocol.

psycopg has the connection but no words for this protocol, which is three kinds of messages: data and
keepalives come, and how far everything is safe goes back.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from crosscut.connectors.extras import required
from crosscut.connectors.postgres.changes.pgoutput import lsn_text
from crosscut.connectors.postgres.writer import connected
from crosscut.connectors.secrets import Environment
from crosscut.connectors.tables.rows import quoted
from crosscut.errors import ConnectorError

FEEDBACK_S = 5.0
"""Between two reports of how far everything is safe; the server takes us for dead after a minute without."""

SILENCE_S = 60.0
"""Without a word of the server, which is asked every few seconds: then the connection is taken for lost."""

_MICROSECONDS_OF_2000 = 946_684_800_000_000

SESSION = (
    # So that rows that are read and rows that are sent look the same.
    "set client_encoding = 'UTF8'",
    "set timezone = 'UTC'",
    "set datestyle = 'ISO, YMD'",
    "set intervalstyle = 'postgres'",
    "set bytea_output = 'hex'",
    "set extra_float_digits = 1",
)


@dataclass(frozen=True, slots=True)
class Data:
    """A message of the plugin."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Everything before this place of the log has been sent."""

    lsn: int


class LogStream:
    """Streams the log from a place on. Used by one thread; `wake` by any.

    Args:
        safe_lsn: Returns the place up to which changes are no longer needed; 0: none is safe yet.
    """

    def __init__(
        self,
        conninfo: str | Environment,
        slot: str,
        publication: str,
        lsn: int,
        safe_lsn: Callable[[], int],
        woken: socket.socket,
    ) -> None:
        psycopg = required("psycopg", "postgres")
        self._status = psycopg.pq.ExecStatus
        self._safe_lsn = safe_lsn
        self._woken = woken
        self._received_lsn = lsn
        # For so long it has been listened to, and nothing has come.
        self._silent_s = 0.0
        self._reported: tuple[int, float] = 0, time.monotonic()
        self.connection = connected(conninfo, replication="database")
        try:
            for setting in SESSION:
                self._execute(setting)
            name = quoted(slot)
            # An identifier within a text.
            publications = quoted(publication).replace("'", "''")
            self._execute(
                f"START_REPLICATION SLOT {name} LOGICAL {lsn_text(lsn)} "
                f"(proto_version '1', publication_names '{publications}')"
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection; the slot is free soon."""
        with suppress(Exception):
            self.connection.close()

    def next(self, timeout_s: float) -> Data | Keepalive | None:
        """Return what comes next, None if nothing did within the time or `woken` was written to.

        Raises:
            psycopg.Error: The connection is lost, or the server has ended it; it says why.
        """
        pgconn = self.connection.pgconn
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._report_if_due()
            size, data = pgconn.get_copy_data(1)
            if size > 0:
                return self._received(bytes(data))
            if size < 0:
                raise self._ended()
            began_s = time.monotonic()
            waits_s = max(0.0, deadline_s - began_s)
            ready, _, _ = select.select([pgconn.socket, self._woken], [], [], waits_s)
            if pgconn.socket in ready:
                self._silent_s = 0.0
            else:
                self._check_silence(time.monotonic() - began_s)
            if self._woken in ready:
                self._woken.recv(1_024)
                self.report()
                return None
            if not ready:
                return None
            pgconn.consume_input()

    def _check_silence(self, waited_s: float) -> None:
        self._silent_s += waited_s
        if self._silent_s >= SILENCE_S:
            raise ConnectorError(
                f"the server has sent nothing for {self._silent_s:.0f} s, despite a request: the "
                f"connection is lost, or the server hangs; the job reconnects"
            )

    def report(self, *, asks: bool = False) -> None:
        """Tell the server how far everything is safe.

        Args:
            asks: The server is to say at once how far it has come.
        """
        safe = self._safe_lsn()
        self._reported = safe, time.monotonic()
        now = time.time_ns() // 1_000 - _MICROSECONDS_OF_2000
        # Written, flushed, applied: the slot goes by the second.
        data = struct.pack(">cQQQqB", b"r", max(self._received_lsn, safe), safe, safe, now, int(asks))
        self.connection.pgconn.put_copy_data(data)
        self.connection.pgconn.flush()

    def _report_if_due(self) -> None:
        safe, at_s = self._reported
        if self._safe_lsn() > safe or time.monotonic() - at_s >= FEEDBACK_S:
            self.report(asks=time.monotonic() - at_s >= FEEDBACK_S)

    def _received(self, data: bytes) -> Data | Keepalive:
        match data[:1]:
            case b"w":
                start, _, _ = struct.unpack_from(">QQq", data, 1)
                self._received_lsn = max(self._received_lsn, start)
                return Data(data[25:])
            case b"k":
                lsn, _, asked = struct.unpack_from(">QqB", data, 1)
                self._received_lsn = max(self._received_lsn, lsn)
                if asked:
                    self.report()
                return Keepalive(lsn)
            case kind:
                raise ConnectorError(f"replication sends {kind!r}, which is neither data nor a keepalive")

    def _execute(self, statement: str) -> None:
        result = self.connection.pgconn.exec_(statement.encode())
        if result.status not in (self._status.COMMAND_OK, self._status.COPY_BOTH):
            raise required("psycopg", "postgres").errors.error_from_result(result)

    def _ended(self) -> Exception:
        psycopg = required("psycopg", "postgres")
        result = self.connection.pgconn.get_result()
        if result is not None and result.status == self._status.FATAL_ERROR:
            error: Exception = psycopg.errors.error_from_result(result)
            return error
        ended: Exception = psycopg.OperationalError("the server has ended the stream of its log")
        return ended
