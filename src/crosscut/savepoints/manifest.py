"""The directory of a savepoint: a manifest, and Parquet files of rows.

    manifest.json                 what it is of; written last: without it there is no savepoint
    state/<uid>/<task>.parquet    key_group, operator, state, key, name, value
    in-flight/<task>.parquet      records on their way: see `IN_FLIGHT_COLUMNS`
    staged/<name>.parquet         rows of a DataFrame that have still to be read

`key`, `name`, `value` and `record` are text; see `crosscut.savepoints.values`. docs/guide/savepoints.md has
the whole of it.

The manifest pins each file by its SHA-256. With a key in the environment it is signed, and then no byte of
a file is decoded that the manifest does not vouch for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from crosscut.contracts.codec import from_json, to_json
from crosscut.errors import AuthenticityError, StoreError
from crosscut.foundation.ids import CheckpointId, Lineage
from crosscut.foundation.urls import local_path
from crosscut.protocol.log.entries import Ancestor, OpenOutput
from crosscut.protocol.log.identity import FlowIdentity
from crosscut.protocol.snapshots import KnownSplits, TaskSnapshot
from crosscut.savepoints.folder import Folder, folder_of
from crosscut.savepoints.rows import RowFile, content_of, decoded_rows, measured
from crosscut.store.files import LocalFiles, checked_path, failed
from crosscut.store.log_key import VARIABLE, LogKey, Signature, log_key

VERSION = 1
MANIFEST = "manifest.json"
_SIGNATURE = "signature"
_KIND = "savepoint "


@dataclass(frozen=True, slots=True)
class SavepointManifest:
    """What a savepoint is of.

    Attributes:
        version: Of this format.
        release: Of Crosscut, for people.
        flow: Its operators, by uid.
        parallelism: That it was taken at: `tasks` has so many of each vertex.
        tasks: Positions, watermarks, progress at the end of input, counters; no parts, no transactions.
        ancestors: Histories that output may be of: older ones first, last that of the job itself.
        pending: What had not been known to be committed: of a checkpoint that was not asked to be a
            savepoint.
        written: ISO time, for people.
        known_splits: How far the searches of dynamic sources have come.
    """

    version: int
    release: str
    flow: FlowIdentity
    parallelism: int
    max_parallelism: int
    tasks: tuple[TaskSnapshot, ...]
    files: tuple[RowFile, ...]
    ancestors: tuple[Ancestor, ...]
    pending: tuple[OpenOutput, ...] = ()
    written: str = ""
    known_splits: tuple[KnownSplits, ...] = ()

    @property
    def lineage(self) -> Lineage:
        """Of the job that it was taken of."""
        return self.ancestors[-1].lineage

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The checkpoint that it is a copy of."""
        return self.ancestors[-1].checkpoint_id

    def state_files(self, uid: str | None = None) -> tuple[RowFile, ...]:
        """Return the files with state, of all operators or of one."""
        start = "state/" if uid is None else f"state/{uid}/"
        return tuple(one for one in self.files if one.path.startswith(start))

    def in_flight_files(self) -> tuple[RowFile, ...]:
        """Return the files with records on their way."""
        return tuple(one for one in self.files if one.path.startswith("in-flight/"))


def staged_name(path: str) -> str:
    """Return what a staged file is called in a savepoint, by its path in the checkpoint store."""
    return f"staged/{path.rpartition('/')[2]}.parquet"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a job is to begin with, before any of it is read.

    Attributes:
        ancestors: The last is the checkpoint that it is.
        digest: Of the manifest of a savepoint; "" for a checkpoint.
    """

    name: str
    ancestors: tuple[Ancestor, ...]
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint that was opened: its manifest is what it should be; each file is looked at when it is read.

    Attributes:
        folder: Where its files are: at `name`, or a copy.
        name: What messages call it.
        digest: Of the manifest, which pins the files; "" if it was made from a checkpoint just now.
    """

    folder: Folder
    manifest: SavepointManifest
    name: str
    digest: str = ""

    def rows_of(self, file: RowFile, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of one file, in order, as dictionaries.

        Raises:
            StoreError: It is not as it was written, can't be read, or has no such columns.
        """
        data = verified(self.folder, file, self.name)
        yield from decoded_rows(data, columns, f"{file.path} in {self.name}")


def verified(folder: Folder, file: RowFile, name: str) -> bytes:
    """Return the bytes of a file of the savepoint called `name`.

    Raises:
        StoreError: They are not what its manifest says, or can't be read.
    """
    data = content_of(folder, file.path)
    if wrong := _difference(file, (len(data), sha256(data).hexdigest())):
        raise _changed(name, [wrong])
    return data


def opened(path: str | os.PathLike[str]) -> Savepoint:
    """Open the savepoint at `path`.

    Raises:
        StoreError: There is none, it is of something else, or, with a key in the environment, it was not
            signed with that.
        SettingsError: It is a URL of an unknown file system, or the key is too short.
    """
    if (found := found_at(path)) is None:
        name = folder_of(path).root
        raise StoreError(f"{name} is no savepoint: it has no {MANIFEST}", path=name)
    return found


def found_at(path: str | os.PathLike[str], key: LogKey | None = None) -> Savepoint | None:
    """Return the savepoint at `path`, None if there is no manifest; see `opened`.

    Args:
        key: Verifies it; None: that of the environment does, if there is one.
    """
    directory = local_path(os.fspath(path))
    if directory is not None and not os.path.isfile(os.path.join(directory, MANIFEST)):
        return None
    folder = folder_of(path)
    try:
        data = folder.read(MANIFEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise failed("can't read", folder, MANIFEST, error) from error
    manifest = _decoded(data, f"{folder.root}/{MANIFEST}", key or log_key())
    return Savepoint(folder, manifest, folder.root, _digest(to_json(manifest)).removeprefix(_KIND))


def is_savepoint(path: str | os.PathLike[str], key: LogKey | None = None) -> bool:
    """Whether there is a manifest; see `found_at`."""
    return found_at(path, key) is not None


def write_manifest(folder: Folder, manifest: SavepointManifest) -> None:
    """Write the manifest, durably, signed if there is a key: from here on there is a savepoint.

    Raises:
        StoreError: It could not be written.
    """
    content: Any = to_json(manifest)
    key = log_key()
    if key is not None:
        signature = key.signature(_digest(content))
        content[_SIGNATURE] = {"key_id": signature.key_id, "mac": signature.mac}
    try:
        folder.replace(MANIFEST, json.dumps(content, indent=1).encode())
    except OSError as error:
        raise failed("can't write", folder, MANIFEST, error) from error


def differences(savepoint: Savepoint) -> list[str]:
    """Return which files are not what the manifest says, in words."""
    found = []
    for one in savepoint.manifest.files:
        try:
            wrong = _difference(one, measured(savepoint.folder, one.path))
        except StoreError as error:
            wrong = str(error)
        if wrong:
            found.append(wrong)
    return found


def check(savepoint: Savepoint) -> None:
    """Raise StoreError unless all files are as the manifest says."""
    if wrong := differences(savepoint):
        raise _changed(savepoint.name, wrong)


def seal_savepoint(path: str | os.PathLike[str]) -> None:
    """Say that the files of a savepoint are what they should be, after they were edited.

    With a key in the environment (`CROSSCUT_LOG_KEY`) it is signed with that.

    Raises:
        StoreError: It is no savepoint, a file is missing, or somebody without the key has changed the
            manifest.
    """
    folder = folder_of(path)
    try:
        data = folder.read(MANIFEST)
    except FileNotFoundError as error:
        raise StoreError(f"{folder.root} is no savepoint: it has no {MANIFEST}", path=folder.root) from error
    except OSError as error:
        raise failed("can't read", folder, MANIFEST, error) from error
    manifest = _decoded(data, f"{folder.root}/{MANIFEST}", log_key(), is_to_be_sealed=True)
    files = []
    for one in manifest.files:
        size_bytes, digest = measured(folder, one.path)
        files.append(replace(one, size_bytes=size_bytes, sha256=digest))
    write_manifest(folder, replace(manifest, files=tuple(files)))


def copied(savepoint: Savepoint, scratch: Path) -> Savepoint:
    """Return `savepoint` with its files in the directory `scratch`, verified.

    So what is read more than once comes over a network once.
    """
    folder = LocalFiles(str(scratch))
    for file in savepoint.manifest.files:
        folder.write_new(file.path, (verified(savepoint.folder, file, savepoint.name),))
    return replace(savepoint, folder=folder)


def _difference(file: RowFile, found: tuple[int, str]) -> str:
    size_bytes, digest = found
    if digest == file.sha256:
        return ""
    return (
        f"{file.path} has {size_bytes} bytes, sha256 {digest[:12]}..., not {file.size_bytes} bytes, "
        f"sha256 {file.sha256[:12]}..."
    )


def _changed(name: str, wrong: Sequence[str]) -> StoreError:
    return StoreError(
        f"the savepoint {name} was changed after it was written: {'; '.join(wrong[:3])}. If you have "
        f"edited it on "
        f"purpose, say so: crosscut.seal_savepoint({name!r})",
        path=name,
    )


def _decoded(
    data: bytes, path: str, key: LogKey | None, *, is_to_be_sealed: bool = False
) -> SavepointManifest:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise StoreError(f"{path} can't be read: {error}", path=path) from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        found = content.get("version") if isinstance(content, dict) else None
        raise StoreError(f"{path} is of version {found!r}: expected {VERSION}", path=path)
    signature = content.pop(_SIGNATURE, None)
    if key is not None and (reason := _refusal(signature, content, key, is_to_be_sealed=is_to_be_sealed)):
        raise AuthenticityError(f"{path} {reason}", path=path)
    manifest: SavepointManifest = from_json(content, (SavepointManifest,), StoreError)
    for file in manifest.files:
        try:
            # Rule S10.
            checked_path(file.path)
        except StoreError as error:
            raise StoreError(
                f"{path}: {file.path!r} leads out of the savepoint: this manifest is not ours", path=path
            ) from error
    return manifest


def _refusal(signature: Any, content: Any, key: LogKey, *, is_to_be_sealed: bool) -> str:
    """Return why a manifest is not to be believed, "" if it is.

    Without a key all are: who has set none goes on from unsigned job logs, too.
    """
    match signature:
        case {"key_id": str(key_id), "mac": str(mac)} if key_id == key.key_id:
            if key.has_made(Signature(key_id, mac), _digest(content)):
                return ""
            return (
                f"says that it was signed with key {key_id}, and was not: somebody without the key has "
                f"changed it; take the savepoint from a backup"
            )
        case _ if is_to_be_sealed:
            return ""
        case {"key_id": str(key_id)}:
            return (
                f"was signed with key {key_id}, and {VARIABLE} is key {key.key_id}: set it to that one; or, "
                f"if you trust who has written the savepoint, sign it anew with `crosscut checkpoints seal`"
            )
        case _:
            return (
                f"is not signed, and {VARIABLE} is set: it was written without the key. If you trust who has "
                f"written the savepoint, sign it with `crosscut checkpoints seal`"
            )


def _digest(content: Any) -> str:
    """Return the digest of a manifest, however its JSON is laid out."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    # Of a savepoint: so that no entry of a job log can stand for one, nor the other way round.
    return _KIND + sha256(text.encode()).hexdigest()
