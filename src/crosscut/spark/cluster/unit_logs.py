"""What the logs of the workers of a job are made of: files that grow, or objects."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from crosscut.contracts.settings import Settings
from crosscut.driver.engine_run import Network
from crosscut.errors import SettingsError
from crosscut.foundation.urls import local_path
from crosscut.protocol.log.entries import LogEntry
from crosscut.protocol.log.segments import claims_in
from crosscut.store.checkpoint_store import open_store
from crosscut.store.log_key import VARIABLE, log_key
from crosscut.store.mounts import check_is_local
from crosscut.store.owners import foreign_write


def kind_in(entries: Iterable[LogEntry]) -> str:
    """Return the kind of the logs that a job has, by its job log; "": none."""
    claims = claims_in(entries)
    return claims[-1].unit_log if claims else ""


def stored_kind(url: str) -> str:
    """Return the kind of the logs of the job in the checkpoint store at `url`; "": none."""
    if (path := local_path(url)) is not None and not os.path.isdir(path):
        return ""
    return kind_in(entry for _, entry in open_store(url, create=False, key=log_key()).tail())


def as_found(settings: Settings, found: str) -> Settings:
    """Return the settings with the logs of workers that a directory has, if any would do."""
    logged = settings.logged
    if logged is None or logged.log != "auto" or not found:
        return settings
    return replace(settings, snapshots=replace(logged, log="objects" if found == "objects" else "files"))


def with_log(settings: Settings, store_url: str, found: str, *, is_local: bool) -> tuple[Settings, str]:
    """Return the settings with "files" or "objects" for the logs of workers, and why, for people.

    A directory with logs goes on with the kind that it has.

    Args:
        found: See `stored_kind`.
        is_local: Driver and workers are on one host.

    Raises:
        SettingsError: The log is to be files, or is, and they can't be used here.
    """
    logged = settings.logged
    if logged is None:
        return settings, ""
    if logged.log == "objects" or (logged.log == "auto" and found == "objects"):
        return replace(settings, snapshots=replace(logged, log="objects")), ""
    against = _against_files(store_url, is_local=is_local)
    if not against:
        return replace(settings, snapshots=replace(logged, log="files")), ""
    if logged.log == "auto" and not found:
        return replace(settings, snapshots=replace(logged, log="objects")), against
    asked = f"snapshots={settings.snapshots!r}" if logged.log == "files" else "the logs of this job are files"
    raise SettingsError(f"{asked}: {against}")


def _against_files(store_url: str, *, is_local: bool) -> str:
    """Return why no log of files can be there; "" if one can."""
    directory = local_path(store_url)
    if directory is None:
        return (
            "checkpoint_dir is an object store, where no file grows; expected a directory of a local file "
            "system, or log='objects'"
        )
    if not is_local:
        return (
            "workers may be on other hosts, which see late what has been written to a file; expected Spark "
            "in local mode, or log='objects'"
        )
    try:
        check_is_local(directory)
    except SettingsError as error:
        return str(error)
    return foreign_write(directory, ())


def check_keys_are_not_overheard(network: Network) -> None:
    """Refuse to send the keys of the logs of workers where somebody could read them.

    Raises:
        SettingsError: The job log has a key, and connections are neither encrypted nor on loopback.
    """
    if network.seals_frames and log_key() is not None:
        raise SettingsError(
            f"snapshots='logged' with {VARIABLE}: workers on other hosts get the keys of their logs through "
            f"connections that are not encrypted; set encryption='on', or unset {VARIABLE}"
        )
