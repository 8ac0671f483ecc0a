"""A small schema registry for tests, on loopback: `with SchemaRegistryServer() as server: ...`.

It speaks HTTP as Confluent's does, as far as writers and readers need it: schemas are registered, and found
by id. It keeps them in memory, and finds any schema compatible with any other.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FIRST_ID = 100_000


class SchemaRegistryServer:
    """One server, in threads of its own.

    Args:
        auth: "user:password" that it asks for; "": it asks for none.

    Attributes:
        schemas: Those that are registered, by id.
        requests: The paths that were asked for, in order.
        is_down: It answers each request with an error.
    """

    def __init__(self, auth: str = "") -> None:
        self._auth = "Basic " + base64.b64encode(auth.encode()).decode() if auth else None
        self.schemas: dict[int, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.is_down = False
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> SchemaRegistryServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, path: str, auth: str | None, body: Any) -> tuple[int, Any]:
        """Return status and content of the answer to one request; `body` is None for a GET."""
        self.requests.append(path)
        if self.is_down:
            return 503, {"error_code": 50003, "message": "not now"}
        if self._auth is not None and auth != self._auth:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        found = re.fullmatch(r"/schemas/ids/(\d{1,9})", path)
        if found is not None and body is None:
            schema = self.schemas.get(int(found[1]))
            return (200, schema) if schema else (404, {"error_code": 40403, "message": "Schema not found"})
        if re.fullmatch(r"/subjects/[^/]+/versions", path) and isinstance(body, dict):
            with self._lock:
                known = [one for one, schema in self.schemas.items() if schema == body]
                schema_id = known[0] if known else FIRST_ID + len(self.schemas)
                self.schemas[schema_id] = body
            return 200, {"id": schema_id}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(*server.answer(self.path, self.headers["Authorization"], None))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._send(*server.answer(self.path, self.headers["Authorization"], body))

            def _send(self, status: int, content: Any) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Say nothing on standard error."""

        return Handler
