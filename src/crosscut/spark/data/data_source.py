"""What a data source of PySpark is made from, and how its methods are called: for source and sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import StructType

from crosscut.connectors.secrets import Environment, described, revealed
from crosscut.errors import ConnectorError, CrosscutError
from crosscut.foundation.urls import shown_repr

Result = TypeVar("Result")

Options = tuple[tuple[str, str | Environment], ...]
"""Names and values, by name."""

_DESCRIBED_MAX = 900


@dataclass(frozen=True, slots=True)
class DataSourceOf:
    """A class of data sources, with options; what travels to the workers.

    Attributes:
        options: Texts, and secrets that are read where the data source is made.
        schema: As it was given; resolved, a StructType.
    """

    kind: type[DataSource]
    options: Options = field(repr=False)
    schema: StructType | str | None

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.kind.__name__

    @property
    def columns(self) -> StructType:
        """The resolved schema."""
        if not isinstance(self.schema, StructType):
            raise ConnectorError(
                f"the schema of data source {self.name} is known once a job has started; before that, "
                f"pass it as a StructType"
            )
        return self.schema

    def made(self) -> DataSource:
        """Make the data source."""
        return self.called("__init__", lambda: self.kind(options=CaseInsensitiveDict(texts_of(self.options))))

    def resolved(self) -> DataSourceOf:
        """Return it with its schema, which the data source may have to say. On the driver, with Spark there.

        Raises:
            ConnectorError: There is no schema, or it can't be read.
        """
        schema: Any = self.schema
        if schema is None:
            schema = self.called("schema", self.made().schema)
        if isinstance(schema, str):
            text = schema
            schema = self.called("schema", lambda: StructType.fromDDL(text))
        if not isinstance(schema, StructType) or not schema.fieldNames():
            raise ConnectorError(
                f"the schema of data source {self.name} is {schema!r:.100}: expected a StructType with "
                f"columns, or DDL such as 'id BIGINT, word STRING'"
            )
        return replace(self, schema=schema)

    def called(self, method: str, call: Callable[[], Result]) -> Result:
        """Return what `call` returns.

        Raises:
            ConnectorError: It has raised; the message names the data source and the method.
        """
        try:
            return call()
        except CrosscutError:
            raise
        except Exception as error:
            raise ConnectorError(
                f"data source {self.name}: {method}() raised {type(error).__name__}: {error}"
            ) from error

    def describe(self) -> str:
        """Return the data source and its options; values only of those that are known to hold no secret."""
        return f"{self.name}({described(self.options)})".replace("\n", " ")[:_DESCRIBED_MAX]


def data_source_of(
    kind: object, options: Mapping[str, Any] | None, schema: StructType | str | None
) -> DataSourceOf:
    """Check the arguments that source and sink have in common.

    Raises:
        ConnectorError: One is not as described.
    """
    if not (isinstance(kind, type) and issubclass(kind, DataSource)):
        raise ConnectorError(f"{kind!r:.100}: expected a class of pyspark.sql.datasource.DataSource")
    if schema is not None and not isinstance(schema, StructType | str):
        raise ConnectorError(f"schema={schema!r:.100}: expected a StructType, or DDL")
    found = DataSourceOf(kind, checked_options(options), schema)
    # Said where it is written, if Spark is there already to read DDL.
    needs_spark = not isinstance(schema, StructType)
    return found if needs_spark and SparkContext._active_spark_context is None else found.resolved()


def checked_options(options: object) -> Options:
    """Return options by name, as texts that Spark hands on; secrets as they are.

    Raises:
        ConnectorError: They are no dict.
    """
    if options is None:
        return ()
    if not isinstance(options, Mapping):
        raise ConnectorError(f"options={shown_repr(options):.100}: expected a dict of texts")
    return tuple(sorted(((str(name), _text(value)) for name, value in options.items()), key=itemgetter(0)))


def texts_of(options: Options) -> dict[str, str]:
    """Return `options` with the values of secrets, for the library that needs them.

    Raises:
        ConnectorError: A variable is not set here.
    """
    return {name: str(value) for name, value in revealed(dict(options)).items()}


def _text(value: Any) -> str | Environment:
    """Return an option as Spark hands it on."""
    if isinstance(value, Environment):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
