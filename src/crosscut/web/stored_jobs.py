"""The jobs of a store: what is in the directories there, by what jobs write into them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

import fsspec

from crosscut.errors import StoreError
from crosscut.foundation.urls import local_path, shown_url
from crosscut.web.record import NAME, read_record

JOBS_MAX = 500
"""Directories that are looked into."""


class StoredJobs:
    """The jobs whose checkpoint directories are in one directory. A job is a directory that holds a record.

    Args:
        store: A directory or a URL.
    """

    def __init__(self, store: str) -> None:
        self._store = store

    def lines(self) -> dict[str, Any]:
        """Return JSON-like data: the store, a line for each job by the name of its directory, `has_more`.

        Raises:
            StoreError: The directory can't be read.
        """
        names, has_more = self.directories()
        return {
            "store": shown_url(self._store),
            "jobs": [self._line_of(one) for one in names],
            "has_more": has_more,
        }

    def path_of(self, name: str) -> str:
        """Return where the directory of this name is."""
        return f"{self._store.rstrip('/')}/{name}"

    def directories(self) -> tuple[list[str], bool]:
        """Return the names of directories with a record, and whether more are there than it looks into."""
        try:
            found, is_job = self._listed()
            # Of another name no link can be made.
            names = [one for one in found if one.isprintable()]
            jobs = [one for one in names[:JOBS_MAX] if is_job(one)]
        except (OSError, ImportError, ValueError) as error:
            shown = shown_url(self._store)
            raise StoreError(f"{shown} can't be listed: {type(error).__name__}: {error}") from None
        return jobs, len(names) > JOBS_MAX

    def _listed(self) -> tuple[list[str], Callable[[str], bool]]:
        """Return the names of all directories, sorted, and what tells whether one holds a record."""
        local = local_path(self._store)
        if local is not None:
            names = sorted(one.name for one in os.scandir(local) if one.is_dir())
            return names, lambda name: os.path.lexists(os.path.join(local, name, NAME))
        system, root = fsspec.core.url_to_fs(self._store)
        system.invalidate_cache(root)
        listed = system.ls(root, detail=True)
        names = sorted(
            os.path.basename(one["name"].rstrip("/")) for one in listed if one["type"] == "directory"
        )
        return names, lambda name: bool(system.exists(f"{root.rstrip('/')}/{name}/{NAME}"))

    def _line_of(self, name: str) -> dict[str, Any]:
        """Return what the list shows of a job; its record is anybody's who can write there."""
        line = {"directory": name, "name": "", "status": "unreadable", "last_error": ""}
        try:
            job = read_record(self.path_of(name))["job"]
            summary, causes = job["summary"], [one["cause"] for one in job["errors"]]
            return {
                **line,
                "name": str(job["name"]),
                "status": str(job["status"]),
                "age_ms": max(0, int(time.time() * 1_000) - int(job["at_ms"])),
                "started_ms": int(job["started_ms"]),
                "records_per_second": _finite(summary["records_per_second"]),
                "records_read": int(summary["records_read"]),
                "checkpoints_completed": int(summary["checkpoints_completed"]),
                "restarts": int(summary["restarts"]),
                "last_error": f"{causes[-1]['kind']}: {causes[-1]['message']:.300}" if causes else "",
            }
        except StoreError as error:
            return {**line, "last_error": str(error)}
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            return {**line, "last_error": f"the record is of another release: {error!r}"}


def _finite(value: Any) -> float:
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{found} is no rate")
    return found
