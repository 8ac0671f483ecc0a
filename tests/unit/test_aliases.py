"""Modules by their other names: what users import, and what older snapshots name."""

from __future__ import annotations

import importlib
import importlib.util
import pickle

import pytest

import crosscut as cc
from crosscut.contracts.windows import Windowed
from crosscut.foundation.aliases import PUBLIC
from crosscut.foundation.data_pickles import load_data


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_module_can_be_imported_by_its_public_name(name: str) -> None:
    module = importlib.import_module(f"crosscut.{name}")
    assert module is getattr(cc, name)
    assert module is importlib.import_module(f"crosscut.{PUBLIC[name]}")
    assert (
        module.__spec__ is not None and module.__spec__.name == module.__name__ == f"crosscut.{PUBLIC[name]}"
    )


def test_a_class_that_an_older_snapshot_names_is_the_same_class() -> None:
    value = Windowed("a", 0, 10, 3)
    older = pickle.dumps(value, protocol=0).replace(b"crosscut.contracts.windows", b"crosscut.windows")
    assert b"crosscut.windows" in older
    assert pickle.loads(older) == value == load_data(older)
    assert type(pickle.loads(older)) is Windowed


def test_a_module_below_an_alias_is_not_loaded_twice() -> None:
    older = importlib.import_module("crosscut.connectors.postgres_changes.change")
    assert older.Change is cc.postgres.Change


def test_an_unknown_module_is_not_found() -> None:
    assert importlib.util.find_spec("crosscut.kafca") is None
