"""`crosscut transactions`. As in `crosscut.cli.commands`, nothing but click is imported until a command
runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from crosscut.cli.completion import DIRECTORY, FILE

if TYPE_CHECKING:
    from crosscut.store.checkpoint_store import CheckpointStore


@click.group()
def transactions() -> None:
    """Sink transactions that are prepared and not committed: list, export, drop.

    For a job that can't go on because the system behind a sink refuses its output for good. Correct the
    cause and start the job again first; drop output only if that does not help.
    """


@transactions.command(name="ls")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.argument("target", metavar="[APP.PY:FLOW]", required=False, type=FILE)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each transaction.")
def list_transactions(directory: str, target: str | None, as_json: bool) -> None:
    """List the transactions that the next start of the job in DIR commits.

    With the flow, its sinks are asked which of them are committed already.
    """
    from crosscut.cli.target import load_flow
    from crosscut.cli.transactions import listing, transaction_lines, unfinished
    from crosscut.cli.view import make_console

    flow = load_flow(target) if target is not None else None
    found = unfinished(_store_at(directory))
    if as_json:
        for line in transaction_lines(found, flow):
            click.echo(line)
    else:
        make_console().print(listing(found, flow))


@transactions.command(name="export")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.argument("target", metavar="APP.PY:FLOW", type=FILE)
@click.option("--sink", required=True, metavar="NAME", help="Vertex of the sink, or one task: orders[0].")
@click.option("--checkpoint", type=click.IntRange(1), help="Only the transaction of this checkpoint.")
def export_transactions(directory: str, target: str, sink: str, checkpoint: int | None) -> None:
    """Print the records of pending transactions, a line of JSON each. Nothing is changed."""
    from crosscut.cli.target import load_flow
    from crosscut.cli.transactions import exported, selected, unfinished

    store = _store_at(directory)
    found = unfinished(store)
    for line in exported(store, found, selected(found, sink, checkpoint), load_flow(target)):
        click.echo(line)


@transactions.command(name="drop")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--sink", required=True, metavar="NAME", help="Vertex of the sink, or one task: orders[0].")
@click.option("--checkpoint", type=click.IntRange(1), help="Only the transaction of this checkpoint.")
@click.option("--reason", required=True, help="Why; it is written to the job log, with your name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also if a process that ran the job is still there.")
def drop_transactions(
    directory: str, sink: str, checkpoint: int | None, reason: str, *, yes: bool, force: bool
) -> None:
    """Give pending transactions up for good: the job starts again without their output.

    All other output stays exactly once. Export the records first. The job must have stopped.
    """
    from crosscut.cli.transactions import dropped, selected, unfinished

    store = _store_at(directory)
    chosen = selected(unfinished(store), sink, checkpoint)
    names = ", ".join(f"{one.task} of checkpoint {one.transaction.checkpoint_id}" for one in chosen)
    if not yes:
        click.confirm(f"Drop {names}? That output will be lost", abort=True, err=True)
    claim = dropped(store, chosen, reason, force=force)
    click.echo(f"dropped in epoch {claim.epoch}: {names}")


def _store_at(directory: str) -> CheckpointStore:
    from crosscut.store import open_store
    from crosscut.store.log_key import log_key

    return open_store(directory, create=False, key=log_key())
