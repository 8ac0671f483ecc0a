"""The guide to event time is true: its flows can be built as they stand, and its timers say what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from crosscut.foundation.batch import Batch
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.graph.specs import ProcessSpec
from crosscut.operators.building import build, keyed_state

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "time.md"


def test_the_snippets_of_the_guide_build_flows_and_its_timers_say_who_is_quiet() -> None:
    names: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) >= 2
    for snippet in snippets:
        exec(compile(snippet, str(GUIDE), "exec"), names)  # noqa: S102 - our own text
        graph = names["flow"].compile(2, 128)
        node = graph.vertices[-1].chain[0]
        if isinstance(node.spec, ProcessSpec):
            process = build(node, keyed_state(node), None)
    assert process is not None
    process.time_budget.begin(10)
    process.process(Batch([("ada", 0), ("bob", 0), ("ada", 0)], ["ada", "bob", "ada"], [0, 5, 30_000]))
    due = process.advance(70_000)
    assert due is not None
    assert due.records == ["bob is quiet since 5"]
    due = process.advance(END_OF_TIME)
    assert due is not None
    assert due.records == ["ada is quiet since 30000"]
