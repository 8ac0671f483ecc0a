"""Streaming sources of Spark itself, those of the JVM, as sources: `crosscut.spark.stream`.

A streaming query of Spark reads, and logs what belongs to each of its batches before it runs. Its
`foreachBatch` stages the rows of a batch as Parquet, and then says so in one file that is created if there is
none. Spark may run a batch again, with other rows if the query is not deterministic: the first file counts.
From there on it is a source that finds splits while it runs: the staged files of one batch after the other.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from typing import Any, get_args

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from crosscut.connectors.extras import required
from crosscut.connectors.files.staged_rows import StagedRows, split_of
from crosscut.connectors.secrets import described
from crosscut.contracts.connectors import JSON, Split, SplitReader
from crosscut.contracts.driver_source import DriverSource
from crosscut.contracts.dynamic_source import Discovered, DynamicSource
from crosscut.errors import AuthenticityError, ConnectorError
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.ids import CheckpointId, Epoch, VertexId
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.urls import local_path, shown_url
from crosscut.protocol.snapshots import Part
from crosscut.protocol.splits.staged import BEFORE_ALL, FILE
from crosscut.spark.cluster.workers import python_of_this_program
from crosscut.spark.data.arrow_records import RecordKind, RecordsOf
from crosscut.spark.data.data_source import Options, checked_options, texts_of
from crosscut.spark.data.dataframes import check_schema
from crosscut.spark.data.staging import COLUMNS, files_of, map_in_arrow
from crosscut.store.checkpoint_store import open_store
from crosscut.store.files import LocalFiles
from crosscut.store.log_key import VARIABLE, LogKey, Signature, log_key

AHEAD_MAX = 16
"""Batches that may be staged and not be dealt out to tasks: then the query waits."""

BATCHES_AT_A_TIME = 8
_LOOK_S = 0.1
_ENTRY = re.compile(r"batches/(\d+)\.json")
_LOG = logging.getLogger("crosscut")


@checks_options("spark.stream")
def stream(
    source_format: str,
    options: Mapping[str, Any] | None = None,
    schema: StructType | str | None = None,
    *,
    records: RecordKind = "rows",
    every: Duration = "1s",
) -> DynamicSource[Any]:
    """Return a source of what `spark.readStream` reads: Kafka, files, rates, tables; any streaming source.

    A streaming query of Spark reads it, batch after batch, and stages the rows in the checkpoint directory,
    where the tasks read them, each row exactly once. Where the query is, Spark's own log says, which is
    there, too. What a batch has is what was staged first, so the source need not be deterministic.

    Args:
        source_format: As of `spark.readStream.format`. Spark has to have its classes.
        options: As of `spark.readStream.options`.
        schema: Of the rows, where the source asks for one.
        records: What a record is; see `crosscut.spark.dataframe`.
        every: Between the starts of two of the query's batches.

    Raises:
        ConnectorError: An argument is not as described, or pyarrow is missing. Later, in the job: the query
            fails, or has columns of types that have no counterpart.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.spark.stream("rate", {"rowsPerSecond": 10})
    """
    required("pyarrow", "parquet")
    if not isinstance(source_format, str) or not source_format:
        raise ConnectorError(f"stream({source_format!r:.100}): expected the name of a format, as 'kafka'")
    if records not in get_args(RecordKind):
        raise ConnectorError(f"records={records!r}: expected one of {get_args(RecordKind)}")
    texts = checked_options(options)
    shape = schema.json() if isinstance(schema, StructType) else schema
    return StreamSource(StreamRead(source_format, texts, shape, int(duration_ms(every, "every"))), records)


@dataclass(frozen=True, slots=True)
class StreamRead:
    """What the query reads.

    Attributes:
        schema: As DDL, or as the JSON of a StructType.
        every_ms: Between the starts of two batches.
    """

    format: str
    options: Options = field(repr=False)
    schema: str | None
    every_ms: int

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the streaming DataFrame."""
        reader = spark.readStream.format(self.format).options(**texts_of(self.options))
        if self.schema is not None:
            is_json = self.schema.lstrip().startswith("{")
            reader = reader.schema(StructType.fromJson(json.loads(self.schema)) if is_json else self.schema)
        return reader.load()


class StreamSource(DriverSource[Any]):
    """See `stream`. The query runs in the process that starts the job; tasks read what it has staged.

    Args:
        where: A directory of this source's own; "": not known yet.
        context: Where the query runs; None: not known yet, or this is a task.
    """

    discover_every = "100ms"

    def __init__(
        self,
        stream_read: StreamRead,
        records: RecordKind,
        where: str = "",
        uid: str = "",
        context: SparkContext | None = None,
    ) -> None:
        self._stream_read = stream_read
        self._records: RecordKind = records
        self._where = where
        self._uid = uid
        self._context = context
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._query: StreamingQuery | None = None
        # Of the engine run before: it may take long to stop.
        self._query_before: StreamingQuery | None = None
        self._is_over = threading.Event()
        self._ends = False
        self._known_token = ""
        self._dealt = -1
        self._kept_from = 0

    def __reduce__(self) -> tuple[Callable[..., StreamSource], tuple[Any, ...]]:
        return StreamSource, (self._stream_read, self._records, self._where, self._uid)

    def placed(self, store_url: str, uid: str, context: SparkContext | None = None) -> StreamSource:
        """Return the source for a job that has its checkpoint store there.

        Args:
            context: Where the query runs; None: it can't be begun.

        Raises:
            ConnectorError: Spark's log can't be kept there.
        """
        directory = local_path(store_url)
        if directory is None:
            raise ConnectorError(
                f"source {uid!r}: crosscut.spark.stream keeps the log of Spark's query in the "
                f"checkpoint_dir, which must be a directory that driver and executors share, not "
                f"{shown_url(store_url)}",
                operator=uid,
            )
        return StreamSource(self._stream_read, self._records, f"{directory}/streams/{uid}", uid, context)

    def describe(self) -> str:
        """Return format and options."""
        return f"stream {self._stream_read.format}({described(self._stream_read.options)})".replace(
            "\n", " "
        )[:900]

    # Found on the driver.

    def check(self) -> None:
        """Raise ConnectorError if Spark can't even plan what the query is to read."""
        if self._context is not None:
            self._planned(_session_of(self._context))

    def _planned(self, session: SparkSession) -> DataFrame:
        try:
            frame = self._stream_read.frame(session)
        except Exception as error:
            raise ConnectorError(
                f"source {self._uid!r}: Spark can't read {self.describe()}: {type(error).__name__}: "
                f"{' '.join(str(error).splitlines()[:4])[:1_000]}{_advice(self._stream_read.format, error)}",
                operator=self._uid,
            ) from error
        check_schema(frame.schema)
        return frame

    def begin(self, *, ends: bool) -> None:
        """The job owns its directory: the query may run from now on.

        Args:
            ends: It is to read what there is when it begins, and then to end.

        With `engine="auto"` that is said again, after `stop`, each time this engine's turn has come.
        """
        # Not cleared: who still stages for the query before must not go on.
        self._is_over = threading.Event()
        self._ends = ends
        if self._context is not None:
            self._session = _session_of(self._context)

    def discover(self, known: JSON) -> Discovered:
        """Deal out the batches that were staged since; begin the query, or begin it again."""
        token, newest = self._token(), -1
        match known:
            case None:
                pass
            case {"stream": str(of), "batch": int(newest)} if of == token:
                pass
            case _:
                raise ConnectorError(
                    f"source {self._uid!r}: the checkpoint continues a Spark query whose log is not in "
                    f"{self._where}: a savepoint does not contain it. Give the source another name in the "
                    f"new job, with options for where it begins, and allow_dropped_state=True"
                )
        # Looked at first: what a query has staged that has ended is there.
        is_coming = self._watch()
        splits: list[Split] = []
        for _ in range(BATCHES_AT_A_TIME):
            found = self._batch(newest + 1)
            if found is None:
                self._check_order(newest + 1)
                break
            splits += found
            newest += 1
        else:
            is_coming = True
        with self._lock:
            self._dealt = newest
        return Discovered(splits, {"stream": token, "batch": newest}, is_coming=is_coming)

    def _token(self) -> str:
        """Return what tells this query from all others; it is made once."""
        if not self._known_token:
            files = self._files()
            files.put_if_absent("token", secrets.token_hex(8).encode())
            # Of a driver that has died: it may have made visible what is not durable yet.
            files.settle("batches")
            self._known_token = files.read("token").decode()
        return self._known_token

    def _files(self) -> LocalFiles:
        files = LocalFiles(self._where, create=True)
        files.make_directory("batches")
        return files

    def _watch(self) -> bool:
        """Begin the query unless it runs; return whether it is still going to stage what there is.

        Raises:
            ConnectorError: It has failed since.
        """
        with self._lock:
            query, before, is_over = self._query, self._query_before, self._is_over
        if self._session is None or is_over.is_set() or (query is not None and query.isActive):
            return True
        if before is not None and before.isActive:
            # It has the same log, which Spark gives to one query at a time.
            return True
        if query is not None:
            why = query.exception()
            if self._ends and why is None:
                return False
            self._query = None
            text = " ".join(str(why or "no reason given").splitlines()[:4])[:1_000]
            raise ConnectorError(f"source {self._uid!r}: the query of Spark has ended: {text}")
        frame = self._planned(self._session)
        try:
            writer = frame.writeStream.foreachBatch(partial(self._stage, is_over))
            writer = writer.option("checkpointLocation", f"{self._where}/spark")
            if self._ends:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{self._stream_read.every_ms} milliseconds")
            if not self._is_taken(query := writer.start(), is_over):
                query.stop()
        except Exception as error:
            raise ConnectorError(
                f"source {self._uid!r}: Spark can't begin the query of {self.describe()}: "
                f"{type(error).__name__}: {' '.join(str(error).splitlines()[:4])[:1_000]}"
            ) from error
        return True

    def _is_taken(self, query: StreamingQuery, is_over: threading.Event) -> bool:
        """Take a query for the engine run that `is_over` is of, unless that has ended meanwhile."""
        with self._lock:
            if is_over.is_set():
                return False
            self._query = query
            return True

    def _stage(self, is_over: threading.Event, frame: DataFrame, batch: int) -> None:
        """Stage one batch, unless that has been done. Called by Spark, perhaps again."""
        while batch - self._dealt_out() > AHEAD_MAX and not is_over.wait(_LOOK_S):
            """Tasks are behind."""
        if is_over.is_set():
            raise ConnectorError("the job is over")
        files = self._files()
        if self._batch(batch) is not None:
            return
        open_store(self._where)
        with python_of_this_program(frame.sparkSession.sparkContext):
            staged = map_in_arrow(frame, partial(_staged, self._where, self._uid, batch), COLUMNS)
        rows = sorted(staged.collect(), key=lambda one: (one.number, one.path))
        entries = [[one.path, one.size_bytes, one.sha256, one.rows] for one in rows]
        # Decision moment: these are the rows of the batch.
        files.put_if_absent(_entry(batch), encoded_batch(entries, self._subject(batch), log_key()))

    def _check_order(self, missing: int) -> None:
        """Raise ConnectorError if a batch will never come: Spark stages one after the other."""
        later = [one for one in self._numbers(self._files()) if one > missing]
        # Looked at once more: it may have come before the later ones were seen.
        if later and self._batch(missing) is None:
            raise ConnectorError(
                f"source {self._uid!r}: batch {missing} of the Spark query should be in "
                f"{self._where}/{_entry(missing)}, since batch {min(later)} is there: the file was lost, "
                f"or removed after the checkpoint from which the job continues. Restore it, or start over "
                f"with another checkpoint_dir"
            )

    def _dealt_out(self) -> int:
        with self._lock:
            return self._dealt

    def _batch(self, number: int) -> list[Split] | None:
        """Return the splits of a batch, None if it is not staged."""
        try:
            data = self._files().read(_entry(number))
        except FileNotFoundError:
            return None
        entries = decoded_batch(data, self._subject(number), log_key(), f"{self._where}/{_entry(number)}")
        splits = []
        for index, (path, size_bytes, digest, rows) in enumerate(entries):
            split = split_of(index, Part(path, size_bytes, digest, "", BEFORE_ALL), rows)
            detail: Any = split.detail
            # Not under the name of what the job's own store has: these files are not there.
            kept = {name: value for name, value in detail.items() if name != FILE}
            splits.append(Split(f"{number:012}-{index:06}", 0, kept | {"batch": number, "path": path}, rows))
        return splits

    def _subject(self, batch: int) -> str:
        return f"batch {batch} of stream {self._token()} of source {self._uid!r}"

    def completed(self, known: JSON, unread: Iterable[JSON]) -> None:
        """Remove what a completed checkpoint has read. Blocks; one call at a time."""
        match known:
            case {"batch": int(newest)}:
                pass
            case _:
                return
        batches = [one["batch"] for one in unread if isinstance(one, dict)]
        keep_from = min((int(str(one)) for one in batches), default=newest + 1)
        if keep_from <= self._kept_from:
            return
        files, store = self._files(), open_store(self._where)
        # Of these batches nothing is read any more: neither what counted, nor what attempts have left there.
        read = [path for path in store.list_parts() if _batch_of(path) < keep_from]
        for problem in store.delete_parts(read):
            _LOG.warning("staged rows that were read could not be removed: %s", problem)
        for number in range(self._kept_from or self._oldest(files), keep_from):
            _remove_entry(files, number)
        self._kept_from = keep_from

    def _oldest(self, files: LocalFiles) -> int:
        return min(self._numbers(files), default=0)

    def _numbers(self, files: LocalFiles) -> list[int]:
        """Return which batches are staged. Files that are being written, or never came to that, are none."""
        return [int(found[1]) for path in files.walk("batches") if (found := _ENTRY.fullmatch(path))]

    def stop(self) -> Callable[[], None]:
        """End the query; the next start goes on with it."""
        with self._lock:
            self._is_over.set()
            query, self._query = self._query, None
            if query is not None:
                self._query_before = query
        return partial(self._end, query)

    def _end(self, query: StreamingQuery | None) -> None:
        if query is None:
            return
        try:
            query.stop()
        except Exception as error:  # noqa: BLE001 - Spark may be gone; the job is over
            _LOG.warning("source %r: the query of Spark could not be stopped: %s", self._uid, error)

    # Read in tasks.

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Read a staged file, from a row on."""
        match split.detail:
            case {"path": str(path), "size_bytes": size_bytes, "sha256": digest, "rows": rows}:
                detail: dict[str, JSON] = {
                    FILE: path,
                    "size_bytes": size_bytes,
                    "sha256": digest,
                    "rows": rows,
                }
                staged = StagedRows(self._where, RecordsOf(self._records))
                return staged.reader(Split(split.split_id, 0, detail), position)
            case _:
                raise ConnectorError(
                    f"split {split} at position {position!r} was not staged by a stream; is the checkpoint "
                    f"of another source?",
                    split_id=split.split_id,
                )


def _session_of(context: SparkContext) -> SparkSession:
    session = SparkSession._instantiatedSession
    return session if session is not None and session._sc is context else SparkSession(context)


def _advice(source_format: str, error: Exception) -> str:
    """Return what to do about a format that Spark does not know."""
    if "DATA_SOURCE_NOT_FOUND" not in str(error) and "Failed to find data source" not in str(error):
        return ""
    package = (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version('pyspark')}"
        if source_format == "kafka"
        else "group:name:version"
    )
    return f"; start Spark with the package that has it, as with spark.jars.packages={package}"


def encoded_batch(entries: list[Any], subject: str, key: LogKey | None) -> bytes:
    """Return what is kept of a batch: its files; signed, if there is a key."""
    if key is None:
        return json.dumps(entries).encode()
    signature = key.note_signature(subject, _digest(entries))
    return json.dumps({"files": entries, "key_id": signature.key_id, "mac": signature.mac}).encode()


def decoded_batch(data: bytes, subject: str, key: LogKey | None, where: str) -> list[Any]:
    """Return the files of a batch.

    Raises:
        AuthenticityError: There is a key, and it has not made the signature.
        ConnectorError: It is no batch.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConnectorError(f"{where} can't be read: {error}") from error
    match found:
        case {"files": list(entries), "key_id": str(key_id), "mac": str(mac)}:
            if key is not None and not key.has_noted(Signature(key_id, mac), subject, _digest(entries)):
                raise AuthenticityError(
                    f"{where} was not written with key {key.key_id}: it was changed without {VARIABLE}; "
                    f"restore a backup, or start over with another checkpoint_dir",
                    path=where,
                )
        case list(entries) if key is None:
            pass
        case list():
            raise AuthenticityError(
                f"{where} is not signed, and {VARIABLE} is set: it was written without the key. Unset the "
                f"key to continue from data that anyone may have written, or start over with another "
                f"checkpoint_dir",
                path=where,
            )
        case _:
            raise ConnectorError(f"{where} is not a list of the files of a batch")
    return entries


def _digest(entries: list[Any]) -> str:
    return sha256(json.dumps(entries, separators=(",", ":")).encode()).hexdigest()


def _entry(batch: int) -> str:
    return f"batches/{batch:012}.json"


def _staged(where: str, uid: str, batch: int, batches: Iterator[Any]) -> Iterator[Any]:
    return files_of(batches, where, VertexId(uid), Epoch(1), CheckpointId(batch))


def _batch_of(path: str) -> int:
    """Return the batch that a file was staged for."""
    return int(path.split("/")[1])


def _remove_entry(files: LocalFiles, number: int) -> None:
    try:
        files.delete(_entry(number))
    except FileNotFoundError:
        return
    except OSError as error:
        _LOG.warning("batch %d, which was read, could not be removed: %s", number, error)
