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
    "said": "emitted, sent, reported, announced",
    "say": "emit, send, report",
    "tell": "send, notify, post",
    "told": "sent, notified, received",
    "hear": "receive, observe",
    "heard": "received, noted",
    "letter": "dead letter",
    "mark": "latency marker, replay marker",
    "pace": "batch sizer",
    "readings": "metric samples",
    "last_word": "last lines",
}
"""The old word in a name, and the terms that replace it."""

KEPT = {
    "said": "a field of `Snapshot`, persisted",
    "is_said": "a field of `TaskSection`, persisted",
    "marks": "a field of `LatencyMetrics`, public",
    "letter": "a field of `SeenDeadLetter`, public",
    "letters": "a field of `TaskStatistics`, on the wire",
    "readings": "a field of `TaskMetrics`, public, and of `TaskStatistics`, on the wire",
    "tell": "a method of files",
    "GATHERING": "a phase: workers register",
    "_HALTING": "the phases in which the job stops",
}
"""Names that have an old word, and why."""


def names() -> dict[str, str]:
    """Return the names of modules and all names that code defines, each with its place."""
    found: dict[str, str] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        place = path.relative_to(SOURCES).as_posix()
        found[path.stem] = place
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found[name] = place
                case ast.arg(arg=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    found[name] = place
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    found[name] = place
    return {name: place for name, place in found.items() if name not in KEPT}


NAMES = names()


def as_words(name: str) -> str:
    return "_".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)).lower()


@pytest.mark.parametrize("old", REPLACED)
def test_no_name_has_the_old_word(old: str) -> None:
    pattern = re.compile(rf"(?:^|_)(?<!dead_){old}s?(?:_|$)")
    hits = {name: place for name, place in NAMES.items() if pattern.search(as_words(name))}
    assert not hits, f"say {REPLACED[old]!r}"
