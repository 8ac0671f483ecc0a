"""The guides to loops and invariants are true: their snippets run, and print what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guide"


@pytest.mark.parametrize("name", ["loops", "invariants"])
def test_the_snippets_of_the_guide_run_and_print_what_the_guide_shows(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = GUIDES / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(snippet, str(path), "exec"), names)  # noqa: S102 - our own text
        names["flow"].compile(2, 128)
    assert capsys.readouterr().out == "".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))
