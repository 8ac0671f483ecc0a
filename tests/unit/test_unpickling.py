"""What is loaded where nobody trusts whoever wrote it."""

from __future__ import annotations

import datetime
import importlib
import os
import pickle
import subprocess
import sys
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import ip_address
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from pyspark.sql import Row

from crosscut.errors import StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.data_pickles import load_data, only_data
from crosscut.foundation.unpickling import loader
from crosscut.savepoints.values import from_text, to_text
from crosscut.state.encoding import DELETED, loaded
from crosscut.web.endpoint import Endpoint
from crosscut.wire.batches import decode_batch, encode_batch


@dataclass
class Account:
    owner: str
    balance: int = 0


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Slotted(msgspec.Struct):
    name: str


@dataclass(frozen=True, slots=True)
class Frozen:
    number: int


class Items(list[Any]):
    """A list of the program's own."""

    def __init__(self, *items: Any) -> None:
        super().__init__(items)


class OfTheProgram:
    def __init__(self) -> None:
        self.items = [1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfTheProgram) and other.items == self.items


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, (b"x", {1}, frozenset({2}))]},
        bytearray(b"x"),
        1j,
        range(3),
        Decimal("1.5"),
        Fraction(1, 3),
        UUID(int=7),
        datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        datetime.timedelta(days=1),
        Counter("aab"),
        OrderedDict(a=1),
        defaultdict(list, {"a": [1]}),
        deque([1], maxlen=3),
        ip_address("::1"),
        PurePosixPath("a/b"),
        Account("a", 1),
        Colour.RED,
        Point(1, 2),
        Slotted("a"),
        OfTheProgram(),
        ValueError("a"),
    ],
)
def test_data_is_loaded_as_it_was(value: Any) -> None:
    for protocol in (4, 5):
        found = load_data(pickle.dumps(value, protocol))
        assert type(found) is type(value)
        assert repr(found) == repr(value) if isinstance(value, Exception) else found == value


def test_the_sign_of_a_deleted_row_is_data() -> None:
    assert load_data(pickle.dumps(DELETED)) is DELETED


def test_arrays_and_numbers_of_numpy_are_data() -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(6).reshape(2, 3)
    assert numpy.array_equal(load_data(pickle.dumps(array, 5)), array)
    assert load_data(pickle.dumps(numpy.float64(1.5))) == 1.5


def test_rows_of_spark_are_data() -> None:
    named, unnamed = Row(number=1, word="a"), Row(1, "a")
    found = load_data(pickle.dumps([named, unnamed]))
    assert (found, found[0].__fields__) == ([named, unnamed], ["number", "word"])


def test_timestamps_of_pandas_are_data() -> None:
    pandas = pytest.importorskip("pandas")
    now = pandas.Timestamp("2026-01-01")
    assert load_data(pickle.dumps(now)) == now


class Calling:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def attacks(witness: str) -> dict[str, bytes]:
    command = f"open({witness!r}, 'w')"
    # A module has the names that it imports: through `tests...:subprocess.Popen` the way leads elsewhere.
    here = __name__
    dotted = b"\x80\x04" + b"\x8c" + bytes((len(here),)) + here.encode()
    dotted += b"\x8c\x10subprocess.Popen\x93" + pickle.dumps(([sys.executable, "-c", command],))[2:-1] + b"R."
    return {
        "system": pickle.dumps(Calling(os.system, f"touch {witness}")),
        "eval": pickle.dumps(Calling(eval, command + ".close()")),  # noqa: S307 - not called
        "a class of Python": pickle.dumps(Calling(subprocess.Popen, ["touch", witness])),
        "a name with dots": dotted,
        "a getter": pickle.dumps(Calling(getattr, Account, "__init__")),
        "an import": pickle.dumps(Calling(__import__, "antigravity")),
        "a function of the program": pickle.dumps(Calling(attacks, "x")),
        "a module that is not imported": b"cthis\nd\n.",
    }


@pytest.mark.parametrize("name", attacks(""))
def test_a_pickle_that_would_run_code_is_refused_by_name(name: str, tmp_path: Any) -> None:
    witness = tmp_path / "witness"
    with pytest.raises(StateError, match="it holds"):
        load_data(attacks(str(witness))[name])
    assert not witness.exists()
    assert not {"antigravity", "this"} & set(sys.modules)


def test_the_attacks_of_these_tests_work_where_everything_is_loaded(tmp_path: Any) -> None:
    """The control of the test above."""
    for name in ("system", "eval", "a class of Python", "a name with dots"):
        witness = tmp_path / name.replace(" ", "-")
        found = pickle.loads(attacks(str(witness))[name])
        if isinstance(found, subprocess.Popen):
            found.wait()
        assert witness.exists()


def changing(found: Callable[..., Any] | Enum, name: str, value: Any) -> bytes:
    """Return a pickle that sets an attribute of what it names."""
    key = name.encode()
    state = b"N}\x8c" + bytes((len(key),)) + key + pickle.dumps(value, 4)[2:-1] + b"s\x86b."
    return pickle.dumps(found, 4)[:-1] + state


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (Account, "__init__"),
        (Colour, "RED"),
        (Colour.RED, "_value_"),
        (OfTheProgram, "__init__"),
        (Slotted, "rename"),
        (Fraction, "__add__"),
        (UUID, "hex"),
        (PurePosixPath, "name"),
        (Endpoint, "address"),
        (DELETED, "shown"),
        (getattr, "__defaults__"),
    ],
)
def test_a_pickle_changes_no_class_function_or_shared_value(found: Any, name: str) -> None:
    """It would change the program that looks: `LogKey.has_noted` may become a type that is always true."""
    before = dict(vars(found)) if hasattr(found, "__dict__") else {}
    with pytest.raises(StateError, match="changes"):
        load_data(changing(found, name, (list,) if name == "__defaults__" else list))
    assert (dict(vars(found)) if hasattr(found, "__dict__") else {}) == before


def test_the_attack_on_classes_works_where_everything_is_loaded() -> None:
    """The control of the test above."""

    @dataclass
    class Victim:
        owner: str

    here = sys.modules[__name__]
    Victim.__qualname__ = "Victim"
    setattr(here, "Victim", Victim)  # noqa: B010 - pickle looks for it by name
    try:
        pickle.loads(changing(Victim, "owner", list))
        assert vars(Victim)["owner"] is list
    finally:
        delattr(here, "Victim")


def test_what_is_no_instance_of_a_list_is_filled_as_it_was() -> None:
    found = load_data(pickle.dumps(Items(Account("a"), {Colour.RED: Point(1, 2)})))
    assert (list(found), type(found)) == ([Account("a"), {Colour.RED: Point(1, 2)}], Items)
    assert load_data(pickle.dumps(Frozen(1))) == Frozen(1)


def test_a_library_beside_the_installed_ones_is_not_of_the_program(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `pip install --target` and PYTHONPATH; the file of a class of the program is anywhere else."""
    for kind in ("library", "program"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"a_{kind}.py").write_text("class Opening:\n    pass\n")
        monkeypatch.syspath_prepend(tmp_path / kind)
    (tmp_path / "library" / "a_library-1.0.dist-info").mkdir()
    library, own = importlib.import_module("a_library"), importlib.import_module("a_program")
    assert type(load_data(pickle.dumps(own.Opening()))) is own.Opening
    # Wherever a loader of somebody's own says that a module is.
    for name in ("far_off", "far_off.package"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("far_off.package.module")
    module.__file__ = "/module.py"
    module.Opening = type("Opening", (), {"__module__": module.__name__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert type(load_data(pickle.dumps(module.Opening()))) is module.Opening
    with pytest.raises(StateError, match=r"a_library\.Opening"):
        load_data(pickle.dumps(library.Opening()))


def test_state_records_and_values_are_loaded_as_data_within_the_block_only(tmp_path: Any) -> None:
    witness = tmp_path / "witness"
    attack = Calling(open, str(witness), "w")
    records = encode_batch(Batch([Calling(os.system, f"touch {witness}")]))
    text = to_text(attack)
    with only_data():
        with pytest.raises(StateError, match="open"):
            loaded(pickle.dumps(attack))
        with pytest.raises(StateError, match="system"):
            decode_batch(records)
        with pytest.raises(StateError, match="open"):
            from_text(text)
        assert loader() is load_data
    assert not witness.exists()
    assert loader() is pickle.loads
    decode_batch(records)
    assert witness.exists()


def test_a_process_that_has_not_imported_our_own_records_loads_them(tmp_path: Any) -> None:
    from crosscut.contracts.dead_letters import DeadLetter

    letter = DeadLetter("record", "ValueError: bad", "parse", "key", None, "")
    (tmp_path / "letter").write_bytes(pickle.dumps(letter))
    program = (
        "import sys\n"
        "from crosscut.foundation.data_pickles import load_data\n"
        "assert 'crosscut.contracts.dead_letters' not in sys.modules\n"
        f"print(load_data(open({str(tmp_path / 'letter')!r}, 'rb').read()).error)\n"
    )
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout == "ValueError: bad\n", found.stderr
