"""Batches and control messages come back as they were; other bytes raise WireError only."""

from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import WireError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.protocol.messages import SnapshotAcknowledged
from crosscut.protocol.snapshots import PendingTransaction, Snapshot
from crosscut.wire.batches import decode_batch, encode_batch
from crosscut.wire.control import COORDINATOR_MESSAGES, WORKER_MESSAGES, decode_control, encode_control

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
RECORDS = st.lists(
    st.recursive(
        PLAIN,
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
    max_size=8,
)
# Text with lone surrogates: what file names that are not UTF-8 look like in Python.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=10,
)
SNAPSHOTS = st.builds(
    Snapshot,
    positions=JSON_VALUES,
    pending=st.lists(
        st.builds(PendingTransaction, checkpoint_id=st.integers(1, 99).map(CheckpointId), handle=JSON_VALUES),
        max_size=3,
    ).map(tuple),
    drained=st.booleans(),
)


@given(RECORDS, st.data())
def test_a_batch_comes_back_with_its_keys(records: list[object], data: st.DataObject) -> None:
    keys = data.draw(
        st.none() | st.just(records) | st.lists(PLAIN, min_size=len(records), max_size=len(records))
    )
    batch = decode_batch(memoryview(encode_batch(Batch(records, keys))))
    assert (batch.records, batch.keys) == (records, keys)
    assert (batch.keys is batch.records) == (keys is records)


@given(SNAPSHOTS)
def test_a_snapshot_comes_back_through_the_control_link(snapshot: Snapshot) -> None:
    message = SnapshotAcknowledged(Epoch(1), CheckpointId(2), TaskId(VertexId("a"), 0), snapshot)
    data = encode_control(message)
    assert data.isascii()
    assert decode_control(data, WORKER_MESSAGES) == message


@given(st.binary(max_size=100) | ANY_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_arbitrary_bytes_are_no_control_message(data: bytes) -> None:
    for kinds in (WORKER_MESSAGES, COORDINATOR_MESSAGES):
        try:
            decode_control(data, kinds)
        except WireError:
            continue
        raise AssertionError(f"{data!r} was taken for a message")
