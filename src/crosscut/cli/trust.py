"""Whether a command that shows state loads all of it, or only data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from crosscut.errors import StateError

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Unpickle everything, which can run any code of its author. Default: only data.",
)


@contextmanager
def unpickling(paths: list[str], *, trust: bool) -> Iterator[None]:
    """Load only data within the block, unless the user trusts its author."""
    if trust:
        from crosscut.savepoints.tables import warn_of_foreign_write

        for path in paths:
            warn_of_foreign_write(path)
        yield
        return
    from crosscut.foundation.data_pickles import only_data
    from crosscut.foundation.unpickling import RefusedPickleError

    try:
        with only_data():
            yield
    except RefusedPickleError as error:
        raise StateError(f"{error}. If you trust its author, add --trust") from error
