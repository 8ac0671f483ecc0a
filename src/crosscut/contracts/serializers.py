"""How values of state become bytes, where pickle is not what is wanted.

    class Sessions(cc.KeyedProcess):
        session = cc.ValueState(serializer=cc.MsgspecSerializer(Session, version=2))

A value is stored with the version of the serializer that wrote it. An old value is read when its key is
next used; what a newer version makes of it is up to the serializer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from crosscut.contracts.arrow_checks import check_values
from crosscut.errors import FlowError

T = TypeVar("T")

VERSION_MAX = (1 << 16) - 1


class Serializer(ABC, Generic[T]):
    """Values to bytes and back. It is pickled on the driver, as functions are.

    Attributes:
        version: Of what `dumps` writes, 0 to 65,535. Raise it when you change that.
    """

    version: int = 1

    @abstractmethod
    def dumps(self, value: T) -> bytes:
        """Return `value` as bytes. It must not change it, nor keep it."""

    @abstractmethod
    def loads(self, data: bytes, version: int) -> T:
        """Return the value whose bytes these are: a new object each time.

        Args:
            version: Of the serializer that wrote it.

        Raises:
            Exception: It can't be read. The error then names operator, state, key and both versions.
        """


class MsgspecSerializer(Serializer[T]):
    """MessagePack by msgspec (`crosscut[kafka]` or `pip install msgspec`): typed, small and fast.

    Fields with defaults may be added, and fields may be taken away, without a new version.

    Args:
        value_type: What values are: a `msgspec.Struct`, a dataclass, `list[int]`, ...
        version: See `Serializer`.
        older: `older(plain, version)` makes a value of what an older version has written, which comes as
            plain lists, dicts, text and numbers. Without it an older value has to fit `value_type`.

    Examples:
        >>> import crosscut as cc
        >>> one = cc.MsgspecSerializer(dict[str, int])
        >>> one.loads(one.dumps({"a": 1}), one.version)
        {'a': 1}
    """

    def __init__(
        self, value_type: type[T], *, version: int = 1, older: Callable[[Any, int], T] | None = None
    ) -> None:
        self.version = version
        self._type = value_type
        self._older = older
        self._codec: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_codec": None}

    def dumps(self, value: T) -> bytes:
        data: bytes = self._made()[0].encode(value)
        return data

    def loads(self, data: bytes, version: int) -> T:
        if version != self.version and self._older is not None:
            import msgspec

            return self._older(msgspec.msgpack.decode(data), version)
        value: T = self._made()[1].decode(data)
        return value

    def _made(self) -> tuple[Any, Any]:
        if self._codec is None:
            try:
                import msgspec
            except ImportError as error:
                raise FlowError(
                    f"MsgspecSerializer needs msgspec, which can't be imported ({error}): pip install "
                    f"msgspec, on the workers too"
                ) from error
            self._codec = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(self._type)
        return self._codec


class ArrowSerializer(Serializer[Any]):
    """A value of an Arrow type (`crosscut[parquet]`), as Python's own types: dicts for structs, and so on.

    A value that would come back as another one is refused: a fraction for an integer, a time of the day for a
    date, a field that the struct does not have. A field that is missing comes back as None.

    Args:
        value_type: A `pyarrow.DataType`, such as `pyarrow.struct({"name": pyarrow.string()})`.
        version: See `Serializer`.
    """

    def __init__(self, value_type: Any, *, version: int = 1) -> None:
        self.version = version
        self._type = value_type

    def dumps(self, value: Any) -> bytes:
        import pyarrow

        check_values(pyarrow, [value], self._type)
        column = pyarrow.array([value], type=self._type)
        batch = pyarrow.record_batch([column], schema=self._schema())
        data: bytes = batch.serialize().to_pybytes()
        return data

    def loads(self, data: bytes, version: int) -> Any:
        import pyarrow

        batch = pyarrow.ipc.read_record_batch(pyarrow.py_buffer(data), self._schema())
        return batch.column(0)[0].as_py()

    def _schema(self) -> Any:
        import pyarrow

        return pyarrow.schema([("value", self._type)])
