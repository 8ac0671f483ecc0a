"""What is asked of the arguments that all requests have."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from crosscut.connectors.extras import required
from crosscut.connectors.secrets import HIDDEN, Environment, revealed
from crosscut.errors import ConnectorError
from crosscut.urls import shown_url

Headers = Mapping[str, "str | Environment"]

_NAME = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")

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


def checked_url(url: object) -> str:
    """Return `url` if it is one of HTTP.

    Raises:
        ConnectorError: It is not.
    """
    if isinstance(url, str):
        try:
            parts = urlsplit(url)
            if parts.scheme in ("http", "https") and parts.hostname:
                return url
        except ValueError:
            # Said below, in words.
            pass
    shown = shown_url(url) if isinstance(url, str) else repr(url)
    raise ConnectorError(f"url={shown}: expected one such as 'https://example.com/events'")


def checked_headers(headers: Headers | None) -> dict[str, Any]:
    """Return `headers` as a dict.

    Raises:
        ConnectorError: They can't be sent; values are not shown.
    """
    found = dict(headers or {})
    for name, value in found.items():
        if not isinstance(name, str) or not name or not set(name.lower()) <= _NAME:
            raise ConnectorError(f"headers: {name!r} is no name of a header")
        if not isinstance(value, Environment) and (not isinstance(value, str) or set(value) & set("\r\n\0")):
            raise ConnectorError(f"headers: the value of {name!r} is no text of one line")
    return found
