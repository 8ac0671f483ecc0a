"""Options of connectors that nobody must read: where they come from, and how they are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from crosscut.errors import ConnectorError

_SECRET = re.compile(r"passw|secret|token|credential|sasl\.jaas|private|\.pem$|api[._-]?key", re.IGNORECASE)

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
    """Return `options` as people may see them: without the values of those that look like secrets."""
    return {
        k: f"${v.variable}" if isinstance(v, Environment) else HIDDEN if _SECRET.search(k) else v
        for k, v in options.items()
    }
