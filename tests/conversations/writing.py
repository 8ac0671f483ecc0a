"""Makes a text of what was said: short lines, times where they change, words to several at once."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tests.conversations.recording import Line
from tests.conversations.scripts import Script

WIDTH = 120
WHO_WIDTH = 30


def written(script: Script) -> str:
    """Play a script, and return it as text."""
    lines = [one for one in script.lines() if not _is_hidden(script, one)]
    if script.begins:
        lines = lines[_place(script.begins, lines) :]
    if script.ends:
        lines = lines[: 1 + _place(script.ends, lines)]
    about = textwrap.fill(script.about, WIDTH)
    return f"{script.title}\n{'=' * len(script.title)}\n\n{about}\n\n" + "\n".join(_laid_out(lines)) + "\n"


def _place(text: str, lines: Sequence[Line]) -> int:
    found = next((n for n, one in enumerate(lines) if text in one.text), None)
    assert found is not None, f"nobody says {text!r}:\n" + "\n".join(map(str, lines))
    return found


def _is_hidden(script: Script, line: Line) -> bool:
    is_left_out = bool({line.task, line.who, line.told} & set(script.hides))
    return is_left_out or (line.is_record and not script.shows_records)


def _laid_out(lines: Sequence[Line]) -> list[str]:
    drivers = {name for one in lines for name in (one.who, one.told) if name.startswith("driver ")}
    found: list[str] = []
    shown_ms = -1
    position = 0
    while position < len(lines):
        one = lines[position]
        told = [one.told]
        position += 1
        while position < len(lines) and one.told and _is_same(one, lines[position]):
            told.append(lines[position].told)
            position += 1
        who = one.who + (f" -> {', '.join(told)}" if one.told else "")
        text = one.text
        if len(drivers) == 1:
            who, text = (words.replace(*drivers, "driver") for words in (who, text))
        time = f"{one.ms:>5} ms" if one.ms != shown_ms else ""
        shown_ms = one.ms
        prefix = f"{time:<10}{who:<{WHO_WIDTH}}  "
        hanging = " " * (12 + WHO_WIDTH)
        found += (
            textwrap.wrap(
                prefix + text,
                WIDTH,
                subsequent_indent=hanging,
                drop_whitespace=True,
                replace_whitespace=False,
            )
            if len(prefix + text) > WIDTH
            else [prefix + text]
        )
    return found


def _is_same(one: Line, other: Line) -> bool:
    return (one.ms, one.who, one.text) == (other.ms, other.who, other.text) and other.told != one.told
