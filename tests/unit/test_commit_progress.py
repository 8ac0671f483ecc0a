"""Notes of commits in the checkpoint store: what is read back, and what is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosscut.foundation.ids import TaskId, VertexId
from crosscut.store.checkpoint_store import open_store
from crosscut.worker.commit_progress import StoredProgress

TASK = TaskId(VertexId("write"), 1)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000], ids=["empty", "cut", "bytes", "[", "{"]
)
@pytest.mark.parametrize("key", [b"", b"key"], ids=["unsigned", "signed"])
def test_a_damaged_note_is_ignored_with_a_warning(
    text: bytes, key: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D4: a note saves repetitions, and is not worth a failure."""
    store = open_store(str(tmp_path))
    progress = StoredProgress(store, TASK, key)
    progress.note({"answered": 1})
    assert StoredProgress(store, TASK, key).noted() == {"answered": 1}
    store.write_progress(TASK, progress._mac(text) + b"\n" + text)
    assert StoredProgress(store, TASK, key).noted() is None
    assert "is ignored, so output may be written again: it is damaged" in caplog.text
