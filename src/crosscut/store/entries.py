"""An entry of the job log as the bytes of one file, and back.

The file is one JSON document that people and jq can read, with a fixed beginning:

    {"format":2,"index":17,"sha256":"<64 hex digits>","entry":{"type":"EpochClaimed",...}}

The digest covers format, index and entry, so that a torn file, a flipped bit and a file in the place
of another are all told from the real one before anything is parsed.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import get_args

from crosscut.codec import from_json, to_json
from crosscut.errors import StoreError
from crosscut.protocol.messages import LogEntry

FORMAT = 2
_FILE = re.compile(
    rb'\{"format":(\d{1,9}),"index":(\d{1,20}),"sha256":"([0-9a-f]{64})","entry":(\{.*\})\}\n', re.DOTALL
)


def encode_entry(entry: LogEntry, index: int) -> bytes:
    """Return the content of the file that holds `entry` as entry `index` of the job log.

    Raises:
        StateError: A position or a transaction handle in it is not JSON.
    """
    text = json.dumps(to_json(entry), sort_keys=True, separators=(",", ":"), allow_nan=False)
    body = text.encode("ascii")
    head = f'{{"format":{FORMAT},"index":{index},"sha256":"{_digest(FORMAT, index, body)}","entry":'
    return head.encode("ascii") + body + b"}\n"


def decode_entry(data: bytes, index: int) -> LogEntry:
    """Return the entry that `encode_entry` made `data` from.

    Raises:
        StoreError: `data` is torn, damaged, of another index or of a newer format. Nothing else is
            ever raised, whatever the bytes.
    """
    match = _FILE.fullmatch(data)
    if match is None:
        raise StoreError(f"{len(data)} bytes that are no complete entry: the file is torn or overwritten")
    form, found_index, body = int(match[1]), int(match[2]), match[4]
    digest = _digest(form, found_index, body)
    if digest != match[3].decode("ascii"):
        raise StoreError(f"expected sha256 {match[3].decode('ascii')}, found {digest}")
    if form != FORMAT:
        raise StoreError(f"expected format {FORMAT}, found {form}: it was written by another release")
    if found_index != index:
        raise StoreError(
            f"it holds entry {found_index}: a file was moved or copied into the place of another"
        )
    try:
        data_json = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {type(error).__name__}") from error
    entry: LogEntry = from_json(data_json, get_args(LogEntry), StoreError)
    return entry


def _digest(form: int, index: int, body: bytes) -> str:
    return sha256(b"%d\n%d\n" % (form, index) + body).hexdigest()
