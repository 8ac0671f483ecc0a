"""Files as sources and sinks: `crosscut.files.lines`, `crosscut.files.jsonl`."""

from __future__ import annotations

from crosscut.connectors.jsonl import jsonl
from crosscut.connectors.lines import lines

__all__ = ["jsonl", "lines"]
