"""The items source: order, copies, and what it says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from crosscut.connectors.simple.items import items
from crosscut.contracts.connectors import EndOfSplit
from crosscut.errors import ConnectorError, SettingsError
from crosscut.testing.sources import read_source


@pytest.mark.parametrize("values", [[3, 1, 2], (), range(5), {"a": 1}, [None, [], ()]])
def test_every_value_comes_once_and_in_order_whatever_the_parallelism(values: Any) -> None:
    for parallelism in (1, 3):
        assert read_source(items(values), parallelism) == list(values)


@pytest.mark.parametrize("values", ["word", b"word", 3, None, (i for i in range(3)), iter([1])])
def test_what_is_no_collection_of_values_is_refused(values: Any) -> None:
    with pytest.raises(SettingsError, match=r"expected a list.*list\(\.\.\.\)"):
        items(values)


def test_a_value_that_somebody_changes_comes_as_it_was_when_it_is_read_again() -> None:
    values = [[1], [2]]
    source = items(values)
    (split,) = source.splits(2)
    for _ in range(2):
        reader = source.reader(split, 0)
        read = reader.read(10)
        assert read == [[1], [2]]
        assert reader.read(10) == EndOfSplit()
        assert not isinstance(read, EndOfSplit)
        read[0].append(9)  # type: ignore[union-attr]


def test_other_values_are_another_input_and_say_so() -> None:
    assert items([1, "a"]).describe() == items([1, "a"]).describe() != items([1, "b"]).describe()
    assert items([1, "a"]).describe().startswith("2 items, digest ")
    assert items(["\ud800"]).describe() != items(["\ud801"]).describe()
    for same_in_no_other_process in ({"a", "b"}, object()):
        assert items([same_in_no_other_process]).describe() == "1 items"


@pytest.mark.parametrize("position", [4, -1, "1", None])
def test_a_position_that_is_not_in_the_list_is_refused(position: Any) -> None:
    source = items([1, 2, 3])
    with pytest.raises(ConnectorError, match="is not in 3 items"):
        source.reader(source.splits(1)[0], position)
