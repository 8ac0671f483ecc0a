"""What a logical sink task has committed to Kafka: a record of its own in each of its transactions.

Markers stand in a compacted topic, keyed by logical task, so they never expire. (A committed offset of a
consumer group would be shorter to write; Kafka forgets those of silent groups.) They are read only
after `init_transactions`: then no older writer can add to them.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.kafka.client import (
    TIMEOUT_S,
    bounds_of,
    configuration,
    library,
    partitions_of,
    refused,
)
from crosscut.connectors.kafka.limits import policies, topic_settings
from crosscut.contracts.connectors import CommitPermit, SinkContext
from crosscut.errors import ConnectorError, HistoryError
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.protocol.log.history import check_not_set_back

MARKER_TOPIC = "crosscut-markers"
"""Where markers are unless a sink is given another topic."""

_log = logging.getLogger("crosscut.kafka")

READ_TIMEOUT_S = 90.0
"""For reading the markers: longer than a transaction of another task may hold them back."""

PARTITIONS = 16
_SETTINGS = {"cleanup.policy": "compact", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1"}


@dataclass(frozen=True, slots=True)
class Marker:
    """Everything of its task at or below `checkpoint_id` is committed; `epoch` of `driver` wrote this."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    driver: str = ""


def committed_up_to(
    marker: Marker | None,
    context: SinkContext,
    permit: CommitPermit | None,
    *,
    has_pending: bool,
    confirmed: CheckpointId,
    location: str,
) -> CheckpointId:
    """Decide up to which checkpoint everything is committed, 0 for nothing at all.

    Args:
        has_pending: There are transactions to commit, whose epoch has written a marker before it staged them.
        confirmed: What the brokers have confirmed to this very writer.

    Raises:
        HistoryError: The markers are gone, or older than what is known to be committed.
        ConnectorError: A newer epoch of this task is at work.
    """
    found = marker.checkpoint_id if marker is not None else CheckpointId(0)
    check_not_set_back(context, permit, found, location, confirmed=confirmed)
    if marker is None:
        if has_pending and permit is not None:
            raise HistoryError(
                f"{location}: the marker of task {context.task} of sink {context.sink_uid!r}, which "
                f"records what is committed, is missing, and output up to checkpoint "
                f"{permit.checkpoint_id} may already be committed: restore the topic of the markers, or "
                f"check the output and start over",
                location=location,
            )
        return CheckpointId(0)
    if marker.epoch > context.epoch:
        raise ConnectorError(
            f"{location}: epoch {marker.epoch} of task {context.task} of sink {context.sink_uid!r} has taken "
            f"over from epoch {context.epoch}; this process is a zombie"
        )
    return marker.checkpoint_id


class Markers:
    """The markers of one logical task.

    Args:
        task: Its name, unique in the cluster.
        owner: What a marker says of whose it is, for who does not know the names of tasks.
    """

    def __init__(
        self, servers: str, options: Mapping[str, object], topic: str, task: str, owner: Mapping[str, object]
    ) -> None:
        self._servers = servers
        self._options = options
        self._topic = topic
        self._key = task.encode()
        self._owner = owner

    def ensure_topic(self) -> None:
        """Make the topic, compacted, if it is not there; refuse one that forgets markers.

        Raises:
            ConnectorError: It is not there and can't be made, or is not compacted.
        """
        ck, admin = library(), required("confluent_kafka.admin", "kafka")
        client = admin.AdminClient(configuration(self._servers, self._options))
        what = f"the topic {self._topic!r} at {self._servers}, in which the sink notes what it has committed,"
        if client.list_topics(self._topic, timeout=TIMEOUT_S).topics[self._topic].error is not None:
            wanted = admin.NewTopic(self._topic, num_partitions=PARTITIONS, config=_SETTINGS)
            try:
                client.create_topics([wanted])[self._topic].result(TIMEOUT_S)
            except ck.KafkaException as error:
                if error.args[0].code() != ck.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise refused(
                        f"{what} can't be made: {error.args[0].str()}; make it with cleanup.policy=compact",
                        error.args[0],
                        topic=self._topic,
                    ) from error
        settings = topic_settings(client, self._topic, TIMEOUT_S)
        if settings is None:
            _log.warning(
                "%s can't be described by this user, so it is unknown whether it is compacted; grant "
                "DescribeConfigs on it",
                what,
            )
        elif policies(settings) != {"compact"}:
            raise ConnectorError(
                f"{what} has cleanup.policy={settings.get('cleanup.policy')!r}, which deletes markers "
                f"after a while, and output would then be lost or written twice: set "
                f"cleanup.policy=compact, or "
                f"choose another marker_topic",
                topic=self._topic,
            )

    def message(self, marker: Marker) -> tuple[str, bytes, bytes]:
        """Return topic, key and value of the message that says so."""
        content: dict[str, object] = {
            "epoch": marker.epoch,
            "checkpoint": marker.checkpoint_id,
            "driver": marker.driver,
        }
        content |= self._owner
        return self._topic, self._key, json.dumps(content).encode()

    def partition(self, client: Any) -> int:
        """Return where the markers of this task are."""
        partitions = partitions_of(client, self._servers, self._topic)
        return partitions[zlib.crc32(self._key) % len(partitions)]

    def read(self) -> Marker | None:
        """Return the newest marker that is committed, None if there is none.

        Raises:
            ConnectorError: It can't be read to the end, or is not one of ours.
        """
        ck = library()
        ours = {"enable_auto_commit": False, "enable_partition_eof": True, "group_id": "crosscut"}
        reader = ck.Consumer(
            configuration(self._servers, self._options, isolation_level="read_committed", **ours)
        )
        try:
            assigned = ck.TopicPartition(self._topic, self.partition(reader))
            assigned.offset, end = self._bounds(assigned)
            reader.assign([assigned])
            at, data = assigned.offset, b""
            deadline_s = time.monotonic() + READ_TIMEOUT_S
            while at < end:
                if time.monotonic() > deadline_s:
                    raise ConnectorError(
                        f"the markers in topic {self._topic!r} at {self._servers} could not be read from "
                        f"{at} "
                        f"to {end} within {READ_TIMEOUT_S:g} s: is a transaction open there?"
                    )
                for message in reader.consume(1_000, timeout=0.05):
                    at = max(at, message.offset() + (message.error() is None))
                    if message.error() is None and message.key() == self._key:
                        data = message.value()
            return decoded(data, self._topic, self._servers)[1] if data else None
        finally:
            reader.close()

    def _bounds(self, assigned: Any) -> tuple[int, int]:
        """Return the first and the last offset, transactions that are open among them."""
        ours = {"enable_auto_commit": False, "group_id": "crosscut"}
        client = library().Consumer(
            configuration(self._servers, self._options, isolation_level="read_uncommitted", **ours)
        )
        try:
            return bounds_of(client, assigned)
        finally:
            client.close()


def decoded(data: bytes, topic: str, servers: str) -> tuple[dict[str, Any], Marker]:
    """Return what stands in a marker, and the marker.

    Raises:
        ConnectorError: It is none of ours.
    """
    try:
        content = json.loads(data)
        epoch, checkpoint_id = Epoch(content["epoch"]), CheckpointId(content["checkpoint"])
        return content, Marker(epoch, checkpoint_id, str(content.get("driver", "")))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConnectorError(
            f"{data!r:.200} in topic {topic!r} at {servers} is not a marker of a sink; does another "
            f"program write there?"
        ) from error
