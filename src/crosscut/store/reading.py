"""Reads many files of a store at once: of a remote one, each call takes long and needs little."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

READERS_MAX = 32


def read_at_once(read: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    """Return what `read` returns for each path, in their order. Up to `READERS_MAX` calls are under way.

    Raises:
        Exception: The first one that a call has raised. No other call has begun after that.
    """
    found: dict[int, T] = {}
    errors: list[BaseException] = []
    rest = iter(enumerate(paths))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number, path = next(rest, (-1, ""))
            if number < 0 or errors:
                return
            try:
                found[number] = read(path)
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                errors.append(error)
                return

    # Daemons: a call that hangs must not keep the process from ending.
    readers = [
        threading.Thread(target=work, daemon=True, name="crosscut-reader")
        for _ in range(min(READERS_MAX, len(paths)))
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if errors:
        raise errors[0]
    return [found[number] for number in range(len(paths))]
