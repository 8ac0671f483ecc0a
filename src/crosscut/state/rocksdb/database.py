"""One RocksDB database of one task, and the hard links that keep what it was at a checkpoint.

Nothing is durable by itself here: the write-ahead log is off, and what counts is in the checkpoint store.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from crosscut.errors import StateError
from crosscut.state.rocksdb.gate import GATE

WRITE_BUFFER_BYTES = 16 * 1024 * 1024
"""Also about the size of a file, and so of a part in the store."""
WRITE_BUFFERS_MAX = 4
"""Of one database, where the disk is slow."""
BLOCK_CACHE_BYTES = 0
"""For all databases of a process together, unless somebody says otherwise; see decision 0076."""

_BLOOM_BITS = 10
_FILES_UNTIL_MERGED = 8
_MERGED_TOGETHER_MIN = 4
_FILES_UNTIL_SLOW = 60
_SST = ".sst"
_COLUMNS = "default"
"""The name that RocksDB gives to the rows of a database that has one kind of them."""


def library() -> Any:
    """Return the module `rocksdict`.

    Raises:
        StateError: It is not installed, or its native library can't be loaded.
    """
    try:
        return import_module("rocksdict")
    except ImportError as error:
        raise StateError(
            f"state_backend='rocksdb' needs rocksdict, which can't be imported ({error}): install it with "
            f"pip install 'crosscut[rocksdb]', on the workers too"
        ) from error


_IN_MEMORY = ("rocksdb.cur-size-all-mem-tables", "rocksdb.estimate-table-readers-mem")


class Options:
    """What the databases of one process share: a cache for blocks, if there is one.

    Args:
        cache_bytes: Its size; 0: there is none, and each read of a block is one of its file.
    """

    def __init__(self, cache_bytes: int = BLOCK_CACHE_BYTES) -> None:
        rocksdict = library()
        self.rocksdict = rocksdict
        self.options = options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_target_file_size_base(WRITE_BUFFER_BYTES)
        # A checkpoint makes a small file, with keys from everywhere. Were they merged into levels of fixed
        # sizes, most of what is written and uploaded would be those levels, again and again. So files are
        # merged with others of about their size.
        options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
        merging = rocksdict.UniversalCompactOptions()
        merging.min_merge_width = _MERGED_TOGETHER_MIN
        options.set_universal_compaction_options(merging)
        options.set_level_zero_file_num_compaction_trigger(_FILES_UNTIL_MERGED)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        # A write that has to wait for a flush or a merge would hold up the event loop, and with it all
        # heartbeats. A checkpoint makes a file more, and waits for the flush itself, in a thread.
        options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
        options.set_level_zero_slowdown_writes_trigger(_FILES_UNTIL_SLOW)
        options.set_level_zero_stop_writes_trigger(2 * _FILES_UNTIL_SLOW)
        # Not 16 of them, each with a stack, whenever a database is opened: where one can't be started, since
        # memory is limited, the library ends the process.
        options.set_max_file_opening_threads(1)
        # Its own log, which is not read.
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(1024 * 1024)
        tables = rocksdict.BlockBasedOptions()
        if cache_bytes:
            tables.set_block_cache(rocksdict.Cache(cache_bytes))
        else:
            tables.disable_cache()
        # Filters and indexes stay in memory beside the cache, some 3 bytes a row: reads are a third faster.
        tables.set_bloom_filter(_BLOOM_BITS, False)
        tables.set_cache_index_and_filter_blocks(False)
        options.set_block_based_table_factory(tables)
        self.write = rocksdict.WriteOptions()
        self.write.disable_wal = True


class Database:
    """Bytes by bytes. Any thread may call it, one at a time for what writes.

    Args:
        directory: Its own; made if it is not there.

    Raises:
        StateError: From every method: the disk is full, a file is gone or damaged.
    """

    def __init__(self, directory: str, options: Options) -> None:
        self.directory = directory
        self._rocksdict = options.rocksdict
        self._write = options.write
        self.is_damaged = False
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            with GATE:
                # By name as well: the options of a database that is there already are read from its files
                # else, where there is no cache and no filter.
                families = {_COLUMNS: options.options}
                self._db = options.rocksdict.Rdict(directory, options.options, column_families=families)
        except Exception as error:  # The library raises plain exceptions.
            raise self._failed("open", error) from error

    @property
    def memory_bytes(self) -> int:
        """How much memory it takes, without the cache; 0 if it can't tell."""
        with suppress(Exception), GATE:
            return sum(self._db.property_int_value(name) or 0 for name in _IN_MEMORY)
        return 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, None if it has none."""
        try:
            with GATE:
                found: bytes | None = self._db.get(key)
        except Exception as error:  # As above.
            raise self._failed("read", error) from error
        return found

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in order, read at once."""
        try:
            with GATE:
                found: list[bytes | None] = self._db.get(keys)
        except Exception as error:  # As above.
            raise self._failed("read", error) from error
        return found

    def write(self, rows: Iterable[tuple[bytes, bytes | None]]) -> int:
        """Set values, all or none; None takes one away. Return about how many bytes they are."""
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in rows:
            if value is None:
                batch.delete(key)
            else:
                put(key, value)
        size: int = batch.size_in_bytes()
        try:
            with GATE:
                self._db.write(batch, self._write)
        except Exception as error:  # As above.
            raise self._failed("write", error) from error
        return size

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows that begin with `prefix`, in order, as they are now: later writes don't show."""
        return self._each(prefix, after(prefix))

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows from `first` and before `end`, as above; to the last if `end` is empty."""
        return self._each(first, end)

    def count(self, prefix: bytes) -> int:
        """Return how many rows begin with `prefix`; reads all of them."""
        return sum(1 for _ in self._each(prefix, after(prefix)))

    def _each(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        options = self._rocksdict.ReadOptions()
        if end:
            options.set_iterate_upper_bound(end)
        try:
            # Not `items` of the database: it ends at a damaged block as it does after the last row, and all
            # rows from there on would be missing without a word.
            rows = self._db.iter(options)
            rows.seek(first)
            is_there, key, value, go_on = rows.valid, rows.key, rows.value, rows.next
            while is_there():
                yield key(), value()
                go_on()
            rows.status()
        except GeneratorExit:
            raise
        except Exception as error:  # As above.
            raise self._failed("read", error) from error

    def link(self, directory: str) -> list[str]:
        """Keep the present content of the database under `directory`; return the names of its table files.

        Blocks until all is in files; nothing may be written meanwhile, reading is fine.
        """
        try:
            # Not left to the checkpoint itself, which holds the interpreter lock as long as that takes.
            with GATE:
                self._db.flush(wait=True)
                self._rocksdict.Checkpoint(self._db).create_checkpoint(directory)
        except Exception as error:  # As above.
            raise self._failed("write", error) from error
        return table_files(directory)

    def close(self) -> None:
        """Close it; its files stay."""
        with suppress(Exception), GATE:  # It may be damaged, which is why it is closed.
            self._db.close()

    def _failed(self, what: str, error: Exception) -> StateError:
        if isinstance(error, StateError):
            return error
        # A file that is damaged here is read from the store again, not from its links.
        self.is_damaged = self.is_damaged or "Corruption" in str(error) or "No such file" in str(error)
        if self.is_damaged:
            return StateError(
                f"can't {what} keyed state in {self.directory}: {error}; a file there was changed or taken "
                f"away, or the disk is at fault: it is read from the checkpoint again"
            )
        return StateError(
            f"can't {what} keyed state in {self.directory}: {error}; make room there, or set state_dir to a "
            f"directory on another disk of the workers"
        )


def table_files(directory: str) -> list[str]:
    """Return the names of the table files in the directory of a database, sorted."""
    return sorted(name for name in os.listdir(directory) if name.endswith(_SST))


def small_files(directory: str) -> dict[str, bytes]:
    """Return the other files that make up a database that `Database.link` has kept."""
    found = {}
    for name in sorted(os.listdir(directory)):
        if name == "CURRENT" or name.startswith("MANIFEST"):
            with open(os.path.join(directory, name), "rb") as file:
                found[name] = file.read()
    return found


def copied(source: str, target: str) -> None:
    """Make `target` a database with the content of `source`, by hard links to its table files."""
    os.makedirs(target, mode=0o700)
    for name in table_files(source):
        os.link(os.path.join(source, name), os.path.join(target, name))
    for name, content in small_files(source).items():
        with open(os.path.join(target, name), "wb") as file:
            file.write(content)


def removed(directory: str) -> None:
    """Remove a database's directory, if it is there; what can't be removed is left to the next sweep."""
    shutil.rmtree(directory, ignore_errors=True)


def after(prefix: bytes) -> bytes:
    """Return the first bytes after all that begin with `prefix`; empty if there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else b""


def chunks_of(path: str, size: int = 1024 * 1024) -> Iterator[bytes]:
    """Yield the content of a file."""
    with open(path, "rb") as file:
        while chunk := file.read(size):
            yield chunk


class FileContent:
    """The content of a file, in pieces; a store on the same disk may link the file instead."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self) -> Iterator[bytes]:
        return chunks_of(self.path)


def written(directory: str, files: Sequence[tuple[str, bytes]]) -> None:
    """Write files of a database into its directory.

    Raises:
        StateError: That is not possible.
    """
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        for name, content in files:
            with open(os.path.join(directory, name), "wb") as file:
                file.write(content)
    except OSError as error:
        raise StateError(
            f"can't restore keyed state into {directory}: {error}; make room there, or set state_dir to a "
            f"directory on another disk of the workers"
        ) from error
