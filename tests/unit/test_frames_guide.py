"""The guide to frames is true: its snippets run as they stand, and print what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "frames.md"


def test_the_snippets_run_and_print_what_the_guide_shows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(snippet, str(GUIDE), "exec"), names)  # noqa: S102 - our own text
        names["flow"].compile(2, 128)
    assert capsys.readouterr().out == "".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))
