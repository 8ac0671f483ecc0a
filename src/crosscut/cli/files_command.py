"""`crosscut files`: what file sinks have committed."""

from __future__ import annotations

import click

from crosscut.cli.completion import DIRECTORY
from crosscut.cli.options import DurationType
from crosscut.foundation.durations import Duration
from crosscut.foundation.text import escaped


@click.group()
def files() -> None:
    """What file sinks have committed."""


@files.command()
@click.argument("directory", type=DIRECTORY)
@click.option("--target-bytes", default=128 * 1024 * 1024, show_default=True, help="Size of a merged file.")
@click.option(
    "--older-than",
    type=DurationType(),
    default="10m",
    show_default=True,
    help="Leave files alone that are younger.",
)
@click.option(
    "--csv-header/--no-csv-header",
    default=None,
    help="Whether CSV files begin with names of columns. Neither: they are left alone.",
)
def compact(directory: str, target_bytes: int, older_than: Duration, csv_header: bool | None) -> None:
    """Merge small files into large ones, while jobs write there.

    Uncompressed JSON lines, text and CSV, and Parquet. What a run that died has left half-done is finished.
    """
    from crosscut.connectors.files import compact as merged

    found = merged(directory, target_bytes=target_bytes, older_than=older_than, csv_header=csv_header)
    for one in found:
        click.echo(f"{escaped(one.path)}  {len(one.replaced)} files, {one.size_bytes} bytes")
    if not found:
        click.echo("nothing to merge")
