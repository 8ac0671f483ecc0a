"""The guide is true: its source and its sink pass the suites that it points at them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from crosscut.testing.sinks import SINK_CHECKS
from crosscut.testing.sources import SOURCE_CHECKS

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "sources-and-sinks.md"


@pytest.fixture(scope="module")
def guide() -> dict[str, Any]:
    """Return what the snippets define; as in a script, its classes are sent by value."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for snippet in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(snippet, str(GUIDE), "exec"), names)  # noqa: S102 - our own text
    return names


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_the_source_of_the_guide_conforms(check: Any, guide: dict[str, Any], tmp_path: Path) -> None:
    guide["test_the_source_conforms"](check, tmp_path)


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_the_dynamic_source_of_the_guide_conforms(check: Any, guide: dict[str, Any], tmp_path: Path) -> None:
    guide["test_the_dynamic_source_conforms"](check, tmp_path)


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_the_sink_of_the_guide_conforms(check: Any, guide: dict[str, Any], tmp_path: Path) -> None:
    guide["test_the_sink_conforms"](check, tmp_path)
