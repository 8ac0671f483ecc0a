"""What a source or sink raises, as the user sees it: which one, which record, and whether it comes again."""

from __future__ import annotations

import http.client
import json
import pickle
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow
import pytest

from crosscut.contracts.connectors import JSON, CommitPermit, SinkWriter
from crosscut.errors import ConnectorError, HistoryError, StoreError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId
from crosscut.net.causes import failure_cause
from crosscut.operators.connector_errors import name_connector, raise_named
from crosscut.operators.sink import SinkOperator
from crosscut.protocol.job.restarts import GiveUp, RestartPolicy, is_hopeless, restart
from crosscut.protocol.messages import FailureCause
from crosscut.task.discovery import undiscovered

RECORDS = [{"id": 1}, {"id": {7}}, {"id": 3}]


class Writer(SinkWriter):
    """Gives its records to a function."""

    def __init__(self, take: Callable[[list[Any]], Any]) -> None:
        self._take = take

    def write(self, records: list[Any]) -> None:
        self._take(records)

    def rotate(self, checkpoint_id: CheckpointId) -> object:
        raise NotImplementedError

    def prepare(self, transaction: object) -> JSON:
        raise NotImplementedError

    def commit(self, permit: CommitPermit, handles: list[JSON]) -> None:
        raise NotImplementedError

    def recover(self, permit: CommitPermit | None, handles: list[JSON]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def cause_of(take: Callable[[list[Any]], Any], records: list[Any] = RECORDS) -> FailureCause:
    with pytest.raises(Exception) as caught:
        SinkOperator("out", Writer(take)).process(Batch(list(records)))
    return failure_cause(caught.value)


def one_by_one(records: list[Any]) -> None:
    for record in records:
        json.dumps(record)


def in_a_comprehension(records: list[Any]) -> None:
    _ = [json.dumps(record) for record in records]


def by_map(records: list[Any]) -> None:
    list(map(encoded, records))


def encoded(record: Any) -> str:
    return json.dumps(record)


def all_at_once(records: list[Any]) -> None:
    json.dumps(records)


def refused(records: list[Any]) -> None:
    for row in records:
        if row["id"] == 3:
            raise ConnectorError("table t: not null", is_permanent=True)


def is_down(records: list[Any]) -> None:
    try:
        raise ConnectionRefusedError(111, "refused")
    except OSError:
        raise RuntimeError("no answer")  # noqa: B904 - as many libraries do


@pytest.mark.parametrize("take", [one_by_one, in_a_comprehension, by_map])
def test_what_a_sink_raises_names_the_sink_and_the_record_that_it_was_at(
    take: Callable[[list[Any]], Any],
) -> None:
    cause = cause_of(take)
    assert cause.message == "sink 'out' raised TypeError: Object of type set is not JSON serializable"
    assert (cause.kind, cause.operator, cause.record) == ("TypeError", "out", "{'id': {7}}")
    assert "json.dumps" in cause.traceback
    assert cause.is_first, "whether another record got through is not known"


def test_without_a_record_to_blame_the_sink_is_named_all_the_same() -> None:
    cause = cause_of(all_at_once)
    assert (cause.operator, cause.record) == ("out", "")
    assert cause_of(all_at_once, [{7}]).record == "{7}"


def test_a_refusal_for_good_says_so_and_gets_the_names_that_it_lacks() -> None:
    cause = cause_of(refused)
    assert cause.message == "sink 'out': table t: not null"
    assert (cause.operator, cause.record, cause.is_permanent) == ("out", "{'id': 3}", True)
    assert not cause_of(one_by_one).is_permanent


def test_a_refused_record_is_refused_for_good() -> None:
    def write(records: list[Any]) -> None:
        Writer(write).refuse(records[2], "column id: too large")

    cause = cause_of(write)
    assert (cause.operator, cause.record, cause.is_permanent) == ("out", "{'id': 3}", True)


def test_a_connector_that_says_nothing_of_the_kind_blames_no_record() -> None:
    """K5: its service may be down, and no record gets through."""

    def refused_perhaps(records: list[Any]) -> None:
        for record in records:
            raise ConnectorError(f"no answer for {record}", record=repr(record))

    cause = cause_of(refused_perhaps)
    assert (cause.operator, cause.is_permanent, cause.is_first) == ("out", False, True)


def test_what_comes_from_outside_is_still_seen_to() -> None:
    assert cause_of(is_down).is_from_outside


@pytest.mark.parametrize("kind", [ConnectorError, HistoryError])
def test_the_class_of_an_error_stays_and_its_names_survive_pickling(kind: type[ConnectorError]) -> None:
    with pytest.raises(kind, match=r"^source 'in': line 7 is no JSON$") as caught:
        raise_named("source", "in", kind("line 7 is no JSON", is_permanent=True))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.operator, again.is_permanent) == ("source 'in': line 7 is no JSON", "in", True)


def test_an_error_of_the_store_is_no_fault_of_the_sink() -> None:
    with pytest.raises(StoreError, match=r"^torn$"):
        raise_named("sink", "out", StoreError("torn"))


class Odd(Exception):
    """Of the user's own."""


def undecoded(_: Any) -> None:
    json.loads('{"a": ')


def asserted(record: Any) -> None:
    assert record["id"] == 1, "expected 1"


def raising(kind: type[Exception]) -> Callable[[Any], None]:
    def use(_: Any) -> None:
        raise kind("odd")

    return use


OWN: dict[str, Callable[[Any], Any]] = {
    "KeyError": lambda record: record["usr"],
    "IndexError": lambda _: RECORDS[7],
    "ZeroDivisionError": lambda record: 1 / (record["id"] - record["id"]),
    "AssertionError": asserted,
    "RuntimeError": raising(RuntimeError),
    "Odd": raising(Odd),
    "JSONDecodeError": undecoded,
}


class Lines:
    """A reader, or the calls of a sink, in which the user's function is called."""

    def __init__(self, use: Callable[[Any], Any]) -> None:
        self._use = use

    def write(self, records: list[Any]) -> None:
        for record in records:
            self._use(record)


def given_up_after(cause: FailureCause) -> int:
    policy = RestartPolicy(10, 300_000, 100, 100, 10_000, 3)
    return next(n for n in range(1, 12) if isinstance(restart([cause] * n, n, policy), GiveUp))


@pytest.mark.parametrize("kind", OWN)
def test_an_exception_of_the_users_own_sink_or_source_ends_the_job_at_the_third_time(kind: str) -> None:
    def raised(records: list[Any]) -> None:
        Lines(OWN[kind]).write(records)

    with ThreadPoolExecutor(1) as threads:
        in_thread = threads.submit(raised, [{"id": 2}]).exception()
    assert in_thread is not None
    for error in (raised_by(lambda: raised([{"id": 2}])), in_thread):
        for named in (name_connector("sink", "out", error), undiscovered("in", cast(Exception, error))):
            cause = failure_cause(named)
            assert cause.kind == kind
            assert given_up_after(cause) == 3
            assert is_hopeless(cause)
            # A lookup of its own may have found no answer.
            assert cause.may_heal
    assert given_up_after(cause_of(raised, [{"id": 2}])) == 3


def raised_by(function: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


def handled(outage: Exception, *, is_told: bool) -> Exception:
    """Return an own exception for an outage, which a sink has made from that of a client."""

    def use() -> None:
        try:
            raise outage
        except type(outage):
            if is_told:
                raise Odd("no answer")  # noqa: B904 - as it is often written
            raise Odd("no answer") from None

    return raised_by(use)


def in_a_library(source: str, name: str, file: str, installed: str = "") -> Callable[..., Any]:
    """Return `call` of a module that is installed."""
    scope: dict[str, Any] = {"__name__": name, "__file__": installed or file}
    exec(compile(source, file, "exec"), scope)  # noqa: S102 - a file in no installation
    return cast(Callable[..., Any], scope["call"])


SITE = sysconfig.get_path("purelib")
RAISES = "def call():\n    raise KeyError('answer')"


def raising_now(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


OUTAGES: dict[str, Callable[[], Any]] = {
    "an OSError": raising_now(ConnectionRefusedError(111, "refused")),
    "one of a client in C": raising_now(pyarrow.lib.ArrowKeyError("torn answer")),
    "an answer that a client can't read": in_a_library(RAISES, "client.json", f"{SITE}/client/json.py"),
    "an extension, whose source has another name": in_a_library(
        RAISES, "client", "client/_client.pyx", f"{SITE}/client.so"
    ),
    "a client of Python": raising_now(http.client.BadStatusLine("?")),
    "a queue of a client that is full": raising_now(BufferError("Local: Queue full")),
    "an answer that ends": raising_now(EOFError()),
    "a connector of ours": raising_now(ConnectorError("no answer")),
}


@pytest.mark.parametrize("what", OUTAGES)
def test_an_outage_has_the_whole_restart_strategy_however_it_is_raised(what: str) -> None:
    outage = raised_by(OUTAGES[what])
    for error in (outage, handled(outage, is_told=True), handled(outage, is_told=False)):
        cause = failure_cause(name_connector("sink", "out", error))
        assert given_up_after(cause) == 11
        assert not is_hopeless(cause)
