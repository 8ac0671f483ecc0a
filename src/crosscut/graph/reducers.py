"""How objects are pickled by value that cloudpickle can't take along, or changes on the way."""

from __future__ import annotations

import contextvars
import functools
import marshal
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from types import CellType, CodeType, FunctionType
from typing import Any, get_args

import cloudpickle

_STRUCT_OPTIONS = (
    "tag",
    "tag_field",
    "omit_defaults",
    "forbid_unknown_fields",
    "frozen",
    "eq",
    "order",
    "repr_omit_defaults",
    "array_like",
    "gc",
    "weakref",
    "dict",
    "cache_hash",
)
_MADE_WITH_CLASS = (
    "__module__",
    "__annotations__",
    "__slots__",
    "__dict__",
    "__weakref__",
    "__match_args__",
    # Since Python 3.14, which evaluates annotations when they are asked for.
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
    "__conditional_annotations__",
)


def reduced(value: Any) -> Any:
    """Return how to make `value` again, as `__reduce__` does; NotImplemented: in the usual way."""
    kind = type(value)
    if kind is CodeType:
        # cloudpickle 3.1.3 leaves out the file, which tracebacks are made of.
        return marshal.loads, (marshal.dumps(value),)  # noqa: S302 - as pickle: by the driver
    if kind is functools._lru_cache_wrapper:
        if is_importable(value):
            return NotImplemented
        parameters = value.cache_parameters()
        return cached, (value.__wrapped__, parameters["maxsize"], parameters["typed"])
    if kind is functools.cached_property:
        # Before Python 3.12 it has a lock.
        return cached_property, (value.func, value.attrname)
    if kind is contextvars.ContextVar:
        return context_variable, (value.name, *_default_of(value))
    if kind is threading.local:
        # What the threads of the driver have in it is of no use elsewhere.
        return threading.local, ()
    if kind is FunctionType and _is_generic(value):
        if is_importable(value):
            return NotImplemented
        return generic, (value.dispatch(object), dict(value.registry))
    if isinstance(value, type) and _is_struct(value):
        return NotImplemented if is_importable(value) else _reduced_struct(value)
    return NotImplemented


def reduced_function(value: FunctionType, module: str) -> Any:
    """Return how to make a function again that has no name in its module, but the module's variables."""
    cells = value.__closure__ or ()
    state = {
        "attributes": {name: getattr(value, name) for name in _OF_FUNCTIONS} | {"__dict__": vars(value)},
        "closed over": [[cell.cell_contents] if cell != CellType() else [] for cell in cells],
    }
    return function, (value.__code__, module, len(cells)), state, None, None, set_function_state


def function(code: CodeType, module: str, cells: int) -> FunctionType:
    """Return a function without what it closes over."""
    return FunctionType(code, vars(import_module(module)), closure=tuple(CellType() for _ in range(cells)))


def set_function_state(made: FunctionType, state: dict[str, Any]) -> None:
    """Set the attributes of a function, and what it closes over, which may be the function itself."""
    for name, value in state["attributes"].items():
        if name == "__dict__":
            vars(made).update(value)
        else:
            setattr(made, name, value)
    for cell, contents in zip(made.__closure__ or (), state["closed over"], strict=True):
        if contents:
            (cell.cell_contents,) = contents


_OF_FUNCTIONS = (
    "__name__",
    "__qualname__",
    "__module__",
    "__doc__",
    "__defaults__",
    "__kwdefaults__",
    "__annotations__",
)


def with_slots(kind: type, reduction: Any) -> Any:
    """Return how cloudpickle makes `kind`, with slots: it sets `__slots__` when it is too late."""
    make, arguments, *rest = reduction
    if "__slots__" not in vars(kind) or getattr(make, "__name__", "") != "_make_skeleton_class":
        return reduction
    if issubclass(kind, tuple):
        # A named tuple, which has none of its own and refuses to be given any.
        return reduction
    slots = {"__slots__": vars(kind)["__slots__"]}
    return make, tuple(one | slots if isinstance(one, dict) else one for one in arguments), *rest


def is_importable(value: Any) -> bool:
    """Tell whether `value` is what its module has under its name, in a module other than the main program."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return False
    found: Any = module
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value and not travels_by_value(module.__name__)


def travels_by_value(name: str) -> bool:
    """Tell whether what a module defines is pickled by value for now."""
    registered = cloudpickle.list_registry_pickle_by_value()
    return any(name == one or name.startswith(f"{one}.") for one in registered)


def cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """Return `function` with an empty cache."""
    return functools.lru_cache(maxsize, typed)(function)


def cached_property(function: Callable[[Any], Any], name: str | None) -> functools.cached_property[Any]:
    """Return one that knows its name: an attribute that is set after the class is made is not told it."""
    found = functools.cached_property(function)
    found.attrname = name
    return found


def context_variable(name: str, *default: Any) -> contextvars.ContextVar[Any]:
    """Return a new one, with a default if there is one."""
    return contextvars.ContextVar(name, default=default[0]) if default else contextvars.ContextVar(name)


def _default_of(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    try:
        return (contextvars.Context().run(variable.get),)
    except LookupError:
        return ()


def generic(function: Callable[..., Any], registry: Mapping[type, Callable[..., Any]]) -> Any:
    """Return a function that `functools.singledispatch` has made of others."""
    found = functools.singledispatch(function)
    for kind, one in registry.items():
        if kind is not object:
            found.register(kind, one)
    return found


def _is_generic(value: Any) -> bool:
    return all(name in vars(value) for name in ("registry", "dispatch", "register", "_clear_cache"))


def _is_struct(value: type) -> bool:
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and issubclass(value, msgspec.Struct) and value is not msgspec.Struct


def _reduced_struct(kind: Any) -> Any:
    """msgspec makes members of a struct's annotations, and only when the class is made."""
    import msgspec

    own = vars(kind)
    named = _own_annotations(kind)
    fields = [one for one in msgspec.structs.fields(kind) if one.name in named]
    is_keyword_only = bool(fields) and not set(kind.__match_args__) & {one.name for one in fields}
    options = {name: getattr(kind.__struct_config__, name) for name in _STRUCT_OPTIONS}
    made = [(one.name, _annotation(named[one.name], one.type), *_default(one)) for one in fields]
    attributes = {
        name: value
        for name, value in own.items()
        if name not in named and name not in _MADE_WITH_CLASS and not name.startswith("__struct_")
    }
    arguments = (
        kind.__name__,
        kind.__bases__,
        kind.__module__,
        made,
        {**options, "kw_only": is_keyword_only},
        "__post_init__" in own,
        own.get("__orig_bases__"),
    )
    # What belongs to the class may refer to it, so it is set when the class is there.
    return struct, arguments, attributes, None, None, set_attributes


def struct(
    name: str,
    bases: tuple[type, ...],
    module: str,
    fields: list[Any],
    options: dict[str, Any],
    has_post_init: bool,
    generic_bases: tuple[Any, ...] | None = None,
) -> type:
    """Return a msgspec.Struct without its attributes.

    Args:
        fields: Of each the name, the type, the name in messages, the default, and what makes one.
        generic_bases: The bases with their type parameters, if there are any.
    """
    import msgspec

    made = []
    for field_name, kind, encoded, default, factory in fields:
        given = {"default": default} if factory is None else {"default_factory": factory}
        if default is REQUIRED and factory is None:
            given = {}
        made.append((field_name, kind, msgspec.field(name=encoded, **given)))
    # msgspec looks for it once, when it makes the class.
    namespace: dict[str, Any] = {"__post_init__": _post_init} if has_post_init else {}
    if generic_bases is not None:
        # So does `Generic`, for its parameters.
        namespace["__orig_bases__"] = generic_bases
    found: type = msgspec.defstruct(name, made, bases=bases, module=module, namespace=namespace, **options)
    return found


def set_attributes(kind: type, attributes: dict[str, Any]) -> None:
    """Set what a class has beside its fields."""
    for name, value in attributes.items():
        setattr(kind, name, value)


def _post_init(record: Any) -> None:
    """Call the method that has taken the place of this one."""
    type(record).__post_init__(record)


class _Required:
    """A field without a default."""

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


def _default(field: Any) -> tuple[Any, Any, Any]:
    import msgspec

    encoded = field.encode_name if field.encode_name != field.name else None
    if field.default_factory is not msgspec.NODEFAULT:
        return encoded, REQUIRED, field.default_factory
    return encoded, REQUIRED if field.default is msgspec.NODEFAULT else field.default, None


def _own_annotations(kind: Any) -> dict[str, Any]:
    """Return the annotations of the class itself: values, or texts as they are written."""
    if sys.version_info >= (3, 14):
        import annotationlib

        texts = annotationlib.get_annotations(kind, format=annotationlib.Format.STRING)
        try:
            values = annotationlib.get_annotations(kind)
        except NameError:
            # Of a name that only a type checker knows.
            return texts
        # Without quotes a class can name itself, or one that names it: it can't be pickled before itself.
        return {
            name: texts[name] if _leads_to(kind, value, set()) else value for name, value in values.items()
        }
    found: dict[str, Any] = vars(kind).get("__annotations__", {})
    return found


def _leads_to(kind: type, annotation: Any, seen: set[type]) -> bool:
    """Tell whether an annotation names `kind`, or a struct by value one of whose fields does."""
    import msgspec

    if annotation is kind:
        return True
    if not (isinstance(annotation, type) and _is_struct(annotation)):
        return any(_leads_to(kind, one, seen) for one in get_args(annotation))
    if annotation in seen or is_importable(annotation):
        return False
    seen.add(annotation)
    return any(_leads_to(kind, one.type, seen) for one in msgspec.structs.fields(annotation))


def _annotation(written: Any, meant: Any) -> Any:
    """Return the type of a field: where a struct that is by value is named in a text, that text."""
    return written if isinstance(written, str) and _names_struct(meant) else meant


def _names_struct(kind: Any) -> bool:
    if isinstance(kind, type) and _is_struct(kind):
        return not is_importable(kind)
    return any(_names_struct(one) for one in get_args(kind))
