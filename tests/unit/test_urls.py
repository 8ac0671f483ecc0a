"""S12: the credentials in a URL are in no error, repr or log."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.proof.stores import at, opened

from crosscut.contracts.settings import Settings
from crosscut.errors import CrosscutError, SettingsError, StoreError
from crosscut.foundation.urls import Redaction, check_for_spark, shown_url
from crosscut.protocol.log.writer import Unknown
from crosscut.spark.cluster.checks import check_checkpoint_dir
from crosscut.store.checkpoint_store import CheckpointStore, open_store

SECRET = "p%40ss:w0rd"
URL = f"leaky://bob:{SECRET}@host:9000/bucket/job?token=t0p-secret&part=abcdef"
SHOWN = "leaky://***@host:9000/bucket/job?token=***&part=***"
PIECES = (SECRET, "p@ss:w0rd", "bob:", "t0p-secret", "abcdef")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, SHOWN),
        ("s3://bucket/job", "s3://bucket/job"),
        ("s3://key:with/and/more@bucket/job", "s3://***@bucket/job"),
        ("s3://host:9000/job@home", "s3://host:9000/job@home"),
        ("simplecache::s3://key:secret@bucket/job", "simplecache::s3://***@bucket/job"),
        ("s3://token@bucket", "s3://***@bucket"),
        ("s3://a@b@bucket/at@home", "s3://***@bucket/at@home"),
        ("/home/me@work/what?a=b", "/home/me@work/what?a=b"),
        ("checkpoints", "checkpoints"),
    ],
)
def test_a_url_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_text_of_others_loses_the_credentials_in_whatever_form_they_are_in_it() -> None:
    redacted = Redaction(URL)
    text = f"403 for {URL}: p@ss:w0rd is wrong, bob:{SECRET} too, and so is t0p-secret"
    found = redacted(text)
    assert not any(piece in found for piece in PIECES)
    assert found.startswith(f"403 for {SHOWN}: *** is wrong")


def test_a_password_that_was_not_escaped_is_hidden_in_pieces_too() -> None:
    """Packages take what stands before its first slash for the name of a bucket."""
    found = Redaction("s3://key:half/other+half@bucket")("no bucket key:half, nothing at other+half@bucket")
    assert found == "no bucket ***, nothing at ***@bucket"


def test_a_text_about_a_url_without_any_stays_as_it_is() -> None:
    assert Redaction("s3://bucket/job")("no such bucket: s3://bucket/job?x=y") == (
        "no such bucket: s3://bucket/job?x=y"
    )


class Leaky(MemoryFileSystem):
    """A file system whose errors say everything, as those of some packages do."""

    protocol = ("leaky", "s3")
    cachable = False
    error: type[Exception] = OSError

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/bucket/job" + path.partition("/bucket/job")[2].partition("?")[0]

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise self.error(f"can't reach {URL} as bob with p@ss:w0rd")

    pipe_file = cat_file = rm_file = find = open = _fail


@pytest.fixture(params=[OSError, PermissionError, RuntimeError])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    fsspec.register_implementation("leaky", Leaky, clobber=True)
    monkeypatch.setattr(Leaky, "error", request.param)
    return open_store(URL)


def said(call: Callable[[], object]) -> str:
    """Return all that is shown of the error that `call` raises, what led to it included."""
    with pytest.raises(CrosscutError) as caught:
        call()
    return "".join(traceback.format_exception(caught.value)) + repr(caught.value)


def test_no_error_of_the_store_shows_them(store: CheckpointStore) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.read(at(0)),
        lambda: store.tail(1),
        store.list_parts,
        lambda: list(store.entries()),
    ]
    for call in calls:
        found = said(lambda call=call: list(call()))  # type: ignore[misc]
        assert SHOWN in found
        assert not [piece for piece in PIECES if piece in found]


def test_no_outcome_of_an_append_shows_them(store: CheckpointStore) -> None:
    """It becomes the cause of the job's end."""
    try:
        found = repr(store.append(at(0), opened(1)))
    except StoreError as error:
        found = "".join(traceback.format_exception(error))
    else:
        assert found.startswith(Unknown.__name__)
    assert SHOWN in found
    assert not [piece for piece in PIECES if piece in found]


def test_a_url_that_can_not_be_opened_is_shown_without_them() -> None:
    found = said(lambda: open_store(f"nobody-has-this://bob:{SECRET}@host/job"))
    assert "nobody-has-this://***@host/job" in found
    assert SECRET not in found
    with pytest.raises(SettingsError) as caught:
        check_checkpoint_dir(f"memory://bob:{SECRET}@host/job")
    assert SECRET not in str(caught.value)


def test_settings_are_shown_without_them() -> None:
    assert f"checkpoint_dir={SHOWN!r}" in repr(Settings(checkpoint_dir=URL))
    assert ", checkpoint_dir=None, " in repr(Settings())


@pytest.mark.parametrize(
    "url",
    ["s3://key:secret@bucket/job", "s3://token@bucket/job", "az://c/d?sas_token=x", "hdfs://a:b@host/d"],
)
def test_a_url_with_credentials_is_not_handed_to_spark(url: str) -> None:
    with pytest.raises(SettingsError, match="the URL has credentials, which Spark would show") as caught:
        check_for_spark(url, "path")
    assert "secret@" not in str(caught.value) and "=x" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["/a:b@c", "s3://bucket/job", "hdfs://ada@host:8020/job", "s3://b/d?region=x"]
)
def test_other_urls_are(url: str) -> None:
    check_for_spark(url, "path")
