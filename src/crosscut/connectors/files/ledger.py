"""What a task of a file sink has published: a record that outlives the files, which readers may take away.

One small file for each epoch that writes: only its owner writes to it, so none can be set back by a
zombie. It holds the newest two states in two slots of fixed size, one a line. A state is durable before
the files that it names get their final names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from crosscut.connectors.files.stage import Stage
from crosscut.connectors.files.staged_names import SIZE_MAX, LedgerName, Published, ledger_name
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch

SLOT_BYTES = 1024
_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One ledger, as somebody else reads it."""

    name: str
    owner: LedgerName
    published: Published


class Ledger:
    """The ledger of this writer. Not safe for concurrent use.

    Args:
        published: What older ledgers say, joined.

    Raises:
        OSError: It can't be written.
    """

    def __init__(self, stage: Stage, name: str, published: Published) -> None:
        self._stage = stage
        self._name = name
        self._number = 0
        self._descriptor = stage.opened(name, os.O_RDWR | os.O_CREAT)
        try:
            newest = newest_in(_content(self._descriptor), str(stage.path / name))
            if newest is not None:
                # Of this very epoch, which begins a second time.
                self._number, found = newest
                published = published.joined(found)
            for _ in range(_SLOTS):
                self._put(published)
            os.fsync(self._descriptor)
            stage.sync()
        except BaseException:
            os.close(self._descriptor)
            raise

    def write(self, published: Published) -> None:
        """Make `published` durable.

        Raises:
            OSError: It may be durable, or not.
            ConnectorError: It is too long: nothing has changed.
        """
        self._put(published)
        # Slots never change their size, so only data has to go to the disk.
        os.fsync(self._descriptor)

    def _put(self, published: Published) -> None:
        self._number += 1
        line = line_of(self._number, published, str(self._stage.path / self._name))
        os.pwrite(self._descriptor, line, SLOT_BYTES * (self._number % _SLOTS))
        self.published = published

    def remove(self) -> None:
        """Remove the file: this writer owns nothing here any more."""
        self._stage.remove(self._name)

    def close(self) -> None:
        """Close the file; it stays."""
        os.close(self._descriptor)


def ledgers(stage: Stage) -> list[Entry]:
    """Return the ledgers of all epochs in the stage of a task, the oldest first.

    Raises:
        ConnectorError: One is damaged.
        OSError: They can't be read.
    """

    def read(name: str) -> bytes:
        descriptor = stage.opened(name, os.O_RDONLY)
        try:
            return _content(descriptor)
        finally:
            os.close(descriptor)

    return entries_of(stage.names(), read, str(stage.path))


def entries_of(names: Iterable[str], read: Callable[[str], bytes], path: str) -> list[Entry]:
    """Return the ledgers among `names`, the oldest first.

    Args:
        read: Returns the content of one; raises FileNotFoundError if it has gone.
        path: Where they are, for messages.

    Raises:
        ConnectorError: One is damaged.
    """
    found = []
    for name in names:
        owner = ledger_name(name)
        if owner is None:
            continue
        try:
            newest = newest_in(read(name), f"{path}/{name}")
        except FileNotFoundError:
            # A newer epoch has taken it over since it was listed.
            continue
        found.append(Entry(name, owner, newest[1] if newest else Published()))
    return sorted(found, key=lambda one: (one.owner.epoch, one.owner.driver))


def joined(entries: Iterable[Entry]) -> Published:
    """Return what all of them together know to be published."""
    published = Published()
    for one in entries:
        published = published.joined(one.published)
    return published


def line_of(number: int, published: Published, path: str) -> bytes:
    """Return a state as the content of a slot.

    Raises:
        ConnectorError: It is too long.
    """
    content = {
        "number": number,
        "published": published.through,
        "missing": sorted(published.missing),
        "last": published.last,
        "epoch": published.epoch,
        "driver": published.driver,
    }
    text = json.dumps({**content, "check": _checksum(content)})
    line = text.encode().ljust(SLOT_BYTES - 1) + b"\n"
    if len(line) > SLOT_BYTES:
        raise ConnectorError(
            f"{len(published.missing)} transactions are missing, more than a ledger holds: {path}; restore "
            f"the staged files from a backup",
            path=path,
        )
    return line


def _checksum(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content).encode()).hexdigest()[:16]


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, SLOT_BYTES * _SLOTS + 1, 0)


def newest_in(content: bytes, path: str) -> tuple[int, Published] | None:
    """Return the number of the newest state and the state; None if none was ever written.

    A slot may be torn: then the state that it was to hold was never durable, and the other one counts.

    Raises:
        ConnectorError: It is damaged.
    """
    states = [
        state
        for start in range(0, len(content), SLOT_BYTES)
        if (state := _decoded(content[start : start + SLOT_BYTES])) is not None
    ]
    if states:
        return max(states, key=lambda one: one[0])
    # A crash before the first state was durable leaves nothing, or the zeros of a file that was extended.
    if not content.strip(b"\0"):
        return None
    raise ConnectorError(
        f"{path} is damaged: it says which output of this task is committed; restore it from a backup",
        path=path,
    )


def _decoded(slot: bytes) -> tuple[int, Published] | None:
    try:
        content = json.loads(slot.rstrip(b" \n\0"))
        match content:
            case {
                "number": int(number),
                "published": int(through),
                "missing": list(missing),
                "last": str(last),
                "epoch": int(epoch),
                "driver": str(driver),
                "check": str(check),
            }:
                del content["check"]
                are_counts = all(map(_is_count, (number, through, epoch, *missing)))
                if are_counts and check == _checksum(content):
                    n = CheckpointId(through)
                    return number, Published(n, frozenset(missing), last, Epoch(epoch), driver)
            case _:
                pass
    except (ValueError, RecursionError):
        pass
    return None


def _is_count(found: object) -> bool:
    return type(found) is int and 0 <= found < SIZE_MAX
