"""What tasks add to Spark's accumulators, which PySpark unpickles in the driver."""

from __future__ import annotations

import logging
from typing import Any

from pyspark import accumulators
from pyspark.serializers import CPickleSerializer

from crosscut.foundation.data_pickles import load_data
from crosscut.foundation.unpickling import RefusedPickleError

_LOG = logging.getLogger("crosscut")

_NO_UPDATE = (None, None)
"""Of no accumulator: their ids are numbers. PySpark acknowledges it and does nothing else."""


def load_updates_as_data() -> None:
    """Have PySpark load only data as updates of accumulators, in this process, from now on.

    Any task can send updates, also one of a program without accumulators. The task has succeeded by then,
    and an error would end PySpark's one connection for them; so an update that is refused is logged and
    left out.
    """
    if not isinstance(accumulators.pickleSer, _DataSerializer):
        accumulators.pickleSer = _DataSerializer()


class _DataSerializer(CPickleSerializer):
    def loads(self, obj: Any, encoding: str = "bytes") -> Any:
        try:
            return load_data(obj)
        except RefusedPickleError as error:
            _LOG.error("an update of a Spark accumulator was refused, and is not counted: %s", error)
            return _NO_UPDATE
