"""What somebody may have meant who wrote a name that there is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, cast

from crosscut.errors import ConnectorError, SettingsError

Function = TypeVar("Function", bound=Callable[..., Any])

_CUTOFF = 0.7
_LISTED_MAX = 15


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`, "" if none is."""
    # Loaded only where something is wrong.
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), 1, _CUTOFF)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question to be put after an error; "" if nothing is like `name`."""
    found = closest(name, known)
    return f"; did you mean {found!r}?" if found else ""


_OPTIONS_OF_SPARK = {
    "checkpointLocation": "checkpoint_dir",
    "endingOffsets": "stop",
    "endingTimestamp": "stop",
    "maxFilesPerTrigger": "records_max",
    "maxOffsetsPerTrigger": "records_max",
    "processingTime": "checkpoint_interval",
    "queryName": "name",
    "startingOffsets": "start",
    "startingTimestamp": "start",
    "subscribe": "topics",
    "subscribePattern": "topics",
}
"""What Spark's options are called here."""

_HOMES = {
    "checkpoint_dir": "crosscut.Settings",
    "checkpoint_interval": "crosscut.Settings",
    "records_max": "crosscut.MicroBatch",
}
"""Where those stand that are no option of a connector."""


def advice_on_option(name: str, known: Iterable[str]) -> str:
    """Return what to append to the error for the unknown option `name`."""
    options = list(known)
    ours = _OPTIONS_OF_SPARK.get(name)
    if ours in options:
        hint = ", with re.compile(...)" if name == "subscribePattern" else ""
        return f"; what Spark calls {name} is {ours}= here{hint}"
    if home := _HOMES.get(ours or ""):
        return f"; what Spark calls {name} is {ours}= of {home}"
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if found := did_you_mean(plain, options):
        return found
    return f": it has {', '.join(options)}" if len(options) <= _LISTED_MAX else ""


def checks_options(public_name: str, *, asks_a_service: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that refuses options that a function of a connector does not have, with advice.

    What the function raises of its arguments is permanent.

    Args:
        public_name: What users call it, without `crosscut.`.
        asks_a_service: The function does more than look at its arguments, so its errors may be transient.

    Raises:
        SettingsError: By the function, for such an option.
    """

    def decorated(function: Function) -> Function:
        known = [
            name
            for name, one in signature(function).parameters.items()
            if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        ]

        @wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            for name in options:
                if name not in known:
                    advice = advice_on_option(name, known)
                    raise SettingsError(f"crosscut.{public_name} has no option {name!r}{advice}")
            try:
                return function(*arguments, **options)
            except ConnectorError as error:
                if not asks_a_service:
                    error.is_permanent = True
                raise

        return cast(Function, checked)

    return decorated
