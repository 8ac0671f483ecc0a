"""The end of a run of numbered files, found without listing a directory."""

from __future__ import annotations

from collections.abc import Callable


class Gap(Exception):
    """There is nothing at `number`, and there is at the next one."""

    def __init__(self, number: int) -> None:
        super().__init__(str(number))
        self.number = number


def newest_number(exists: Callable[[int], bool], first: int = 1) -> int:
    """Return the greatest number from `first` on that exists; `first` - 1 if there is none.

    Takes some twenty calls for each power of a thousand.

    Raises:
        Gap: A number is missing before the end.
    """
    absent = 1
    while exists(first - 1 + absent):
        absent *= 2
    present = absent // 2
    while absent - present > 1:
        middle = (absent + present) // 2
        if exists(first - 1 + middle):
            present = middle
        else:
            absent = middle
    newest = first - 1 + present
    # One that is lost must not be taken for the end, nor one that was appended since for a lost one.
    while exists(newest + 2):
        if not exists(newest + 1):
            raise Gap(newest + 1)
        newest += 1
    return newest
