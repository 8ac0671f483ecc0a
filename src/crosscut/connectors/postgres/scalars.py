"""Values as the text of one type of Postgres: exactly, or not at all.

The server converts what it gets: it rounds, cuts a time of day off, leaves a zone out or adds the session's.
So a value is written only if its type and the type of the column, with its precision, keep it as it is.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import index
from reprlib import repr as shortened
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from crosscut.connectors.doubles import double_of
from crosscut.connectors.files.json_values import is_object, json_text

Scalar = Callable[[Any], str]
"""Returns a value that is not None as text; raises ValueError, with the reason, if it would be changed."""

JSON = frozenset(["json", "jsonb"])

_SCALE_MAX = 16_383
_NAME_BYTES_MAX = 63
_FRACTION_DIGITS = 6
_MONEY_DIGITS_MAX = 17
_MINUTE, _HOUR, _SECOND = 1 << 11, 1 << 10, 1 << 12
"""Fields of an interval, as its modifier has them."""

_NUMBERS = frozenset(["integer", "numeric", "double precision"])

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
# Of more digits of an exponent no decimal could be made.
_FLOAT = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?")
_NUMBER = re.compile(_FLOAT.pattern + "|NaN|-?Infinity")
_DAY = r"[0-9]{4,}-[0-9]{2}-[0-9]{2}"
_HOUR_TO_SECOND = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.(?P<fraction>[0-9]{1,6})0*)?)?"
_TIME_OF_DAY = rf"({_HOUR_TO_SECOND}|24:00:00)"
_OFFSET = r"(?P<offset>[+-][0-9]{2}(:?[0-9]{2}(:?[0-9]{2})?)?|Z)"
_DATE = re.compile(rf"{_DAY}( BC)?|-?infinity")
_TIME = re.compile(_TIME_OF_DAY)
_TIME_WITH_ZONE = re.compile(_TIME_OF_DAY + _OFFSET)
_TIMESTAMP = re.compile(rf"{_DAY}([ T]{_HOUR_TO_SECOND}{_OFFSET}?)?( BC)?|-?infinity")
_TIMESTAMP_WITH_ZONE = re.compile(rf"{_DAY}[ T]{_HOUR_TO_SECOND}{_OFFSET}( BC)?|-?infinity")
_TOO_FINE_MONEY = re.compile(r"\.[0-9]{3}")
_TOO_FINE = re.compile(r"\.[0-9]{7}")


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What a column holds.

    Attributes:
        name: As `format_type` writes it, of a domain that of the type which it restricts.
        element: Of an array, the type of what is in it; else "".
        category: As `pg_type` has it, of an array that of what is in it.
        modifier: As `pg_attribute` has it: precision, scale, length. -1: none.
        has_point: Of money, whether the session writes cents after a point. Else "1.50" may be 150.
    """

    name: str
    element: str = ""
    category: str = ""
    modifier: int = -1
    has_point: bool = False

    @property
    def scalar_name(self) -> str:
        """The type of one value, of an array that of what is in it."""
        return self.element or self.name


def scalar_of(column: ColumnType, zone: ZoneInfo | None) -> tuple[Scalar, bool]:
    """Return what writes one value, and whether its text has nothing that COPY needs escaped.

    Args:
        zone: In which times without a zone are; and in which a column without one has its times.
    """
    modifier = column.modifier
    match column.scalar_name:
        case "smallint" | "integer" | "bigint" | "oid":
            return _integer, True
        case "numeric":
            return _numeric(modifier), True
        case "money" if column.has_point:
            return _money, False
        case "real":
            return _real, True
        case "double precision":
            return _double, True
        case "boolean":
            return _boolean, True
        case "date":
            return _date, True
        case "time without time zone":
            return _time(modifier, has_zone=False), True
        case "time with time zone":
            return _time(modifier, has_zone=True), True
        case "timestamp without time zone":
            return _timestamp(modifier, zone), True
        case "timestamp with time zone":
            return _timestamp_with_zone(modifier, zone), True
        case "interval":
            return _interval(modifier), False
        case "bytea":
            return _bytea, False
        case "uuid":
            return _uuid, False
        case "json" | "jsonb":
            return _json, False
        case "character varying":
            return _varying(modifier), False
        case "character":
            return _text_of(lambda text: text.endswith(" "), "ends in a blank, which the type ignores"), False
        case "name":
            return _text_of(lambda text: len(text.encode()) > _NAME_BYTES_MAX, "is too long"), False
        case '"char"':
            return _text_of(lambda text: len(text.encode()) > 1, "is too long"), False
        case _:
            return (checked_text if column.category in ("S", "E") else other_text), False


def whole_text_length(column: ColumnType, scalar: Scalar) -> int:
    """Return up to which length a column keeps any text without a zero byte; -1 if it has other rules."""
    if scalar is checked_text:
        return sys.maxsize
    return column.modifier - 4 if column.scalar_name == "character varying" else -1


def checked_text(value: Any) -> str:
    """Return a text as it is, if Postgres can hold it."""
    if not isinstance(value, str):
        raise _unfit(value, "str")
    if "\0" in value:
        raise ValueError("it holds a zero byte, which Postgres does not accept")
    return str.__str__(value)


def _unfit(value: Any, expected: str) -> ValueError:
    return ValueError(
        f"{shortened(value)} is of type {type(value).__name__}: expected None or {expected}; convert it in "
        f"row= of the sink"
    )


def _changed(value: Any, kind: str) -> ValueError:
    return ValueError(
        f"{shortened(value)} would be changed by a column of type {kind}; round it in row= of the sink, or "
        f"make the column numeric"
    )


def _matched(value: str, pattern: re.Pattern[str], kind: str) -> re.Match[str]:
    found = pattern.fullmatch(value)
    if found is None:
        own = "a number" if kind in _NUMBERS else f"a {kind.partition(' ')[0]}"
        raise ValueError(
            f"the text {shortened(value)} is not in Postgres's format for type {kind}; give {own}, or "
            f"the text as Postgres writes it"
        )
    return found


def _index(value: Any) -> int | None:
    """Return the integer that a value is, None if it is none. A bool is none."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    # An enum is its number, whatever it calls itself.
    with suppress(TypeError):
        return int(index(value))
    return None


def _text_of(is_changed: Callable[[str], bool], reason: str) -> Scalar:
    def text(value: Any) -> str:
        found = checked_text(value)
        if is_changed(found):
            raise ValueError(f"the text {shortened(found)} {reason}")
        return found

    return text


def _varying(modifier: int) -> Scalar:
    length = modifier - 4

    def varying(value: Any) -> str:
        text = value if type(value) is str and "\0" not in value else checked_text(value)
        # Anything else beyond its length the server refuses.
        if len(text) > length and not text[length:].strip(" "):
            raise ValueError(f"the text {shortened(text)} would lose blanks at its end")
        return text

    return checked_text if modifier < 0 else varying


def _integer(value: Any) -> str:
    if type(value) is int:
        return repr(value)
    if (number := _index(value)) is not None:
        return repr(number)
    if isinstance(value, str):
        return _matched(value, _INTEGER, "integer")[0]
    if isinstance(value, Decimal):
        if not value.is_finite() or value.adjusted() >= 20 or value != int(value):
            raise _changed(value, "integer")
        return repr(int(value))
    raise _unfit(value, "int, Decimal or the text of an integer")


def _numeric(modifier: int) -> Scalar:
    # Of eleven bits, with a sign.
    scale = _SCALE_MAX if modifier < 0 else ((modifier - 4 & 0x7FF) ^ 1024) - 1024

    def numeric(value: Any) -> str:
        if type(value) is int and scale >= 0:
            return repr(value)
        if isinstance(value, Decimal):
            number = value
        elif isinstance(value, float):
            number = Decimal(float.__repr__(value))
        elif isinstance(value, str):
            number = Decimal(_matched(value, _NUMBER, "numeric")[0])
        elif (whole := _index(value)) is not None:
            number = Decimal(whole)
        else:
            raise _unfit(value, "int, Decimal, float or the text of a number")
        if number and number.is_finite():
            _, digits, exponent = number.as_tuple()
            lost = -scale - int(exponent)
            if lost > 0 and any(digits[-lost:]):
                raise ValueError(f"{shortened(value)} has more than {scale} digits after the point")
        return str(number)

    return numeric


# As the modifier of a numeric has a scale of two digits.
_cents = _numeric(4 + 2)


def _money(value: Any) -> str:
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        if _TOO_FINE_MONEY.search(value):
            raise ValueError(f"the text {shortened(value)} has more than 2 digits after the point")
        return checked_text(value)
    number = Decimal(_cents(value))
    if not number.is_finite() or number.adjusted() > _MONEY_DIGITS_MAX:
        raise ValueError(f"{shortened(value)} is beyond the range of money; make the column numeric")
    # Money is not read with an exponent.
    return f"{number:f}"


def _double(value: Any) -> str:
    if isinstance(value, float):
        return float.__repr__(value)
    if (whole := _index(value)) is not None:
        if int(float(whole)) != whole:
            raise _changed(value, "double precision")
        return repr(whole)
    if isinstance(value, str):
        if value in ("NaN", "Infinity", "-Infinity"):
            return value
        number = Decimal(_matched(value, _FLOAT, "double precision")[0])
        # Many programs write a double with 17 digits, whatever it needs.
        if Decimal(f"{float(number):.17g}") == number:
            return str(number)
    elif isinstance(value, Decimal):
        number = value
    else:
        raise _unfit(value, "float, int, Decimal or the text of a number")
    if number.is_finite() and double_of(number) is None:
        raise _changed(value, "double precision")
    return str(number)


def _real(value: Any) -> str:
    text = _double(value)
    # A fraction is rounded, which is what the type is for, and so is any float.
    if not isinstance(value, float):
        number = Decimal(text)
        if number.is_finite() and number == number.to_integral_value() and not _is_single(number):
            raise _changed(value, "real")
    return text


def _is_single(number: Decimal) -> bool:
    """Tell whether a number is a float of 32 bits, or as one is written with the digits that it needs."""
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return False
    return any(
        Decimal(text) == number for text in (single, *(f"{single:.{digits}g}" for digits in (6, 7, 8, 9)))
    )


def _boolean(value: Any) -> str:
    if value is True or value is False:
        return "t" if value else "f"
    if isinstance(value, str) and value in ("t", "f", "true", "false", "True", "False"):
        return str.__str__(value)
    raise _unfit(value, "bool, or the text 't', 'f', 'true' or 'false'")


def _bytea(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    raise _unfit(value, "bytes")


def _uuid(value: Any) -> str:
    return str(value) if isinstance(value, UUID) else checked_text(value)


def _json(value: Any) -> str:
    if isinstance(value, dict | list | tuple | bool | int | float):
        return json_text(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, str):
        return checked_text(value)
    if is_object(value):
        return json_text(value)
    raise _unfit(value, "a dict, list, dataclass, number, bool, or the text of JSON")


def other_text(value: Any) -> str:
    """Write a value of a type that has a text only."""
    if isinstance(value, dict | list | tuple) or is_object(value):
        return json_text(value)
    return checked_text(value)


def _date(value: Any) -> str:
    if isinstance(value, datetime):
        # Midnight without a zone is how many libraries give a day.
        if value.tzinfo is not None or value.time() != time() or getattr(value, "nanosecond", 0) != 0:
            raise ValueError(
                f"{value!r} has a time of day or a zone, for which a column of type date has no room; write "
                f"its date()"
            )
        value = value.date()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return _matched(value, _DATE, "date")[0]
    raise _unfit(value, "a date")


def _unit(precision: int) -> int:
    """Return how many microseconds a column with this precision counts in."""
    return 1 if precision < 0 else int(10 ** max(_FRACTION_DIGITS - precision, 0))


def _clock_matched(value: str, pattern: re.Pattern[str], kind: str, unit: int) -> re.Match[str]:
    found = _matched(value, pattern, kind)
    # Beyond six digits the pattern takes zeros only.
    if int((found["fraction"] or "").ljust(_FRACTION_DIGITS, "0")) % unit:
        raise ValueError(f"the text {shortened(value)} would be rounded by the precision of the column")
    return found


def _check_clock(value: time | datetime, unit: int) -> None:
    if value.microsecond % unit or getattr(value, "nanosecond", 0):
        raise ValueError(f"{value!r} would be rounded by the precision of the column")


def _time(modifier: int, *, has_zone: bool) -> Scalar:
    unit = _unit(modifier)
    kind = "time with time zone" if has_zone else "time"
    pattern = _TIME_WITH_ZONE if has_zone else _TIME

    def of_day(value: Any) -> str:
        if isinstance(value, str):
            return _clock_matched(value, pattern, kind, unit)[0]
        if not isinstance(value, time):
            raise _unfit(value, "a time")
        if has_zone and value.utcoffset() is None:
            # The server would take it to be in the time zone of the session.
            raise ValueError(f"{value!r} has no offset from UTC, and the column has one")
        if not has_zone and value.tzinfo is not None:
            raise ValueError(f"{value!r} has a time zone, for which a column of type time has no room")
        _check_clock(value, unit)
        return value.isoformat()

    return of_day


def _timestamp(modifier: int, zone: ZoneInfo | None) -> Scalar:
    unit = _unit(modifier)

    def timestamp(value: Any) -> str:
        if isinstance(value, datetime):
            if value.tzinfo is not None:
                if zone is not None:
                    value = value.astimezone(zone)
                elif value.utcoffset():
                    # The server would leave the offset out.
                    raise ValueError(
                        f"{value!r} is not in UTC, and the column has no time zone: give time_zone= to the "
                        f"sink"
                    )
                value = value.replace(tzinfo=None)
            if unit > 1 or type(value) is not datetime:
                _check_clock(value, unit)
            return str(value.isoformat())
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, str):
            text = _clock_matched(value, _TIMESTAMP, "timestamp", unit)
            if text["offset"] is None:
                return text[0]
            # The server would leave the offset out.
            return timestamp(_moment(value))
        raise _unfit(value, "a datetime or date")

    return timestamp


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"the text {shortened(text)} has an offset from UTC, and the column has none; write it without"
        ) from error


def _timestamp_with_zone(modifier: int, zone: ZoneInfo | None) -> Scalar:
    unit = _unit(modifier)

    def timestamp(value: Any) -> str:
        if isinstance(value, str):
            return _clock_matched(value, _TIMESTAMP_WITH_ZONE, "timestamp with time zone", unit)[0]
        if not isinstance(value, date):
            raise _unfit(value, "a datetime or date")
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        if moment.utcoffset() is None:
            if zone is None:
                # The server would take it to be in the time zone of the session.
                raise ValueError(
                    f"{value!r} has no time zone, and the column has one: give time_zone= to the sink"
                )
            moment = moment.replace(tzinfo=zone)
        if unit > 1 or type(moment) is not datetime:
            _check_clock(moment, unit)
        return moment.isoformat()

    return timestamp


def _interval(modifier: int) -> Scalar:
    unit = _unit(-1 if modifier < 0 else min(modifier & 0xFFFF, _FRACTION_DIGITS))
    fields = 0x7FFF if modifier < 0 else modifier >> 16 & 0x7FFF
    if not fields & _SECOND:
        # Without seconds a column keeps whole minutes or hours of a duration, or nothing at all.
        unit = 60_000_000 if fields & _MINUTE else 3_600_000_000 if fields & _HOUR else 0

    def interval(value: Any) -> str:
        if isinstance(value, str):
            if modifier >= 0 or _TOO_FINE.search(value):
                raise ValueError(f"the text {shortened(value)} may be rounded by the precision of the column")
            return checked_text(value)
        if not isinstance(value, timedelta):
            raise _unfit(value, "a timedelta")
        microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        if microseconds % unit if unit else microseconds:
            raise ValueError(f"{value!r} would be rounded by the precision of the column")
        seconds, rest = divmod(abs(microseconds), 1_000_000)
        return f"{'-' if microseconds < 0 else ''}{seconds}.{rest:06d} seconds"

    return interval
