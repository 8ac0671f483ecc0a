"""Which failures of user code come again after a restart, whatever goes on around it."""

from __future__ import annotations

import importlib
import json
import os
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import Row

from crosscut.foundation import user_files
from crosscut.foundation.timestamps import as_timestamp
from crosscut.host.installed_packages import note_packages_beside
from crosscut.operators.recurrence import is_of_own_code, is_of_record, recurs

COUNTRIES = {"no": "Norway"}
COLUMN = "usr"
Click = namedtuple("Click", "user page")
OURS = (f"{__name__}.",)


class Service:
    def __init__(self) -> None:
        self.answers: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self.answers[name]


SERVICE = Service()
RATES = ModuleType("rates")
RATES.__dict__["of"] = {"no": 1.0}


class Table:
    rows: dict[str, str] = {}  # noqa: RUF012 - filled by whoever knows

    def __init__(self, record: Any) -> None:
        self.row = self.rows[record["user"]]


class Opened:
    """As a process, whose `open` takes nothing."""

    def __init__(self) -> None:
        self.service: dict[str, str] = {}

    def open(self) -> str:
        return self.service["token"]


class OpenedByThis:
    """The same, with another name for itself."""

    def __init__(this) -> None:
        this.service: dict[str, str] = {}

    def open(this) -> str:
        return this.service["token"]


def looked_up(name: str, rows: dict[str, str] = Table.rows) -> str:
    return rows[name]


def remembered(record: Any) -> Any:
    return remembered.__dict__["rows"][record["user"]]


def by_table(rows: dict[str, str]) -> Callable[[Any], Any]:
    return lambda record: ",".join(rows[name] for name in record.values())


def too_long(record: Any) -> Any:
    return record["user"] * (1 << 62)


def raised(function: Callable[[Any], Any], record: Any) -> BaseException:
    try:
        found = function(record)
        if isinstance(found, Iterator):
            list(found)
    except (
        ArithmeticError,
        LookupError,
        MemoryError,
        OSError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        # As if this test were ours: it is who has called the function.
        assert error.__traceback__ is not None
        return error.with_traceback(error.__traceback__.tb_next)
    raise AssertionError("nothing was raised")


def page_and_user(record: Any) -> tuple[Any, str]:
    return record["page"], record["usr"].lower()


def by_helper(record: Any) -> Any:
    return page_and_user(record)


def by(column: str) -> Callable[[Any], Any]:
    return lambda record: record[column]


def one_by_one(record: Any) -> Iterator[Any]:
    for name in ("page", "usr"):
        yield record[name]


def asked(record: Any) -> Any:
    answer = json.loads(record["page"])
    return answer["result"]


def importing(record: Any) -> Any:
    import colorsys as colors

    return colors.__dict__[record["user"]]


def made() -> Callable[[Any], Any]:
    def of_user(record: Any) -> Any:
        return record["usr"]

    return of_user


DICT = {"user": "a", "page": "{}"}
CERTAIN: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda record: record["usr"], DICT),
    (lambda record: int(record["user"]), DICT),
    (lambda record: [record[name] for name in ("user", "usr")], DICT),
    (lambda record: record[7], ("a", "b")),
    (lambda record: record.usr, Click("a", "b")),
    (lambda record: record.usr, Row(user="a")),
    (lambda record: record["usr"], Row(user="a")),
    (lambda record: 1 // record, 0),
    (page_and_user, DICT),
    (one_by_one, DICT),
    (made(), DICT),
]
PERHAPS_NOT: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda record: record[COLUMN], DICT),
    (lambda record: json.loads(record["pge"]), DICT),
    (lambda record: json.decoder.JSONDecoder(strict=record["strict"]), DICT),
    (lambda record: COLUMN.join(record["pge"]), DICT),
    (lambda record: datetime.fromisoformat(record["at"]), DICT),
    (by_helper, DICT),
    (by("usr"), DICT),
    (importing, DICT),
    (lambda record: COUNTRIES[record["user"]], DICT),
    (lambda record: SERVICE[record["user"]], DICT),
    (lambda record, service=SERVICE: service[record["user"]], DICT),
    (lambda record: Path(record["user"]).read_text(), DICT),
    (lambda record: open(record["user"]), DICT),  # noqa: SIM115 - there is no such file
    (asked, DICT),
    (lambda record: RATES.of[record["user"]], DICT),
    (lambda record: Table.rows[record["user"]], DICT),
    (lambda record: os.environ[record["user"] * 9], DICT),
    (lambda record: Table(record), DICT),
    (lambda record: looked_up(record["user"]), DICT),
    (by_table({}), DICT),
    (remembered, DICT),
    (too_long, DICT),
    (Opened.open, Opened()),
    (OpenedByThis.open, OpenedByThis()),
    (lambda record: record[hash(record["user"])], DICT),
    (lambda record: record[id(record)], DICT),
    (SERVICE.__getitem__, "a"),
]


@pytest.mark.parametrize(("function", "record"), CERTAIN)
def test_a_function_that_uses_only_its_record_raises_again(
    function: Callable[[Any], Any], record: Any
) -> None:
    error = raised(function, record)
    assert recurs(error, OURS) and is_of_record(error, OURS)


@pytest.mark.parametrize(("function", "record"), PERHAPS_NOT)
def test_a_function_that_uses_anything_else_may_succeed_later(
    function: Callable[[Any], Any], record: Any
) -> None:
    error = raised(function, record)
    assert not recurs(error, OURS) and not is_of_record(error, OURS)


def parsed(record: Any) -> Any:
    return int(record["user"])


def set_before_time(record: Any) -> Any:
    return as_timestamp(record["user"])


@pytest.mark.parametrize(
    ("function", "record"), [(parsed, DICT), (set_before_time, {"user": "soon"}), (by_helper, {"page": "x"})]
)
def test_a_value_error_of_the_users_own_lines_or_of_ours_below_them_is_a_mistake(
    function: Callable[[Any], Any], record: Any
) -> None:
    error = raised(function, record)
    assert recurs(error, OURS) is isinstance(error, ValueError)


@pytest.mark.parametrize(
    "function",
    [lambda record: json.loads(record["user"]), lambda record: Path(record["user"]).read_text()],
)
def test_a_value_error_out_of_a_library_may_come_of_an_answer_of_a_service(
    function: Callable[[Any], Any],
) -> None:
    assert not recurs(raised(function, DICT), OURS)


# Sources and sinks: what may be an outage is no mistake.


CLIENT = """
class Refused(Exception):
    pass


def ask():
    raise Refused("connection refused")
"""


@pytest.fixture(params=["a directory", "an archive"])
def client(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client library that is on the path as Spark jobs have theirs: not in site-packages."""
    name = f"client_{'zip' if request.param == 'an archive' else 'dir'}"
    files = {f"{name}/__init__.py": CLIENT, f"{name}-1.0.dist-info/METADATA": f"Name: {name}"}
    place = tmp_path / "deps"
    if request.param == "an archive":
        place = tmp_path / "deps.zip"
        with zipfile.ZipFile(place, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
    else:
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr(user_files, "_beside", set())
    note_packages_beside()
    yield importlib.import_module(name)
    del sys.modules[name]


def error_of(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever it raises is looked at
        return error
    raise AssertionError("it has raised nothing")


class Down(Exception):
    """The user's own."""


def test_an_error_of_a_client_that_was_installed_anywhere_may_be_an_outage(client: Any) -> None:
    def wrapped() -> None:
        try:
            client.ask()
        except client.Refused as error:
            raise Down("the service is down") from error

    assert not is_of_own_code(error_of(client.ask))
    assert not is_of_own_code(error_of(wrapped))


def test_an_error_whose_class_names_a_module_that_there_is_not_may_be_an_outage() -> None:
    """So those of Kafka's client do, and its calls have no frame."""
    refused = type("KafkaException", (Exception,), {"__module__": "cimpl"})

    def asks() -> None:
        raise refused("all brokers down")

    assert not is_of_own_code(error_of(asks))


def test_a_group_of_errors_is_one_of_its_members() -> None:
    def gathers(member: Exception) -> Callable[[], None]:
        def raises() -> None:
            raise ExceptionGroup("all replicas", [Down("own"), member])

        return raises

    assert not is_of_own_code(error_of(gathers(ConnectionRefusedError(111, "refused"))))
    assert is_of_own_code(error_of(gathers(KeyError("amount"))))
