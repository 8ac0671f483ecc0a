"""The checkpoint store: the job log and the parts of snapshots, on any file system with put-if-absent."""

from __future__ import annotations

from crosscut.store.checkpoint_store import CheckpointStore, open_store

__all__ = ["CheckpointStore", "open_store"]
