"""Arguments that a shell can complete."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


class DirectoryType(click.ParamType[str]):
    """A directory or a URL; the shell completes directories."""

    name = "directory"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Have the shell complete a directory."""
        return [CompletionItem(incomplete, type="dir")]


class FileType(click.ParamType[str]):
    """A file, or something that begins with one (`app.py:flow`); the shell completes files."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Have the shell complete a file."""
        return [CompletionItem(incomplete, type="file")]


DIRECTORY = DirectoryType()
FILE = FileType()
