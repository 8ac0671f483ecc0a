"""Output of commands for programs: one line after the other."""

from __future__ import annotations

from collections.abc import Iterable

import click


def echo_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
