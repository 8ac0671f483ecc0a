"""Names of the fields of classes whose objects pickle stores by position: named tuples and the like.

A class whose fields have changed places since would give each value to another field. So a task's snapshot
says which such classes its state and its records are of, with their fields, and a restore compares them.
What a pickle refers to stands in its bytes, so finding it costs a search of these and nothing for each value.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from importlib import import_module
from pickletools import genops
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.errors import StateError
from crosscut.foundation.ids import TaskId

_LENGTHS = struct.Struct(">QQ")
_PICKLE = b"\x80\x05"
_FRAMED_PICKLE = _PICKLE + b"\x95"
_AFTER_FRAME = 11
"""A pickle begins with two bytes and the length of what follows, which differs."""
REFERENCE = b"\x93\x94"
"""Stands behind the name of a class."""
_MEMOIZED = 0x94
_NUMBER, _NUMBER_BYTES = ord("h"), 2
_LONG_NUMBER, _LONG_NUMBER_BYTES = ord("j"), 5
_SHORT_TEXT = b"\x8c"
_SHORT_TEXT_MAX = 257
_SEEN_BYTES_MAX, _SEEN_MAX = 1_024, 1_000
"""Only pickles that refer to a class early begin alike. A state may live for as long as its job."""


class FieldNames:
    """Which classes by position a state, or the records of a snapshot, hold or have held.

    Attributes:
        known: The names of their fields, by module and name of the class.
    """

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, ...]] = {}
        self._is_positional: dict[tuple[str, str], bool] = {}
        self._seen: set[bytes] = set()

    def note_block(self, block: bytes) -> None:
        """Note the classes in a block of a part."""
        if len(block) > _LENGTHS.size:
            head_length, _ = _LENGTHS.unpack_from(block)
            self.note(block, _LENGTHS.size + head_length)

    def note_any(self, data: bytes) -> None:
        """Note the classes in all pickles that `data` holds, which may be part of something else."""
        start = data.find(_FRAMED_PICKLE)
        while start >= 0:
            after = data.find(_FRAMED_PICKLE, start + 1)
            # Up to the next one first: else many small ones would take the square of their time.
            ends = [after, len(data)] if after >= 0 else [len(data)]
            for end in ends:
                try:
                    self.note(data[start:end])
                    break
                except (ValueError, IndexError):
                    """Another pickle is part of this one, or these bytes only begin like one."""
            start = after

    def note(self, data: bytes, start: int = 0) -> None:
        """Note the classes that the pickle from `start` on refers to."""
        if not data.startswith(_PICKLE, start):
            return
        at = _next_reference(data, start + len(_PICKLE))
        if at < 0:
            return
        # Rows of one kind begin alike.
        is_short = at - start < _SEEN_BYTES_MAX
        beginning = data[start + _AFTER_FRAME : at] if is_short else b""
        if beginning in self._seen and _next_reference(data, at + 1) < 0:
            return
        modules = []
        while at >= 0:
            name, name_at = _text_before(data, at)
            module = _text_before(data, name_at)[0]
            if name and module:
                modules.append(module)
                self._note_class(module, name)
            elif not name or not any(self._note_class(one, name) for one in modules):
                # A text that stood there before, and is referred to by its number.
                self._note_all(data[start:])
                return
            at = _next_reference(data, at + 1)
        if is_short and len(self._seen) < _SEEN_MAX:
            self._seen.add(beginning)

    def _note_all(self, data: bytes) -> None:
        for module, name in _references(data):
            self._note_class(module, name)

    def _note_class(self, module: str, name: str) -> bool:
        """Note a class if it is one by position; tell whether it exists."""
        known = self._is_positional.get((module, name))
        if known is not None:
            return True
        kind = _found(sys.modules.get(module), name)
        if kind is None:
            return False
        fields = fields_by_position(kind)
        self._is_positional[module, name] = fields is not None
        if fields is not None:
            self.known[f"{module}:{name}"] = fields
        return True

    def restore(self, saved: JSON, uid: str) -> None:
        """Go on from what a snapshot says of the state of an operator.

        Raises:
            StateError: A class has other fields now; it names them.
        """
        for name, fields in _listed(saved):
            check_fields(name, fields, f"the state of operator {uid!r} holds")
            self.known.setdefault(name, fields)

    def as_json(self) -> JSON:
        """Return what a snapshot keeps, None if there is no such class."""
        return {name: list(fields) for name, fields in sorted(self.known.items())} or None


def check_record_fields(saved: JSON, task: TaskId, *, is_to_import: bool = True) -> None:
    """Compare what a snapshot says of the classes of its records with the classes as they are now.

    Args:
        is_to_import: Whether modules may be imported for it; else classes of others are taken for unchanged.

    Raises:
        StateError: A class has other fields now; it names them.
    """
    for name, fields in _listed(saved):
        if is_to_import or name.partition(":")[0] in sys.modules:
            check_fields(
                name, fields, f"the records in the snapshot of task {task}, on their way or staged, include"
            )


def _listed(saved: JSON) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, fields in (saved if isinstance(saved, dict) else {}).items():
        yield name, tuple(map(str, fields if isinstance(fields, list) else ()))


def _references(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield module and name of all that a pickle refers to; nothing of it is loaded."""
    memo: list[Any] = []
    pushed: tuple[Any, Any] = (None, None)
    for operation, argument, _ in genops(data):
        match operation.name:
            case "MEMOIZE":
                memo.append(pushed[1])
            case "BINGET" | "LONG_BINGET":
                pushed = pushed[1], memo[int(argument or 0)]
            case "STACK_GLOBAL":
                module, name = pushed
                yield str(module), str(name)
                pushed = None, None
            case "FRAME":
                """Says how much follows."""
            case _:
                pushed = pushed[1], argument


def fields_by_position(kind: Any) -> tuple[str, ...] | None:
    """Return the fields of a class whose objects are pickled by position, None if it is none of those."""
    if not isinstance(kind, type):
        return None
    if issubclass(kind, tuple):
        fields = getattr(kind, "_fields", None)
        return tuple(fields) if isinstance(fields, tuple) else None
    # msgspec's, unless they are given by name only.
    struct_fields = getattr(kind, "__struct_fields__", None)
    if isinstance(struct_fields, tuple):
        return struct_fields if getattr(kind, "__match_args__", None) == struct_fields else None
    # Frozen dataclasses with slots have a method of the standard library for it.
    if getattr(getattr(kind, "__getstate__", None), "__module__", "") == "dataclasses":
        return tuple(getattr(kind, "__dataclass_fields__", ()))
    return None


def check_fields(name: str, before: tuple[str, ...], holder: str) -> None:
    """Compare the fields of a class with those that its stored objects have.

    Args:
        name: Module and name of the class.
        holder: Who has the objects, and the verb, for the message.

    Raises:
        StateError: They are others, or in another order.
    """
    module, _, qualified = name.partition(":")
    try:
        kind = _found(import_module(module), qualified)
    except ImportError:
        # Loading such an object reports it, with its key.
        return
    now = fields_by_position(kind)
    if (
        now is None
        or now == before
        or (now[: len(before)] == before and _has_defaults(kind, now[len(before) :]))
    ):
        return
    raise StateError(
        f"{holder} objects of {qualified} of {module}, stored by position with "
        f"the fields ({', '.join(before)}); the class has ({', '.join(now)}) now, so values would come "
        f"back under other names. Give it its fields back, in that order, and add new ones with defaults at "
        f"the end; or give the new class another name, and make its objects of the old ones",
        damaged=True,
    )


def _has_defaults(kind: Any, added: tuple[str, ...]) -> bool:
    if hasattr(kind, "_field_defaults"):
        return set(added) <= set(kind._field_defaults)
    # Defaults of a struct belong to its last fields. Nothing is set where a dataclass has more fields.
    return len(added) <= len(getattr(kind, "__struct_defaults__", ()))


def _found(module: Any, name: str) -> Any:
    found = module
    for one in name.split("."):
        found = getattr(found, one, None)
    return found


def _next_reference(data: bytes, start: int) -> int:
    """Return where a pickle may refer to a class, from `start` on; -1 if it does so nowhere.

    Floats and other values have the same bytes by chance. To parse the pickle for each of these would take
    many times as long as loading it, and hold the interpreter lock.
    """
    at = data.find(REFERENCE, start)
    while at >= 0 and not _follows_text(data, at):
        at = data.find(REFERENCE, at + 1)
    return at


def _follows_text(data: bytes, at: int) -> bool:
    """Tell whether a text, or the number of one, may end at `at`; picklers begin no frame between it and the
    reference."""
    if data[at - 1] == _MEMOIZED or data[at - _NUMBER_BYTES] == _NUMBER:
        return True
    # Each number belongs to a text with some bytes.
    number = data[max(at - _LONG_NUMBER_BYTES, 0) : at]
    return number[0] == _LONG_NUMBER and int.from_bytes(number[1:], "little") < len(data)


def _text_before(data: bytes, end: int) -> tuple[str, int]:
    """Return the short text that a pickle has before `end`, and where it begins; "" for something else."""
    if data[end - 1] != _MEMOIZED:
        return "", end
    at = data.rfind(_SHORT_TEXT, max(0, end - 1 - _SHORT_TEXT_MAX), end - 1)
    while at >= 0:
        if data[at + 1] == end - 1 - (at + 2):
            try:
                return data[at + 2 : end - 1].decode(), at
            except UnicodeDecodeError:
                return "", end
        at = data.rfind(_SHORT_TEXT, max(0, end - 1 - _SHORT_TEXT_MAX), at)
    return "", end
