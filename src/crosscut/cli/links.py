"""The link of a page, which has its token, for the terminal; not for files and pipes."""

from __future__ import annotations

import sys

VARIABLE = "CROSSCUT_WEB_TOKEN"


def page_for_terminal(link: str) -> str:
    """Return the link to print: with the token only if standard output is a terminal.

    Files and the logs of services are kept, passed on, and read by others.
    """
    if sys.stdout.isatty():
        return link
    address = link.partition("#")[0]
    return f"{address} (with # and the token behind it: set {VARIABLE}, or look at job.page in the program)"
