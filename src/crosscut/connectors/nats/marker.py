"""The message that says how far a task has come; see `NatsWriter`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from crosscut.contracts.connectors import CommittedOutput
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId


@dataclass(frozen=True, slots=True)
class Marker:
    """The message that says how far a task has come.

    Attributes:
        target: The subject that it has published to.
        owner: Lineage, uid of the sink, vertex and index of the task.
        checkpoint_id: All up to there is visible.
        partial: Of this later checkpoint `sent` messages are, too; 0: of none.
        sequence: Of the marker itself, in the stream; 0: there was none.
    """

    target: str
    owner: tuple[str, str, str, int]
    epoch: int
    driver: str
    checkpoint_id: int
    partial: int
    sent: int
    sequence: int

    @staticmethod
    def parsed(data: bytes | None, sequence: int, where: str) -> Marker:
        """Return the marker in a message.

        Raises:
            ConnectorError: It is none.
        """
        try:
            match json.loads(data or b""):
                case {
                    "target": str(target),
                    "owner": [str(lineage), str(uid), str(vertex), int(index)],
                    "epoch": int(epoch),
                    "driver": str(driver),
                    "checkpoint": int(n),
                    "partial": int(partial),
                    "sent": int(sent),
                }:
                    owner = (lineage, uid, vertex, index)
                    return Marker(target, owner, epoch, driver, n, partial, sent, sequence)
                case _:
                    pass
        except (ValueError, RecursionError):
            # Said below, in words.
            pass
        raise ConnectorError(
            f"{where}: message {sequence} is not a marker of a sink: {(data or b'')[:200]!r}"
        )

    def encoded(self) -> bytes:
        """Return the bytes that `parsed` takes."""
        return json.dumps(
            {
                "target": self.target,
                "owner": list(self.owner),
                "epoch": self.epoch,
                "driver": self.driver,
                "checkpoint": self.checkpoint_id,
                "partial": self.partial,
                "sent": self.sent,
            }
        ).encode()

    def output(self, where: str) -> CommittedOutput:
        """Return it as the driver and `check_history` take it."""
        lineage, uid, vertex, index = self.owner
        return CommittedOutput(
            where,
            Lineage(lineage),
            uid,
            TaskId(VertexId(vertex), index),
            Epoch(self.epoch),
            self.driver,
            CheckpointId(max(self.checkpoint_id, self.partial)),
        )
