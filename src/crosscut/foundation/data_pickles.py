"""Pickles of data: what a process may load that only looks at what others wrote.

A pickle can call whatever its author names. Here it can only name types of values and classes that hold data.
"""

from __future__ import annotations

import builtins
import io
import pickle  # noqa: S403 - see above
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, BinaryIO
from zoneinfo import ZoneInfo

from crosscut.foundation.aliases import current_name
from crosscut.foundation.array_pickles import STAND_INS, ArrayUnpickler
from crosscut.foundation.unpickling import RefusedPickleError, loading

_VALUES = frozenset(
    {
        *(
            ("builtins", name)
            for name in ("bytearray", "complex", "frozenset", "list", "range", "set", "slice")
        ),
        *(("builtins", name) for name in ("bool", "bytes", "dict", "float", "int", "object", "str", "tuple")),
        *(("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")),
        *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
        ("zoneinfo", "ZoneInfo"),
        ("copyreg", "_reconstructor"),
        ("crosscut.state.encoding", "DELETED"),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("uuid", "UUID"),
        *(("ipaddress", f"IPv{version}{kind}") for version in (4, 6) for kind in ("Address", "Network")),
        *(("pathlib", f"{pure}{kind}Path") for pure in ("", "Pure") for kind in ("", "Posix")),
        ("pandas._libs.tslibs.timestamps", "Timestamp"),
        ("pandas._libs.tslibs.timestamps", "_unpickle_timestamp"),
        ("pandas._libs.tslibs.timedeltas", "Timedelta"),
        ("pandas._libs.tslibs.timedeltas", "_timedelta_unpickle"),
        ("pyspark.sql.types", "Row"),
        ("pyspark.sql.types", "_create_row"),
    }
)
"""What else than classes of data a pickle may name: constructors of values that call nothing."""


@contextmanager
def only_data() -> Iterator[None]:
    """Load only data within the block, in this thread: for reading what others wrote."""
    with loading(load_data):
        yield


def load_data(data: bytes | memoryview) -> Any:
    """Unpickle data.

    Allowed are plain types, values of the standard library, arrays of NumPy (of numbers, texts, times and
    bytes), timestamps of pandas and rows of Spark. So are, if their module has been imported, data classes,
    enumerations, named tuples, structs of msgspec, models of pydantic, classes of attrs, commit messages of
    PySpark's data sources, and the program's own classes. Only their constructors are called; a pickle that
    changes one of them is refused, and so is one that makes a value of plain types far larger than itself,
    such as `bytes(10**9)`.

    Raises:
        RefusedPickleError: The pickle names something else.
        Exception: It is none, or a constructor raised.
    """
    return load_data_from(io.BytesIO(data))


class Unloaded:
    """A value that is not loaded in this process, because its pickle names more than data.

    Where it is pickled again, it becomes its own pickle: a worker that loads that gets the value itself.
    Two are equal if their pickles are: it may be the name of an entry of a `MapState`.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unloaded) and self._data == other._data

    def __hash__(self) -> int:
        return hash(self._data)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)  # noqa: S301 - called by a loader that loads any pickle


@contextmanager
def passing_on() -> Iterator[None]:
    """Load only data within the block, and keep what is more `Unloaded`: for who passes values on."""
    with loading(_loaded_or_kept):
        yield


def _loaded_or_kept(data: bytes | memoryview) -> Any:
    try:
        return load_data(data)
    except RefusedPickleError:
        return Unloaded(bytes(data))


def load_data_from(file: BinaryIO) -> Any:
    """Unpickle the data at the position of `file`, and leave that behind it; see `load_data`."""
    begin = file.tell()
    try:
        return _PlainUnpickler(file).load()
    except _Changeable:
        pass
    file.seek(begin)
    rehearsal = _Rehearsal(file)
    rehearsal.load()
    file.seek(begin)
    return (_ArrayUnpickler if rehearsal.has_arrays else _DataUnpickler)(file).load()


class _Changeable(Exception):
    """A pickle names what `_Rehearsal` has to look at: what can be changed, or fill the memory."""


_LOADED_WHEN_NAMED = ("crosscut.contracts.", "crosscut.connectors.postgres.changes.change")
"""Modules of ours whose classes users keep, such as `DeadLetter`: importing them does nothing else."""


class _Finder:
    """Finds what a pickle names, for the unpickler that is the next of its bases."""

    def find_class(self, module: str, name: str) -> Any:
        module = current_name(module)
        if (module, name) in STAND_INS:
            return STAND_INS[module, name]
        if (module, name) in _VALUES:
            return self._find(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _attribute
        # To import a module for a pickle would run code that its author chose.
        if module not in sys.modules and not module.startswith(_LOADED_WHEN_NAMED):
            raise RefusedPickleError(
                f"it holds {module}.{name}: import {module} first, if you trust it and the author of this"
            )
        found = self._find(module, name)
        # By where it was defined: a module has other names than its own, such as those that it imports.
        if (
            not isinstance(found, type)
            or not (_holds_data(found) or _is_of_program(found.__module__))
            or _is_array(found)
        ):
            raise RefusedPickleError(
                f"it holds {module}.{name}, which is neither of a plain type nor of a class that holds data; "
                f"loading it could run any code of its author"
            )
        return found

    def _find(self, module: str, name: str) -> Any:
        return super().find_class(module, name)  # type: ignore[misc]

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedPickleError(f"it holds a reference to something outside, {pid!r:.100}")


class _DataUnpickler(_Finder, pickle.Unpickler):  # noqa: S301 - see above
    """Loads anything but arrays."""


class _ArrayUnpickler(_Finder, ArrayUnpickler):
    """Loads arrays, too, more slowly."""


class _PlainUnpickler(_DataUnpickler):
    """Loads what names nothing that can be changed or fill the memory, which is most of all data."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if (module, name) in _ARGUMENTS:
            raise _Changeable
        if isinstance(found, BuiltinFunctionType) or (
            isinstance(found, type) and found.__flags__ & _IMMUTABLE
        ):
            return found
        raise _Changeable


class _Rehearsal(_DataUnpickler):
    """Goes through a pickle with stand-ins for all that it names, and refuses it if it would change that.

    The instruction that gives an instance its state takes a class, too, and sets its attributes: the pickle
    would change the program. The unpickler can't be told to refuse it. What makes large values of small
    arguments is refused as well.

    Attributes:
        has_arrays: The pickle names functions of NumPy.
    """

    has_arrays = False

    def find_class(self, module: str, name: str) -> Any:
        module = current_name(module)
        if (module, name) in _ARGUMENTS:
            return _stand_in_of(module, name)
        found = super().find_class(module, name)
        self.has_arrays |= (module, name) in STAND_INS
        if found is _attribute:
            return _Getter
        if isinstance(found, type) and issubclass(found, Enum):
            return _Shared
        if isinstance(found, type) and (base := _checked_base_of(found)) is not None:
            return _stand_in_of(*base)
        return _StandIn if callable(found) else _CONSTANT


class _StandIn:
    """A class, and its instances, which are one: what it costs is time only."""

    __slots__ = ()

    def __new__(cls, *of: object, **named: object) -> Any:
        return _INSTANCE

    def __setstate__(*of: object) -> None:
        # The class itself has none before it.
        if len(of) != 2:
            raise RefusedPickleError(_CHANGES)

    def append(self, one: object) -> None:
        """Called for a list of the user's own."""

    def extend(self, more: object) -> None:
        """Called for a list of the user's own."""

    def add(self, one: object) -> None:
        """Called for a set of the user's own."""

    def __setitem__(self, key: object, value: object) -> None:
        """Called for a dict of the user's own."""


class _Shared(_StandIn):
    """What a pickle gets, but doesn't make: a member of an enumeration, say."""

    __slots__ = ()

    def __new__(cls, *of: object, **named: object) -> Any:
        return _CONSTANT

    def __setstate__(*of: object) -> None:
        raise RefusedPickleError(_CHANGES)


class _Getter(_Shared):
    """Stands in for `_attribute`."""

    __slots__ = ()

    def __new__(cls, *of: object, **named: object) -> Any:
        return _Shared


def _are_values(*of: object) -> bool:
    """Tell whether the pickle holds all that a container is made of: a range, say, is more than that."""
    return all(type(one) in _HELD or isinstance(one, type) for one in of)


def _are_values_and_length(*of: object) -> bool:
    return _are_values(*of[:1]) and all(one is None or type(one) is int for one in of[1:])


def _are_texts_or_numbers(*of: object) -> bool:
    return all(type(one) in (bytes, int, float, str, bool) for one in of)


def _are_terms(*of: object) -> bool:
    """Tell whether a fraction is written without an exponent, whose power would be computed."""
    return all(type(one) is int or (type(one) is str and _TERMS.fullmatch(one) is not None) for one in of)


def _are_bytes(*of: object) -> bool:
    return all(type(one) in (bytes, bytearray, str, list, tuple) for one in of)


def _are_of_base(*of: object) -> bool:
    """Tell whether `_reconstructor` calls a plain type with what that is called with."""
    if len(of) != 3:
        return False
    _, base, state = of
    if base is _stand_in_of("builtins", "object"):
        return state is None
    return isinstance(base, type) and issubclass(base, _Checked) and base.allows(state)


_HELD = (bytes, bytearray, dict, frozenset, list, set, str, tuple, type(None))
_TERMS = re.compile(r"-?[0-9]+(/[0-9]+)?")
_ARGUMENTS: dict[tuple[str, str], Callable[..., bool]] = {
    **{("builtins", name): _are_bytes for name in ("bytearray", "bytes")},
    **{("builtins", name): _are_values for name in ("dict", "frozenset", "list", "set", "tuple")},
    **{("builtins", name): _are_texts_or_numbers for name in ("int", "str")},
    ("builtins", "object"): lambda *of: not of,
    **{("collections", name): _are_values for name in ("Counter", "OrderedDict", "defaultdict")},
    ("collections", "deque"): _are_values_and_length,
    ("copyreg", "_reconstructor"): _are_of_base,
    ("fractions", "Fraction"): _are_terms,
}
"""What is called with such arguments only: with others it may fill the memory, or compute for ever."""


class _Checked(_StandIn):
    """Stands in for something in `_ARGUMENTS`."""

    __slots__ = ()
    allows: Callable[..., bool]

    def __new__(cls, *of: object, **named: object) -> Any:
        if named or not cls.allows(*of):
            raise RefusedPickleError("it holds a call that may make a value far larger than the pickle")
        return _INSTANCE


@cache
def _stand_in_of(module: str, name: str) -> type[_Checked]:
    allows = staticmethod(_ARGUMENTS[module, name])
    return type(name, (_Checked,), {"__slots__": (), "allows": allows})


def _checked_base_of(kind: type) -> tuple[str, str] | None:
    """Return the type in `_ARGUMENTS` that makes the instances of `kind`, if one does."""
    for base in kind.__mro__:
        found = base.__module__, base.__name__
        if found in _ARGUMENTS and base is not object:
            is_made_alike = kind.__new__ is base.__new__ and kind.__init__ is base.__init__  # type: ignore[misc]
            return found if is_made_alike else None
    return None


_INSTANCE, _CONSTANT = object.__new__(_StandIn), object.__new__(_Shared)
_CHANGES = "it changes a class, a function or a constant of the program that loads it"
_IMMUTABLE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE."""


def _attribute(owner: Any, name: Any) -> Any:
    """Stand in for `getattr`, by which pickle names class methods."""
    if (owner, name) != (ZoneInfo, "_unpickle"):
        raise RefusedPickleError(
            f"it holds a reference to {name!r:.100} of {owner!r:.100}, which may be any code"
        )
    return ZoneInfo._unpickle  # type: ignore[attr-defined]


def _holds_data(kind: type) -> bool:
    return (
        is_dataclass(kind)
        or issubclass(kind, Enum)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        or hasattr(kind, "__attrs_attrs__")
        or hasattr(kind, "__struct_fields__")
        or hasattr(kind, "__pydantic_fields__")
        or (kind.__module__ == builtins.__name__ and issubclass(kind, Exception))
        # By name, since a program without Spark imports none of it.
        or any((one.__module__, one.__name__) == _COMMIT_MESSAGE for one in kind.__mro__)
    )


def _is_array(kind: type) -> bool:
    """Tell whether a class is one of NumPy's: see `crosscut.foundation.array_pickles`."""
    return any((one.__module__, one.__name__) == ("numpy", "ndarray") for one in kind.__mro__)


_COMMIT_MESSAGE = ("pyspark.sql.datasource", "WriterCommitMessage")
"""What a data source of PySpark tells itself from task to driver."""


_stand_ins: set[str] = set()


def count_as_program(module: str) -> None:
    """Take a module for one of the user's program, though it has no file in this process.

    Workers call it of a module that stands in for one of the driver, whose classes came by value.
    """
    _stand_ins.add(module)
    _is_of_program.cache_clear()


@cache
def _is_of_program(module: str) -> bool:
    """Return whether a loaded module is of the user's program: neither of Python, nor installed, nor ours."""
    if module.partition(".")[0] in sys.stdlib_module_names - {"__main__"} or module.startswith("crosscut."):
        return False
    if module == "__main__" or module in _stand_ins:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return False
    if module.partition(".")[0] in _OF_WORKERS:
        return False
    path = Path(file).resolve()
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    if any(path.is_relative_to(one) for one in installed) or {"site-packages", "dist-packages"} & {
        *path.parts
    }:
        return False
    # A directory of `pip install --target`, say, which is on PYTHONPATH.
    roots = path.parents[module.count(".") + (path.stem == "__init__") :]
    return not roots or next(roots[0].glob("*.dist-info"), None) is None


_OF_WORKERS = ("pyspark", "py4j", "cloudpickle")
"""A Spark distribution has them outside of the directories of packages."""
