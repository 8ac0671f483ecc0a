"""Partitions of data sources as text, in splits."""

from __future__ import annotations

import base64
import pickle  # noqa: S403 - see `unpacked`
from typing import Any

import cloudpickle

from crosscut.errors import ConnectorError


def packed(name: str, number: int, partition: Any) -> str:
    """Return a partition as text.

    Args:
        name: Of the data source.

    Raises:
        ConnectorError: It can't be pickled.
    """
    try:
        return base64.b64encode(cloudpickle.dumps(partition)).decode("ascii")
    except Exception as error:  # Its own __reduce__ may raise anything.
        raise ConnectorError(
            f"data source {name}: partition {number}, {partition!r:.200}, can't be pickled, so it can't "
            f"be sent to a worker: {type(error).__name__}: {error}"
        ) from error


def unpacked(text: str) -> Any:
    """Return the partition."""
    # The job log has it from the driver, as it has the state of the job, which is pickled, too.
    return pickle.loads(base64.b64decode(text))  # noqa: S301
