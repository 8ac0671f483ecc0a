"""The jobs of a store: a list of them, and the page of each, by what they write into their directories."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from urllib.parse import unquote

from crosscut.errors import StoreError
from crosscut.web.answers import HEADERS, Answer, Answers, Request, message
from crosscut.web.page import LOOPBACK, chosen_token, encoded_document
from crosscut.web.record import read_record
from crosscut.web.server import PageServer
from crosscut.web.shared import Shared
from crosscut.web.stored_jobs import StoredJobs

_UNDER = "/jobs/"
_STATIC = {
    "/": ("jobs.html", "text/html"),
    "/jobs.js": ("jobs.js", "text/javascript"),
    "/header.js": ("header.js", "text/javascript"),
    "/tables.js": ("tables.js", "text/javascript"),
    "/elements.js": ("elements.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}


class JobList:
    """A server with the list of the jobs below a directory.

    A job is a directory that holds a record. Nothing can be done to a job from here.

    Args:
        store: A directory or a URL.
        host: The address to bind to.
        port: The first that is tried; 0: any.
        clock_s: Says how old an answer is.

    Raises:
        StoreError: The directory can't be read.
        SettingsError: No port could be had.
    """

    def __init__(
        self,
        store: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = StoredJobs(store)
        self._host = host
        self._token = chosen_token()
        self._list = Shared(self._encoded_list, clock_s)
        self._clock_s = clock_s
        self._pages: dict[str, Answers] = {}
        self._is_local = host in LOOPBACK
        # It decides who may look, as for the page of one job.
        self._gate = Answers(self._token, lambda: b"", lambda accepted: (b"", ""), is_local=self._is_local)
        static = files("crosscut.web") / "static"
        self._static = {path: ((static / name).read_bytes(), kind) for path, (name, kind) in _STATIC.items()}
        self._jobs.directories()
        self._server = PageServer(host, port, self)

    @property
    def port(self) -> int:
        """The port."""
        return self._server.port

    @property
    def link(self) -> str:
        """What to open in a browser; it gives access to the list and to the pages of its jobs."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.port}/#{self._token}"

    def close(self) -> None:
        """Close the port."""
        self._server.close()

    def answer(self, request: Request) -> Answer:
        """Return the answer to `request`; never raises for what a request holds."""
        refused = self._gate.refusal(request)
        if refused is not None:
            return refused
        path = request.path.partition("?")[0]
        if path.startswith(_UNDER):
            return self._of_job(request, path)
        if request.method not in ("GET", "HEAD"):
            return message(405, "expected GET")
        if path in self._static:
            content, kind = self._static[path]
            return Answer(200, f"{kind}; charset=utf-8", content)
        if path != "/api/jobs":
            return message(404, "there is no such page")
        if not self._gate.is_admitted(request):
            return message(401, "the token is missing or wrong: open the link that the command has printed")
        try:
            return Answer(200, "application/json", self._list())
        except StoreError as error:
            return message(503, str(error))

    def _of_job(self, request: Request, path: str) -> Answer:
        quoted, slash, rest = path.removeprefix(_UNDER).partition("/")
        if not slash:
            return Answer(308, "text/plain", b"", {**HEADERS, "Location": f"{path}/"})
        within = replace(request, path=f"/{rest}")
        if not self._gate.is_admitted(request):
            # The files of a page are the same for each job; without the token no job is named.
            return self._gate.answer(within)
        try:
            page = self._page_of(unquote(quoted))
        except StoreError as error:
            return message(503, str(error))
        return message(404, "there is no such job") if page is None else page.answer(within)

    def _page_of(self, name: str) -> Answers | None:
        """Return what answers for the job in the directory of this name, None if there is none."""
        if name not in self._pages and name in self._jobs.directories()[0]:
            directory = self._jobs.path_of(name)
            self._pages[name] = Answers(
                self._token,
                Shared(lambda: encoded_document(read_record(directory), can_act=False), self._clock_s),
                lambda accepted: (b"", "text/plain"),
                is_local=self._is_local,
            )
        return self._pages.get(name)

    def _encoded_list(self) -> bytes:
        return json.dumps(self._jobs.lines(), separators=(",", ":"), allow_nan=False).encode()
