"""What records and keys are, to a type checker. When the program runs, nothing depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # With defaults (PEP 696, Python 3.13): `Stream` without brackets means any records.
    from typing_extensions import TypeVar

    Record = TypeVar("Record", covariant=True, default=Any)
    Written = TypeVar("Written", contravariant=True, default=Any)
    Key = TypeVar("Key", bound=int | str | bytes | tuple[Any, ...] | None, covariant=True, default=Any)
else:
    from typing import TypeVar

    Record = TypeVar("Record", covariant=True)
    Written = TypeVar("Written", contravariant=True)
    Key = TypeVar("Key", covariant=True)
