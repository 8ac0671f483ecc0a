"""One request of HTTP with the standard library: one deadline, a bounded answer, and no redirects."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Timer
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server has answered.

    Attributes:
        body: All of it, or the first bytes if it is longer than was wanted.
        is_whole: All of it was read.
        location: Where a redirect leads, "" if it is none.
    """

    status: int
    body: bytes
    is_whole: bool
    location: str = ""


def answer_to(
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    timeout_s: float,
    bytes_max: int,
) -> Answer:
    """Make a request and return its answer; a redirect is an answer, as credentials are for one server.

    Args:
        url: "http://..." or "https://...".
        body: None: GET; else POST.
        timeout_s: From the beginning of the connection to the end of the answer.
        bytes_max: So much of the answer is read.

    Raises:
        OSError: The server can't be reached, or is too slow (TimeoutError).
        http.client.HTTPException: It speaks another language.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = http.client.HTTPConnection(host, port)
    path = parts.path or "/"
    deadline_s = time.monotonic() + timeout_s
    # A response takes the socket over, so it is kept here.
    connected = _connected(host, port, timeout_s, is_secure=parts.scheme == "https")
    connection.sock = connected
    late = Timer(max(0.0, deadline_s - time.monotonic()), _hang_up, (connected,))
    late.daemon = True
    late.start()
    try:
        if isinstance(connected, ssl.SSLSocket):
            connected.do_handshake()
        method = "GET" if body is None else "POST"
        connection.request(
            method,
            f"{path}?{parts.query}" if parts.query else path,
            body,
            {**headers, "Accept-Encoding": "identity", "Connection": "close"},
        )
        response = connection.getresponse()
        data = response.read(bytes_max + 1)
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no whole answer within {timeout_s:g} s")
        location = response.getheader("Location", "") if 300 <= response.status < 400 else ""
        return Answer(response.status, data[:bytes_max], len(data) <= bytes_max, location)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no whole answer within {timeout_s:g} s") from error
        raise
    finally:
        late.cancel()
        connection.close()


def _connected(host: str, port: int, timeout_s: float, *, is_secure: bool) -> socket.socket:
    """Return a connection; the handshake of TLS is still to come, since a server can make it last."""
    connected = socket.create_connection((host, port), timeout_s)
    if not is_secure:
        return connected
    try:
        return ssl.create_default_context().wrap_socket(
            connected, server_hostname=host, do_handshake_on_connect=False
        )
    except BaseException:
        connected.close()
        raise


def _hang_up(connected: socket.socket) -> None:
    """End what waits for the other side, in whichever call it is; with TLS, too."""
    with suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
