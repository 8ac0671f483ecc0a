"""The graph on its way to workers: the user's code by value, installed code by reference."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

import cloudpickle
import pytest

from crosscut import errors
from crosscut.errors import FlowError
from crosscut.flow.flow import Flow
from crosscut.graph.shipping import pack_graph, unpack_graph
from crosscut.graph.specs import JobGraph, MapSpec
from crosscut.interfaces import JSON, Sink, SinkContext, SinkWriter, Source, Split, SplitReader


class Nothing(Source):
    def splits(self, parallelism: int) -> Sequence[Split]:
        return ()

    def reader(self, split: Split, position: JSON) -> SplitReader:
        raise NotImplementedError


class Nowhere(Sink):
    def __init__(self, held: object = None) -> None:
        self.held = held

    def writer(self, context: SinkContext) -> SinkWriter:
        raise NotImplementedError


class OnDriverOnly:
    """Refuses with an error of its own, as a SparkContext does."""

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("only on the driver")


guarded = {"locks": [Lock()]}
session = OnDriverOnly()


def using_a_global(record: Any) -> Any:
    return guarded, record


def using_the_session(record: Any) -> Any:
    return session, record


def own(record: Any) -> Any:
    return record + 1


def graph_with(function: Callable[[Any], Any], sink: Sink | None = None) -> JobGraph:
    flow = Flow("f")
    flow.source(Nothing()).map(str).map(function).named("culprit").sink(sink or Nowhere())
    return flow.compile(2, 128)


def function_of(graph: JobGraph) -> Callable[[Any], Any]:
    spec = graph.vertices[0].chain[2].spec
    assert isinstance(spec, MapSpec)
    return spec.function


def refusal(graph: JobGraph) -> str:
    with pytest.raises(FlowError) as caught:
        pack_graph(graph)
    return str(caught.value)


def test_a_graph_comes_out_as_it_went_in_and_its_functions_work() -> None:
    offset = 40
    graph = graph_with(lambda record: record + offset)
    unpacked = unpack_graph(pack_graph(graph))
    assert (unpacked.name, unpacked.edges, unpacked.fingerprint) == (
        graph.name,
        graph.edges,
        graph.fingerprint,
    )
    assert [node.uid for v in unpacked.vertices for node in v.chain] == [
        "1-source",
        "2-map",
        "culprit",
        "4-sink",
    ]
    assert function_of(unpacked)(2) == 42


def test_a_function_that_can_not_be_pickled_is_named_with_what_it_holds_and_what_to_do() -> None:
    lock = Lock()

    def locking(record: Any) -> Any:
        with lock:
            return record

    assert refusal(graph_with(locking)) == (
        "operator 'culprit' can't be sent to the workers: function -> lock: TypeError: cannot pickle "
        "'_thread.lock' object. Connections, locks, open files and the Spark session can't leave the driver: "
        "make them inside the function when it is first called, and keep only addresses and options in "
        "sources and sinks"
    )


def test_the_way_to_the_culprit_goes_through_globals_containers_and_attributes() -> None:
    assert "function -> guarded -> ['locks'] -> [0]: TypeError" in refusal(graph_with(using_a_global))
    assert "operator '4-sink' can't be sent to the workers: sink -> held: TypeError" in refusal(
        graph_with(str, Nowhere(Lock()))
    )


def test_whatever_an_object_raises_when_pickled_is_reported() -> None:
    message = refusal(graph_with(using_the_session))
    assert "function -> session: RuntimeError: only on the driver" in message


def test_packing_leaves_the_registry_of_cloudpickle_as_it_was() -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    pack_graph(graph_with(str))
    refusal(graph_with(using_a_global))
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_code_of_installed_packages_and_of_crosscut_travels_by_reference() -> None:
    for function in (pytest.importorskip, json.dumps, unpack_graph):
        assert function_of(unpack_graph(pack_graph(graph_with(function)))) is function


def test_a_package_of_another_environment_is_installed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "installed_elsewhere.py").write_text("def function(record):\n    return record\n")
    monkeypatch.syspath_prepend(packages)
    function = importlib.import_module("installed_elsewhere").function
    assert function_of(unpack_graph(pack_graph(graph_with(function)))) is function


def test_code_of_a_module_that_is_not_installed_travels_by_value() -> None:
    function = function_of(unpack_graph(pack_graph(graph_with(own))))
    assert function is not own
    assert function(1) == 2


MODEL = """
from dataclasses import dataclass
from enum import Enum

class Color(Enum):
    RED = 1

@dataclass
class Point:
    x: int
    color: Color = Color.RED
"""

APP = """
import helpers
from shop.model import Point
from crosscut.flow.flow import Flow
from crosscut.interfaces import Sink, Source

class Nothing(Source):
    def splits(self, parallelism): return ()
    def reader(self, split, position): raise NotImplementedError

class Nowhere(Sink):
    def writer(self, context): raise NotImplementedError

FACTOR = 3

def scaled(record):
    return Point(helpers.plus_one(record) * FACTOR)

flow = Flow("shipped")
flow.source(Nothing()).map(scaled).sink(Nowhere())
"""

HELPERS = """
def plus_one(number):
    return number + 1
"""

WORKER = """
import json, pickle, sys
from pathlib import Path
from crosscut.graph.shipping import unpack_graph

graph = unpack_graph(Path(sys.argv[1]).read_bytes())
record = 1
for vertex in graph.vertices:
    for node in vertex.chain:
        if hasattr(node.spec, "function"):
            record = node.spec.function(record)
again = pickle.loads(pickle.dumps(record, protocol=5))
print(json.dumps([repr(record), again == record, type(again).__module__]))
"""


def run(script: Path, *arguments: Path, cwd: Path) -> str:
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=cwd,
        # An absolute path, since the scripts run in other directories.
        env=os.environ | {"PYTHONPATH": str(Path(errors.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def run_shipped(tmp_path: Path, driver: str) -> list[Any]:
    driver_dir, worker_dir = tmp_path / "driver", tmp_path / "worker"
    for directory in (driver_dir, worker_dir, driver_dir / "shop"):
        directory.mkdir()
    for name, text in (("shop/model", MODEL), ("helpers", HELPERS), ("app", APP), ("main", driver)):
        (driver_dir / f"{name}.py").write_text(text)
    (worker_dir / "worker.py").write_text(WORKER)
    packed = tmp_path / "packed"
    run(driver_dir / "main.py", packed, cwd=driver_dir)
    found: list[Any] = json.loads(run(worker_dir / "worker.py", packed, cwd=worker_dir))
    return found


def test_modules_next_to_the_script_need_not_exist_where_the_workers_are(tmp_path: Path) -> None:
    """Also the records: plain pickle, which carries them, finds their class by name in the worker."""
    driver = """
import sys
from pathlib import Path
from crosscut.graph.shipping import pack_graph
from app import flow
Path(sys.argv[1]).write_bytes(pack_graph(flow.compile(1, 1)))
"""
    assert run_shipped(tmp_path, driver) == ["Point(x=6, color=<Color.RED: 1>)", True, "shop.model"]


def test_a_script_that_knows_itself_under_a_second_name_can_be_sent(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        """import multiprocessing, sys
from crosscut.flow.flow import Flow
from crosscut.graph.shipping import pack_graph
from crosscut.connectors.generate import generate
from crosscut.connectors.printing import printing
assert sys.modules["__mp_main__"] is sys.modules["__main__"]
flow = Flow("twice")
flow.source(generate(lambda number: number, 1)).sink(printing())
assert pack_graph(flow.compile(1, 8))
"""
    )
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True)


def test_functions_and_record_classes_of_the_script_itself_reach_the_workers(tmp_path: Path) -> None:
    driver = """
import sys
from collections import namedtuple
from pathlib import Path
from app import Nothing, Nowhere
from crosscut.flow.flow import Flow
from crosscut.graph.shipping import pack_graph
Pair = namedtuple("Pair", "one two")
flow = Flow("main")
flow.source(Nothing()).map(lambda record: Pair(record, 2)).sink(Nowhere())
Path(sys.argv[1]).write_bytes(pack_graph(flow.compile(1, 1)))
"""
    assert run_shipped(tmp_path, driver) == ["Pair(one=1, two=2)", True, "__main__"]


def test_a_record_class_that_holds_on_to_an_older_self_is_found_under_its_name(tmp_path: Path) -> None:
    """Frozen dataclasses with slots do: the decorator makes a second class."""
    driver = """
import sys
from dataclasses import dataclass
from pathlib import Path
from app import Nothing, Nowhere
from crosscut.flow.flow import Flow
from crosscut.graph.shipping import pack_graph

@dataclass(frozen=True, slots=True)
class Order:
    number: int

flow = Flow("main")
flow.source(Nothing()).map(Order).sink(Nowhere())
Path(sys.argv[1]).write_bytes(pack_graph(flow.compile(1, 1)))
"""
    assert run_shipped(tmp_path, driver) == ["Order(number=1)", True, "__main__"]
