"""A service that user code calls: down when the job starts, and down again in the middle."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, Record, until

import crosscut as cc

DOWN_FOR_RESTARTS = 5
"""More than the strikes that one record has, and than any task's turn to be the first to fail."""


class Service:
    """Gives each number that it is sent back, one a connection, while it is up."""

    def __init__(self) -> None:
        # It keeps the port while nobody listens: others may not have it, and connections are refused.
        self._keeps_port = socket.socket()
        self._keeps_port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._keeps_port.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._keeps_port.getsockname()
        self.answered = 0
        self.outage_at = -1
        self.is_out = threading.Event()
        self.is_busy = False

    def close(self) -> None:
        self._keeps_port.close()

    @contextmanager
    def up(self) -> Iterator[None]:
        """Answer, until the block is over."""
        service = self

        class Answers(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                if service.answered == service.outage_at:
                    # It takes the question and dies.
                    service.is_out.set()
                    return
                number = self.rfile.readline()
                self.wfile.write(b"busy\n" if service.is_busy else number)
                service.answered += 1

        class Server(socketserver.TCPServer):
            allow_reuse_address = True

        with Server(self.address, Answers) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


@dataclass(frozen=True)
class Asks:
    """Asks the service about each record, as a naive user's function would."""

    address: tuple[str, int]

    def __call__(self, one: Record) -> Record:
        with socket.create_connection(self.address, timeout=DEADLINE_S) as connection:
            connection.sendall(b"%d\n" % one[1])
            with connection.makefile("rb") as answer:
                return one[0], self.number_in(answer.readline())

    def number_in(self, answer: bytes) -> int:
        return int(answer)


@dataclass(frozen=True)
class Checks(Asks):
    """The same, and looks at each answer itself."""

    def number_in(self, answer: bytes) -> int:
        if not answer.strip().isdigit():
            raise ValueError(f"the service says {answer!r}")
        return int(answer)


@pytest.fixture
def service() -> Iterator[Service]:
    with closing(Service()) as one:
        yield one


def test_a_service_that_is_down_costs_restarts_and_the_job_goes_on_exactly(
    tmp_path: Path, started: Any, service: Service
) -> None:
    """K5, I15: refused connections, and questions without an answer, only count against the strategy."""
    numbered = NumberedJob(
        tmp_path,
        count=2_000,
        rate=None,
        # The same record comes first after each restart.
        parallelism=1,
        hook=Asks(service.address),
        settings={"restart": cc.Restart(failures=1_000, delay_step="50ms", delay_max="200ms")},
    )
    job = started(numbered)
    until(lambda: job.report().restarts >= DOWN_FOR_RESTARTS, "restarts")
    assert "ConnectionRefusedError" in job.report().last_failure
    service.outage_at = 1_000
    with service.up():
        until(service.is_out.is_set, "the second outage")
    restarts = job.report().restarts
    until(lambda: job.report().restarts >= restarts + DOWN_FOR_RESTARTS, "restarts, again")
    service.outage_at = -1
    with service.up():
        started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


def test_an_outage_that_the_users_own_lines_report_passes_before_the_last_restart(
    tmp_path: Path, started: Any, service: Service
) -> None:
    """K5, I15: a ValueError for an error page looks like a mistake; the third one would end the job."""
    numbered = NumberedJob(
        tmp_path, count=500, rate=None, parallelism=1, hook=Checks(service.address), settings={}
    )
    service.is_busy = True
    with service.up():
        job = started(numbered)
        until(lambda: job.report().restarts >= 2, "all restarts but the last")
        assert "the service says" in job.report().last_failure
        # The outage lasts longer than any restart takes that nobody has delayed.
        threading.Event().wait(3.0)
        service.is_busy = False
        started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.report().restarts == 2
    numbered.check_output_is_exact()
