"""What is asked of the arguments that all requests have."""

from __future__ import annotations

import logging
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from crosscut.connectors.extras import required
from crosscut.connectors.secrets import HIDDEN, Environment, revealed
from crosscut.errors import ConnectorError
from crosscut.foundation.urls import Redaction, shown_repr

Headers = Mapping[str, "str | Environment"]

_NAME = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")

MAY_PASS = frozenset({408, 425, 429})
"""Answers of 4xx that another attempt may not get."""

_SECRET_BYTES_MIN = 4
"""What is shorter stands in any text by chance, and is no secret."""


def library() -> Any:
    """Return the module `httpx`, which from here on logs no more than warnings.

    Of each request it would log the URL, with the password or token in it. Who has set a level for it
    keeps that.
    """
    found = required("httpx", "http")
    logger = logging.getLogger("httpx")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
    return found


def without_values(text: str, headers: Headers) -> str:
    """Return what a server says, without what it repeats of the headers: a token, perhaps."""
    words = {word for value in revealed(headers).values() for word in str(value).split()}
    for word in sorted(words, key=len, reverse=True):
        if len(word) >= _SECRET_BYTES_MIN:
            text = text.replace(word, HIDDEN)
    return text


class Address:
    """The URL of a service; one that stands in the environment is read where it is used.

    Attributes:
        shown: As people may see it.
    """

    def __init__(self, url: str | Environment) -> None:
        self._url = url
        self.shown = f"${url.variable}" if isinstance(url, Environment) else Redaction(url).url

    def value(self) -> str:
        """Return the URL.

        Raises:
            ConnectorError: The variable is not set here, or holds no URL.
        """
        if not isinstance(self._url, Environment):
            return self._url
        found = self._url.value()
        if not _is_http(found):
            raise ConnectorError(
                f"the environment variable {self._url.variable} does not contain an HTTP URL"
            )
        return found

    def redacted(self, text: str) -> str:
        """Return what others say, without what must not be shown of the URL."""
        if not isinstance(self._url, Environment):
            return Redaction(self._url)(text)
        found = self.value()
        parts = urlsplit(found)
        for piece in (found, parts.netloc, f"{parts.path}?{parts.query}", parts.path, parts.query):
            if len(piece) >= _SECRET_BYTES_MIN:
                text = text.replace(piece, self.shown)
        return text


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def checked_url(url: object) -> str | Environment:
    """Return `url` if it is one of HTTP, or stands in the environment.

    Raises:
        ConnectorError: It is not.
    """
    if isinstance(url, Environment) or (isinstance(url, str) and _is_http(url)):
        return url
    raise ConnectorError(f"url={shown_repr(url)}: expected one such as 'https://example.com/events'")


def checked_headers(headers: Headers | None) -> dict[str, Any]:
    """Return `headers` as a dict.

    Raises:
        ConnectorError: They can't be sent; values are not shown.
    """
    found = dict(headers or {})
    for name, value in found.items():
        if not isinstance(name, str) or not name or not set(name.lower()) <= _NAME:
            raise ConnectorError(f"headers: {name!r} is not a valid header name")
        if not isinstance(value, Environment) and (not isinstance(value, str) or set(value) & set("\r\n\0")):
            raise ConnectorError(f"headers: the value of {name!r} is not a single line of text")
    return found


PIECE_BYTES = 65_536
"""Decompressed data comes in pieces of at most so many bytes: a kilobyte may become a megabyte."""


async def pieces(response: Any) -> AsyncIterator[bytes]:
    """Yield the body of a response, decompressed, in bounded pieces.

    Raises:
        ConnectorError: It is compressed in a way that is not known, or is damaged.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        async for data in response.aiter_raw():
            yield data
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ConnectorError(f"the answer has Content-Encoding {encoding!r}: expected none, gzip or deflate")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
    async for data in response.aiter_raw():
        rest = data
        while rest:
            try:
                piece = unpack.decompress(rest, PIECE_BYTES)
            except zlib.error as error:
                raise ConnectorError(
                    f"the answer declares Content-Encoding {encoding}, but can't be decoded: {error}"
                ) from error
            rest = unpack.unconsumed_tail
            if piece:
                yield piece
            if unpack.eof:
                return


async def bounded_body(response: Any, bytes_max: int) -> bytes:
    """Return the body of a response, the first `bytes_max` bytes of it."""
    found = bytearray()
    async for piece in pieces(response):
        found += piece
        if len(found) >= bytes_max:
            break
    return bytes(found[:bytes_max])
