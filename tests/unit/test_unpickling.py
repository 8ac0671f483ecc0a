"""What is loaded where nobody trusts whoever wrote it."""

from __future__ import annotations

import copyreg
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


class Calling:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self._call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "integers": lambda numpy: numpy.arange(6, dtype=">i4").reshape(2, 3),
    "floats by columns": lambda numpy: numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    "every second": lambda numpy: numpy.arange(10)[::2],
    "axes in another order": lambda numpy: numpy.arange(6).reshape(1, 2, 3).transpose(2, 0, 1),
    "truth": lambda numpy: numpy.array([True, False]),
    "complex": lambda numpy: numpy.array([1j]),
    "bytes": lambda numpy: numpy.array([b"ab"]),
    "texts": lambda numpy: numpy.array(["ab", "c"]),
    "raw": lambda numpy: numpy.zeros(2, "V3"),
    "times": lambda numpy: numpy.array(["2026-01-01"], "M8[ns]"),
    "times of any unit": lambda numpy: numpy.array(["NaT"], "M8"),
    "durations": lambda numpy: numpy.array([[3, 4]], ">m8[25us]"),
    "no axes": lambda numpy: numpy.array(3),
    "nothing": lambda numpy: numpy.zeros((0, 3)),
    "read-only": lambda numpy: numpy.frombuffer(b"abcd", "u2"),
    "a number": lambda numpy: numpy.float64(1.5),
    "a text": lambda numpy: numpy.str_("ab"),
    "a time": lambda numpy: numpy.datetime64("2026-01-01", "h"),
    "a type": lambda numpy: numpy.dtype(">m8[us]"),
    "a type in two arrays": lambda numpy: [numpy.array([n], "M8[s]") for n in (1, 2)],
    "an array twice": lambda numpy: [numpy.arange(10)[::2]] * 2,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_and_numbers_of_numpy_are_data(name: str) -> None:
    numpy = pytest.importorskip("numpy")
    value = ARRAYS[name](numpy)
    for protocol in (3, 4, 5):
        data = pickle.dumps({"value": value, "mine": Account("a")}, protocol)
        found, expected = load_data(data)["value"], pickle.loads(data)["value"]
        assert type(found) is type(expected)
        if isinstance(expected, numpy.dtype):
            assert found == expected
            continue
        if isinstance(expected, list):
            assert (found[0] is found[1]) == (expected[0] is expected[1])
            found, expected = map(numpy.concatenate, (found, expected))
        # NumPy swaps the bytes of some arrays when it loads them.
        assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
        assert (found.shape, found.tolist()) == (expected.shape, expected.tolist())
        assert found.flags.writeable == expected.flags.writeable
        assert found.flags.f_contiguous == expected.flags.f_contiguous


def forged(dtype: Any, data: bytes, shape: tuple[int, ...] = (1,), protocol: int = 5) -> dict[str, bytes]:
    """Return pickles of arrays whose bytes are said to be of `dtype`."""
    arrays = importlib.import_module("numpy._core.multiarray")
    numpy = importlib.import_module("numpy")
    state = (1, shape, dtype, False, data)
    return {
        "from bytes": pickle.dumps(
            Calling(importlib.import_module("numpy._core.numeric")._frombuffer, data, dtype, shape, "C"),
            protocol,
        ),
        "with a state": pickle.dumps(
            Calling(arrays._reconstruct, numpy.ndarray, (0,), b"b", state=state), protocol
        ),
        "a number": pickle.dumps(Calling(arrays.scalar, dtype, data), protocol),
        "by the class": pickle.dumps(Calling(numpy.ndarray, shape, dtype, data), protocol),
    }


def test_no_array_of_addresses_or_of_more_than_its_bytes_is_loaded() -> None:
    """S6: NumPy would follow eight bytes to an object that isn't there."""
    numpy = pytest.importorskip("numpy")
    number = numpy.dtype("i8")
    types = {
        "objects": (Calling(numpy.dtype, "O8", False, True), b"\x41" * 8, (1,)),
        "objects, spelled out": (Calling(numpy.dtype, "object", False, True), b"\x41" * 8, (1,)),
        "a list of fields": (Calling(numpy.dtype, [("a", "O")], False, True), b"\x41" * 8, (1,)),
        "fields": (numpy.dtype([("a", "O")]), b"\x41" * 8, (1,)),
        # It says of itself that it holds no references: the check that NumPy makes.
        "forged fields": (
            Calling(
                numpy.dtype,
                "V8",
                False,
                True,
                state=(3, "|", None, ("a",), {"a": (numpy.dtype("O"), 0)}, 8, 1, 0),
            ),
            b"\x41" * 8,
            (1,),
        ),
        "a forged subarray": (
            Calling(
                numpy.dtype, "V8", False, True, state=(3, "|", (number, (1 << 40,)), None, None, 8, 1, 0)
            ),
            b"\x41" * 8,
            (1,),
        ),
        "too many": (number, b"\x41" * 8, (1 << 40,)),
        "negative": (number, b"\x41" * 8, (-1,)),
        "too few": (number, b"\x41" * 8, (0,)),
        "of nothing": (Calling(numpy.dtype, "V0", False, True), b"", (1 << 40,)),
    }
    for name, (dtype, data, shape) in types.items():
        for way, attack in forged(dtype, data, shape).items():
            if (way, name) in {("a number", one) for one in ("too many", "negative", "too few")}:
                # It has no shape.
                continue
            with pytest.raises(StateError, match="it holds"):
                load_data(attack)


def test_no_array_of_a_class_of_the_program_is_loaded() -> None:
    numpy = pytest.importorskip("numpy")
    kind = type("Matrix", (numpy.ndarray,), {"__module__": __name__})
    here = sys.modules[__name__]
    setattr(here, "Matrix", kind)  # noqa: B010 - pickle looks for it by name
    try:
        with pytest.raises(StateError, match="it holds"):
            load_data(pickle.dumps(numpy.arange(3).view(kind)))
    finally:
        delattr(here, "Matrix")


class Raw(bytearray):
    """Bytes of the program's own."""


@pytest.mark.parametrize("kind", [bytes, bytearray, Raw])
def test_what_is_made_of_its_number_only_is_refused(kind: Any) -> None:
    """S6: thirty bytes that take gigabytes."""
    much = 1 << 40
    for attack in (Calling(kind, much), Calling(kind, Calling(int, str(much))), Calling(kind, range(much))):
        with pytest.raises(StateError, match="far larger"):
            load_data(pickle.dumps(attack))
    by_instruction = pickle.dumps(kind, 4)[:-1] + pickle.dumps((much,), 4)[2:-1] + b"\x81."
    with pytest.raises(StateError, match="far larger"):
        load_data(by_instruction)
    with pytest.raises(StateError, match="far larger"):
        load_data(pickle.dumps(Calling(copyreg._reconstructor, kind, kind, much)))  # type: ignore[attr-defined]
    assert load_data(pickle.dumps(kind)) is kind
    if kind is not bytes:
        assert load_data(pickle.dumps(kind(b"ab"), 4)) == b"ab"


@pytest.mark.parametrize(
    "attack",
    [
        *((kind, range(1 << 40)) for kind in (list, tuple, set, frozenset, deque, Counter, OrderedDict)),
        (Fraction, "1e1000000000"),
        (int, Decimal("1e1000000000")),
    ],
    ids=lambda attack: attack[0].__name__,
)
def test_what_is_counted_out_is_refused(attack: tuple[Any, ...]) -> None:
    """S6."""
    with pytest.raises(StateError, match="far larger"):
        load_data(pickle.dumps(Calling(*attack)))


def test_rows_of_spark_are_data() -> None:
    named, unnamed = Row(number=1, word="a"), Row(1, "a")
    found = load_data(pickle.dumps([named, unnamed]))
    assert (found, found[0].__fields__) == ([named, unnamed], ["number", "word"])


def test_timestamps_of_pandas_are_data() -> None:
    pandas = pytest.importorskip("pandas")
    now = pandas.Timestamp("2026-01-01")
    assert load_data(pickle.dumps(now)) == now


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


def test_an_empty_text_of_numpy_is_loaded_and_an_array_without_size_is_not() -> None:
    numpy = pytest.importorskip("numpy")
    for value in (numpy.str_(""), numpy.bytes_(b"")):
        found = load_data(pickle.dumps({"name": value}, 5))["name"]
        assert (type(found), found) == (type(value), value)
    kind = Calling(numpy.dtype, "U0", False, True)
    for way, attack in forged(kind, b"", (1 << 40,)).items():
        if way != "a number":
            with pytest.raises(StateError, match="it holds"):
                load_data(attack)
