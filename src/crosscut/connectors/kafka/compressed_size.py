"""What a message takes at the least once it is compressed: brokers limit what they get."""

from __future__ import annotations

import zlib
from typing import Any

_LEVELS = {"zstd": 12, "lz4": 9, "snappy": None}

_SHARES = {"gzip": 0.95, "zstd": 0.75, "lz4": 0.95, "snappy": 0.95}
"""Of the size at these levels, which are fast, what the best level may come to: zstd has many."""


def compressed_bytes_min(data: bytes, codec: str) -> int:
    """Return a size that librdkafka can't compress `data` below with `codec`; 0 if that is not known.

    Other messages of a batch only add to it. With "gzip" it is known everywhere, with "zstd", "lz4" and
    "snappy" where pyarrow is installed.
    """
    if codec == "gzip":
        size_bytes = len(zlib.compress(data, 9))
    elif codec in _LEVELS and (arrow := _arrow()) is not None and arrow.Codec.is_available(codec):
        level = _LEVELS[codec]
        size_bytes = len((arrow.Codec(codec, level) if level else arrow.Codec(codec)).compress(data))
    else:
        return 0
    return int(size_bytes * _SHARES[codec])


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        return None
    return pyarrow
