"""Paths and URLs of the local file system, as users write them."""

from __future__ import annotations

import os
import re

from crosscut.errors import ConnectorError
from crosscut.foundation.urls import shown_repr

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def local_path(location: object, what: str) -> str:
    """Return `location` as a path of the local file system, as spelt.

    Args:
        location: A path, or a URL file:///path.
        what: What it is for, as the error should call it.

    Raises:
        ConnectorError: Empty, not a path, or a URL of another scheme.
    """
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConnectorError(
            f"{what} {shown_repr(location)} is not a path: expected a non-empty str or os.PathLike"
        )
    url = _SCHEME.fullmatch(text)
    if url is None:
        return text
    if url[1].lower() != "file" or not url[2].startswith("/"):
        raise ConnectorError(
            f"{what} {shown_repr(text)} is on a remote file system, which is not supported: expected a path "
            f"that the driver and all workers share, or file:///path; mount the remote one, or copy to or "
            f"from it"
        )
    return url[2]


def is_remote(location: object) -> bool:
    """Whether `location` is a URL of a file system other than the local one."""
    url = _SCHEME.fullmatch(location) if isinstance(location, str) else None
    return url is not None and url[1].lower() != "file"
