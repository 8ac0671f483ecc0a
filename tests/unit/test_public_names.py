"""What `import crosscut as cc` offers, and what it does not load."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import crosscut as cc
from crosscut.foundation import aliases


def test_every_public_name_can_be_asked_for() -> None:
    assert [name for name in cc.__all__ if getattr(cc, name, None) is None] == []
    assert set(cc.__all__) <= set(dir(cc))


def test_a_type_checker_is_told_the_same_homes() -> None:
    module = ast.parse(inspect.getsource(cc))
    block = next(node for node in module.body if isinstance(node, ast.If))
    told = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = {name: f"crosscut.{home}" for name, home in cc._HOME.items()}
    found.update((name, "crosscut.connectors") for name in aliases.PUBLIC)
    found.update((name, "crosscut") for name in cc.__all__ if name not in found)
    assert told == found


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'crosscut' has no attribute 'sinc'"):
        _ = cc.sinc  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["workers", "batch_job"])
def test_a_worker_loads_no_connector_and_nothing_of_the_driver(module: str) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, crosscut.spark.cluster.{module}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    of_others = (
        "crosscut.connectors",
        "crosscut.driver",
        "crosscut.flow",
        "crosscut.protocol.job.coordinator",
    )
    assert [name for name in loaded if name.startswith(of_others)] == []


def test_whoever_only_writes_a_flow_does_not_pay_for_spark_or_arrow() -> None:
    program = (
        "import sys, crosscut as cc\n"
        "for name in cc.__all__:\n"
        "    if name != 'Job':\n"
        "        getattr(cc, name)\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = set(loaded.stdout.split())
    assert "crosscut.flow.flow" in found
    assert found.isdisjoint({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})


MODULES = sorted(name for name in cc.__all__ if isinstance(getattr(cc, name), ModuleType))


@pytest.mark.parametrize("name", [*MODULES, "testing"])
def test_a_module_lists_what_is_public_and_nothing_else(name: str) -> None:
    module = importlib.import_module(f"crosscut.{name}")
    public = getattr(module, "__all__", None)
    if public is None:
        base = {"errors": cc.errors.CrosscutError, "events": cc.events.JobEvent}[name]
        public = [key for key, one in vars(module).items() if isinstance(one, type) and issubclass(one, base)]
    assert dir(module) == sorted(public)
    assert all(getattr(module, one) is not None for one in public)


def test_files_can_be_read_and_written_by_the_first_names_as_well() -> None:
    files = cc.files
    first = (files.csv, files.jsonl, files.lines, files.parquet, files.text)  # type: ignore[attr-defined]
    assert first == (
        files.write_csv, files.write_jsonl, files.read_text, files.write_parquet, files.write_text
    )  # fmt: skip


FORMATS = ("csv", "jsonl", "parquet", "text")
FURTHER = {
    "files.watch": "Source",
    "http.events": "Source",
    "postgres.changes": "Source",
    "postgres.upsert": "Sink",
    "spark.dataframe": "Source",
    "spark.stream": "DynamicSource",
    "spark.table": "Sink",
    "collect": "Collect",
    "generate": "Source",
    "items": "Source",
    "printing": "Sink",
    "socket": "Source",
    "stdin": "Source",
}
"""Ways to read or write that are not the only one of their system, and those of no system."""


def connectors() -> dict[str, str]:
    """Return what each public function makes that returns a source or a sink, by its name."""
    found = {}
    for module in ("", *MODULES):
        home = getattr(cc, module) if module else cc
        for name in dir(home):
            function = getattr(home, name)
            if inspect.isfunction(function):
                kind = str(inspect.signature(function).return_annotation).partition("[")[0]
                if kind.endswith(("Source", "Sink", "Collect")):
                    found[f"{module}.{name}" if module else name] = kind
    return found


def test_connectors_are_named_by_one_scheme() -> None:
    """`source` and `sink` of a system; of files, which have formats, `read_FORMAT` and `write_FORMAT`."""
    expected = dict(FURTHER)
    for module in ("delta", "iceberg", "sqlite", "http", "kafka", "nats", "postgres", "spark"):
        expected[f"{module}.sink"] = "Sink"
    for module in ("kafka", "nats", "postgres", "spark"):
        expected[f"{module}.source"] = "Source"
    for one in FORMATS:
        expected |= {f"files.read_{one}": "Source", f"files.write_{one}": "Sink"}
    assert connectors() == expected
