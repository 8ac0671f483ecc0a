"""Batches: what travels together on a channel, and its bytes (pickle protocol 5).

A pickle can run any code of its author. It is used here and nowhere else on the wire, between
workers of one job, which run the same user's code anyway, and only on frames of a channel whose
handshake both sides have passed (rule S7).
"""

from __future__ import annotations

import pickle  # noqa: S403 - see above and rule S7
from typing import Any

from crosscut.errors import WireError
from crosscut.foundation.batch import Batch, LatencyMarker, NumberedBatch
from crosscut.foundation.text import ShortRepr
from crosscut.foundation.unpickling import RefusedPickleError, loader
from crosscut.wire.frames import BATCH_BYTES_MAX, NUMBERS, Payload

_SHOWN = 120
_NUMBERED = b"N"
"""In front of the number of the first record, and that of the news or 0. A pickle has another first byte."""


def encode_batch(batch: Batch, bytes_max: int = BATCH_BYTES_MAX, *, is_kept: bool = True) -> bytes:
    """Return the payload of a BATCH frame, or of the pieces that it goes in.

    Args:
        is_kept: On disk, or in a snapshot: without its marker, which would tell of another time.

    Raises:
        WireError: A record can't be pickled, or the batch is longer than `bytes_max`. The message names
            the record to blame, its type, and what to do; both are attributes, `record` and `record_type`.
    """
    try:
        data = pickle.dumps(_content(batch, None if is_kept else batch.marker), protocol=5)
    except Exception as error:  # A record's own __reduce__ may raise anything.
        raise _unpicklable(batch, error) from error
    if isinstance(batch, NumberedBatch):
        data = with_numbers(data, batch.first, batch.news_number)
    if len(data) > bytes_max:
        # Of records alone: what has none is news, which is never too long.
        sizes = [len(pickle.dumps(record, protocol=5)) for record in batch.records]
        largest_bytes = max(sizes)
        record, kind = _named(batch.records[sizes.index(largest_bytes)])
        raise WireError(
            f"a batch of {len(batch)} records is {len(data)} bytes, its limit is {bytes_max}; the largest "
            f"record, {largest_bytes} bytes, is {record} of type {kind}: make records smaller, send a "
            f"reference to large values instead of the values, or lower batch_rows",
            record=record,
            record_type=kind,
        )
    return data


def with_numbers(payload: Payload, first: int, news_number: int) -> bytes:
    """Return the payload of a batch that has numbers, or of the end of input.

    Args:
        payload: What `encode_batch` has made of a batch without numbers; b"" for the end of input.
        first: Number of its first record, or of the one that would come next.
        news_number: Of its news; 0: it has none.
    """
    return b"".join((NUMBERS.pack(_NUMBERED, first, news_number), payload))


def decode_numbers(payload: Payload) -> tuple[int, int]:
    """Return the number of the first record, and that of the news or 0, in front of a batch with numbers.

    Raises:
        WireError: The payload does not begin with numbers.
    """
    if len(payload) < NUMBERS.size or payload[:1] != _NUMBERED:
        raise WireError(f"{len(payload)} bytes do not begin with the numbers of a batch")
    _, first, news_number = NUMBERS.unpack_from(payload)
    if not first:
        raise WireError("a batch begins with record 0; numbers begin with 1")
    return first, news_number


def decode_batch(data: bytes | memoryview) -> Batch:
    """Return the batch that `encode_batch` made `data` from; `data` is not kept.

    Only for bytes from a peer that has proven the job's secret: see the module.

    Raises:
        WireError: `data` is not a batch, or a record's class is missing here or refuses its own bytes.
        RefusedPickleError: Only data is loaded here, and a record is more than that.
    """
    if data and data[0] == _NUMBERED[0]:
        return _decode_numbered(memoryview(data))
    try:
        content = loader()(data)
    except RefusedPickleError:
        raise
    except Exception as error:  # A record's own __setstate__ may raise anything.
        raise WireError(
            f"a batch of {len(data)} bytes can't be decoded: {type(error).__name__}: {error}; every worker "
            f"must be able to import the classes of the records, in the same version"
        ) from error
    match content:
        case (tuple() as inner, str() as source, int() as sent_us):
            batch = _batch_of(inner, len(data))
            batch.marker = LatencyMarker(source, sent_us)
            return batch
        case _:
            return _batch_of(content, len(data))


def _decode_numbered(data: memoryview) -> NumberedBatch:
    first, news_number = decode_numbers(data)
    rest = data[NUMBERS.size :]
    if rest[:1] == _NUMBERED:
        raise WireError("a batch has numbers twice")
    batch = decode_batch(rest)
    if batch.has_news != (news_number > 0):
        raise WireError(
            f"a batch with {'news' if batch.has_news else 'no news'} has the news number {news_number}"
        )
    return NumberedBatch(batch, first, news_number)


def _batch_of(content: object, size_bytes: int) -> Batch:
    match content:
        case (list() as records, None):
            return Batch(records)
        case (list() as records, list() as keys) if len(records) == len(keys):
            return Batch(records, keys)
        case (
            list() as records,
            list() | None as keys,
            list() | None as timestamps,
            int() | None as watermark,
            bool() | None as idle,
        ) if len(records) == _length(keys, records) == _length(timestamps, records):
            return Batch(records, keys, timestamps, watermark, idle=idle)
    raise WireError(f"a BATCH frame of {size_bytes} bytes holds something else than records, keys and times")


def _content(batch: Batch, marker: LatencyMarker | None) -> tuple[Any, ...]:
    """Return what is sent: of event time and markers nothing, where there is none."""
    if marker is not None:
        return _content(batch, None), marker.source, marker.sent_us
    if batch.timestamps is None and not batch.has_news:
        return batch.records, batch.keys
    return batch.records, batch.keys, batch.timestamps, batch.watermark, batch.idle


def _length(some: list[Any] | None, records: list[Any]) -> int:
    return len(records if some is None else some)


def _unpicklable(batch: Batch, error: Exception) -> WireError:
    for record in batch.records:
        try:
            pickle.dumps(record, protocol=5)
        except Exception as cause:  # noqa: BLE001 - the record that raised in encode_batch raises again
            shown, kind = _named(record)
            return WireError(
                f"record {shown} of type {kind} can't be sent to another worker: {type(cause).__name__}: "
                f"{cause}; let records hold plain values (numbers, text, tuples, instances of classes of a "
                f"module), not open files, locks, generators, lambdas or classes made inside a function",
                record=shown,
                record_type=kind,
            )
    return WireError(
        f"a batch of {len(batch)} records can't be sent to another worker, though each record alone can: "
        f"{type(error).__name__}: {error}",
        record="",
        record_type="",
    )


def _named(record: Any) -> tuple[str, str]:
    return _REPR.repr(record), f"{type(record).__module__}.{type(record).__qualname__}"


_REPR = ShortRepr(_SHOWN)
