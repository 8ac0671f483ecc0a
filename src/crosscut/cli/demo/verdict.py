"""Whether a count was exactly once, decided without the engine: read the text, read the output, compare.

A running count writes `[word, n]` for the nth time that it sees a word. So the output of a word that
occurs n times must be 1, 2, ... n, each once and in this order: a lost record, a record that counted
twice and a line that was written twice all show, even where the last number would be right.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import orjson


@dataclass(frozen=True, slots=True)
class Difference:
    """One word whose output is not what it should be.

    Attributes:
        expected: How often the word occurs: how many updates there should be.
        found: How many updates there are.
        first_wrong: (what the first wrong update should have been, what it was), or None if all that
            are there are right.
    """

    word: str
    expected: int
    found: int
    first_wrong: tuple[int, int] | None

    def __str__(self) -> str:
        text = f"{self.word!r}: expected the updates 1 to {self.expected:,}, found {self.found:,} updates"
        if self.first_wrong is None:
            return text
        should, was = self.first_wrong
        return f"{text}; where {should:,} should be, there is {was:,}"


def line_count(paths: Iterable[str]) -> int:
    r"""Return the number of lines; the last line of a file needs no newline."""
    total = 0
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        total += data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    return total


def word_counts(paths: Iterable[str]) -> Counter[str]:
    """Count the words of files, as they are after `read_text(errors="replace")` and `str.split`.

    Whole files can be split into words at once, since the end of a line is also the end of a word.
    """
    counts: Counter[str] = Counter()
    for path in paths:
        with open(path, "rb") as file:
            counts.update(file.read().decode("utf-8", "replace").split())
    return counts


def committed_updates(directory: str | os.PathLike[str]) -> Iterator[tuple[str, int]]:
    """Yield the updates in the committed files of a JSON lines sink, each task's in order."""
    for path in sorted(glob.glob("part-*.jsonl", root_dir=directory)):
        with open(os.path.join(directory, path), "rb") as file:
            yield from map(orjson.loads, file)


def differences(expected: Mapping[str, int], updates: Iterable[tuple[str, int]]) -> list[Difference]:
    """Return the words whose updates are not exactly 1, 2, ... up to what is expected, sorted."""
    found: dict[str, int] = {}
    wrong: dict[str, tuple[int, int]] = {}
    for word, update in updates:
        should = found[word] = found.get(word, 0) + 1
        if update != should and word not in wrong:
            wrong[word] = (should, update)
    return [
        Difference(word, expected.get(word, 0), found.get(word, 0), wrong.get(word))
        for word in sorted(expected.keys() | found.keys())
        if word in wrong or found.get(word, 0) != expected.get(word, 0)
    ]
