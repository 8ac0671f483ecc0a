"""`crosscut checkpoints`. As in `crosscut.cli.commands`, nothing but click is imported until a command
runs."""

from __future__ import annotations

import click

from crosscut.cli.completion import DIRECTORY
from crosscut.cli.echo import echo_lines
from crosscut.cli.trust import trust_option, unpickling
from crosscut.foundation.text import escaped

_ROWS_SHOWN = 20


@click.group()
def checkpoints() -> None:
    """Look into a checkpoint directory or a savepoint; the job may be running. Only `seal` changes it."""


@checkpoints.command(name="ls")
@click.argument("directory", type=DIRECTORY)
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, help="How many to show.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each checkpoint.")
def list_checkpoints(directory: str, last: int, as_json: bool) -> None:
    """List the newest completed checkpoints in DIRECTORY, and the epochs claimed meanwhile."""
    from crosscut.cli.checkpoints import checkpoint_lines, listing
    from crosscut.cli.view import make_console
    from crosscut.store import open_store
    from crosscut.store.log_key import log_key

    store = open_store(directory, create=False, key=log_key())
    if as_json:
        echo_lines(checkpoint_lines(store, last))
    else:
        make_console().print(listing(store, last))


@checkpoints.command(name="show")
@click.argument("directory", type=DIRECTORY)
@click.argument("checkpoint_id", metavar="[N]", type=click.IntRange(1), required=False)
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
def show_checkpoint(directory: str, checkpoint_id: int | None, as_json: bool) -> None:
    """Show the snapshots of checkpoint N in DIRECTORY, by default the newest; or what a savepoint holds."""
    from crosscut.cli.checkpoints import details, details_line
    from crosscut.cli.savepoints import savepoint_details, savepoint_line
    from crosscut.cli.view import make_console
    from crosscut.savepoints.manifest import found_at
    from crosscut.store import open_store
    from crosscut.store.log_key import log_key

    if (savepoint := found_at(directory)) is not None:
        if as_json:
            click.echo(savepoint_line(savepoint))
        else:
            make_console().print(savepoint_details(savepoint))
        return
    store = open_store(directory, create=False, key=log_key())
    if as_json:
        click.echo(details_line(store, checkpoint_id))
    else:
        make_console().print(details(store, checkpoint_id))


@checkpoints.command(name="verify")
@click.argument("path", type=DIRECTORY)
def verify_checkpoint(path: str) -> None:
    """Read all of a savepoint, or of the newest checkpoint in a directory (DIRECTORY@7: of checkpoint 7)."""
    from crosscut.cli.savepoints import verified

    click.echo(escaped(verified(path)))


@checkpoints.command(name="diff")
@click.argument("path", type=DIRECTORY)
@click.argument("other", type=DIRECTORY)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each state.")
@trust_option
def diff_checkpoints(path: str, other: str, as_json: bool, trust: bool) -> None:
    """Show where the states of two savepoints or checkpoints (DIRECTORY, DIRECTORY@7) differ."""
    from crosscut.cli.savepoints import compared, difference_lines, state_differences
    from crosscut.cli.view import make_console

    with unpickling([path, other], trust=trust):
        found = state_differences(path, other)
    if as_json:
        echo_lines(difference_lines(found))
    else:
        make_console().print(compared(found))


@checkpoints.command(name="state")
@click.argument("path", type=DIRECTORY)
@click.argument("uid")
@click.option("--state", help="Of a process: which of its states. Default: all.")
@click.option("--key", help="Only this key: text, or JSON as it is shown.")
@click.option("--limit", type=click.IntRange(1), help="How many rows. Default: 20; with --json all.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each row.")
@trust_option
def show_state(
    path: str, uid: str, state: str | None, key: str | None, limit: int | None, as_json: bool, trust: bool
) -> None:
    """Show the state of operator UID in a savepoint or checkpoint (DIRECTORY, DIRECTORY@7)."""
    from crosscut.cli.state import state_lines, state_table
    from crosscut.cli.view import make_console

    with unpickling([path], trust=trust):
        if as_json:
            for line in state_lines(path, uid, state, key, limit):
                click.echo(line)
        else:
            make_console().print(state_table(path, uid, state, key, limit or _ROWS_SHOWN))


@checkpoints.command(name="seal")
@click.argument("path", type=DIRECTORY)
def seal(path: str) -> None:
    """Say that a savepoint is what it should be, after its files were edited."""
    from crosscut.savepoints.manifest import seal_savepoint

    seal_savepoint(path)
    click.echo(f"{path} is sealed as it is now")
