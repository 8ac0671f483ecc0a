"""An entry of the job log as the bytes of one file, and back.

The file is one JSON document that people and jq can read, with a fixed beginning:

    {"format":2,"segment":3,"number":17,"epoch":5,"since":0,"before":"<64 hex digits>",
     "sha256":"<64 hex digits>","key":"","mac":"","entry":{"type":"EpochClaimed",...}}

"before" is the digest of the entry before, so that the entries form a chain. The digest covers all
else, so that a torn file, a flipped bit and a file in the place of another are told from the real one
before anything is parsed. If "since" is not 0, "entry" holds the changes since that entry of the
same segment (`crosscut.store.differences`). "key" and "mac" are the signature of the digest, if the log
is authenticated (`crosscut.store.log_key`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import get_args

from crosscut.contracts.codec import from_json, to_json
from crosscut.contracts.connectors import JSON
from crosscut.errors import StoreError
from crosscut.foundation.ids import Epoch, LogIndex
from crosscut.protocol.log.entries import LogEntry
from crosscut.store.log_key import LogKey, Signature

FORMAT = 2
_KINDS: tuple[type[LogEntry], ...] = get_args(LogEntry)
# No value holds itself: the codec refuses what nests too deep.
_TO_TEXT = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False
).encode
_PARSED = json.JSONDecoder().decode
_FILE = re.compile(
    rb'\{"format":(\d{1,9}),"segment":(\d{1,18}),"number":(\d{1,18}),"epoch":(\d{1,18}),'
    rb'"since":(\d{1,18}),"before":"([0-9a-f]{64}|)","sha256":"([0-9a-f]{64})",'
    rb'"key":"([0-9a-f]{16}|)","mac":"([0-9a-f]{64}|)","entry":([{\[].*[}\]])\}\n',
    re.DOTALL,
)
_OF_ANOTHER_FORMAT = re.compile(rb'\{"format":(\d{1,9}),.*\}\n', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Sealed:
    """An entry as it stands in its file.

    Attributes:
        epoch: Of the entry.
        since: Number of the entry of the same segment that `content` says the changes of; 0: none.
        before: Digest of the entry before; "" if there is none.
        content: The entry as JSON, or its changes.
        signature: Of the log's key; None if the log is not authenticated.
    """

    index: LogIndex
    epoch: Epoch
    since: int
    before: str
    content: JSON
    signature: Signature | None = None


def content_of(entry: LogEntry) -> JSON:
    """Return `entry` as JSON.

    Raises:
        StateError: A position or a transaction handle in it is not JSON.
    """
    return to_json(entry)


def entry_of(content: JSON) -> LogEntry:
    """Return the entry that `content_of` made `content` of.

    Raises:
        StoreError: It made it of none.
    """
    entry: LogEntry = from_json(content, _KINDS, StoreError)
    return entry


def encode_file(one: Sealed, key: LogKey | None = None) -> tuple[bytes, str]:
    """Return the content of the file that holds `one`, and its digest.

    Args:
        key: Signs it anew; else it has the signature that `one` has.
    """
    body = _TO_TEXT(one.content).encode("ascii")
    head = (
        f'{{"format":{FORMAT},"segment":{one.index.segment},"number":{one.index.number},"epoch":{one.epoch},'
        f'"since":{one.since},"before":"{one.before}","sha256":"'
    )
    digest = _digest(head.encode("ascii"), body)
    signature = key.signature(digest) if key is not None else one.signature or Signature("", "")
    head += f'{digest}","key":"{signature.key_id}","mac":"{signature.mac}","entry":'
    return head.encode("ascii") + body + b"}\n", digest


def decode_file(data: bytes, index: LogIndex) -> tuple[Sealed, str]:
    """Return what `encode_file` made `data` from, and its digest.

    Raises:
        StoreError: `data` is torn, damaged, of another place, or of another format (then the error has
            an attribute `format`). Nothing else is ever raised, whatever the bytes.
    """
    match = _FILE.fullmatch(data)
    form = int(match[1]) if match is not None else FORMAT
    if match is None and (other := _OF_ANOTHER_FORMAT.fullmatch(data)) is not None:
        form = int(other[1])
    if form != FORMAT:
        raise StoreError(f"expected format {FORMAT}, found {form}", format=form)
    if match is None:
        raise StoreError(f"{len(data)} bytes that are no complete entry: the file is torn or overwritten")
    found, epoch, since = LogIndex(int(match[2]), int(match[3])), Epoch(int(match[4])), int(match[5])
    before, stated, body = match[6].decode("ascii"), match[7].decode("ascii"), match[10]
    signature = Signature(match[8].decode("ascii"), match[9].decode("ascii")) if match[8] else None
    digest = _digest(data[: match.start(7)], body)
    if digest != stated:
        raise StoreError(f"expected sha256 {stated}, found {digest}")
    if found != index:
        raise StoreError(f"it holds entry {found}: a file was moved or copied into the place of another")
    if since and not 0 < since < found.number:
        raise StoreError(
            f"it says what has changed since entry {since} of its segment: expected an older one"
        )
    try:
        content: JSON = _PARSED(str(body, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {type(error).__name__}") from error
    return Sealed(found, epoch, since, before, content, signature), digest


def _digest(head: bytes, body: bytes) -> str:
    """Return the digest of a file: of all that stands before it, and of the entry."""
    return sha256(head + body).hexdigest()
