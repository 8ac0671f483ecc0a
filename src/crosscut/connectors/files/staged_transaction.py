"""One transaction of a file sink while it is written: its files, by the directories that they are for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.files.file_encoders import FileEncoder
from crosscut.connectors.files.partitions import Divider, Layout
from crosscut.connectors.files.stage import failed
from crosscut.connectors.files.staged_names import StagedPart
from crosscut.connectors.files.storage import AnyStage, StagedFile, Storage
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId

Refuse = Callable[[Any, str], None]


@dataclass(slots=True, eq=False)
class _File:
    """A staged file.

    Attributes:
        partition: The directory that it is for.
        is_encoded: The encoder has said all.
        is_stored: It is durable, and closed.
    """

    name: str
    partition: str
    file: StagedFile
    encoder: FileEncoder
    is_encoded: bool = False
    is_stored: bool = False
    size_bytes: int = 0
    record_count: int = 0


class OpenTransaction:
    """Not safe for concurrent use: first `add`, then, perhaps in another thread, `stored`.

    Args:
        chain: Names of those before it, the newest that is known to be published first.
        new_name: Makes unused names for staged files.
        divide: Says which records go where.

    Attributes:
        name: That of its first file; "" before there is one.
        checkpoint_id: Set when it is cut off.
    """

    def __init__(
        self,
        chain: tuple[str, ...],
        storage: Storage,
        stage: AnyStage,
        new_name: Callable[[], str],
        make_encoder: Callable[[], FileEncoder],
        divide: Divider,
        layout: Layout,
    ) -> None:
        self.chain = chain
        self.checkpoint_id: CheckpointId | None = None
        self._storage = storage
        self._stage = stage
        self._new_name = new_name
        self._make_encoder = make_encoder
        self._divide = divide
        self._layout = layout
        self._files: list[_File] = []
        self._open: dict[str, _File] = {}
        self._partitions: set[str] = set()
        self._damage = ""

    @property
    def name(self) -> str:
        return self._files[0].name if self._files else ""

    def add(self, records: list[Any], refuse: Refuse) -> None:
        """Encode records, at least one, and append them, without those that can't be written.

        Args:
            refuse: Takes each of those, and why; may raise.

        Raises:
            ConnectorError: `refuse` has raised, or all records together can't be written: nothing was added,
                or the transaction is not usable any more.
            OSError: They can't be written: the transaction is not usable any more.
        """
        divided = self._divided(records, refuse)
        self._check_partitions({partition for partition, _ in divided})
        encoded: list[tuple[str, FileEncoder, bytes, int]] = []
        for partition, rows in divided:
            known = self._open.get(partition)
            encoder = self._make_encoder() if known is None else known.encoder
            try:
                data, count = self._encoded(encoder, rows, refuse)
            except ConnectorError:
                if encoded:
                    self._damage = "records of it could not be encoded"
                raise
            if count:
                encoded.append((partition, encoder, data, count))

        for partition, encoder, data, count in encoded:
            file = self._open.get(partition) or self._created(partition, encoder)
            # Counted first: if the write fails half-way, `stored` finds a file of another size.
            file.size_bytes += len(data)
            file.record_count += count
            file.file.write(data)
            if self._layout.roll_bytes is not None and file.size_bytes >= self._layout.roll_bytes:
                del self._open[partition]

    def _divided(self, records: list[Any], refuse: Refuse) -> list[tuple[str, list[Any]]]:
        try:
            return self._named(records)
        except ConnectorError:
            good = self._without_refused(records, self._named, refuse)
        return self._named(good) if good else []

    def _named(self, records: list[Any]) -> list[tuple[str, list[Any]]]:
        divided = list(self._divide(records))
        for partition, _ in divided:
            # A commit could never give it that path.
            if partition and len(partition.encode()) > self._storage.partition_bytes_max:
                raise ConnectorError(
                    f"{self._storage.location}: the directory {shortened(partition)} has "
                    f"{len(partition.encode())} bytes, and at most {self._storage.partition_bytes_max} leave "
                    f"room for the names of files: divide by columns with shorter values"
                )
        return divided

    def _encoded(self, encoder: FileEncoder, rows: list[Any], refuse: Refuse) -> tuple[bytes, int]:
        try:
            return encoder.add(rows), len(rows)
        except ConnectorError:
            # The encoder of the file takes only what goes into it.
            good = self._without_refused(rows, self._make_encoder().add, refuse)
            if len(good) == len(rows):
                raise
        return (encoder.add(good), len(good)) if good else (b"", 0)

    def _without_refused(
        self, records: list[Any], trial: Callable[[list[Any]], Any], refuse: Refuse
    ) -> list[Any]:
        good = []
        for record in records:
            try:
                trial([record])
            except ConnectorError as error:
                refuse(record, str(error))
            else:
                good.append(record)
        return good

    def _check_partitions(self, more: set[str]) -> None:
        found = self._partitions | more
        if len(found) > self._layout.partitions_max:
            columns = ", ".join(self._layout.partition_by)
            raise ConnectorError(
                f"{self._stage.path}: a task and checkpoint has rows for {len(found)} directories by "
                f"{columns}, and at most {self._layout.partitions_max} are allowed (partitions_max): key by "
                f"{columns} before the sink, so that each task has its share of the values; or divide by "
                f"columns with fewer values"
            )
        self._partitions = found

    def _created(self, partition: str, encoder: FileEncoder) -> _File:
        name = self._new_name()
        file = _File(name, partition, self._storage.file(self._stage, name), encoder)
        self._files.append(file)
        self._open[partition] = file
        return file

    def stored(self) -> list[StagedPart]:
        """Make all files and their names durable; may be repeated if it failed for want of space.

        Raises:
            ConnectorError: Not durable. After a failed fsync the kernel may have dropped the data and
                would call the next fsync a success, so such a transaction is refused from then on.
        """
        self._open = {}
        for one in self._files:
            if not one.is_stored:
                self._store(one)
        return [StagedPart(one.name, one.partition, one.size_bytes, one.record_count) for one in self._files]

    def _store(self, one: _File) -> None:
        path = self._stage.path / one.name
        if self._damage:
            raise ConnectorError(
                f"staged file {path} can't be prepared: {self._damage} and its {one.record_count} records "
                f"may be lost; restart from the last checkpoint",
                path=str(path),
            )
        try:
            if not one.is_encoded:
                rest = one.encoder.finish()
                one.is_encoded = True
                one.size_bytes += len(rest)
                one.file.write(rest)
            one.file.flush()
        except OSError as error:
            raise failed("write to", path, error) from error
        try:
            found_bytes = self._storage.store(self._stage, one.file)
        except OSError as error:
            if not self._storage.stores_again:
                self._damage = "an earlier fsync of it failed"
            raise failed("make durable", path, error) from error
        if found_bytes != one.size_bytes:
            self._damage = "a write to it had failed"
            raise ConnectorError(
                f"staged file {path} has {found_bytes} bytes, expected {one.size_bytes}: a write to "
                f"it had failed; restart from the last checkpoint",
                path=str(path),
            )
        one.file.close()
        one.is_stored = True

    def dropped(self) -> None:
        """Close its files, and remove them where that takes no time: no checkpoint will name them."""
        for one in self._files:
            # The buffered rest is of no use any more, so neither is an error from flushing it.
            with suppress(OSError):
                one.file.close()
            if self._storage.tidies:
                self._stage.remove(one.name)
