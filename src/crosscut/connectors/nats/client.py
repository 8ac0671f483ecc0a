"""Connections to NATS, for code that waits in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from crosscut.connectors.extras import required
from crosscut.connectors.secrets import Environment, revealed
from crosscut.errors import ConnectorError
from crosscut.foundation.urls import Redaction

CONNECT_TIMEOUT_S = 5.0

_Result = TypeVar("_Result")
_OURS = frozenset({"servers", "allow_reconnect", "error_cb", "connect_timeout", "name"})


class Servers:
    """Where the servers are, and how to log in.

    Attributes:
        shown: The addresses as people may see them.
    """

    def __init__(self, servers: str | Sequence[str], options: Mapping[str, Any] | None) -> None:
        self._urls = servers.split(",") if isinstance(servers, str) else list(servers)
        if not self._urls or not all(isinstance(one, str) and one.strip() for one in self._urls):
            raise ConnectorError("servers: expected 'nats://host:4222', several with commas, or a list")
        self._options = dict(options or {})
        if taken := sorted(_OURS & self._options.keys()):
            raise ConnectorError(f"options of NATS set {', '.join(taken)}: leave them out")
        self._redactions = [Redaction(one) for one in self._urls]
        self.shown = ", ".join([one.url for one in self._redactions])

    async def connected(self) -> Any:
        """Return a new connection. It does not reconnect by itself: who uses it knows where to go on."""
        client = required("nats.aio.client", "nats").Client()
        try:
            await _to_its_end(
                client.connect(
                    [one.strip() for one in self._urls],
                    allow_reconnect=False,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    error_cb=_ignored,
                    name="crosscut",
                    **revealed(self._options),
                )
            )
        except BaseException:
            await closed(client)
            raise
        return client

    def redacted(self, error: BaseException) -> str:
        """Return what an error says, without secrets."""
        text = f"{type(error).__name__}: {error}".strip(": ")
        for redaction in self._redactions:
            text = redaction(text)
        for value in self._options.values():
            secret = value.value() if isinstance(value, Environment) else value
            if isinstance(secret, str) and len(secret) > 3:
                text = text.replace(secret, "***")
        return text


async def closed(connection: Any) -> None:
    """Close a connection."""
    await _to_its_end(connection.close())


async def _to_its_end(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Await a coroutine also when the caller is cancelled meanwhile: the library would leave sockets open."""
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,), timeout=CONNECT_TIMEOUT_S)
        if not task.done():
            # It waits for a server that does not even read.
            task.cancel()
        elif not task.cancelled():
            # Retrieved, or asyncio would log that it never was.
            task.exception()
        raise


async def _ignored(error: Exception) -> None:
    """It is raised, too, where something is waited for."""


def failures() -> tuple[type[Exception], ...]:
    """Return what the library raises if a server can't be reached or refuses."""
    library = required("nats", "nats")
    return (library.errors.Error, OSError, asyncio.TimeoutError)


def is_permanent(error: BaseException) -> bool:
    """Whether asking again does not mend what the library raises: credentials and rights."""
    errors = required("nats.errors", "nats")
    message = str(error).lower()
    return isinstance(error, errors.AuthorizationError) or (
        isinstance(error, errors.Error)
        and ("authorization violation" in message or "permissions violation" in message)
    )


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, in a thread: there may be an event loop in this one."""
    with ThreadPoolExecutor(1, thread_name_prefix="crosscut-nats") as thread:
        return thread.submit(asyncio.run, coroutine).result()
