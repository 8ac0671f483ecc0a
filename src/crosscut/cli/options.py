"""Every setting as an option of the command line, made from the settings themselves."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from crosscut.cli.completion import DIRECTORY
from crosscut.contracts.settings import Restart, Settings
from crosscut.errors import SettingsError, invariant
from crosscut.foundation.durations import Duration, duration_ms

Command = TypeVar("Command", bound=Callable[..., Any])


class DurationType(click.ParamType[Duration]):
    """A duration as `crosscut.Settings` takes it; a bare number is in seconds."""

    name = "duration"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Duration:
        """Return `value` as a setting."""
        found: Duration = value
        if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value):
            found = float(value)
        try:
            duration_ms(found, "it")
        except SettingsError:
            self.fail(f"{value!r} is not a duration such as '200ms', '1s', '5m'", parameter, context)
        return found


@dataclass(frozen=True, slots=True)
class _Setting:
    """One setting: `group` is the setting that holds it ("restart"), or ""."""

    group: str
    name: str
    kind: Any
    default: Any
    text: str | None

    @property
    def parameter(self) -> str:
        return f"{self.group}_{self.name}" if self.group else self.name


def settings_options(*names: str) -> Callable[[Command], Command]:
    """Add options for these settings, by default for all, to a click command; `settings_from` reads them."""

    def decorated(command: Command) -> Command:
        for setting in reversed(list(_settings(Settings, ""))):
            if not names or setting.parameter in names:
                command = _option(setting)(command)
        return command

    return decorated


def settings_from(values: dict[str, Any]) -> Settings:
    """Make the settings from the values of the options, and the defaults of those that do not exist.

    Raises:
        SettingsError: A value is out of range, or contradicts another.
    """
    given: dict[str, dict[str, Any]] = {}
    for setting in _settings(Settings, ""):
        if setting.parameter in values:
            given.setdefault(setting.group, {})[setting.name] = values[setting.parameter]
    own = given.get("", {})
    if "restart" in given:
        own["restart"] = Restart(**given["restart"])
    return Settings(**own)


def _settings(kind: type, group: str) -> Iterator[_Setting]:
    hints, texts = get_type_hints(kind), _attribute_texts(kind)
    for one in fields(kind):
        hint = hints[one.name]
        if not one.metadata.get("is_option", True):
            continue
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _settings(hint, one.name)
            continue
        invariant(one.default is not MISSING, f"setting {one.name} has no default")
        yield _Setting(group, one.name, hint, one.default, texts.get(one.name))


def _option(setting: _Setting) -> Callable[[Command], Command]:
    name = setting.parameter.replace("_", "-")
    if setting.kind is bool:
        name = f"{name}/--no-{name}"
    return click.option(
        f"--{name}",
        setting.parameter,
        type=_click_type(setting),
        default=setting.default,
        help=setting.text,
        show_default=True,
    )


def _click_type(setting: _Setting) -> click.ParamType[Any]:
    kind = setting.kind
    if kind is bool:
        return click.BOOL
    if kind in (int, int | None):
        return click.INT
    if kind == Duration:
        return DurationType()
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind == str | os.PathLike[str] | None:
        return DIRECTORY
    texts = (str, str | None)
    invariant(kind in texts, f"setting {setting.name} of type {kind} has no option type")
    return click.STRING


def _attribute_texts(kind: type) -> dict[str, str]:
    """Return what the docstring of `kind` says about each attribute."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}
