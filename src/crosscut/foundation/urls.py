"""URLs as people may see them: without the credentials that some of them carry (rule S12)."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from crosscut.errors import SettingsError

HIDDEN = "***"

_SECRET_BYTES_MIN = 4
"""What is shorter stands in any text by chance, and is no secret."""

_USER = re.compile(r"(?<=://)(?:[^/\s]*|[^/\s:@]*:(?!\d*/)\S*)(?=@)")
"""The second form is a password with an unescaped slash in it: keys of object stores have some."""
_QUERY = re.compile(r"(?<=[?&])([^=&#\s]+)=([^&#\s'\"]*)")
_LOGIN = re.compile(r"[^\s'\"/,(\[]+:[^\s'\"]*(?=@)")
"""User and password of an address without a scheme."""
_SECRET_NAME = re.compile(r"passw|secret|token|credential|private|key|sig", re.IGNORECASE)
_IN_A_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")
"""What a Path makes of a URL."""


def local_path(url: str) -> str | None:
    """Return the path of a local directory, None for what only fsspec knows."""
    path = url.removeprefix("file://").removeprefix("local://")
    return None if "://" in path or "::" in path else path


def path_text(path: object, name: str, expected: str = "a directory or an fsspec URL") -> str:
    """Return a directory or URL as text.

    Raises:
        SettingsError: It is neither; the message calls it `name`.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text:
        raise SettingsError(f"{name}={path!r}: expected {expected}")
    if text is not path and _IN_A_PATH.match(text):
        shown = shown_url(text.replace(":/", "://", 1))
        raise SettingsError(f"{name}={shown!r}: a Path can't hold a URL; give it as a str")
    return text


def shown_url(url: str) -> str:
    """Return `url` with a placeholder for user and password, and for the value of each parameter."""
    if "://" not in url:
        return url
    return _QUERY.sub(rf"\1={HIDDEN}", _USER.sub(HIDDEN, url))


def shown_repr(value: object) -> str:
    """Return the repr of an argument that is not as expected, without credentials."""
    text = repr(value)
    return shown_url(text) if "://" in text else _LOGIN.sub(HIDDEN, text)


def check_for_spark(url: str, name: str) -> None:
    """Raise SettingsError if `url` has credentials: what Spark is given stands in plans, tasks and its pages.

    The name of a user alone, as in hdfs://user@host, is none.
    """
    if "://" not in url:
        return
    is_hdfs = url.startswith(("hdfs://", "webhdfs://"))
    users = [user for user in _USER.findall(url) if not is_hdfs or ":" in user]
    if users or any(_SECRET_NAME.search(parameter) for parameter, _ in _QUERY.findall(url)):
        raise SettingsError(
            f"{name}={shown_url(url)!r}: the URL has credentials, which Spark would show and hand around; "
            f"leave them to the environment of the driver and the executors (spark.executorEnv...)"
        )


class Redaction:
    """Takes the credentials of one URL out of texts that others have made.

    Attributes:
        url: As it may be shown.
    """

    def __init__(self, url: str) -> None:
        self.url = shown_url(url)
        # The longest first: one may be a part of another.
        self._secrets = sorted(_secrets_in(url), key=len, reverse=True)
        self._plain = url

    def __call__(self, text: str) -> str:
        """Return `text` without them."""
        text = text.replace(self._plain, self.url)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text


def _secrets_in(url: str) -> set[str]:
    if "://" not in url:
        return set()
    found = {value for _, value in _QUERY.findall(url)}
    for user in _USER.findall(url):
        # Where there is no password, what stands there may be a token.
        _, separator, password = user.partition(":")
        found |= {user, password if separator else user}
    found |= {unquote(one) for one in found}
    found |= {piece for one in found for piece in one.split("/")}
    return {one for one in found if len(one) >= _SECRET_BYTES_MIN}


def absolute(url: str) -> str:
    """Return a directory as every process finds it."""
    return url if "://" in url else os.path.abspath(url)
