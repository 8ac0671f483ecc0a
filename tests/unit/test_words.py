"""Names that were replaced by the field's terms do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "crosscut"
REPLACED = {
    "roster": "worker registry",
    "reserve": "standby",
    "trying": "retry policy",
    "going_on": "batch scheduling",
    "kept_states": "state cache",
    "errand": "background job",
    "obeying": "message filter",
    "hearing": "message filter",
    "parcel": "shuffle block",
    "inbox": "shuffle input",
    "stranger": "unauthenticated peer",
    "neighbour": "peer link",
    "heritage": "predecessor state",
    "inheritance": "state assignment",
    "forerunner": "predecessor",
    "intake": "input gate",
    "departure": "output buffers",
    "outlet": "task effects",
    "obedience": "worker lifecycle",
    "gathering": "worker registration",
    "course": "time budget",
    "weather": "fault profile",
    "state_at_hand": "local state cache",
    "host_part": "host cache",
    "halting": "stop the world",
    "found_split": "discovered split",
}
"""The old name of a module, class or function, and what it is called now."""


def names() -> dict[str, str]:
    """Return the modules, classes and functions, each with its place."""
    found: dict[str, str] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        place = path.relative_to(SOURCES).as_posix()
        found[path.stem] = place
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name] = place
    return found


NAMES = names()


def as_words(name: str) -> str:
    return "_".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)).lower()


@pytest.mark.parametrize("old", REPLACED)
def test_no_name_has_the_old_word(old: str) -> None:
    pattern = re.compile(rf"(?:^|_){old}s?(?:_|$)")
    hits = {name: place for name, place in NAMES.items() if pattern.search(as_words(name))}
    assert not hits, f"say {REPLACED[old]!r}"
