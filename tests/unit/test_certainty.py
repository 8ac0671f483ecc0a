"""Which failures of user code come again after a restart, whatever goes on around it."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from crosscut.operators.certainty import is_certain

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


def raised(function: Callable[[Any], Any], record: Any) -> BaseException:
    try:
        found = function(record)
        if isinstance(found, Iterator):
            list(found)
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError, AttributeError) as error:
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


DICT = {"user": "a", "page": "{}"}
CERTAIN: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda record: record["usr"], DICT),
    (lambda record: record[COLUMN], DICT),
    (lambda record: int(record["user"]), DICT),
    (lambda record: json.loads(record["pge"]), DICT),
    (lambda record: datetime.fromisoformat(record["at"]), DICT),
    (lambda record: [record[name] for name in ("user", "usr")], DICT),
    (lambda record: record[7], ("a", "b")),
    (lambda record: record.usr, Click("a", "b")),
    (lambda record: record.usr, Row(user="a")),
    (lambda record: record["usr"], Row(user="a")),
    (lambda record: 1 // record, 0),
    (page_and_user, DICT),
    (by_helper, DICT),
    (by("usr"), DICT),
    (one_by_one, DICT),
]
PERHAPS_NOT: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda record: COUNTRIES[record["user"]], DICT),
    (lambda record: SERVICE[record["user"]], DICT),
    (lambda record, service=SERVICE: service[record["user"]], DICT),
    (lambda record: datetime.fromisoformat(record["user"]), DICT),
    (lambda record: Path(record["user"]).read_text(), DICT),
    (lambda record: open(record["user"]), DICT),  # noqa: SIM115 - there is no such file
    (asked, DICT),
    (SERVICE.__getitem__, "a"),
]


@pytest.mark.parametrize(("function", "record"), CERTAIN)
def test_a_function_that_has_looked_at_its_record_only_raises_again(
    function: Callable[[Any], Any], record: Any
) -> None:
    assert is_certain(raised(function, record), OURS)


@pytest.mark.parametrize(("function", "record"), PERHAPS_NOT)
def test_one_that_has_asked_anything_else_may_find_it_mended(
    function: Callable[[Any], Any], record: Any
) -> None:
    assert not is_certain(raised(function, record), OURS)
