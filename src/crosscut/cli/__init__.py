"""The command line: `crosscut run`, `crosscut explain`, ..."""

from __future__ import annotations


def main() -> None:
    """Run the command line, as the script `crosscut` does."""
    from crosscut.cli import commands

    commands.main()
