"""How settings are checked: what each error names, and what it expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Signature, signature
from typing import Any, TypeVar, get_args

from crosscut.errors import SettingsError
from crosscut.foundation.durations import duration_ms
from crosscut.foundation.suggestions import advice_on_option
from crosscut.foundation.urls import path_text

Class = TypeVar("Class", bound=type[Any])


def shows_fields(cls: Class) -> Class:
    """Have notebooks show the fields of a class of settings, not the `**given` of its `__new__`."""
    _, *named = signature(cls.__init__).parameters.values()
    cls.__signature__ = Signature(named)
    return cls


def checked_new(
    cls: type[Any],
    unnamed: tuple[Any, ...],
    given: Mapping[str, Any],
    of: str = "",
    elsewhere: Callable[[str], str] | None = None,
) -> Any:
    """Return a new object of a class of settings, if it has all those that are given.

    Args:
        unnamed: What was given without a name.
        of: How the error names the class, as " of Restart".
        elsewhere: Returns where a setting belongs that this class does not have, "" if nowhere.

    Raises:
        SettingsError: It does not have one, or one has no name; with advice.
    """
    known = [one.name for one in fields(cls) if one.init]
    if unnamed:
        raise SettingsError(
            f"{cls.__name__}({unnamed[0]!r:.100}): expected each setting with its name, as in "
            f"{cls.__name__}({known[0]}=...); there are {', '.join(known)}"
        )
    for name in given:
        if name not in known:
            place = elsewhere(name) if elsewhere else ""
            advice = f"; say {place}" if place else advice_on_option(name, known)
            raise SettingsError(f"there is no setting {name!r}{of}{advice}")
    # With slots the class is made a second time, which `super()` would not know.
    return object.__new__(cls)


def check_integer(name: str, value: object, least: int, most: int) -> None:
    """Raise a SettingsError unless `value` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SettingsError(f"{name}={value!r}: expected a whole number from {least} to {most}")


def check_duration(name: str, value: Any, least_ms: float) -> None:
    """Raise a SettingsError unless `value` is a duration of at least `least_ms`."""
    if duration_ms(value, name) < least_ms:
        raise SettingsError(f"{name}={value!r}: expected at least {least_ms} ms")


def check_name(name: str, value: object, kind: Any) -> None:
    """Raise a SettingsError unless `value` is one of the names of the Literal `kind`."""
    known = get_args(kind)
    if value not in known:
        raise SettingsError(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}")


def take_path(settings: object, name: str, expected: str) -> None:
    """Check a setting that is a path, or None, and keep it as a str.

    Raises:
        SettingsError: It is neither.
    """
    value = getattr(settings, name)
    if value is not None:
        # As dataclasses do it themselves: the object is not made yet.
        object.__setattr__(settings, name, path_text(value, name, expected))
