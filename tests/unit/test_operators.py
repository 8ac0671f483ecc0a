"""Operators against plain loops: what leaves, in which order, and who is blamed for a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import FlowError, InternalError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.keys import stable_hash
from crosscut.graph.specs import (
    AggregateSpec,
    CountSpec,
    Emit,
    FilterSpec,
    FlatMapSpec,
    InspectSpec,
    KeyBySpec,
    MapSpec,
    OperatorNode,
    OperatorSpec,
    ReduceSpec,
    SourceSpec,
    SumSpec,
    UnionSpec,
)
from crosscut.operators.building import build, keyed_state
from crosscut.operators.final_results import ordinal_of
from crosscut.operators.keyed import NOTHING_YET, Aggregate
from crosscut.operators.operator import Operator, shortened
from crosscut.state.encoding import owned_copy
from crosscut.state.keyed import KeyedState

UID = "the-operator"
KEYS = st.one_of(st.integers(), st.text(max_size=4), st.none(), st.tuples(st.integers(), st.text(max_size=3)))


def built(spec: OperatorSpec) -> tuple[Operator, KeyedState | None]:
    node = OperatorNode(UID, spec, ())
    state = keyed_state(node)
    operator = build(node, state, None)
    assert operator is not None
    return operator, state


def processed(spec: OperatorSpec, *batches: Batch) -> list[Any]:
    operator, _ = built(spec)
    return [record for batch in batches for record in operator.process(batch).records]


def ended(operator: Operator) -> list[Any]:
    return [record for batch, _ in operator.end("") for record in batch.records]


def keyed(*pairs: tuple[Any, Any]) -> Batch:
    return Batch([record for _, record in pairs], [key for key, _ in pairs])


def test_map_gives_the_result_for_each_record_in_order() -> None:
    assert processed(MapSpec(str), Batch([1, None, "x"]), Batch([])) == ["1", "None", "x"]


def test_filter_keeps_the_records_for_which_the_function_is_true() -> None:
    assert processed(FilterSpec(lambda record: record), Batch([0, 1, "", "x", None, [0]])) == [1, "x", [0]]


def test_flat_map_gives_everything_that_the_function_returns_or_yields() -> None:
    def repeated(record: int) -> Iterator[int]:
        for _ in range(record):
            yield record

    assert processed(FlatMapSpec(repeated), Batch([2, 0, 3])) == [2, 2, 3, 3, 3]
    assert processed(FlatMapSpec(str.split), Batch(["a b", "", "c"])) == ["a", "b", "c"]


def test_key_by_keeps_the_records_and_gives_their_keys() -> None:
    operator, _ = built(KeyBySpec(len))
    out = operator.process(Batch(["a", "bcd"]))
    assert (out.records, out.keys) == (["a", "bcd"], [1, 3])


def test_key_by_for_a_count_gives_one_list_that_is_both_keys_and_records() -> None:
    operator, _ = built(KeyBySpec(len, keys_only=True))
    out = operator.process(Batch(["a", "bcd"]))
    assert out.keys is out.records
    assert out.records == [1, 3]


def test_operators_that_do_nothing_to_a_batch_are_not_built() -> None:
    for spec in (UnionSpec(), SourceSpec(None)):  # type: ignore[arg-type]
        assert build(OperatorNode(UID, spec, ()), None, None) is None


@pytest.mark.parametrize("kind", [MapSpec, FilterSpec, FlatMapSpec, InspectSpec, KeyBySpec])
def test_the_list_of_records_that_came_in_is_not_changed(kind: Callable[..., OperatorSpec]) -> None:
    records = [["b", "a"], ["c"]]
    processed(kind(tuple), Batch(records))
    assert records == [["b", "a"], ["c"]]


RECORDS = [("k", 1), ("l", 10), ("k", 2), ("k", 3), ("l", 20)]
BATCHES = [keyed(*RECORDS[:2]), keyed(*RECORDS[2:])]


def joined(values: list[Any], record: Any) -> list[Any]:
    values.append(record)
    return values


FOLDS: list[tuple[Callable[[Emit], OperatorSpec], list[Any]]] = [
    (CountSpec, [("k", 1), ("l", 1), ("k", 2), ("k", 3), ("l", 2)]),
    (lambda emit: SumSpec(lambda r: r * 2, emit), [("k", 2), ("l", 20), ("k", 6), ("k", 12), ("l", 60)]),
    (lambda emit: ReduceSpec(max, emit), [("k", 1), ("l", 10), ("k", 2), ("k", 3), ("l", 20)]),
    (
        lambda emit: AggregateSpec(list, joined, None, emit),
        [("k", [1]), ("l", [10]), ("k", [1, 2]), ("k", [1, 2, 3]), ("l", [10, 20])],
    ),
    (
        lambda emit: AggregateSpec(list, joined, len, emit),
        [("k", 1), ("l", 1), ("k", 2), ("k", 3), ("l", 2)],
    ),
]
FOLD_NAMES = ["count", "sum", "reduce", "aggregate", "aggregate with result"]


@pytest.mark.parametrize(("make", "updates"), FOLDS, ids=FOLD_NAMES)
def test_with_updates_each_record_gives_its_keys_new_value_and_the_end_gives_nothing(
    make: Callable[[Emit], OperatorSpec], updates: list[Any]
) -> None:
    operator, _ = built(make("updates"))
    assert [record for batch in BATCHES for record in operator.process(batch).records] == updates
    assert ended(operator) == []


@pytest.mark.parametrize(("make", "updates"), FOLDS, ids=FOLD_NAMES)
def test_with_final_nothing_leaves_before_the_end_and_then_each_key_once(
    make: Callable[[Emit], OperatorSpec], updates: list[Any]
) -> None:
    operator, _ = built(make("final"))
    assert [operator.process(batch).records for batch in BATCHES] == [[], []]
    assert sorted(ended(operator)) == sorted(dict(updates).items())


@pytest.mark.parametrize("emit", ["updates", "final"])
@pytest.mark.parametrize(("make", "updates"), FOLDS, ids=FOLD_NAMES)
def test_a_freeze_between_batches_changes_nothing_of_what_leaves(
    make: Callable[[Emit], OperatorSpec], updates: list[Any], emit: Emit
) -> None:
    operator, state = built(make(emit))
    assert state is not None
    emitted: list[Any] = []
    for n, batch in enumerate(BATCHES, 1):
        emitted += operator.process(batch).records
        state.freeze(CheckpointId(n))
    emitted += ended(operator)
    assert emitted == updates if emit == "updates" else dict(emitted) == dict(updates)


@pytest.mark.parametrize(("make", "updates"), FOLDS, ids=FOLD_NAMES)
def test_what_was_emitted_never_changes_afterwards(
    make: Callable[[Emit], OperatorSpec], updates: list[Any]
) -> None:
    operator, _ = built(make("updates"))
    emitted = [record for batch in BATCHES for record in operator.process(batch).records]
    before = [owned_copy(record) for record in emitted]
    for batch in BATCHES:
        operator.process(batch)
    assert emitted == before


def test_what_a_result_function_shares_with_its_accumulator_never_changes_after_it_was_emitted() -> None:
    def view(accumulator: dict[str, list[int]]) -> list[int]:
        return accumulator["seen"]

    def add(accumulator: dict[str, list[int]], record: int) -> dict[str, list[int]]:
        accumulator["seen"].append(record)
        return accumulator

    operator, _ = built(AggregateSpec(lambda: {"seen": []}, add, view, "updates"))
    emitted = operator.process(keyed(("k", 1), ("k", 2))).records
    operator.process(keyed(("k", 3)))
    assert emitted == [("k", [1]), ("k", [1, 2])]


def test_reduce_does_not_change_the_record_it_started_from() -> None:
    def merged(total: list[int], record: list[int]) -> list[int]:
        total += record
        return total

    first = [1]
    operator, _ = built(ReduceSpec(merged, "updates"))
    assert operator.process(keyed(("k", first), ("k", [2]))).records == [("k", [1]), ("k", [1, 2])]
    assert first == [1]


def test_reduce_takes_a_record_that_is_none_for_a_value_like_any_other() -> None:
    seen: list[tuple[Any, Any]] = []

    def noted(value: Any, record: Any) -> Any:
        seen.append((value, record))
        return record

    operator, _ = built(ReduceSpec(noted, "updates"))
    operator.process(keyed(("k", None), ("k", 1)))
    assert seen == [(None, 1)]


def test_the_absent_value_of_reduce_is_itself_after_a_copy_and_a_pickle() -> None:
    assert owned_copy(NOTHING_YET) is NOTHING_YET


def test_the_final_values_of_many_keys_leave_in_several_batches() -> None:
    operator, _ = built(CountSpec("final"))
    keys = list(range(2_500))
    operator.process(Batch(keys, keys))
    operator.time_budget.begin(300)
    batches = [batch for batch, _ in operator.end("") if batch.records]
    assert max(len(batch) for batch in batches) == 300
    said = [key for batch in batches for key, count in batch.records if count == 1]
    assert said == sorted(keys, key=ordinal_of)


@given(st.lists(KEYS, unique_by=stable_hash, max_size=50), st.integers(1, 7), st.data())
def test_whoever_goes_on_behind_a_place_says_the_rest_whatever_the_order_in_the_state(
    keys: list[Any], rows_max: int, data: st.DataObject
) -> None:
    operator, _ = built(CountSpec("final"))
    operator.process(Batch(list(keys), list(keys)))
    operator.time_budget.begin(rows_max)
    steps = [(batch.records, place) for batch, place in operator.end("")]
    cut = data.draw(st.integers(0, len(steps)))
    after = steps[cut - 1][1] if cut else ""
    restored, _ = built(CountSpec("final"))
    other_order = data.draw(st.permutations(keys))
    restored.process(Batch(other_order, list(other_order)))
    restored.time_budget.begin(rows_max)
    said = [record for records, _ in steps[:cut] for record in records]
    rest = [record for batch, _ in restored.end(after) for record in batch.records]
    assert sorted(said + rest, key=repr) == sorted(((key, 1) for key in keys), key=repr)


def test_a_slice_that_is_over_in_the_midst_of_final_results_leaves_the_rest_for_the_next() -> None:
    operator, _ = built(AggregateSpec(int, lambda n, _: n + 1, lambda n: stop_at_third(), "final"))
    seen: list[int] = []

    def stop_at_third() -> str:
        seen.append(1)
        if len(seen) == 3:
            operator.time_budget.stop()
        return "result"

    operator.process(Batch(list(range(10)), list(range(10))))
    operator.time_budget.begin(5)
    sizes = [len(batch) for batch, _ in operator.end("") if batch.records]
    assert sizes == [3, 5, 2]
    assert operator.time_budget.rest is None


@pytest.mark.parametrize(("key", "same"), [(1.0, 1), ((2.0, "x"), (2, "x")), (True, 1)])
def test_a_key_that_was_taken_for_another_stands_where_that_one_does(key: Any, same: Any) -> None:
    assert ordinal_of(key) == ordinal_of(same)


@pytest.mark.parametrize("batches_before", [0, 3, 7])
def test_a_completed_checkpoint_may_be_folded_in_while_the_final_values_leave(batches_before: int) -> None:
    """The merge adds keys to the dict that the end iterates over."""
    operator, state = built(CountSpec("final"))
    assert state is not None
    for n, keys in ((1, range(5_000)), (2, range(3_000, 9_000))):
        operator.process(Batch(list(keys), list(keys)))
        state.freeze(CheckpointId(n))
    operator.process(Batch([8_999, 9_000], [8_999, 9_000]))
    merging, emitted = state.complete(CheckpointId(2)), []
    operator.time_budget.begin(1_000)
    for position, (batch, _) in enumerate(operator.end("")):
        emitted += batch.records
        if position >= batches_before:
            next(merging, None)
    expected = {key: 1 + (3_000 <= key < 5_000) for key in range(9_001)} | {8_999: 2}
    assert len(emitted) == len(expected)
    assert dict(emitted) == expected


def test_a_keyed_operator_without_keys_is_a_bug_and_says_so() -> None:
    operator, _ = built(CountSpec("updates"))
    with pytest.raises(InternalError, match=UID):
        operator.process(Batch([1]))


# Failures of user code.


class Stopped(BaseException):
    """What `except Exception` does not catch."""


def failing(bad: Any, error: type[BaseException]) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        if arguments[-1] == bad:
            raise error("no")
        return [arguments[-1]] if len(arguments) == 1 else arguments[-1]

    return function


SPECS: list[Callable[[Callable[..., Any]], OperatorSpec]] = [
    MapSpec,
    FilterSpec,
    FlatMapSpec,
    InspectSpec,
    KeyBySpec,
    lambda function: SumSpec(lambda record: function(record)[0], "updates"),
    lambda function: SumSpec(lambda record: function(record)[0], "final"),
    lambda function: ReduceSpec(function, "updates"),
    lambda function: AggregateSpec(int, function, None, "final"),
    lambda function: AggregateSpec(int, function, None, "updates"),
    lambda function: AggregateSpec(int, lambda _, record: record, function, "updates"),
]
SPEC_NAMES = [
    "map", "filter", "flat_map", "inspect", "key_by", "sum", "sum final", "reduce", "aggregate final",
    "aggregate", "aggregate result",
]  # fmt: skip


@pytest.mark.parametrize("bad", [2, 3, 5], ids=["early", "middle", "last"])
@pytest.mark.parametrize(
    "error",
    [ValueError, Stopped, StopIteration, GeneratorExit, KeyboardInterrupt],
    ids=lambda error: error.__name__,
)
@pytest.mark.parametrize("make", SPECS, ids=SPEC_NAMES)
def test_a_failure_names_the_operator_and_exactly_the_record_whatever_was_raised(
    make: Callable[[Callable[..., Any]], OperatorSpec], error: type[BaseException], bad: int
) -> None:
    """A StopIteration in particular is no end of the batch: the records behind it would be lost."""
    operator, _ = built(make(failing(bad, error)))
    records = [1, 2, 3, 4, 5]
    with pytest.raises(UserCodeError) as failure:
        operator.process(Batch(records, ["k"] * 5))
    assert failure.value.operator == UID
    assert failure.value.record == repr(bad)
    assert type(failure.value.__cause__) is error
    assert failure.value.message == f"operator {UID!r} raised {error.__name__}: no"
    assert failure.value.traceback.rstrip().endswith(f"{error.__name__}: no")
    assert "in function" in failure.value.traceback
    assert all(__file__ in line for line in failure.value.traceback.splitlines() if "File " in line)


NOT_FOR_THE_FIRST = SPEC_NAMES.index("reduce")


@pytest.mark.parametrize("make", [*SPECS[:NOT_FOR_THE_FIRST], *SPECS[NOT_FOR_THE_FIRST + 1 :]])
def test_a_failure_says_whether_another_record_got_through_before(
    make: Callable[[Callable[..., Any]], OperatorSpec],
) -> None:
    """K5: what is down fails the first record; a bad record is seldom the first."""

    def is_first(*batches: list[int]) -> bool:
        operator, _ = built(make(failing(7, ValueError)))
        with pytest.raises(UserCodeError) as failure:
            for records in batches:
                operator.process(Batch(records, ["k"] * len(records)))
        return failure.value.is_first

    assert is_first([7, 1])
    assert is_first([], [7])
    assert not is_first([1, 7])
    assert not is_first([1], [7])


def test_so_does_a_failure_at_the_end() -> None:
    for values, expected in [([7], True), ([7, *range(1_000, 3_000)], False)]:
        operator, _ = built(AggregateSpec(int, lambda _, record: record, failing(7, ValueError), "final"))
        operator.process(keyed(*((value, value) for value in values)))
        with pytest.raises(UserCodeError) as failure:
            ended(operator)
        assert failure.value.is_first == expected


def test_a_generator_that_fails_halfway_is_blamed_on_its_own_record() -> None:
    def numbers(record: int) -> Iterator[int]:
        yield record
        if record == 2:
            raise ValueError("halfway")
        yield record

    with pytest.raises(UserCodeError, match="halfway") as failure:
        processed(FlatMapSpec(numbers), Batch([1, 2, 3]))
    assert failure.value.record == "2"


def returns_nothing(record: Any) -> Any:
    record.append(1)


@pytest.mark.parametrize(
    ("function", "record", "text"),
    [
        (returns_nothing, [], "returned None: expected a list or something else to iterate over ([] for"),
        (lambda record: record, 7, "returned 7 of type int: expected a list"),
        (lambda record: record, "ab", "returned 'ab' of type str: expected a list or something else to it"),
        (lambda record: record, b"ab", "returned b'ab' of type bytes: expected"),
    ],
)
def test_a_flat_map_that_does_not_return_several_records_names_the_function(
    function: Callable[[Any], Any], record: Any, text: str
) -> None:
    with pytest.raises(UserCodeError) as failure:
        processed(FlatMapSpec(function), Batch([record]))
    name = f"{function.__qualname__} ({__file__}:{function.__code__.co_firstlineno})"
    assert failure.value.message.startswith(f"operator {UID!r} raised TypeError: {name} {text}")
    assert failure.value.record == repr(record)


def test_a_type_error_of_a_generator_is_its_own() -> None:
    def numbers(record: int) -> Iterator[int]:
        yield record + None  # type: ignore[operator]

    with pytest.raises(UserCodeError, match="raised TypeError: unsupported operand"):
        processed(FlatMapSpec(numbers), Batch([1]))


def test_inspect_calls_its_function_in_order_and_passes_every_record_on_as_it_is() -> None:
    seen: list[Any] = []
    records = [[1], [], [2]]
    passed = processed(InspectSpec(seen.append), Batch(records[:2]), Batch([]), Batch(records[2:]))
    assert seen == records
    assert [id(one) for one in passed] == [id(one) for one in records]


def test_a_truth_value_that_raises_is_blamed_on_the_record() -> None:
    class Doubtful:
        def __bool__(self) -> NoReturn:
            raise ValueError("maybe")

    with pytest.raises(UserCodeError, match="maybe") as failure:
        processed(FilterSpec(lambda record: Doubtful() if record == 2 else record), Batch([1, 2, 3]))
    assert failure.value.record == "2"


def test_a_result_that_fails_at_the_end_is_blamed_on_the_key_and_its_value() -> None:
    operator, _ = built(AggregateSpec(int, lambda _, record: record, failing(7, ValueError), "final"))
    operator.process(keyed(("k", 7)))
    with pytest.raises(UserCodeError) as failure:
        ended(operator)
    assert (failure.value.operator, failure.value.record) == (UID, "('k', 7)")


def test_a_value_that_cannot_be_stored_is_blamed_on_the_record_that_made_it() -> None:
    operator, _ = built(AggregateSpec(int, lambda _, record: lambda: record, None, "updates"))
    with pytest.raises(UserCodeError) as failure:
        operator.process(keyed(("k", 1)))
    assert (failure.value.operator, failure.value.record) == (UID, "1")


def test_a_long_record_is_shown_shortened_and_one_that_cannot_be_shown_by_its_class() -> None:
    class Shy:
        def __repr__(self) -> NoReturn:
            raise Stopped

    assert len(shortened(["x" * 10_000] * 1_000)) <= 1_000
    assert shortened(Shy()).endswith("Shy whose repr raises Stopped>")


def test_only_a_function_of_the_flow_is_a_users_mistake() -> None:
    """An error of the library's own keeps its class."""
    operator, _ = built(MapSpec(failing(1, FlowError)))
    with pytest.raises(UserCodeError, match="FlowError: no"):
        operator.process(Batch([1]))


def test_a_final_result_that_changes_its_accumulator_changes_no_checkpoint() -> None:
    """I4: the value may be the one that a checkpoint holds."""
    state = KeyedState(list)
    state.values["a"] = [3, 1, 2]
    state.freeze(CheckpointId(1))
    operator = Aggregate("all", state, "final", lambda old, new: [*old, new], lambda value: [value.pop()])
    assert [batch.records for batch, _ in operator.end("") if batch.records] == [[("a", [2])]]
    state.roll_back(CheckpointId(1))
    assert state.values["a"] == [3, 1, 2]
