"""Every setting as an option of the command line, made from the settings themselves."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from crosscut.cli.completion import DIRECTORY
from crosscut.contracts.engines import (
    ENGINES,
    Auto,
    Continuous,
    EngineName,
    EngineSettings,
    MicroBatch,
    engine_of,
)
from crosscut.contracts.settings import Restart, Settings
from crosscut.contracts.snapshot_protocols import Aligned, Logged
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
    """One setting, and the class that has it: `Settings`, `Restart` or an engine.

    Attributes:
        engines: Names of those that it belongs to; (): to all.
    """

    owner: type[Any]
    name: str
    parameter: str
    kind: Any
    default: Any
    text: str | None
    engines: tuple[EngineName, ...]

    @property
    def option(self) -> str:
        """The option, as it is typed."""
        return f"--{self.parameter.replace('_', '-')}"


def settings_options(*names: str) -> Callable[[Command], Command]:
    """Add options for these settings, by default for all, to a click command; `settings_from` reads them."""

    def decorated(command: Command) -> Command:
        for setting in reversed(list(_all_settings())):
            if not names or setting.parameter in names:
                command = _option(setting)(command)
        return command

    return decorated


def settings_from(values: dict[str, Any]) -> Settings:
    """Make the settings from the values of the options, and the defaults of those that do not exist.

    Raises:
        SettingsError: A value is out of range, or contradicts another.
    """
    given: dict[type[Any], dict[str, Any]] = {kind: {} for kind in (Settings, Restart, *ENGINES)}
    for setting in _all_settings():
        if setting.parameter in values:
            given[setting.owner][setting.name] = values[setting.parameter]
    own = given[Settings]
    if given[Restart]:
        own["restart"] = _made(Restart, given)
    if "engine" in own:
        _check_engine_options(own["engine"], values)
        engine = _engine(own["engine"], given)
        if engine != engine_of(own["engine"]):
            own["engine"] = engine
    made: Settings = _made(Settings, given)
    return made


def _made(owner: type[Any], given: Mapping[type[Any], Mapping[str, Any]], **others: Any) -> Any:
    """Make an object of settings; an error about a value names its option."""
    try:
        return owner(**given[owner], **others)
    except SettingsError as error:
        text = str(error)
        for setting in _all_settings():
            for name in (setting.name, f"restart.{setting.name}"):
                if setting.owner is owner and text.startswith(f"{name}="):
                    raise SettingsError(f"{setting.option}: {text}") from None
        raise


def _check_engine_options(engine: EngineName, values: Mapping[str, Any]) -> None:
    """Refuse options of engines under which the job never runs."""
    for setting in _all_settings():
        is_given = values.get(setting.parameter, setting.default) != setting.default
        if is_given and setting.engines and engine not in setting.engines:
            raise SettingsError(
                f"{setting.option} is an option of --engine {' or '.join(setting.engines)}; found --engine "
                f"{engine}"
            )


def _engine(name: EngineName, given: Mapping[type[Any], Mapping[str, Any]]) -> EngineSettings:
    engine: EngineSettings
    continuous, micro_batch = _made(Continuous, given), _made(MicroBatch, given)
    if name == "auto":
        engine = _made(Auto, given, continuous=continuous, micro_batch=micro_batch)
    else:
        engine = continuous if name == "continuous" else micro_batch
    return engine


def _all_settings() -> Iterator[_Setting]:
    yield from _settings(Settings)
    for kind in ENGINES:
        yield from _settings(kind)
    yield from _settings(Restart, "restart_")


def _settings(owner: type[Any], prefix: str = "") -> Iterator[_Setting]:
    hints, texts = get_type_hints(owner), _attribute_texts(owner)
    for one in fields(owner):
        if not one.metadata.get("is_option", True):
            continue
        invariant(one.default is not MISSING, f"setting {one.name} has no default")
        parameter = one.metadata.get("option", f"{prefix}{one.name}")
        engines: tuple[EngineName, ...] = ()
        if owner in ENGINES:
            in_auto = owner is not Auto and one.metadata.get("in_auto", True)
            engines = (owner.engine_name, "auto") if in_auto else (owner.engine_name,)
        text = texts.get(one.name)
        yield _Setting(owner, one.name, parameter, hints[one.name], one.default, text, engines)


def _option(setting: _Setting) -> Callable[[Command], Command]:
    name = setting.option
    if setting.kind is bool:
        name = f"{name}/--no-{name.removeprefix('--')}"
    text = setting.text
    if setting.engines:
        text = f"With --engine {' or '.join(setting.engines)}: {text}"
    return click.option(
        name,
        setting.parameter,
        type=_click_type(setting),
        default=setting.default,
        help=text,
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
    if kind == EngineName | EngineSettings:
        return click.Choice(get_args(EngineName))
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind == str | os.PathLike[str] | None:
        return DIRECTORY
    texts = (str, str | None, str | Aligned | Logged)
    invariant(kind in texts, f"setting {setting.name} of type {kind} has no option type")
    return click.STRING


def _attribute_texts(kind: type) -> dict[str, str]:
    """Return what the docstring of `kind` says about each attribute."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}
