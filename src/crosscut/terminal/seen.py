"""A job looked at from elsewhere, by what it writes into its checkpoint directory."""

from __future__ import annotations

import threading

import click

from crosscut.web.page import Page
from crosscut.web.record import read_record


def serve(directory: str, host: str, port: int) -> None:
    """Serve the page of the job in `directory` until Ctrl-C.

    Raises:
        StoreError: There is nothing to show.
        SettingsError: No port could be had.
    """
    # Asked once before, so that a wrong directory is an error here and not in the browser.
    read_record(directory)
    page = Page(lambda: read_record(directory), None, None, host=host, port=port)
    try:
        if port not in (0, page.port):
            click.echo(f"port {port} is taken: it is {page.port}")
        click.echo(page.link)
        threading.Event().wait()
    finally:
        page.close()
