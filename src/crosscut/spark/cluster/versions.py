"""What differs between the supported versions of PySpark: 4.1, 4.2 and 4.3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.serializers import Serializer
from pyspark.util import _load_from_socket

from crosscut.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OLDEST, NEWEST = (4, 1), (4, 3)


def version() -> tuple[int, int]:
    """Return the version of PySpark, as in (4, 3)."""
    major, minor, *_ = pyspark.__version__.split(".")
    return int(major), int(minor)


def check_version() -> None:
    """Refuse a version of PySpark that Crosscut does not know.

    Raises:
        SettingsError: It is not supported; the message says which are.
    """
    if not OLDEST <= version() <= NEWEST:
        raise SettingsError(
            f"PySpark {pyspark.__version__} is not supported: expected {OLDEST[0]}.{OLDEST[1]} to "
            f"{NEWEST[0]}.{NEWEST[1]}; install another one, as in pip install 'pyspark~=4.3.0'"
        )


@contextmanager
def results_of(served: Any, serializer: Serializer) -> Iterator[Iterator[Any]]:
    """Give what the JVM serves over a local socket, and close that afterwards."""
    found: Any = _load_from_socket(served, serializer)
    if version() < (4, 2):
        # The iterator itself, whose socket is closed with it.
        yield found
        return
    with found as results:
        yield results


def arrow_schema(schema: StructType) -> Any:
    """Return `schema` as one of pyarrow, with timestamps in UTC."""
    # Not above: a job without DataFrames starts sooner without pyspark.sql.
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema) if version() < (4, 2) else to_arrow_schema(schema, timezone="UTC")
