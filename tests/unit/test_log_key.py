"""The job log with a key: what was written without it, or in another place, is refused by name (M6)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.proof.stores import at, checkpoint, closed, opened

from crosscut.cli.commands import program
from crosscut.errors import SettingsError, StoreError
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.writer import Appended
from crosscut.store import CheckpointStore, open_store
from crosscut.store.log_key import VARIABLE, LogKey, log_key

SECRET, OTHER = "a" * 31 + "b", "another secret, as long as it has to be"
KEY = LogKey(SECRET)
NEWEST = b'"entry":["{",{"checkpoint_id":["=",3]'
"""How the newest of them begins in its file: as a change."""

ENTRIES = (opened(1), checkpoint(1, 1), checkpoint(1, 2), checkpoint(1, 3))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    fill(tmp_path / "store", KEY)
    return tmp_path / "store"


def fill(directory: Path, key: LogKey | None) -> CheckpointStore:
    store = open_store(str(directory), key=key)
    for number, entry in enumerate(ENTRIES):
        since = at(number - 1) if number > 1 else None
        assert store.append(at(number), entry, since) == Appended(at(number))
    return store


def file_of(directory: Path, index: LogIndex) -> Path:
    log = directory / "log"
    return (
        log / f"{index.segment:020d}" / f"{index.number:020d}.json"
        if index.number
        else log / f"{index.segment:020d}.json"
    )


def refusal(directory: Path, key: LogKey | None = KEY) -> str:
    """Return how the log is refused, whichever way it is read."""
    texts = set()
    for read in (
        lambda: open_store(str(directory), key=key).tail(),
        lambda: list(open_store(str(directory), key=key).entries()),
    ):
        with pytest.raises(StoreError) as caught:
            read()
        assert SECRET not in str(caught.value) and OTHER not in str(caught.value)
        texts.add(f"{type(caught.value).__name__}: {caught.value}")
    (text,) = texts
    return text


def edited(path: Path, before: bytes, after: bytes) -> None:
    """Change an entry as somebody does who knows the format and has not the key: the digest is right."""
    data = path.read_bytes()
    assert data.count(before) == 1
    data = data.replace(before, after)
    head, rest = data.split(b'"sha256":"', 1)
    head += b'"sha256":"'
    body = data.split(b'"entry":', 1)[1].removesuffix(b"}\n")
    path.write_bytes(head + sha256(head + body).hexdigest().encode() + rest[64:])


def test_a_log_is_read_with_the_key_that_it_was_written_with(directory: Path) -> None:
    assert [entry for _, entry in open_store(str(directory), key=LogKey(SECRET)).entries()] == list(ENTRIES)


def test_without_the_key_an_authenticated_log_is_refused(directory: Path) -> None:
    text = refusal(directory, None)
    assert text.startswith("AuthenticityError: entry ")
    assert f"was written with key {KEY.key_id}, and this process has none: set {VARIABLE}" in text


def test_another_key_is_told_from_the_right_one_by_its_id(directory: Path) -> None:
    other = LogKey(OTHER)
    text = refusal(directory, other)
    assert f"was written with key {KEY.key_id}, and {VARIABLE} is key {other.key_id}" in text


def test_with_a_key_a_log_that_is_not_authenticated_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, None)
    text = refusal(tmp_path)
    assert text.startswith("AuthenticityError: entry ")
    assert f"was written without a key, and {VARIABLE} is set: if the job was begun without one" in text


def test_an_entry_that_was_edited_is_refused_though_its_digest_is_right(directory: Path) -> None:
    """The newest one: nothing that follows could show it."""
    edited(file_of(directory, at(3)), NEWEST, NEWEST.replace(b"3", b"9"))
    text = refusal(directory)
    assert text.startswith("AuthenticityError: entry 1/3 of the job log")
    assert f"says that it was written with key {KEY.key_id}, and was not: somebody without the key" in text


def test_the_same_edit_goes_through_without_a_key(tmp_path: Path) -> None:
    """The control: it is the key that refuses it."""
    fill(tmp_path, None)
    edited(file_of(tmp_path, at(3)), NEWEST, NEWEST.replace(b"3", b"9"))
    ((_, entry),) = open_store(str(tmp_path)).tail()[-1:]
    assert isinstance(entry, CheckpointCompleted) and entry.checkpoint_id == 9


@pytest.mark.parametrize(
    ("key_id", "mac", "reason"),
    [
        (KEY.key_id, "", "was not: somebody without the key"),
        (KEY.key_id, "0" * 64, "was not: somebody without the key"),
        ("", "", "was written without a key"),
        ("0" * 16, "0" * 64, "was written with key 0000000000000000"),
    ],
)
def test_an_entry_without_its_signature_is_refused(
    directory: Path, key_id: str, mac: str, reason: str
) -> None:
    path = file_of(directory, at(3))
    found = json.loads(path.read_bytes())
    ours = f'"key":"{found["key"]}","mac":"{found["mac"]}"'.encode()
    assert ours in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(ours, f'"key":"{key_id}","mac":"{mac}"'.encode()))
    text = refusal(directory)
    assert text.startswith("AuthenticityError: entry 1/3") and reason in text


def test_an_entry_of_another_time_is_refused_though_its_signature_is_right(
    directory: Path, tmp_path: Path
) -> None:
    """A rolled back file: of a log with the same key, at the same place, after another entry."""
    other = open_store(str(tmp_path / "other"), key=KEY)
    for number, entry in enumerate((opened(1), checkpoint(1, 7), checkpoint(1, 8), checkpoint(1, 9))):
        other.append(at(number), entry)
    newest = file_of(directory, at(3))
    newest.write_bytes(file_of(tmp_path / "other", at(3)).read_bytes())
    with pytest.raises(StoreError, match="does not follow entry 1/2: one of the two was replaced"):
        open_store(str(directory), key=KEY).tail(2)


def test_an_entry_in_the_place_of_another_is_refused(directory: Path) -> None:
    file_of(directory, at(3)).write_bytes(file_of(directory, at(2)).read_bytes())
    assert "it holds entry 1/2: a file was moved or copied" in refusal(directory)


def test_a_log_from_which_something_was_taken_out_is_refused(directory: Path) -> None:
    file_of(directory, at(2)).unlink()
    assert "entry 1/2 of the job log" in refusal(directory) and "is missing" in refusal(directory)


def test_what_closed_a_segment_is_missed_when_the_next_one_was_opened_after_it(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), key=KEY)
    log = [(at(0), opened(1)), (at(1), closed(2)), (at(0, 2), opened(2, previous=at(1)))]
    for index, entry in log:
        store.append(index, entry)
    file_of(tmp_path, at(1)).unlink()
    assert "entry 1/1 of the job log" in refusal(tmp_path) and "is missing" in refusal(tmp_path)


def test_a_log_that_has_lost_its_end_is_an_older_log_which_no_chain_can_show(directory: Path) -> None:
    """The limit: what sinks remember shows it, before anything is claimed."""
    file_of(directory, at(3)).unlink()
    assert [entry for _, entry in open_store(str(directory), key=KEY).entries()] == [*ENTRIES[:3]]


def test_nothing_shows_the_key_and_nothing_carries_it_away() -> None:
    store = open_store("memory://log-key", key=KEY)
    for one in (KEY, store, store.protection, KEY.signature("0" * 64)):
        assert SECRET not in repr(one) and SECRET not in str(one)
    assert repr(KEY) == f"LogKey({KEY.key_id})"
    with pytest.raises(TypeError, match="stays in the driver"):
        pickle.dumps(KEY)
    with pytest.raises(TypeError, match="stays in the driver"):
        pickle.dumps({"deep": [KEY]})


def test_equal_secrets_are_one_key_and_others_are_not() -> None:
    assert LogKey(SECRET).key_id == KEY.key_id != LogKey(OTHER).key_id
    signature = KEY.signature("1" * 64)
    assert KEY.has_made(signature, "1" * 64)
    assert not KEY.has_made(signature, "2" * 64)
    assert not LogKey(OTHER).has_made(signature, "1" * 64)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.delenv(VARIABLE, raising=False)
    yield monkeypatch


def test_the_key_comes_from_the_environment(environment: pytest.MonkeyPatch) -> None:
    assert log_key() is None
    environment.setenv(VARIABLE, SECRET)
    key = log_key()
    assert key is not None and key.key_id == KEY.key_id


@pytest.mark.parametrize("short", ["", "tooshort", "x" * 31])
def test_a_key_that_could_be_guessed_is_refused_and_not_shown(
    environment: pytest.MonkeyPatch, short: str
) -> None:
    environment.setenv(VARIABLE, short)
    with pytest.raises(SettingsError, match=f"{VARIABLE} has {len(short)} characters") as caught:
        log_key()
    assert not short or short not in str(caught.value)


def test_the_command_line_needs_the_key_too(directory: Path, environment: pytest.MonkeyPatch) -> None:
    def listed() -> tuple[int, str]:
        done = CliRunner().invoke(program, ["checkpoints", "ls", str(directory)])
        return done.exit_code, done.output + done.stderr

    code, text = listed()
    assert code == 2 and f"set {VARIABLE}" in text
    environment.setenv(VARIABLE, OTHER)
    code, text = listed()
    assert code == 2 and "was written with key" in text and OTHER not in text
    environment.setenv(VARIABLE, SECRET)
    code, text = listed()
    assert code == 0 and SECRET not in text


def test_what_protects_a_log_is_said_in_words(tmp_path: Path) -> None:
    authenticated = open_store(str(tmp_path), key=KEY)
    assert authenticated.protection == f"the job log is authenticated, with key {KEY.key_id}"
    plain = open_store(str(tmp_path)).protection
    assert f"not authenticated ({VARIABLE} is not set): anyone who may write to the checkpoint" in plain
