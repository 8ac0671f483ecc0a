"""Libraries that only some connectors need: imported when used, and named when missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from crosscut.errors import ConnectorError


class ExtraMissing(ConnectorError):
    """A library is not installed: that says nothing of the record for which it was needed first."""

    @property
    def is_transient(self) -> bool:
        """False."""
        return False


def required(module: str, extra: str) -> Any:
    """Return the imported `module`.

    Raises:
        ExtraMissing: It is not installed; the message names the extra that has it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ExtraMissing(
            f"{module.partition('.')[0]} is needed for this connector and can't be imported ({error}): "
            f"install it with pip install 'crosscut[{extra}]', on the workers too"
        ) from error
