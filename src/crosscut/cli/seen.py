"""A job looked at from elsewhere, by what it writes into its checkpoint directory."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, get_args

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table

from crosscut.cli.links import page_for_terminal
from crosscut.cli.numbers import overview, printable
from crosscut.cli.view import make_console
from crosscut.errors import StoreError
from crosscut.foundation.text import escaped
from crosscut.foundation.urls import shown_url
from crosscut.protocol.effects import Outcome
from crosscut.web.job_list import JobList
from crosscut.web.page import Page
from crosscut.web.record import read_record
from crosscut.web.stored_jobs import StoredJobs

_LOOK_EVERY_S = 1.0
_NUMBERS = ("last seen", "records/s", "checkpoints", "restarts")


def serve(directory: str, host: str, port: int) -> None:
    """Serve the page of the job in `directory` until Ctrl-C.

    Raises:
        StoreError: There is nothing to show.
        SettingsError: No port could be had.
    """
    # Asked once before, so that a wrong directory is an error here and not in the browser.
    read_record(directory)
    _serve(Page(lambda: read_record(directory), None, None, host=host, port=port), port)


def serve_jobs(store: str, host: str, port: int) -> None:
    """Serve the list of the jobs in `store`, and their pages, until Ctrl-C.

    Raises:
        StoreError: It can't be listed.
        SettingsError: No port could be had.
    """
    _serve(JobList(store, host=host, port=port), port)


def _serve(server: Page | JobList, port: int) -> None:
    """Print the link, and wait for Ctrl-C; `port` is the one that was asked for."""
    try:
        if port not in (0, server.port):
            click.echo(f"port {port} is taken: it is {server.port}")
        click.echo(page_for_terminal(server.link))
        threading.Event().wait()
    finally:
        server.close()


def print_jobs(store: str, *, as_json: bool) -> None:
    """Print a line for each job in `store`.

    Raises:
        StoreError: It can't be listed.
    """
    found = StoredJobs(store).lines()
    if as_json:
        click.echo(json.dumps(found))
        return
    if not found["jobs"]:
        click.echo(f"there is no job in {escaped(found['store'])}")
        return
    table = Table(box=None, pad_edge=False)
    for title in (
        "directory",
        "job",
        "status",
        "last seen",
        "records/s",
        "checkpoints",
        "restarts",
        "last error",
    ):
        table.add_column(title, justify="right" if title in _NUMBERS else "left", overflow="fold")
    for one in found["jobs"]:
        is_readable = "age_ms" in one
        numbers = (
            (
                f"{one['age_ms'] / 1_000:,.0f} s ago",
                f"{one['records_per_second']:,.0f}",
                f"{one['checkpoints_completed']:,}",
                f"{one['restarts']:,}",
            )
            if is_readable
            else ("", "", "", "")
        )
        texts = (one["directory"], one["name"], one["status"])
        table.add_row(*map(printable, texts), *numbers, printable(one["last_error"]))
    make_console().print(table)
    if found["has_more"]:
        click.echo(f"only the first {len(found['jobs'])} directories are shown", err=True)


def top(directory: str, *, once: bool) -> None:
    """Show the job in `directory` until it has ended, or until Ctrl-C.

    Args:
        once: Show it as it is now, as where there is no terminal.

    Raises:
        StoreError: There is nothing to show.
    """
    console = make_console()
    if once or not console.is_terminal:
        console.print(_seen(directory)[0])
        return
    with Live(console=console, auto_refresh=False) as live:
        has_ended = False
        while not has_ended:
            shown, has_ended = _seen(directory)
            live.update(shown, refresh=True)
            if not has_ended:
                time.sleep(_LOOK_EVERY_S)


def job_line(directory: str) -> str:
    """Return the job in `directory` as a line of JSON: what `top` shows, and more.

    Raises:
        StoreError: There is nothing to show.
    """
    job, age_s = _job_and_age(directory)
    return json.dumps({**job, "age_s": round(age_s, 1)})


def _seen(directory: str) -> tuple[Group, bool]:
    """Return what there is to show, and whether the job has ended."""
    job, age_s = _job_and_age(directory)
    try:
        has_ended = job["status"] in get_args(Outcome)
        return overview(job, 0.0 if has_ended else age_s), has_ended
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _of_another_release(directory, error) from error


def _job_and_age(directory: str) -> tuple[dict[str, Any], float]:
    """Return the job as it was recorded last, and how long ago that was."""
    document = read_record(directory)
    try:
        job: dict[str, Any] = document["job"]
        return job, max(0.0, time.time() - job["at_ms"] / 1e3)
    except (KeyError, TypeError, ValueError) as error:
        raise _of_another_release(directory, error) from error


def _of_another_release(directory: str, error: Exception) -> StoreError:
    return StoreError(
        f"{shown_url(directory)}: the status file of the job is from another release: {error!r}"
    )
