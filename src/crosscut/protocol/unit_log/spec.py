"""What a job says of the logs of its workers."""

from __future__ import annotations

from crosscut.foundation.frozen import dataclass
from crosscut.protocol.unit_log.appending import LogKind


@dataclass(frozen=True, slots=True)
class UnitLogSpec:
    """The log that each worker has.

    Attributes:
        kind: Stands in the claim of the job, too: see `EpochClaimed.unit_log`.
        interval_ms: How old a group becomes while there is more to do; 0: as soon as the log is free.
        tail_bytes_max: A log that is longer since its newest snapshot gets another one.
        tail_groups_max: So does a log of more groups, unless the snapshot is much longer than they are.
        tail_objects_max: So does a log of more objects, one for each group, whatever the snapshot's size: a
            claim has to read all of them within the timeout.
    """

    kind: LogKind
    interval_ms: int = 0
    tail_bytes_max: int = 64 << 20
    tail_groups_max: int = 5_000
    tail_objects_max: int = 10_000
