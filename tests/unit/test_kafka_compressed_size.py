"""No message is refused for a size that librdkafka would compress it below."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from crosscut.connectors.kafka.compressed_size import compressed_bytes_min

confluent_kafka = pytest.importorskip("confluent_kafka")

DEADLINE_S = 60.0
_RANDOM = random.Random(1)
_WORDS = [
    bytes(_RANDOM.choices(b"abcdefghijklmnopqrstuvwxyz", k=_RANDOM.randint(3, 9))) for _ in range(3_000)
]
DATA = {
    "words": b" ".join(_RANDOM.choices(_WORDS, k=40_000)),
    "rows": b"\n".join(
        b'{"id": %d, "price": %f, "name": "%s"}' % (i, _RANDOM.random(), _RANDOM.choice(_WORDS))
        for i in range(5_000)
    ),
    "hex": _RANDOM.randbytes(125_000).hex().encode(),
    "two letters": bytes(_RANDOM.choices(b"ab", k=80_000)),
    "few bits": bytes(_RANDOM.choices(b"\0\0\0\0\0\0\0\1", k=80_000)),
    "noise": _RANDOM.randbytes(100_000),
    "noise again": _RANDOM.randbytes(30_000) * 5,
    "short": b"".join(_WORDS)[:4_000],
}


class Wire:
    """A producer that sends to brokers which the library plays itself, and counts the bytes."""

    def __init__(self, codec: str, level: int) -> None:
        self._counts: list[int] = []
        self._producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": "",
                "test.mock.num.brokers": 1,
                "compression.type": codec,
                "compression.level": level,
                "message.max.bytes": 10_000_000,
                "linger.ms": 0,
                "statistics.interval.ms": 20,
                "stats_cb": self._count,
                "log_level": 0,
            }
        )
        # The first one takes requests about the topic with it.
        self.sent_bytes(b"x")

    def _count(self, text: str) -> None:
        self._counts.append(sum(one["txbytes"] for one in json.loads(text)["brokers"].values()))

    def sent_bytes(self, data: bytes) -> int:
        """Return what a message of `data` takes, and its request."""
        before = self._counted()
        self._producer.produce("out", data)
        assert self._producer.flush(DEADLINE_S) == 0
        return self._counted() - before

    def _counted(self) -> int:
        # The next report may have been made before the last request.
        end, deadline_s = len(self._counts) + 2, time.monotonic() + DEADLINE_S
        while len(self._counts) < end:
            assert time.monotonic() < deadline_s, "waited for a report"
            self._producer.poll(0.01)
        return self._counts[-1]


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        *[("gzip", level) for level in (-1, 1, 9)],
        *[("zstd", level) for level in (-1, 1, 6, 12)],
        *[("lz4", level) for level in (-1, 3, 12)],
        ("snappy", -1),
    ],
)
def test_the_library_compresses_no_message_below_the_least_size(codec: str, level: int) -> None:
    """C20, at the levels that it takes."""
    pytest.importorskip("pyarrow")
    wire = Wire(codec, level)
    for name, data in DATA.items():
        assert 0 < compressed_bytes_min(data, codec) < wire.sent_bytes(data), name


def test_the_library_takes_no_higher_level() -> None:
    """On which the least size with zstd relies: its levels 19 and 22 come lower."""
    options = {"bootstrap.servers": "localhost:1", "compression.type": "zstd", "compression.level": 13}
    with pytest.raises(confluent_kafka.KafkaException, match=r"outside allowed range -1\.\.12"):
        confluent_kafka.Producer(options)
