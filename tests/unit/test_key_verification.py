"""The key of the job log binds readers that don't have it."""

from __future__ import annotations

import json
import pickle
import socket
from pathlib import Path

import cloudpickle
import pytest
from tests.unit.test_savepoint_places import job_in, visits_by_task, visits_graph

from crosscut.errors import AuthenticityError, ConnectorError, StoreError
from crosscut.savepoints.tables import state_at
from crosscut.spark.data.crosscut_format import CrosscutDataSource, _source_with
from crosscut.spark.data.key_verification import (
    REQUEST_BYTES_MAX,
    DriversKey,
    VerificationServer,
    drivers_key,
)
from crosscut.spark.data.stream_source import decoded_batch, encoded_batch
from crosscut.store.checkpoint_store import open_store
from crosscut.store.log_key import VARIABLE, LogKey, without_log_key

KEY, OTHER = LogKey("k" * 32), LogKey("o" * 32)


def elsewhere(key: DriversKey) -> DriversKey:
    """As it comes to another process."""
    found: DriversKey = pickle.loads(pickle.dumps(key))
    return found


def test_a_signature_is_verified_by_the_process_that_has_the_key() -> None:
    key = drivers_key(KEY)
    assert key is not None
    there = elsewhere(key)
    assert there.key_id == KEY.key_id
    assert there.has_made(KEY.signature("digest"), "digest")
    assert not there.has_made(KEY.signature("digest"), "another")
    assert not there.has_made(OTHER.signature("digest"), "digest")
    with pytest.raises(StoreError, match="nothing can be written"):
        there.signature("digest")
    assert b"k" * 32 not in pickle.dumps(key)


def test_without_a_key_there_is_nothing_to_verify_with() -> None:
    assert drivers_key(None) is None


def test_what_is_no_request_is_answered_no_or_not_at_all_and_the_next_one_is_served() -> None:
    server = VerificationServer(KEY)
    try:
        for request in (b"", b"{", b"[]", b'{"key_id": 1}', b"x" * (2 * REQUEST_BYTES_MAX), b"[" * 4_000):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(server.address)
                try:
                    connection.sendall(request)
                    connection.shutdown(socket.SHUT_WR)
                    answer = connection.recv(1)
                except OSError:
                    answer = b""
                assert answer in (b"", b"n")
        assert DriversKey(KEY.key_id, server.address).has_made(KEY.signature("d"), "d")
        assert Path(server.address).parent.stat().st_mode & 0o077 == 0
    finally:
        server.close()
    with pytest.raises(StoreError, match="does not answer"):
        DriversKey(KEY.key_id, server.address).has_made(KEY.signature("d"), "d")


def test_a_planner_without_the_key_believes_only_a_log_that_was_written_with_it(tmp_path: Path) -> None:
    """An unsigned log in the place of a signed one is refused, and so is one of another key."""
    graph = visits_graph()
    for name, key in (("signed", KEY), ("unsigned", None), ("forged", OTHER)):
        job_in(open_store(str(tmp_path / name), key=key), graph, "visits", visits_by_task(graph))
    key = drivers_key(KEY)
    assert key is not None
    assert list(state_at(tmp_path / "signed", "visits", "last", elsewhere(key)).rows())
    for name in ("unsigned", "forged"):
        with pytest.raises(AuthenticityError):
            state_at(tmp_path / name, "visits", "last", elsewhere(key))


def test_the_data_source_takes_what_verifies_along_by_value(tmp_path: Path) -> None:
    graph = visits_graph()
    job_in(open_store(str(tmp_path / "unsigned")), graph, "visits", visits_by_task(graph))
    assert _source_with(None) is CrosscutDataSource
    data = cloudpickle.dumps(_source_with(drivers_key(KEY)))
    assert b"k" * 32 not in data
    kind = pickle.loads(data)
    assert kind.name() == "crosscut"
    source = kind({"path": str(tmp_path / "unsigned"), "uid": "visits", "state": "last"})
    with pytest.raises(AuthenticityError):
        source.output()
    with pytest.raises(AuthenticityError):
        source.tasks()


def test_a_batch_of_a_stream_is_believed_only_as_it_was_signed() -> None:
    said = [["a", 1, "sha", 2]]
    data = encoded_batch(said, "batch 1", KEY)
    assert decoded_batch(data, "batch 1", KEY, "x") == said
    # Whoever has set no key goes on from what has one, too.
    assert decoded_batch(data, "batch 1", None, "x") == said
    assert decoded_batch(encoded_batch(said, "batch 1", None), "batch 1", None, "x") == said
    changed = json.dumps({**json.loads(data), "files": [["b", 1, "sha", 2]]}).encode()
    for forged, subject in (
        (data, "batch 2"),
        (changed, "batch 1"),
        (encoded_batch(said, "batch 1", OTHER), "batch 1"),
        (encoded_batch(said, "batch 1", None), "batch 1"),
    ):
        with pytest.raises(AuthenticityError):
            decoded_batch(forged, subject, KEY, "x")
    for broken in (b"", b"{}", b"1", b"[" * 100_000):
        with pytest.raises(ConnectorError):
            decoded_batch(broken, "batch 1", KEY, "x")


def test_a_signature_of_a_batch_is_none_of_an_entry() -> None:
    assert not KEY.has_made(KEY.note_signature("job log: entry", "d"), "d")


def test_the_key_is_in_no_environment_of_another_process() -> None:
    assert without_log_key({VARIABLE: "secret", "PATH": "/bin"}) == {"PATH": "/bin"}
