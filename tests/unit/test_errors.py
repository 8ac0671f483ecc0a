"""The one exception tree: ids are attributes, and everything survives the way between processes."""

from __future__ import annotations

import copy
import gzip
import io
import pickle
import re
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import crosscut.errors as errors
from crosscut.connectors.extras import ExtraMissing
from crosscut.errors import CrosscutError, InternalError, invariant
from crosscut.net.causes import failure_cause
from crosscut.protocol.effects import EndJob
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.retry_policy import DEATHS_MAX, dead, given_up
from crosscut.spark.cluster.endings import failure_of


def all_classes(kind: type[CrosscutError] = CrosscutError) -> Iterator[type[CrosscutError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from all_classes(one)


KINDS = sorted(
    (kind for kind in all_classes() if kind.__module__ == errors.__name__), key=lambda kind: kind.__name__
)


def test_every_exception_of_the_module_is_in_the_tree() -> None:
    found = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, BaseException)}
    assert found == set(KINDS)
    assert len(KINDS) >= 12


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_exception_survives_pickling_with_its_ids(kind: type[CrosscutError]) -> None:
    ids = {"operator": "by-key", "record": None, "cause": FailureCause("kind", "message"), "damaged": True}
    error = kind("what failed and what to do", **ids)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert str(again) == again.message == "what failed and what to do"
        assert again.args == error.args
        assert again.ids == ids
        assert {name: getattr(again, name) for name in ids} == ids


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_exception_without_ids_survives_pickling(kind: type[CrosscutError]) -> None:
    again = pickle.loads(pickle.dumps(kind("text")))
    assert (type(again), again.message, again.ids) == (kind, "text", {})


class WithCode(errors.ConnectorError):
    """What a user may write."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class WithMessageAndCode(errors.StoreError):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, operator="out")
        self.code = code


@pytest.mark.parametrize("error", [WithCode(3), WithMessageAndCode("code 3", 3)], ids=repr)
def test_an_exception_of_a_user_with_arguments_of_its_own_survives_pickling(error: CrosscutError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args, again.code) == ("code 3", ("code 3",), 3)
        assert again.ids == error.ids


class NeverLoaded(Exception):
    """Can be pickled, but not loaded."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)


def test_notes_and_attributes_survive_pickling_and_what_can_not_is_left_out() -> None:
    error: Any = errors.ConnectorError("no answer", lock=threading.Lock(), topic="t")
    error.add_note("in the night")
    error.hint, error.client, error.answer = {"port": 1}, threading.Lock(), NeverLoaded(1, 2)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (again.__notes__, again.hint, again.topic) == (["in the night"], {"port": 1}, "t")
        assert again.ids == {"topic": "t"}
        assert not {"client", "answer", "lock"} & vars(again).keys()
        again.add_note("of the copy")
    assert error.__notes__ == ["in the night"]


def test_an_invariant_that_holds_says_nothing_and_a_broken_one_is_a_bug_with_its_ids() -> None:
    invariant(True, "one and one is two")
    with pytest.raises(InternalError, match="one and one is three") as failure:
        invariant(False, "one and one is three", epoch=3)
    assert failure.value.ids == {"epoch": 3}


# Whether trying again may help.


Error = TypeVar("Error", bound=BaseException)


def caused(error: Error, cause: BaseException) -> Error:
    error.__cause__ = cause
    return error


def handling(error: Error, handled: BaseException) -> Error:
    error.__context__ = handled
    return error


@pytest.mark.parametrize(
    ("error", "is_transient"),
    [
        (errors.FlowError("f"), False),
        (errors.SettingsError("s"), False),
        (errors.StateError("s"), False),
        (errors.InternalError("i"), False),
        (errors.WireError("w"), True),
        (errors.WorkersError("w"), True),
        (errors.SpillError("s"), True),
        (errors.CheckpointError("c"), True),
        (caused(errors.CheckpointError("c"), errors.StateError("s")), False),
        (errors.StoreError("the directory is not empty"), False),
        (caused(errors.StoreError("s"), ConnectionResetError()), True),
        (caused(errors.StoreError("s"), PermissionError()), False),
        (caused(errors.StoreError("s", damaged=True), OSError()), False),
        (caused(errors.AuthenticityError("a"), OSError()), False),
        (errors.ConnectorError("c"), True),
        (errors.ConnectorError("c", is_permanent=True), False),
        (errors.HistoryError("h"), False),
        (errors.RefusedRecordError("r"), False),
        (ExtraMissing("e"), False),
        (caused(errors.UserCodeError("u"), ConnectionRefusedError()), True),
        (caused(errors.UserCodeError("u"), KeyError("usr")), False),
        (errors.UserCodeError("u"), False),
        (errors.JobFailedError("j"), False),
        (caused(errors.JobFailedError("j"), errors.WorkersError("w")), True),
        (
            caused(
                errors.JobFailedError("j", cause=FailureCause("ConnectorError", "m", is_permanent=True)),
                errors.ConnectorError("c"),
            ),
            False,
        ),
        (errors.JobFailedError("j", cause=FailureCause("OSError", "m", is_transient=True)), True),
        (errors.JobFailedError("j", cause=FailureCause("OSError", "m", is_from_outside=True)), False),
        (caused(errors.UserCodeError("u"), caused(RuntimeError("r"), ConnectionResetError())), True),
        (caused(errors.UserCodeError("u"), handling(LookupError("no answer"), TimeoutError())), True),
        (caused(errors.UserCodeError("u"), caused(RuntimeError("r"), FileNotFoundError())), False),
        (caused(errors.UserCodeError("u", is_certain=True), handling(ValueError("v"), OSError())), False),
        (caused(errors.UserCodeError("u", is_certain=True), caused(ValueError("v"), OSError())), True),
        (caused(errors.UserCodeError("u", is_certain=False), handling(ValueError("v"), OSError())), True),
        (caused(errors.UserCodeError("u"), gzip.BadGzipFile()), False),
        (caused(errors.UserCodeError("u"), io.UnsupportedOperation()), False),
        (caused(errors.UserCodeError("u"), ssl.SSLCertVerificationError()), False),
        (caused(errors.UserCodeError("u"), ssl.SSLEOFError()), True),
        (caused(errors.StoreError("s"), ssl.SSLCertVerificationError()), False),
    ],
    ids=repr,
)
def test_an_error_says_whether_trying_again_may_help(error: CrosscutError, is_transient: bool) -> None:
    assert error.is_transient is is_transient
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        # Its cause has stayed where it was.
        assert again.is_transient is is_transient


@pytest.mark.parametrize(
    "error",
    [
        errors.StoreError("s"),
        errors.UserCodeError("u"),
        errors.CheckpointError("c"),
        errors.JobFailedError("j"),
    ],
    ids=repr,
)
def test_a_cause_that_an_error_has_counts_for_more_than_the_one_it_has_lost(error: CrosscutError) -> None:
    passing, lasting = errors.StoreError("s"), errors.StateError("s")
    pairs: list[tuple[BaseException, BaseException]] = [(ConnectionResetError(), PermissionError())]
    if not isinstance(error, errors.StoreError | errors.UserCodeError):
        pairs = [(caused(passing, ConnectionResetError()), lasting)]
    for one, other in pairs:
        lost = pickle.loads(pickle.dumps(caused(error, one)))
        assert lost.is_transient
        assert not caused(lost, other).is_transient
        lost = pickle.loads(pickle.dumps(caused(error, other)))
        assert not lost.is_transient
        assert caused(lost, one).is_transient


def test_what_is_said_of_an_error_after_it_was_made_survives_pickling_too() -> None:
    error = errors.ConnectorError("not null")
    error.is_permanent, error.operator, error.record = True, "out", "{'id': 7}"
    again = pickle.loads(pickle.dumps(error))
    assert (again.is_permanent, again.operator, again.record) == (True, "out", "{'id': 7}")
    assert not again.is_transient


@pytest.mark.parametrize(
    ("cause", "is_transient"),
    [
        (given_up("Job aborted"), True),
        (given_up("ExecutorLostFailure (executor 1 exited)"), True),
        (dead(DEATHS_MAX, ["map"], 0, 1), True),
        (failure_cause(caused(errors.StoreError("s"), ConnectionResetError())), True),
        (failure_cause(caused(errors.StoreError("s", damaged=True), OSError())), False),
        (failure_cause(errors.ConnectorError("c")), True),
        (failure_cause(errors.ConnectorError("c", may_recover=False)), False),
        (failure_cause(errors.ConnectorError("c", is_permanent=True)), False),
        (failure_cause(errors.HistoryError("h")), False),
        # Spark is lost for this run, but a new start makes a new one.
        (FailureCause("WorkersError", "m", is_final=True, is_transient=True), True),
        (FailureCause("StoreError", "m", is_final=True), False),
        (FailureCause("InvariantBroken", "m"), False),
        (FailureCause("Fenced", "m"), False),
    ],
    ids=repr,
)
def test_a_failed_job_says_what_its_cause_says(cause: FailureCause, is_transient: bool) -> None:
    failure = failure_of("job", EndJob("failed", cause), None)
    assert failure.is_transient is is_transient
    assert pickle.loads(pickle.dumps(failure)).is_transient is is_transient


def test_damaged_state_behind_a_function_does_not_pass() -> None:
    damaged = caused(errors.StateError("s", damaged=True), OSError())
    cause = failure_cause(
        caused(errors.UserCodeError("u", operator="map", record="1", traceback=""), damaged)
    )
    assert cause.is_final and not cause.is_transient


def test_the_guide_has_a_row_for_each_class_and_says_the_same_of_it() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guide" / "errors.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+Error)` \|.*\| (\w+)[^|]*\|$", text, re.MULTILINE))
    assert set(rows) == {kind.__name__ for kind in KINDS} - {"CrosscutError"}
    for kind in KINDS:
        if kind is not CrosscutError:
            assert rows[kind.__name__] in ("retry", "fix", "report")
            assert rows[kind.__name__] != "report" or not kind("text").is_transient
