"""A reverse proxy in front of a page, as in front of Spark's: under a path, which it keeps or leaves out."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

DEADLINE_S = 100.0


class _Handler(BaseHTTPRequestHandler):
    server: ReverseProxy

    def _pass_on(self) -> None:
        proxy = self.server
        if not self.path.startswith(proxy.path):
            self.send_error(404)
            return
        headers = {name: text for name, text in self.headers.items() if name.lower() != "connection"}
        if not proxy.keeps_host:
            headers["Host"] = f"127.0.0.1:{proxy.target}"
        path = self.path if proxy.keeps_path else "/" + self.path.removeprefix(proxy.path)
        body = self.rfile.read(int(headers.get("Content-Length", "0")))
        behind = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=DEADLINE_S)
        try:
            behind.request(self.command, path, body, headers)
            answer = behind.getresponse()
            content = answer.read()
        finally:
            behind.close()
        self.send_response(answer.status)
        for name, text in answer.getheaders():
            if name.lower() not in ("connection", "date", "server"):
                self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _pass_on

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base calls it
        """Nobody reads it."""


class ReverseProxy(ThreadingHTTPServer):
    """Serves what is on port `target` of this machine under `path`.

    Args:
        keeps_path: What is behind it sees the path as the browser does.
        keeps_host: Likewise, the name.

    Attributes:
        target: To be set once what is behind it has a port.
    """

    daemon_threads = True

    def __init__(self, path: str, *, keeps_path: bool, keeps_host: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.path = path
        self.keeps_path = keeps_path
        self.keeps_host = keeps_host
        self.target = 0
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where a browser finds it, under a name that what is behind it does not know."""
        return f"http://gateway.localhost:{self.server_address[1]}{self.path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
