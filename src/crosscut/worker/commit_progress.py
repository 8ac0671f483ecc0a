"""Notes of how far commits have come, kept in the checkpoint store beside the log."""

from __future__ import annotations

import hmac
import json
import logging

from crosscut.contracts.connectors import JSON, CommitProgress
from crosscut.errors import StoreError
from crosscut.foundation.ids import TaskId
from crosscut.store.checkpoint_store import CheckpointStore

_LOG = logging.getLogger("crosscut")


class StoredProgress(CommitProgress):
    """The note of one sink task: one small file, replaced by each note.

    A writer of an older epoch may replace a newer note. That costs repetitions and no output, since each note
    is true of the transaction that it names.

    Args:
        key: Signs notes, where the job log is signed: who can write to the directory but has no key must not
            make a sink leave out output. b"": notes are not signed.
    """

    def __init__(self, store: CheckpointStore, task: TaskId, key: bytes) -> None:
        super().__init__()
        self._store = store
        self._task = task
        self._key = key

    def noted(self) -> JSON:
        """Return the newest note; None if there is none, or it can't be trusted.

        Raises:
            StoreError: The store can't be read.
        """
        data = self._store.read_progress(self._task)
        if data is None:
            return None
        mac, _, text = data.partition(b"\n")
        reason = "it was not signed with the key of the job log"
        if not self._key or hmac.compare_digest(mac, self._mac(text)):
            try:
                progress: JSON = json.loads(text)
            except (ValueError, RecursionError):
                reason = "it is damaged"
            else:
                return progress
        _LOG.warning(
            "the commit progress of task %s is ignored, so output may be written again: %s",
            self._task,
            reason,
        )
        return None

    def note(self, progress: JSON) -> None:
        """Replace the note."""
        text = json.dumps(progress).encode()
        try:
            self._store.write_progress(self._task, b"\n".join((self._mac(text), text)))
        except StoreError as error:
            # Output goes on without it. A store that stays away fails checkpoints, which say so.
            _LOG.warning("the commit progress of task %s is not recorded: %s", self._task, error)

    def _mac(self, text: bytes) -> bytes:
        if not self._key:
            return b""
        return hmac.digest(self._key, f"{self._task}\n".encode() + text, "sha256").hex().encode()
