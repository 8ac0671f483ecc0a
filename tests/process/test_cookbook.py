"""The programs of docs/cookbook.md print what stands below them."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from crosscut.testing.postgres import PostgresServer

PAGE = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = {section.partition("\n")[0]: dict(BLOCK.findall(section)) for section in PAGE.split("\n## ")[1:]}
OF_A_DATABASE = "Changes of a database in a lakehouse"


def printed(program: str, arguments: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a program in the present directory, and return what it prints."""
    Path("recipe.py").write_text(program, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["recipe.py", *arguments])
    capsys.readouterr()
    runpy.run_path("recipe.py", run_name="__main__")
    text: str = capsys.readouterr().out
    return text


@pytest.mark.parametrize("title", [title for title in RECIPES if title != OF_A_DATABASE])
def test_a_recipe_prints_what_the_page_shows(
    title: str, started: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed(RECIPES[title]["python"], [], capsys, monkeypatch) == RECIPES[title]["text"]


def test_rows_of_a_database_and_their_changes_are_in_the_lakehouse(
    started: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
    pytest.importorskip("deltalake", reason="pip install 'crosscut[delta]'")
    polars = pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES[OF_A_DATABASE]
    with PostgresServer(fsync="off", wal_level="logical") as server:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(recipe["sql"])
            assert printed(recipe["python"], [server.conninfo], capsys, monkeypatch) == recipe["text"]
            connection.execute("update orders set state = 'paid' where id = 2")
            connection.execute("delete from orders where id = 1")
            printed(recipe["python"], [server.conninfo], capsys, monkeypatch)
        rows = polars.read_delta("lake/orders").select("kind", "id", "state").rows()
    expected = [("snapshot", 1, "paid"), ("snapshot", 2, "open"), ("update", 2, "paid"), ("delete", 1, None)]
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))
