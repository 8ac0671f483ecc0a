"""A field of records, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Field:
    """Returns the field `name` of a record: the value under that key, or else the attribute.

    Raises:
        KeyError: A record that is a mapping has no such key.
        AttributeError: Another record has no such attribute.
    """

    name: str

    def __call__(self, record: Any) -> Any:
        if type(record) is dict or isinstance(record, Mapping):
            return record[self.name]
        return getattr(record, self.name)
