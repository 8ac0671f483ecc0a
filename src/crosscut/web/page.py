"""The page of a job: what is behind its link."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from crosscut.contracts.settings import Settings
from crosscut.errors import SettingsError, StoreError
from crosscut.monitoring.metrics import JobMetrics, shown_settings
from crosscut.web.answers import TOKEN_CHARACTERS_MIN, Actions, Answers
from crosscut.web.endpoint import Endpoint
from crosscut.web.server import PageServer
from crosscut.web.shared import Shared

VARIABLE = "CROSSCUT_WEB_TOKEN"

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def chosen_token() -> str:
    """Return the token that the user has set, or a new one.

    Raises:
        SettingsError: It is too short.
    """
    token = os.environ.get(VARIABLE)
    if token is None:
        return secrets.token_urlsafe(24)
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"{VARIABLE} has {len(token)} characters: expected at least {TOKEN_CHARACTERS_MIN} that can "
            f"stand in a link, as from `openssl rand -hex 16`; or unset it, for a new one at each start"
        )
    return token


@cache
def _default_settings() -> dict[str, str]:
    return shown_settings(Settings())


def encoded_document(document: dict[str, Any], *, can_act: bool) -> bytes:
    """Return what the script of the page asks for.

    Args:
        document: With "job" and "series".
        can_act: Whether the job can be stopped and the like.

    Raises:
        StoreError: It is not of a job: anyone who may write to a checkpoint directory can have put it there.
    """
    try:
        age_ms = max(0, int(time.time() * 1_000) - int(document["job"]["at_ms"]))
        shown = {**document, "can_act": can_act, "age_ms": age_ms, "default_settings": _default_settings()}
        return json.dumps(shown, separators=(",", ":"), allow_nan=False).encode()
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreError(f"what is recorded of the job can't be shown: {error!r}") from error


class Page:
    """A server with the page of one job.

    Args:
        document: Returns what the page shows: JSON-like data with "job" and "series".
        metrics: Returns the job, for Prometheus, at each scrape; None: there is nothing to scrape.
        actions: None: the job has ended.
        url: Where a reverse proxy serves it; "": none does.
        in_spark_ui: Spark's UI serves it, too.
        clock_s: Says how old an answer is.
        status: As for `Answers`.

    Raises:
        SettingsError: No port could be had.
    """

    def __init__(
        self,
        document: Callable[[], dict[str, Any]],
        metrics: Callable[[], JobMetrics] | None,
        actions: Actions | None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        url: str = "",
        in_spark_ui: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
        status: Callable[[], str] | None = None,
    ) -> None:
        self._document = document
        self._metrics = metrics
        self._can_act = actions is not None
        self._token = chosen_token()
        # The user's own token may be used for longer than this job, so commands get another one.
        self._command_token = self._token if VARIABLE not in os.environ else secrets.token_urlsafe(24)
        answers = Answers(
            self._token,
            Shared(self._encoded, clock_s),
            self._exposition,
            actions,
            is_local=host in LOOPBACK,
            url=url,
            in_spark_ui=in_spark_ui,
            command_token=self._command_token,
            status=status,
        )
        self._url = f"{url.rstrip('/')}/" if url else ""
        self._host = host
        self._server = PageServer(host, port, answers)

    @property
    def address(self) -> str:
        """Where it is served, without the token."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.port}/"

    @property
    def local_address(self) -> str:
        """The same, for somebody on this machine."""
        return f"http://127.0.0.1:{self.port}/" if self._host == "0.0.0.0" else self.address

    @property
    def port(self) -> int:
        """The port."""
        return self._server.port

    @property
    def endpoint(self) -> Endpoint:
        """Where commands of the same user find the page, with a token of this run."""
        return Endpoint(self.local_address, self._command_token, socket.gethostname())

    @property
    def link(self) -> str:
        """What to open in a browser; it gives access to the page, and to stopping the job."""
        return self.link_at(self._url or self.address)

    def link_at(self, url: str) -> str:
        """Return the link for who finds the page at `url`."""
        return f"{url}#{self._token}"

    def close(self) -> None:
        """Close the port."""
        self._server.close()

    def _encoded(self) -> bytes:
        return encoded_document(self._document(), can_act=self._can_act)

    def _exposition(self, accepted: str) -> tuple[bytes, str]:
        from crosscut.web.prometheus import exposed

        return exposed(None if self._metrics is None else self._metrics(), accepted)
