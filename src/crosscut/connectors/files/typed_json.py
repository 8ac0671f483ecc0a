"""json: decodes JSON as a class that the user declares."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import get_annotations
from typing import Any, ForwardRef, Generic, TypeVar, get_args, get_origin

from crosscut.connectors.extras import ExtraMissing
from crosscut.connectors.files.json_decoding import check_depth
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
        kind: A dataclass, a `msgspec.Struct`, a `TypedDict`, a named tuple (of a JSON array only) or
            `list[...]` of such, which msgspec decodes; or a pydantic model or dataclass. Where one of
            pydantic's is nested in another type, pydantic decodes all of it. Needs msgspec or pydantic, on
            the workers too.

    Raises:
        SettingsError: `kind` is no such type, or has a field of a type that can't be decoded.
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
        # Within fields of any type, too.
        check_depth(data)
        if self._decode is None:
            self._decode = self._made()
        return self._decode(data)

    @property
    def _shown(self) -> str:
        return getattr(self.kind, "__qualname__", repr(self.kind))

    def _made(self) -> Callable[[bytes | str], T]:
        # The class was pickled by value. Annotations that are text are looked up in its module, which is
        # another `__main__` in a worker.
        for name, one in self._names.items():
            vars(sys.modules["__main__"]).setdefault(name, one)
        if any(hasattr(one, "__pydantic_validator__") for one in _classes_in(self.kind)):
            # msgspec would take a pydantic dataclass for a plain one, and skip its validation; of a model it
            # knows nothing.
            return self._by_pydantic(_imported("pydantic"))
        return self._by_msgspec(_imported("msgspec"))

    def _by_msgspec(self, msgspec: Any) -> Callable[[bytes | str], T]:
        try:
            if not _is_declared(self.kind):
                raise TypeError("it declares no fields")
            decode = msgspec.json.Decoder(self.kind).decode
            _check_decodable(self.kind)
        except (TypeError, NameError) as error:
            raise self._refused(error) from error
        finally:
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

    def _by_pydantic(self, pydantic: Any) -> Callable[[bytes | str], T]:
        try:
            decode = pydantic.TypeAdapter(self.kind).validate_json
            with suppress(pydantic.ValidationError):
                # A class with an annotation that is not defined yet is noticed only when it is used.
                decode(b"")
        except (pydantic.PydanticUserError, NameError, TypeError) as error:
            raise self._refused(error) from error

        def decoded(data: bytes | str) -> T:
            try:
                value: T = decode(data)
            except pydantic.ValidationError as error:
                problems = "; ".join(_problems(error))
                raise ValueError(f"it is no {self._shown}: {problems}") from error
            return value

        return decoded

    def _refused(self, error: Exception) -> SettingsError:
        reason = str(error).partition("\n")[0]
        return SettingsError(
            f"crosscut.json({self._shown}): {reason}; expected a dataclass, a msgspec.Struct, a TypedDict, a "
            f"named tuple, a list of them, or a pydantic model"
        )


def _problems(error: Any) -> Iterator[str]:
    for one in error.errors(include_url=False, include_context=False):
        field = ".".join(map(str, one["loc"]))
        yield f"{one['msg']} - at `$.{field}`" if field else one["msg"]


def _is_declared(kind: Any) -> bool:
    """Whether `kind` or something in it is a class with fields: all else is what decode="json" is for."""
    return (
        (isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "__annotations__")))
        or hasattr(kind, "__struct_fields__")
        or (get_origin(kind) is not None and any(map(_is_declared, (get_origin(kind), *get_args(kind)))))
    )


def _check_decodable(kind: Any) -> None:
    """Raise TypeError if msgspec takes `kind`, but could decode no JSON as a class in it."""
    waiting, seen = [(import_module("msgspec.inspect").type_info(kind), "$")], set[int]()
    while waiting:
        one, path = waiting.pop()
        if isinstance(one, tuple):
            waiting += [(each, path) for each in one]
        elif type(one).__module__ == "msgspec.inspect" and id(one) not in seen:
            seen.add(id(one))
            if type(one).__name__ == "CustomType":
                _check_custom(one.cls, path)
            if type(one).__name__ == "Field":
                waiting.append((one.type, f"{path}.{one.encode_name}"))
            elif type(one).__name__ == "DataclassType":
                unset = _set_by_class(one.cls)
                waiting += [(each, path) for each in one.fields if each.required or each.name not in unset]
            else:
                waiting += [(getattr(one, name), path) for name in one.__struct_fields__]


def _set_by_class(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass, or of a class of attrs, that `__init__` does not take."""
    found = get_origin(kind) or kind
    declared = fields(found) if is_dataclass(found) else found.__attrs_attrs__
    return frozenset(each.name for each in declared if not each.init)


def _check_custom(kind: Any, path: str) -> None:
    found = get_origin(kind) or kind
    if isinstance(found, type) and any(issubclass(one, found) for one in _OF_JSON):
        # Values of `object`, say, need no conversion.
        return
    name = getattr(found, "__qualname__", repr(found))
    at = f" at `{path}`" if path != "$" else ""
    raise TypeError(f"msgspec can't make a {name}{at} of JSON")


_OF_JSON = (dict, list, str, int, float, bool, type(None))


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
        waiting += [get_origin(one), *get_args(one)]
        if isinstance(one, type):
            yield one
            waiting += _names_in(one).values()
            for base in one.__mro__:
                waiting += get_annotations(base).values()


def _names_in(one: type) -> dict[str, Any]:
    """Return what the annotations of a class that are text name, as far as its module has it."""
    scope = vars(sys.modules.get(one.__module__, builtins))
    annotations = [annotation for base in one.__mro__ for annotation in get_annotations(base).values()]
    # Typed dicts and named tuples keep text as references.
    found = [each.__forward_arg__ if isinstance(each, ForwardRef) else each for each in annotations]
    texts = [annotation for annotation in found if isinstance(annotation, str)]
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
