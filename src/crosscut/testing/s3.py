"""An S3 server for tests, on loopback: `with S3Server() as server: ...`.

It is moto in a process of its own, which takes one request after the other: so its conditional puts are
atomic, which those of moto with threads are not. What it holds is in memory, and gone with the process.
"""

from __future__ import annotations

import io
import os
import secrets
import signal
import subprocess
import sys
from typing import Any

from crosscut.connectors.extras import required
from crosscut.errors import ConnectorError

REGION = "us-east-1"


class S3Server:
    """One server process.

    Attributes:
        environment: Variables that clients, s3fs among them, find the server and its credentials by.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}

    def __enter__(self) -> S3Server:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crosscut.testing.s3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            self.__exit__()
            raise ConnectorError("no S3 server for tests: pip install 'moto[s3]' flask flask-cors")
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": secrets.token_hex(8),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
            "AWS_DEFAULT_REGION": REGION,
        }
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def pause(self) -> None:
        """Let it answer nothing, until `resume`: an outage."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again, also what was asked meanwhile."""
        self._signal(signal.SIGCONT)

    def bucket(self) -> str:
        """Make a bucket, and return its URL."""
        name = f"bucket-{secrets.token_hex(8)}"
        self.files().mkdir(name)
        return f"s3://{name}"

    def files(self) -> Any:
        """Return the file system, as fsspec knows it; it remembers no listing."""
        return required("s3fs", "s3").S3FileSystem(
            key=self.environment["AWS_ACCESS_KEY_ID"],
            secret=self.environment["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            use_listings_cache=False,
        )

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


class _Lines:
    """Remembers the last line that was read."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.last = b""

    def readline(self, *size: int) -> bytes:
        self.last = self._stream.readline(*size)
        return self.last


def _whole(application: Any) -> Any:
    """Refuse, as S3 does, content that was cut off on its way; moto stores as much of it as has come."""

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        stream, is_chunked = environ["wsgi.input"], "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "")
        size = int(environ.get("CONTENT_LENGTH") or 0)
        try:
            data = stream.read() if is_chunked else stream.read(size)
            is_whole = is_chunked or len(data) == size
        except OSError:
            # No length of the next chunk has come.
            is_whole = False
        if not is_whole:
            start_response("400 IncompleteBody", [("Content-Length", "0")])
            return []
        environ["wsgi.input"] = io.BytesIO(data)
        return application(environ, start_response)

    return answer


def _serve() -> None:
    import threading

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            """Nobody reads it."""

        def parse_request(self) -> bool:
            """Refuse headers that were cut off on their way: without some a request is another one."""
            stream = self.rfile
            self.rfile = lines = _Lines(stream)  # type: ignore[assignment]
            try:
                return super().parse_request() and lines.last in (b"\r\n", b"\n")
            finally:
                self.rfile = stream

    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, _whole(application), threaded=False, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)  # noqa: T201 - this is how the port is told
    # Until whoever has started it is gone, however that ended.
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve()
