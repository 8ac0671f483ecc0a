"""What `import crosscut as cc` offers, and what it does not load."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

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
