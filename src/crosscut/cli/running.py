"""Commands to a running job, from another terminal of the user who runs it."""

from __future__ import annotations

import os
import time

import click

from crosscut.cli.completion import DIRECTORY
from crosscut.cli.options import DurationType
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.text import escaped
from crosscut.foundation.urls import local_path


@click.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option(
    "--timeout",
    type=DurationType(),
    default="5m",
    show_default=True,
    help="How long to wait for the end of the job; 0s: not at all.",
)
def stop(directory: str, timeout: Duration) -> None:
    """Stop the job with checkpoint directory DIR: it takes a last checkpoint, commits it, and ends.

    It must run on this machine, as your user, and DIR must be local.

    Exit codes: 0: the job has stopped, or has been told to; 2: it could not be told, or has not stopped in
    time.
    """
    from crosscut.cli.remote import asked, ended

    since_ms = int(time.time() * 1_000)
    click.echo(escaped(asked(directory, "/api/stop", {})))
    if timeout_s := duration_ms(timeout, "timeout") / 1_000:
        click.echo(f"the job has ended: {escaped(ended(directory, since_ms, timeout_s))}")


@click.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.argument("path", type=DIRECTORY)
def savepoint(directory: str, path: str) -> None:
    """Have the job with checkpoint directory DIR write a savepoint to PATH, a new directory or a URL.

    The job runs on. It must run on this machine, as your user, with a local DIR, and be able to write PATH.

    Exit codes: 0: it is written; 2: it is not.
    """
    from crosscut.cli.remote import asked

    # The job may run in another directory.
    where = path if local_path(path) is None else os.path.abspath(path)
    click.echo(escaped(asked(directory, "/api/savepoint", {"path": where})))


@click.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY)
def checkpoint(directory: str) -> None:
    """Have the job with checkpoint directory DIR take a checkpoint now, and wait for it.

    The job runs on. It must run on this machine, as your user, with a local DIR.

    Exit codes: 0: it is complete; 2: it is not.
    """
    from crosscut.cli.remote import asked

    click.echo(escaped(asked(directory, "/api/checkpoint", {})))
