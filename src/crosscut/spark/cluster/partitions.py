"""The default number of partitions of a batch: as many as Spark's own shuffles have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from crosscut.contracts.settings import Settings
from crosscut.errors import SettingsError
from crosscut.monitoring.job_log_lines import LOGGER

PARTITIONS = "spark.sql.shuffle.partitions"


def with_partitions(settings: Settings, spark: Any) -> Settings:
    """Return `settings` with the parallelism that the program has set for Spark's shuffles, if it has.

    Spark's own default, 200, is for shuffles of other sizes, so it counts only if it was set: in the session,
    or where that was made.

    Args:
        spark: A SparkSession or a SparkContext; None: the program's, if there is one.

    Raises:
        SettingsError: It is no number of partitions.
    """
    if settings.engine_name != "micro-batch" or settings.is_parallelism_given:
        return settings
    configured = _configured(spark)
    if configured is None:
        return settings
    try:
        partitions = int(configured)
    except ValueError:
        partitions = 0
    if partitions < 1:
        raise SettingsError(
            f"{PARTITIONS}={configured!r}: expected a whole number from 1 on, or set parallelism"
        )
    if partitions > settings.max_parallelism:
        LOGGER.info(
            "%s=%d is above max_parallelism=%d: there are no key groups for more partitions",
            PARTITIONS,
            partitions,
            settings.max_parallelism,
        )
    return replace(settings, parallelism=min(partitions, settings.max_parallelism))


def _configured(spark: Any) -> str | None:
    if isinstance(spark, SparkSession):
        found: str | None = spark.conf.getAll.get(PARTITIONS)
        return found
    context = spark if isinstance(spark, SparkContext) else SparkContext._active_spark_context
    session = SparkSession._instantiatedSession
    if session is not None and session._sc is context and context is not None:
        return _configured(session)
    return context.getConf().get(PARTITIONS) if context is not None else None
