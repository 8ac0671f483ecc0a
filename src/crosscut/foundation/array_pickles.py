"""Arrays and numbers of NumPy out of a pickle that anybody may have written.

A pickle tells NumPy what the bytes of an array are. It could say that they are references to objects, and
NumPy would follow them to whatever address its author chose. So what makes types and arrays here takes plain
types only, and checks sizes; NumPy's own `__setstate__` is never called.
"""

from __future__ import annotations

import pickle  # noqa: S403 - see above
import re
from collections.abc import Callable
from importlib import import_module
from math import prod
from typing import Any, ClassVar

from crosscut.foundation.unpickling import RefusedPickleError

_PLAIN = re.compile(r"[biufcSUMmV][1-9][0-9]{0,9}|[SU]0")
"""Types of numbers, texts, times and bytes, as NumPy's pickles name them; an empty text has no size."""

_DIMENSIONS_MAX = 64
_ORDERS = ("<", ">", "|", "=")
_UNITS = frozenset(
    (b"generic", b"Y", b"M", b"W", b"D", b"h", b"m", b"s", b"ms", b"us", b"ns", b"ps", b"fs", b"as")
)


_Unpickler: Any = pickle._Unpickler  # type: ignore[attr-defined,unused-ignore]
"""The one in Python, whose instructions can be replaced."""


class ArrayUnpickler(_Unpickler):  # type: ignore[misc]
    """Makes arrays and their types anew where a pickle would change them."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(_Unpickler.dispatch)

    def load_build(self) -> None:
        """Give what is on the stack its state."""
        numpy = import_module("numpy")
        before = self.stack[-2]
        if isinstance(before, numpy.dtype):
            made = _typed(before, self.stack.pop())
        elif isinstance(before, numpy.ndarray):
            made = _filled(self.stack.pop())
        else:
            super().load_build()
            return
        self.stack[-1] = made
        # It was memorised a moment ago, and nothing but its state was made since.
        for place in reversed(self.memo):
            if self.memo[place] is before:
                self.memo[place] = made
                break

    dispatch[pickle.BUILD[0]] = load_build


def _of_bytes(data: Any, kind: Any, shape: Any, order: Any = "C", axes: Any = None) -> Any:
    """Stand in for `numpy._core.numeric._frombuffer`."""
    if order == "K" and axes is not None:
        return _array(data, kind, shape, "C").transpose(axes)
    return _array(data, kind, shape, order)


def _number(kind: Any, data: Any) -> Any:
    """Stand in for `numpy._core.multiarray.scalar`."""
    return _array(bytearray(data) if type(data) is bytes else data, kind, (), "C")[()]


def _type(text: Any, is_aligned: Any = False, is_copy: Any = True) -> Any:
    """Stand in for `numpy.dtype`."""
    numpy = import_module("numpy")
    if type(text) is not str or not _PLAIN.fullmatch(text):
        raise RefusedPickleError(f"it holds an array of type {text!r:.100}, which is not plain")
    return numpy.dtype(text)


def _no_array(*of: object) -> Any:
    """Stand in for `numpy.ndarray`, which NumPy's pickles name, but don't call."""
    raise RefusedPickleError("it holds an array that is made in another way than NumPy pickles it")


def _empty(kind: Any, shape: Any, code: Any) -> Any:
    """Stand in for `numpy._core.multiarray._reconstruct`: what it returns gets a state."""
    numpy = import_module("numpy")
    if kind is not _no_array:
        raise RefusedPickleError("it holds an array of a class that is not NumPy's own")
    return numpy.zeros(0, "i1")


STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _type,
    ("numpy", "ndarray"): _no_array,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _empty),
            ("multiarray", "scalar", _number),
            ("numeric", "_frombuffer", _of_bytes),
        )
    },
}
"""By module and name: what a pickle gets instead of NumPy's functions. Load it with `ArrayUnpickler`."""


def _typed(plain: Any, state: Any) -> Any:
    """Return a plain type with the order of bytes and the unit of time that are in its state."""
    numpy = import_module("numpy")
    match state:
        case (int(), str(order), None, None, None, int(), int(), int()):
            return plain.newbyteorder(_checked_order(order))
        case (int(), str(order), None, None, None, int(), int(), int(), meta) if plain.kind in "Mm":
            match meta:
                case (_, (bytes(unit), int(count), int(), *_)) if unit in _UNITS and 0 < count < 1 << 31:
                    shown = "" if unit == b"generic" else f"[{count}{unit.decode()}]"
                    return numpy.dtype(f"{_checked_order(order)}{plain.kind}8{shown}")
                case _:
                    pass
        case _:
            pass
    raise RefusedPickleError(f"it holds an array of a type that is not plain: {state!r:.100}")


def _checked_order(order: str) -> Any:
    if order not in _ORDERS:
        raise RefusedPickleError(f"it holds an array with the order of bytes {order!r:.100}")
    return order


def _filled(state: Any) -> Any:
    """Return the array that is in its state."""
    match state:
        case (int(), shape, kind, bool(is_by_columns), bytes(data)):
            # With a copy of the bytes, which can be written to.
            return _array(bytearray(data), kind, shape, "F" if is_by_columns else "C")
        case _:
            pass
    raise RefusedPickleError("it holds an array of a type that is not plain, or none at all")


def _array(data: Any, kind: Any, shape: Any, order: Any) -> Any:
    numpy = import_module("numpy")
    if (
        not isinstance(kind, numpy.dtype)
        or kind.hasobject
        or type(data) not in (bytes, bytearray)
        or type(shape) is not tuple
        or len(shape) > _DIMENSIONS_MAX
        or not all(type(one) is int and one >= 0 for one in shape)
        or len(data) != prod(shape) * kind.itemsize
        or (shape and not kind.itemsize)
    ):
        raise RefusedPickleError("it holds an array whose shape and type do not fit its bytes")
    return numpy.ndarray(shape, kind, data, order="F" if order == "F" else "C")
