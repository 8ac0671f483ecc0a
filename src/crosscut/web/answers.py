"""What the server answers: a function of the request. No socket, no thread.

The page itself holds nothing of the job, so anybody may have it. What it shows, and what it does, needs the
token, which stands in the part of its link that no browser sends: the script puts it into a header. So
there is no cookie that another page could use.
"""

from __future__ import annotations

import gzip
import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.resources import files
from typing import Protocol
from urllib.parse import urlsplit

from crosscut.errors import CrosscutError

BODY_BYTES_MAX = 4_096
ZIPPED_BYTES_MIN = 16 * 1024
TOKEN_CHARACTERS_MIN = 16

_CONTENT = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_SCRIPTS = (
    "page.js",
    "header.js",
    "tabs.js",
    "sections.js",
    "tables.js",
    "graph.js",
    "barrier.js",
    "plots.js",
    "elements.js",
)
_STATIC = {"/": "page.html", "/page.css": "page.css", **{f"/{name}": name for name in _SCRIPTS}}
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_COMMANDS = ("/api/stop", "/api/savepoint", "/api/checkpoint")
_ACTIONS = (*_COMMANDS, "/api/restart", "/api/state")
_PROBES = ("/healthz", "/readyz")
_FAILED = ("failed", "fenced")
_FORWARDED_HOST = re.compile(r'(?:^|[;,\s])host="?([^";,\s]+)', re.IGNORECASE)
_UNDER = re.compile(r"/crosscut/([^/]+)(/.*)?")
"""Where Spark's UI has the page. It tells the page so, and keeps what follows."""
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "[::1]"))
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request; the names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)


@dataclass(frozen=True, slots=True)
class StateSeen:
    """State of an operator, for people.

    Attributes:
        rows: State, key, name of the entry ("" if there are none) and value of each, as text.
        has_more: There are others.
    """

    rows: tuple[tuple[str, str, str, str], ...]
    has_more: bool


class Actions(Protocol):
    """What can be done to a running job."""

    def stop(self) -> None:
        """Take a last checkpoint, and end; returns at once."""

    def stop_with_savepoint(self, path: str) -> str:
        """Take a last checkpoint, write it as a savepoint, and end; return the outcome, for people."""

    def restart(self) -> None:
        """Go back to the newest checkpoint, with all tasks made anew; returns at once."""

    def take_checkpoint(self) -> str:
        """Take a checkpoint; return what has become of it, for people."""

    def take_savepoint(self, path: str) -> str:
        """Write a savepoint; return what has become of it, for people."""

    def state_of(self, uid: str, key: str | None) -> StateSeen:
        """Return the first rows of the state of operator `uid`, in the newest completed checkpoint.

        Args:
            key: Only rows of this key, as text or as JSON; None: of all.
        """


class Answers:
    """Answers requests about one job.

    Args:
        token: Who has it may look, and act.
        document: Returns the job as the page wants it, encoded; called for each request.
        exposition: Returns the metrics for Prometheus, and their content type, given what is accepted.
        actions: None: there are none.
        is_local: The server is bound to loopback: then requests under other names are refused: somebody's
            own page may have had its name lead here.
        url: Where a reverse proxy serves the page; "": none does. Then its host is another name of the
            server, its origin that of the page, and its path may stand in front of any other.
        in_spark_ui: Spark's UI has the page, too, under `/crosscut/` and a name.
        command_token: As `token`; commands of the same user send it.
        has_page: Else there is nothing to look at, and only what commands ask for is answered.
        status: Returns the phase of the job, or how it has ended; None: there are no probes.
    """

    def __init__(
        self,
        token: str,
        document: Callable[[], bytes],
        exposition: Callable[[str], tuple[bytes, str]],
        actions: Actions | None = None,
        *,
        is_local: bool = True,
        url: str = "",
        in_spark_ui: bool = False,
        command_token: str = "",
        has_page: bool = True,
        status: Callable[[], str] | None = None,
    ) -> None:
        self._status = status
        proxy = urlsplit(url)
        self._in_spark_ui = in_spark_ui
        # As browsers write it, whatever the user has written.
        at = proxy.netloc.lower().removesuffix(_USUAL_PORTS.get(proxy.scheme, ""))
        self._names = _LOOPBACK | {_name_of(at)} if url else _LOOPBACK
        self._origin = f"{proxy.scheme}://{at}" if url else ""
        self._prefix = proxy.path.rstrip("/")
        self._tokens = {one.encode() for one in (token, command_token) if one}
        self._document = document
        self._exposition = exposition
        self._actions = actions
        self._zipped = b"", b""
        self._is_local = is_local
        static = files("crosscut.web") / "static"
        static_names = _STATIC if has_page else {}
        self._static = {path: (static / name).read_bytes() for path, name in static_names.items()}
        self._served = ("/metrics", "/api/job", *_ACTIONS) if has_page else _COMMANDS

    @classmethod
    def of_commands(cls, token: str, actions: Actions) -> Answers:
        """Return what answers commands, and shows nothing."""
        return cls(token, lambda: b"{}", lambda accepted: (b"", "text/plain"), actions, has_page=False)

    def answer(self, request: Request) -> Answer:
        """Return the answer to `request`; never raises for what a request holds."""
        if (refused := self.refusal(request)) is not None:
            return refused
        host = request.headers.get("host", "")
        path = request.path.partition("?")[0]
        if self._prefix and path == self._prefix:
            # Relative links of the page would lead beside it. Browsers keep what stands after the `#`.
            return Answer(308, "text/plain", b"", {**HEADERS, "Location": f"{self._origin}{self._prefix}/"})
        if self._prefix and path.startswith(f"{self._prefix}/"):
            path = path.removeprefix(self._prefix)
        if self._in_spark_ui and (under := _UNDER.fullmatch(path)) is not None:
            name, path = under[1], under[2]
            if path is None:
                # Spark's proxy would change a redirection. So the script is found, which sends browsers on.
                return self._file("/", request.method, within=f"./{name}/")
        if path in self._static:
            return self._file(path, request.method)
        if path in _PROBES and self._status is not None:
            return _probed(path, request.method, self._status())
        if path not in self._served:
            return message(404, "there is no such page")
        if not self.is_admitted(request):
            return message(401, "the token is missing or wrong: open the link that the job has given")
        if path in ("/metrics", "/api/job"):
            if request.method not in ("GET", "HEAD"):
                return message(405, "expected GET")
            if path == "/api/job":
                return self._job(request.headers.get("accept-encoding", ""))
            return self._metrics(request.headers.get("accept", ""))
        return self._act(path, request, host)

    def refusal(self, request: Request) -> Answer | None:
        """Return the answer to a request under a name that is not this server's; None: it is."""
        host = request.headers.get("host", "")
        if self._is_local and _name_of(host) not in self._names:
            return message(403, f"this server is called 127.0.0.1 or localhost, not {host[:100]!r}")
        return None

    def _file(self, path: str, method: str, within: str = "") -> Answer:
        if method not in ("GET", "HEAD"):
            return message(405, "expected GET")
        kind = _CONTENT[_STATIC[path].rpartition(".")[2]]
        content = self._static[path]
        if within:
            content = content.replace(b'="page.', f'="{escape(within)}page.'.encode())
        return Answer(200, f"{kind}; charset=utf-8", content)

    def _job(self, accepted: str) -> Answer:
        try:
            document = self._document()
        except CrosscutError as error:
            # As of a record that is gone meanwhile.
            return message(503, str(error))
        if len(document) < ZIPPED_BYTES_MIN or "gzip" not in accepted:
            return Answer(200, "application/json", document)
        of, zipped = self._zipped
        if of is not document:
            # Often it goes through a tunnel. All who look at the same time are given the same.
            zipped = gzip.compress(document, 1, mtime=0)
            self._zipped = document, zipped
        return Answer(200, "application/json", zipped, {**HEADERS, "Content-Encoding": "gzip"})

    def _metrics(self, accepted: str) -> Answer:
        try:
            body, content_type = self._exposition(accepted)
        except ImportError:
            return message(
                501, "metrics need prometheus-client: pip install 'crosscut[metrics]' on the driver"
            )
        return Answer(200, content_type, body)

    def is_admitted(self, request: Request) -> bool:
        """Tell whether a request has the token."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        found = given.strip().encode()
        return scheme.lower() == "bearer" and any(hmac.compare_digest(found, one) for one in self._tokens)

    def _act(self, path: str, request: Request, host: str) -> Answer:
        if request.method != "POST":
            return message(405, "expected POST")
        origin = request.headers.get("origin")
        # A proxy that gives another name tells the one that the browser has used. No page of somebody else's
        # can say so of itself: browsers ask before they send such a header.
        hosts = [host, *_FORWARDED_HOST.findall(request.headers.get("forwarded", ""))]
        if origin is not None and origin != self._origin and origin.partition("://")[2] not in hosts:
            return message(403, f"another page asks for it: {origin[:100]!r}")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return message(415, "expected application/json")
        actions = self._actions
        if actions is None:
            return message(409, "the job has ended: there is nothing to do")
        try:
            match path, json.loads(request.body or b"{}"):
                case "/api/stop", {"savepoint": str(where)} if where.strip():
                    return message(200, actions.stop_with_savepoint(where.strip()))
                case "/api/stop", {} as given if not given:
                    actions.stop()
                    return message(200, "the job stops, with a last checkpoint")
                case "/api/restart", {}:
                    actions.restart()
                    return message(200, "the job is asked to go back to its newest checkpoint")
                case "/api/checkpoint", {}:
                    return message(200, actions.take_checkpoint())
                case "/api/savepoint", {"path": str(where)} if where.strip():
                    return message(200, actions.take_savepoint(where.strip()))
                case "/api/state", {"uid": str(uid), "key": str(key)}:
                    seen = actions.state_of(uid, key or None)
                    return Answer(200, "application/json", json.dumps(asdict(seen)).encode())
                case _:
                    return message(400, 'expected JSON: {} or, for a savepoint, {"path": "..."}')
        except (ValueError, RecursionError):
            return message(400, "the body is not JSON")
        except (CrosscutError, OSError) as error:
            return message(409, str(error))


def _probed(path: str, method: str, status: str) -> Answer:
    # Probes have no token; the status of the job is all that they are told.
    if method not in ("GET", "HEAD"):
        return message(405, "expected GET")
    is_fine = status == "running" if path == "/readyz" else status not in _FAILED
    return Answer(200 if is_fine else 503, "text/plain; charset=utf-8", f"{status}\n".encode())


def _name_of(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def message(status: int, text: str) -> Answer:
    """Return an answer that says something to people."""
    return Answer(status, "application/json", json.dumps({"said": text}).encode())
