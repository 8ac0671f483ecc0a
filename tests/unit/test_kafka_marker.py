"""What a marker in Kafka says: up to where output is committed, or why the job must not go on."""

from __future__ import annotations

import pytest

from crosscut.connectors.kafka.marker import Marker, committed_up_to
from crosscut.contracts.connectors import SinkContext
from crosscut.errors import ConnectorError, HistoryError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.testing.sinks import permit

CONTEXT = SinkContext(Lineage("a"), Epoch(3), TaskId(VertexId("v"), 0), "out")


def decided(
    marker: tuple[int, int] | None,
    *,
    restored: int | None = 5,
    committed: int = 0,
    has_pending: bool = False,
    confirmed: int = 0,
) -> CheckpointId:
    """Decide, with `marker` as its epoch and checkpoint."""
    return committed_up_to(
        None if marker is None else Marker(Epoch(marker[0]), CheckpointId(marker[1])),
        CONTEXT,
        None if restored is None else permit(restored, 3, "a", committed=committed),
        has_pending=has_pending,
        confirmed=CheckpointId(confirmed),
        location="topic",
    )


def test_a_job_that_begins_with_nothing_has_committed_nothing() -> None:
    assert decided(None, restored=None) == decided(None, restored=None, has_pending=True) == 0


def test_a_task_that_has_never_had_anything_to_commit_needs_no_marker() -> None:
    assert decided(None) == 0


@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.parametrize("n", [4, 5, 6])
@pytest.mark.parametrize("has_pending", [False, True])
def test_the_marker_of_this_or_an_older_epoch_says_what_is_committed(
    epoch: int, n: int, has_pending: bool
) -> None:
    """It may be behind the restored checkpoint, which has yet to be committed, and ahead of it as well."""
    assert decided((epoch, n), has_pending=has_pending) == n
    assert decided((epoch, n), has_pending=has_pending, committed=n, confirmed=n) == n


def test_a_newer_epoch_has_taken_over() -> None:
    """P11."""
    with pytest.raises(ConnectorError, match=r"epoch 4 of task .* has taken over from epoch 3"):
        decided((4, 5))


def test_a_marker_that_is_gone_with_output_to_commit_stops_the_job() -> None:
    """P7. What is pending may be there already."""
    with pytest.raises(HistoryError, match=r"is missing, and output up to checkpoint 5 may already be"):
        decided(None, has_pending=True)


@pytest.mark.parametrize("marker", [None, (3, 4), (2, 4)])
@pytest.mark.parametrize(("committed", "confirmed"), [(5, 0), (0, 5), (5, 5), (5, 4), (4, 5)])
def test_a_marker_older_than_what_is_known_to_be_committed_stops_the_job(
    marker: tuple[int, int] | None, committed: int, confirmed: int
) -> None:
    """P7. Known by the restored checkpoint, or since the brokers confirmed it to this very writer."""
    for has_pending in (False, True):
        with pytest.raises(HistoryError):
            decided(marker, committed=committed, confirmed=confirmed, has_pending=has_pending)
