"""json: decodes JSON as a class that the user declares."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from inspect import get_annotations
from typing import Any, Generic, TypeVar, get_args

from crosscut.connectors.extras import ExtraMissing
from crosscut.connectors.files.json_decoding import json_value, may_be_deep
from crosscut.errors import SettingsError

T = TypeVar("T")

_CACHE = "__msgspec_cache__"


def json(kind: type[T]) -> TypedJson[T]:
    """Return a decoder that makes a `kind` of JSON, for `decode=` of a source, or for `map`.

    A value that does not fit `kind` is malformed, like text that is no JSON: the source treats it as its
    option `malformed` says, if it has one, and fails the job if not. In
    `map(crosscut.json(Payment), on_error="dead letters")` it becomes a dead letter. The error names the
    field.

    Args:
        kind: A dataclass, a `msgspec.Struct`, a `TypedDict`, a named tuple or `list[...]` of such, which
            msgspec decodes; or a pydantic model. Needs msgspec or pydantic, on the workers too.

    Raises:
        SettingsError: `kind` is no such type.
        ExtraMissing: msgspec or pydantic is not installed.

    Examples:
        >>> import crosscut as cc
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Payment:
        ...     card: str
        ...     amount: int
        >>> source = cc.files.read_jsonl("payments/*.jsonl", decode=cc.json(Payment))
        >>> decode = cc.json(Payment)
        >>> decode('{"card": "A", "amount": 3}')
        Payment(card='A', amount=3)
        >>> decode('{"card": "A", "amount": "three"}')
        Traceback (most recent call last):
        ValueError: it is no Payment: Expected `int`, got `str` - at `$.amount`
    """
    return TypedJson(kind)


class TypedJson(Generic[T]):
    """See `json`. Called with bytes or text, it returns the value, or raises ValueError."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self._names: dict[str, Any] = {}
        self._decode: Callable[[bytes | str], T] | None = self._made()

    def __repr__(self) -> str:
        return f"crosscut.json({self._shown})"

    def __getstate__(self) -> dict[str, Any]:
        return {"kind": self.kind, "_names": self._names or _names_in_main(self.kind), "_decode": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __call__(self, data: bytes | str) -> T:
        if may_be_deep(data):
            # It raises if the limit is exceeded, also within fields of any type.
            json_value(data)
        if self._decode is None:
            self._decode = self._made()
        return self._decode(data)

    @property
    def _shown(self) -> str:
        return getattr(self.kind, "__qualname__", repr(self.kind))

    def _made(self) -> Callable[[bytes | str], T]:
        if hasattr(self.kind, "model_validate_json"):
            return self._by_pydantic(_imported("pydantic").ValidationError)
        msgspec = _imported("msgspec")
        # The class was pickled by value. Annotations that are text are looked up in its module, which is
        # another `__main__` in a worker.
        for name, one in self._names.items():
            vars(sys.modules["__main__"]).setdefault(name, one)
        try:
            if not _is_declared(self.kind):
                raise TypeError("it declares no fields")
            decode = msgspec.json.Decoder(self.kind).decode
        except (TypeError, NameError) as error:
            shown = self._shown
            raise SettingsError(
                f"crosscut.json({shown}): {error}; expected a dataclass, a msgspec.Struct, a TypedDict, "
                f"a named tuple, a list of them, or a pydantic model"
            ) from error
        for one in _classes_in(self.kind):
            # What msgspec keeps on a class can't be pickled, and a class of `__main__` is, by value.
            if _CACHE in vars(one):
                delattr(one, _CACHE)

        def decoded(data: bytes | str) -> T:
            try:
                value: T = decode(data)
            except (msgspec.ValidationError, RecursionError) as error:
                raise ValueError(f"it is no {self._shown}: {error}") from error
            return value

        return decoded

    def _by_pydantic(self, refusal: type[Exception]) -> Callable[[bytes | str], T]:
        kind: Any = self.kind

        def decoded(data: bytes | str) -> T:
            try:
                value: T = kind.model_validate_json(data)
            except refusal as error:
                problems = "; ".join(_problems(error))
                raise ValueError(f"it is no {self._shown}: {problems}") from error
            return value

        return decoded


def _problems(error: Any) -> Iterator[str]:
    for one in error.errors(include_url=False, include_context=False):
        field = ".".join(map(str, one["loc"]))
        yield f"{one['msg']} - at `$.{field}`" if field else one["msg"]


def _is_declared(kind: Any) -> bool:
    """Whether `kind` or something in it is a class with fields: all else is what decode="json" is for."""
    return (
        (isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "__annotations__")))
        or hasattr(kind, "__struct_fields__")
        or any(map(_is_declared, get_args(kind)))
    )


def _names_in_main(kind: Any) -> dict[str, Any]:
    """Return what annotations that are text name, in classes that are pickled by value."""
    return {
        name: found
        for one in _classes_in(kind)
        if one.__module__ == "__main__"
        for name, found in _names_in(one).items()
    }


def _classes_in(kind: Any) -> Iterator[type]:
    """Yield the classes that `kind` is made of, through the annotations of their fields."""
    waiting, seen = [kind], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        waiting += get_args(one)
        if isinstance(one, type):
            yield one
            waiting += _names_in(one).values()
            for base in one.__mro__:
                waiting += get_annotations(base).values()


def _names_in(one: type) -> dict[str, Any]:
    """Return what the annotations of a class that are text name, as far as its module has it."""
    scope = vars(sys.modules.get(one.__module__, builtins))
    texts = [
        annotation
        for base in one.__mro__
        for annotation in get_annotations(base).values()
        if isinstance(annotation, str)
    ]
    names = {name for text in texts for name in compile(text, "<annotation>", "eval").co_names}
    return {name: scope[name] for name in sorted(names) if name in scope}


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ExtraMissing(
            f"crosscut.json needs {module}, which can't be imported ({error}): pip install {module}, on the "
            f"workers too"
        ) from error
