"""The conversations are as they are written down; `pytest --rewrite-conversations` writes them down again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conversations.scripts import SCRIPTS
from tests.conversations.writing import WIDTH, written

HERE = Path(__file__).parent
PROTOCOL = HERE.parents[1] / "docs" / "protocol.md"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_conversation_is_as_it_is_written_down(name: str, pytestconfig: pytest.Config) -> None:
    path = HERE / f"{name}.txt"
    text = written(SCRIPTS[name])
    if pytestconfig.getoption("rewrite_conversations"):
        path.write_text(text)
    assert text == path.read_text(), (
        "if that is what is meant: pytest --rewrite-conversations, and read what it writes"
    )


def test_each_text_has_a_script_and_is_short_enough_to_be_read() -> None:
    texts = {path.stem: path.read_text().splitlines() for path in HERE.glob("*.txt")}
    assert texts.keys() == SCRIPTS.keys()
    assert [name for name, lines in texts.items() if len(lines) > 70 or max(map(len, lines)) > WIDTH] == []


def test_the_protocols_description_leads_to_each_of_them() -> None:
    text = PROTOCOL.read_text()
    assert [name for name in SCRIPTS if f"tests/conversations/{name}.txt" not in text] == []
