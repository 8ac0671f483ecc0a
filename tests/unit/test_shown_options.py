"""What connectors show of themselves: S12, nothing that may be a secret."""

from __future__ import annotations

from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.http.requests import Address
from crosscut.connectors.secrets import described, shown
from crosscut.errors import ConnectorError

HOOK = "https://hooks.example.com/services/T0/very-secret-path?code=very-secret-code"


def test_only_options_that_are_known_to_hold_no_secret_are_shown() -> None:
    options: dict[str, Any] = {
        "bootstrap.servers": "b:9092",
        "sasl.password": "a",
        "sasl.oauthbearer.config": "b",
        "x-of-a-vendor": "c",
        "ssl.key.location": "d",
        "path": "s3://user:pass@bucket/x",
    }
    assert shown(options) == {
        "bootstrap.servers": "b:9092",
        "sasl.password": "***",
        "sasl.oauthbearer.config": "***",
        "x-of-a-vendor": "***",
        "ssl.key.location": "***",
        "path": "s3://user:pass@bucket/x",
    }
    assert described([("path", "s3://user:pass@bucket/x"), ("bearer", "b")]) == "path=s3://***@bucket/x"


@pytest.mark.parametrize("name", ["password", "keyfile", "auth", "pin", "cookie", "passphrase", "jwt", "sas"])
def test_an_option_that_nobody_knows_is_hidden(name: str) -> None:
    assert shown({name: "x"}) == {name: "***"}


def test_a_url_that_stands_in_the_environment_shows_itself_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx")
    monkeypatch.setenv("HOOK", HOOK)
    url = cc.environment("HOOK")
    sink, source = cc.http.sink(url, honours_keys=True), cc.http.events(url, replays=False)
    sink.check()
    source.splits(1)
    for text in (repr(sink), sink.describe(), repr(source), source.describe()):
        assert "secret" not in text
        assert "$HOOK" in text
    address = Address(url)
    assert address.value() == HOOK
    said = f"can't connect to {HOOK}, /services/T0/very-secret-path"
    assert address.redacted(said) == "can't connect to $HOOK, $HOOK"
    monkeypatch.delenv("HOOK")
    with pytest.raises(ConnectorError, match="HOOK is not set"):
        sink.check()
    monkeypatch.setenv("HOOK", "very-secret")
    with pytest.raises(ConnectorError, match="does not contain an HTTP URL") as caught:
        sink.check()
    assert "very-secret" not in str(caught.value)
