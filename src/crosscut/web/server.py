"""The HTTP server: one thread for each request that is under way, a bounded number of them.

Whatever browsers do, the job does not wait: requests read what was made for all of them, at most some times a
second. A browser that is slow, or silent, has its connection closed.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Protocol

from crosscut.errors import SettingsError
from crosscut.web.answers import BODY_BYTES_MAX, Answer, Request

LOGGER = logging.getLogger("crosscut.web")

REQUESTS_MAX = 32
"""Under way at once; who comes beyond that is turned away."""
PATIENCE_S = 10.0
"""For so long a request may take to come in, and its answer to go out."""
PORTS_TRIED = 50


class Answering(Protocol):
    """What a server serves."""

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request; never raises for what a request holds."""


class _Handler(BaseHTTPRequestHandler):
    """One request. The connection is closed after it: idle browsers hold nothing."""

    timeout = PATIENCE_S
    server: PageServer
    server_version = "crosscut"
    sys_version = ""

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError:
            length = -1
        if not 0 <= length <= BODY_BYTES_MAX:
            self._send(Answer(413, "text/plain", b""))
            return
        body = self.rfile.read(length)
        self.server.has_come_in(self.connection)
        self._send(self.server.answers.answer(Request(self.command, self.path, headers, body)))

    do_GET = do_HEAD = do_POST = _serve

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base calls it
        """Not logged: a browser asks once a second."""


class PageServer(ThreadingHTTPServer):
    """Serves one page, from its making until `close`.

    Args:
        host: The address to bind to.
        port: The first that is tried; 0: any.

    Raises:
        SettingsError: The address is not this machine's, or none of 50 ports is free.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    # Else another server's port would be shared with it.
    allow_reuse_port = False

    def __init__(self, host: str, port: int, answers: Answering) -> None:
        self.answers = answers
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._places = threading.BoundedSemaphore(REQUESTS_MAX)
        self._coming: dict[socket.socket, float] = {}
        for tried in range(port, port + PORTS_TRIED) if port else (0,):
            try:
                super().__init__((host, tried), _Handler)
                break
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES) or tried >= 65_535:
                    raise SettingsError(
                        f"web_host={host!r}, web_port={port}: can't listen there: {error.strerror}"
                    ) from error
        else:
            raise SettingsError(
                f"web_port={port}: no port up to {port + PORTS_TRIED - 1} is free on {host}; choose another"
            )
        self._thread = threading.Thread(target=self.serve_forever, name="crosscut-web", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        # Not HTTPServer's: it asks for the name of the address, and a name server may take its time.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._coming[request] = time.monotonic() + PATIENCE_S
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            self.has_come_in(request)
            raise

    def has_come_in(self, request: socket.socket) -> None:
        """All of a request is here, or will never be."""
        self._coming.pop(request, None)

    def service_actions(self) -> None:
        # The timeout of a socket is for each byte: a client that sends one now and then would keep its place.
        now_s = time.monotonic()
        for request in [one for one, ends_s in tuple(self._coming.items()) if ends_s <= now_s]:
            self.has_come_in(request)
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_come_in(request)
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Most often a browser that has gone away.
        LOGGER.debug("a request of %s has failed", client_address, exc_info=True)

    def close(self) -> None:
        """Close the port."""
        self.shutdown()
        self._thread.join()
        self.server_close()
