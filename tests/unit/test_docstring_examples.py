"""The examples in docstrings run, and give what stands there."""

from __future__ import annotations

import doctest
import importlib
import inspect
import logging
from pathlib import Path

import pytest

import crosscut as cc

SOURCES = Path(__file__).parents[2] / "src"
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCES.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("crosscut"), "handlers", [])
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted
    assert not found.failed


VOCABULARY = (cc.Flow, cc.Stream, cc.KeyedStream, cc.WindowedStream, cc.Frame, cc.KeyedFrame)
"""Classes whose methods make a flow."""

WITHOUT = {
    # Implemented by authors of connectors: the guide has whole ones.
    *("CommitPermit", "CommittedOutput", "Discovered", "DynamicSource", "EndOfSplit", "HeldData", "Sink"),
    *("SinkContext", "SinkWriter", "Source", "Split", "SplitReader", "Wait", "check_history"),
    *("check_not_set_back", "Serializer", "ArrowSerializer"),
    # What a running job gives.
    *("Context", "CrosscutError", "Cut", "Job", "TaskId"),
    *("http.Event", "kafka.Message", "nats.Message", "postgres.Change"),
    # They need a running job, a server, or what a job has left.
    *("Flow.compile", "Flow.explain", "Flow.start", "KeyedStream.transform_with_state"),
    *("postgres.drop_slot", "seal_savepoint"),
    # As the methods of a keyed stream.
    *("WindowedStream.approx_distinct", "WindowedStream.collect_list", "WindowedStream.count"),
    *("WindowedStream.max", "WindowedStream.mean", "WindowedStream.min", "WindowedStream.reduce"),
    "WindowedStream.sum",
}
"""Names that users import or call and whose docstring has no example, with the reason."""


def documented() -> dict[str, object]:
    """Return everything that has to have an example, or be listed above, by name."""
    found: dict[str, object] = {}
    for name in cc.__all__:
        one = getattr(cc, name)
        if inspect.ismodule(one):
            if one not in (cc.errors, cc.events):
                found |= {f"{name}.{inner}": getattr(one, inner) for inner in dir(one)}
        else:
            found[name] = one
    for kind in VOCABULARY:
        methods = inspect.getmembers(kind, inspect.isfunction)
        found |= {f"{kind.__name__}.{name}": one for name, one in methods if not name.startswith("_")}
    return {name: one for name, one in found.items() if inspect.isclass(one) or inspect.isfunction(one)}


def test_what_users_import_or_call_has_an_example_or_a_reason_why_not() -> None:
    without = {name for name, one in documented().items() if ">>> " not in (inspect.getdoc(one) or "")}
    assert without == WITHOUT
