"""Secret options of connectors: where they come from, and how they are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from crosscut.errors import ConnectorError
from crosscut.foundation.urls import shown_url

_PUBLIC = re.compile(
    r"(kafka\.)?bootstrap\.servers|topics?|subscribe(pattern)?|assign|(group|client|transactional)\.id|acks"
    r"|auto\.offset\.reset|(starting|ending)(offsets|timestamp|version)\w*|compression\.\w+|isolation\.level"
    r"|security\.protocol|sasl\.mechanisms?|[\w.]+\.(ms|bytes|messages|kbytes|records)|path|paths|format|sep"
    r"|header|encoding|multiline|mode|rowspersecond|rowsperbatch|numpartitions|rampuptime|max\w*|min\w*"
    r"|latestfirst|recursivefilelookup|failondataloss|include\w+|host|port|table|tablename|dbtable|database"
    r"|namespace|collection|stream|subject|type|uri|url|warehouse|py-io-impl|\w+[.-]region|region|name"
    r"|parallelism|count|first|last|start|end|limit|interval|rows|batch\w*|seed|number\w*|width",
    re.IGNORECASE,
)
"""Options whose values may be shown. Any other option may hold a secret."""

HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Environment:
    """A value that is read from an environment variable where it is used: in the driver, in each worker."""

    variable: str

    def value(self) -> str:
        """Return the value.

        Raises:
            ConnectorError: The variable is not set here.
        """
        try:
            return os.environ[self.variable]
        except KeyError:
            raise ConnectorError(
                f"the environment variable {self.variable} is not set: set it for the driver and for the "
                f"workers (spark.executorEnv.{self.variable})"
            ) from None


def environment(variable: str) -> Environment:
    """Return a secret that stands in an environment variable, to be used as a connector's option.

    It is read where it is used, on the driver and in the workers, and never travels or shows itself.

    Examples:
        >>> import crosscut as cc
        >>> password = cc.environment("KAFKA_PASSWORD")
    """
    return Environment(variable)


def revealed(options: Mapping[str, object]) -> dict[str, object]:
    """Return `options` with the values that stand in the environment; for the library that needs them.

    Raises:
        ConnectorError: A variable is not set.
    """
    return {k: v.value() if isinstance(v, Environment) else v for k, v in options.items()}


def shown(options: Mapping[str, object]) -> dict[str, object]:
    """Return `options` as people may see them: only the values of those that are known to hold no secret."""
    return {
        k: f"${v.variable}" if isinstance(v, Environment) else v if is_public(k) else HIDDEN
        for k, v in options.items()
    }


def is_public(name: str) -> bool:
    """Return whether the value of an option may be shown; in a URL, its credentials may not."""
    return _PUBLIC.fullmatch(name) is not None


def described(options: Iterable[tuple[str, str | Environment]]) -> str:
    """Return those options of a data source as text that may be shown: of a secret the variable."""
    return ", ".join(
        f"{name}=${value.variable}" if isinstance(value, Environment) else f"{name}={shown_url(value)}"
        for name, value in options
        if isinstance(value, Environment) or is_public(name)
    )
