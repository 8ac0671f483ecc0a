"""The graph on its way to workers: modules as source, the main program by value, installed code by name."""

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
from crosscut.contracts.connectors import (
    JSON,
    Sink,
    SinkContext,
    SinkWriter,
    Source,
    Split,
    SplitReader,
)
from crosscut.errors import FlowError
from crosscut.flow.flow import Flow
from crosscut.graph.shipping import pack_graph, unpack_graph
from crosscut.graph.specs import JobGraph, MapSpec


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


def test_code_of_a_module_that_differs_from_its_source_travels_by_value() -> None:
    """As that of this one: pytest rewrites its assertions."""
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
from crosscut.contracts.connectors import Sink, Source

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
    # On another machine there is no such directory.
    driver_dir.rename(tmp_path / "elsewhere")
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
from crosscut.connectors.simple.generate import generate
from crosscut.connectors.simple.printing import printing
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


def shipped(tmp_path: Path, body: str, *, modules: dict[str, str] | None = None, record: str = "1") -> Any:
    """Return what `f` of a main program makes of a record in a worker that has none of its files."""
    driver_dir = tmp_path / "driver"
    for name, text in (modules or {}).items():
        (driver_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (driver_dir / name).write_text(text)
    driver_dir.mkdir(exist_ok=True)
    (driver_dir / "main.py").write_text(PROGRAM.replace("BODY", body))
    (tmp_path / "worker.py").write_text(CALLER.replace("RECORD", record))
    run(driver_dir / "main.py", tmp_path / "packed", cwd=driver_dir)
    driver_dir.rename(tmp_path / "elsewhere")
    return json.loads(run(tmp_path / "worker.py", tmp_path / "packed", cwd=tmp_path))


PROGRAM = """
import sys
from pathlib import Path
from crosscut.flow.flow import Flow
from crosscut.graph.rehearsal import Rehearsal
from crosscut.graph.shipping import pack_graph
from crosscut.connectors.simple.items import items
from crosscut.connectors.simple.printing import printing
BODY
if __name__ == "__main__":
    flow = Flow("main")
    flow.source(items([1])).map(f).named("f").sink(printing())
    graph = flow.compile(1, 1)
    Path(sys.argv[1]).write_bytes(pack_graph(graph, Rehearsal(graph).result()))
"""

CALLER = """
import json, sys
from pathlib import Path
from crosscut.graph.shipping import unpack_graph

graph = unpack_graph(Path(sys.argv[1]).read_bytes())
(f,) = [node.spec.function for vertex in graph.vertices for node in vertex.chain if node.uid == "f"]
print(json.dumps(f(RECORD)))
"""

LAYOUTS: dict[str, tuple[dict[str, str], str]] = {
    "import in a function": (
        {"lazy.py": "def ten():\n    return 10\n"},
        "def f(x):\n    import lazy\n    return lazy.ten() * x",
    ),
    "circular imports": (
        {
            "one.py": "import two\ndef ten():\n    return two.five() * 2\n",
            "two.py": "import one\ndef five():\n    return 5\n",
        },
        "import one\ndef f(x):\n    return one.ten() * x",
    ),
    "namespace package, relative import": (
        {
            "space/part/mod.py": "from .other import five\ndef ten():\n    return five() * 2\n",
            "space/part/other.py": "def five():\n    return 5\n",
        },
        "from space.part.mod import ten\ndef f(x):\n    return ten() * x",
    ),
    "the name of a library": (
        {"yaml.py": "def ten():\n    return 10\n"},
        "import yaml\ndef f(x):\n    return yaml.ten() * x",
    ),
    "a variable set after the import": (
        {"conf.py": "N = 1\nNAMES = []\ndef n():\n    return N * len(NAMES)\n"},
        "import conf\nconf.N = 5\nconf.NAMES += ['a', 'b']\ndef f(x):\n    return conf.n() * x",
    ),
    "a variable of a module that another one imports": (
        {
            "deep.py": "N = 1\n",
            "between.py": "import deep\ndef n():\n    return deep.N\n",
        },
        "import deep\nfrom between import n\ndeep.N = 10\ndef f(x):\n    return n() * x",
    ),
    "a lambda and a function share a variable": (
        {
            "shared.py": "SEEN = []\ndef note(x):\n    SEEN.append(x)\n"
            "count = lambda x: (note(x), len(SEEN) * 10)[1]\n"
        },
        "from shared import count as f",
    ),
    "a lock of a module": (
        {
            "locked.py": "import threading\nlock = threading.Lock()\ndef ten():\n"
            "    with lock:\n        return 10\n"
        },
        "from locked import ten\ndef f(x):\n    return ten() * x",
    ),
    "lru_cache in a module": (
        {"cache.py": "from functools import lru_cache\n@lru_cache\ndef ten(x):\n    return 10 * x\n"},
        "from cache import ten as f",
    ),
    "lru_cache of the program, which calls itself": (
        {},
        "import functools\n@functools.cache\ndef g(x):\n    return x if x < 2 else g(x - 1) + g(x - 2)\n"
        "def f(x):\n    return g(x + 5) + 2 * x",
    ),
    "cached_property and lru_cache of a class of the program": (
        {},
        "import functools\nclass A:\n    @functools.cached_property\n    def five(self):\n        return 5\n"
        "    @functools.lru_cache\n    def two(self):\n        return 2\n"
        "def f(x):\n    a = A()\n    return a.five * a.two() * x",
    ),
    "singledispatch": (
        {},
        "import functools\n@functools.singledispatch\ndef g(x):\n    return 0\n"
        "@g.register\ndef _(x: int):\n    return 10 * x\ndef f(x):\n    return g(x) + g('')",
    ),
    "ContextVar and thread-local": (
        {},
        "import contextvars, threading\nV = contextvars.ContextVar('v', default=10)\nL = threading.local()\n"
        "def f(x):\n    L.n = V.get() * x\n    return L.n",
    ),
    "slots": (
        {},
        "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass A:\n    n: int = 5\n"
        "class B:\n    __slots__ = ('n',)\n    def __init__(self):\n        self.n = 2\n"
        "def f(x):\n    return A().n * B().n if not hasattr(A(), '__dict__') else 0",
    ),
    "a named tuple and an enum": (
        {},
        "import enum, typing\nclass A(typing.NamedTuple):\n    n: int = 5\n"
        "class B(enum.Enum):\n    TWO = 2\n    def value_of(self):\n        return self.value\n"
        "def f(x):\n    return A()._replace(n=5).n * B.TWO.value_of() * x",
    ),
    "a module that only the driver can import": (
        {
            "once.py": "import os, sys\nif 'crosscut.graph.rehearsal' in sys.modules and not "
            "sys.argv[0].endswith('main.py'):\n    raise OSError('driver only')\n"
            "def ten():\n    return 10\n"
        },
        "from once import ten\ndef f(x):\n    return ten() * x",
    ),
    "a module that starts a job": (
        {
            "start.py": "from crosscut.graph.shipped_imports import refuse_start\nrefuse_start()\nTEN = 10\n"
            "def ten():\n    return TEN\n"
        },
        "from start import ten\ndef f(x):\n    return ten() * x",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_code_works_in_workers_however_it_is_laid_out(name: str, tmp_path: Path) -> None:
    """P9."""
    modules, body = LAYOUTS[name]
    assert shipped(tmp_path, body, modules=modules) == 10


STRUCTS = """
from __future__ import annotations
import msgspec

class Base(msgspec.Struct, kw_only=True):
    at: int = 0

class Line(msgspec.Struct, frozen=True, array_like=True):
    n: int
    tags: list[str] = msgspec.field(default_factory=list)

class Order(Base, kw_only=True, tag="order", rename="camel"):
    order_no: int
    who: str = msgspec.field(default="ada", name="by")
    lines: list[Line] = []
    before: Order | None = None

    def __post_init__(self):
        self.at += 1

    def twice(self):
        return self.order_no * 2

    def __repr__(self):
        return "<" + super().__repr__() + ">"

def f(text):
    one = msgspec.json.decode(text, type=Order)
    return [msgspec.json.encode(one).decode(), one.twice(), repr(one), Order(order_no=1).who]
"""


def test_structs_of_the_program_have_their_fields_defaults_and_methods_in_workers(tmp_path: Path) -> None:
    """P9: `{}` for every record, once."""
    text = '{"type":"order","orderNo":7,"lines":[[1,["a"]]],"before":{"type":"order","orderNo":6}}'
    (tmp_path / "here.py").write_text(f"{STRUCTS}\nimport json\nprint(json.dumps(f({text!r})))\n")
    expected = json.loads(run(tmp_path / "here.py", cwd=tmp_path))
    body = STRUCTS.replace("from __future__ import annotations", "").replace("Order | None", "'Order | None'")
    assert shipped(tmp_path, body, record=repr(text)) == expected


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs quotes before Python 3.14")
def test_a_struct_that_names_itself_without_quotes_arrives(tmp_path: Path) -> None:
    body = (
        "import msgspec\n"
        "class Order(msgspec.Struct):\n    n: int\n    before: Order | None = None\n"
        "def f(text):\n    return msgspec.json.decode(text, type=Order).before.n\n"
    )
    assert shipped(tmp_path, body, record=repr('{"n": 1, "before": {"n": 2}}')) == 2


def test_generic_structs_of_the_program_arrive_with_their_parameters(tmp_path: Path) -> None:
    body = (
        "import msgspec\nfrom typing import Generic, TypeVar\nT = TypeVar('T')\n"
        "class Pair(msgspec.Struct, Generic[T]):\n    one: T\n    other: list[T] = []\n"
        "class Numbers(Pair[int]):\n    more: int = 3\n"
        "def f(text):\n"
        "    decoded = msgspec.json.decode(text, type=Pair[int])\n"
        "    try:\n        msgspec.json.decode(text, type=Pair[str])\n"
        "    except msgspec.ValidationError as error:\n"
        "        return [decoded.one, Numbers(1).more, len(Pair.__parameters__), str(error)]\n"
    )
    found = shipped(tmp_path, body, record=repr('{"one": 1}'))
    assert found == [1, 3, 1, "Expected `str`, got `int` - at `$.one`"]


def test_a_traceback_of_the_program_names_its_file_and_line_and_one_of_a_module_shows_it(
    tmp_path: Path,
) -> None:
    """Also with a cloudpickle that leaves the file of code out."""
    modules = {"broken.py": "def fail(x):\n    return x / 0  # here\n"}
    body = (
        "import traceback\nimport broken\ndef f(x):\n    try:\n        return broken.fail(x)\n"
        "    except ZeroDivisionError:\n        return traceback.format_exc()\n"
    )
    text = shipped(tmp_path, body, modules=modules)
    assert f'File "{tmp_path}/driver/main.py", line 13, in f' in text
    assert f'File "{tmp_path}/driver/broken.py", line 2, in fail\n    return x / 0  # here' in text


def refused_start(tmp_path: Path, body: str, modules: dict[str, str] | None = None) -> str:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        shipped(tmp_path, body, modules=modules)
    return str(caught.value.stderr)


def test_a_class_that_would_not_arrive_whole_is_refused_by_name(tmp_path: Path) -> None:
    """P9."""
    body = (
        "class Meta(type):\n    def __new__(cls, name, bases, space):\n        made = super().__new__("
        "cls, name, bases, space)\n        made._fields = tuple("
        "name for name in space if name[0] != '_')\n        return made\n"
        "    def __setattr__(cls, name, value):\n        if name != '_fields':\n"
        "            super().__setattr__(name, value)\n        elif not hasattr(cls, '_fields'):\n"
        "            super().__setattr__(name, value)\n"
        "class Order(metaclass=Meta):\n    n = 1\n"
        "def f(x):\n    return Order()._fields\n"
    )
    message = refused_start(tmp_path, body)
    assert "FlowError: flow 'main': Order of __main__ would be another class in the workers" in message
    assert 'fields [], expected ["n"]' in message


def test_a_library_that_workers_have_not_is_refused_by_name(tmp_path: Path) -> None:
    """P9: it is on the path of the driver alone."""
    library = tmp_path / "libraries"
    (library / "gone-1.dist-info").mkdir(parents=True)
    (library / "gone-1.dist-info" / "RECORD").write_text("gone.py,,\n")
    (library / "gone.py").write_text("def ten():\n    return 10\n")
    body = (
        f"sys.path.insert(0, {str(library)!r})\nfrom gone import ten\nsys.path.pop(0)\n"
        "def f(x):\n    return ten() * x\n"
    )
    assert (
        "ModuleNotFoundError: No module named 'gone'. A library has to be installed where"
        in refused_start(tmp_path, body)
    )


def test_a_module_of_an_earlier_job_in_the_same_process_makes_way(tmp_path: Path) -> None:
    packed = []
    for number in (1, 2):
        place = tmp_path / str(number)
        place.mkdir()
        shipped(
            place, "from version import f", modules={"version.py": f"def f(x):\n    return {number} * x\n"}
        )
        packed.append(place / "packed")
    (tmp_path / "both.py").write_text(
        CALLER.split("graph =")[0]
        + """
found = []
for path in sys.argv[1:]:
    graph = unpack_graph(Path(path).read_bytes())
    (f,) = [node.spec.function for vertex in graph.vertices for node in vertex.chain if node.uid == "f"]
    import version
    found.append([f(10), version.f is f])
print(json.dumps(found))
"""
    )
    assert json.loads(run(tmp_path / "both.py", *packed, packed[0], cwd=tmp_path)) == [
        [10, True],
        [20, True],
        [10, True],
    ]
