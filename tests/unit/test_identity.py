"""What a job is, and how two of them are told apart, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import crosscut as cc
from crosscut.errors import ConnectorError
from crosscut.graph.identity import identity_of
from crosscut.protocol.log.identity import (
    AnotherJob,
    ChangedDetails,
    Claimant,
    FlowIdentity,
    OperatorIdentity,
    OperatorInput,
    Same,
    compared,
    differences,
    shown,
)


def flow_of(*names: str, pattern: str = "a/*.txt", emit: Any = "updates") -> FlowIdentity:
    """lines -> some maps, by these names -> counts -> out; "" leaves an operator without a name."""
    flow = cc.Flow("words")
    stream = flow.source(cc.files.read_text(pattern)).named("lines")
    for name in names:
        stream = stream.map(str)
        if name:
            stream.named(name)
    stream.key_by(str).count(emit=emit).named("counts").sink(cc.files.write_jsonl("out")).named("out")
    return identity_of(flow.compile(2, 128))


def changed(before: FlowIdentity, now: FlowIdentity) -> list[str]:
    return list(differences(before.operators, now.operators))


def test_a_flow_is_its_name_its_operators_and_what_its_connectors_say() -> None:
    found = flow_of("parse")
    assert found.name == "words"
    assert [(one.uid, one.kind, one.emit) for one in found.operators] == [
        ("lines", "source", ""),
        ("parse", "map", ""),
        ("3-key_by", "key_by", ""),
        ("counts", "count", "updates"),
        ("out", "sink", ""),
    ]
    lines, parse, *_, out = found.operators
    assert lines.connector == "Lines" and lines.details.endswith("/a/*.txt") and lines.details[0] == "/"
    assert parse.inputs == (OperatorInput("lines", "forward"),)
    assert out.connector == "JsonLines" and out.details.endswith("/out")


def test_the_same_flow_is_the_same_job() -> None:
    assert compared(flow_of("parse"), flow_of("parse"), is_same_structure=True) == Same()


def test_a_flow_of_another_name_is_another_job_however_similar() -> None:
    """N2."""
    found = compared(flow_of(), replace(flow_of(), name="letters"), is_same_structure=True)
    assert found == AnotherJob("it belongs to flow 'words', and this is flow 'letters'")


def test_a_source_of_another_class_is_another_job() -> None:
    """N2."""
    before = flow_of()
    (lines, *rest) = before.operators
    now = replace(before, operators=(replace(lines, connector="Generate", details=""), *rest))
    found = compared(before, now, is_same_structure=True)
    assert found == AnotherJob(
        "its source 'lines' is of class Lines, and in this flow it is of class Generate"
    )


def test_a_source_that_reads_something_else_is_shown_with_both_sides() -> None:
    """N2."""
    before, now = flow_of(pattern="/data/a/*.txt"), flow_of(pattern="/data/b/*.txt")
    assert compared(before, now, is_same_structure=True) == ChangedDetails(
        ("source 'lines' is '/data/b/*.txt' in this flow, and was '/data/a/*.txt'",)
    )


def test_an_operator_that_was_added_is_named_with_whom_it_stands_before() -> None:
    assert changed(flow_of("parse"), flow_of("parse", "clean")) == [
        "added: map 'clean'",
        "renamed: key_by '3-key_by' is called '4-key_by'",
        "changed: '4-key_by' reads from 'clean' (forward), and read from 'parse' (forward)",
    ]


def test_an_operator_that_was_removed_is_named() -> None:
    assert changed(flow_of("parse", "clean"), flow_of("clean"))[:2] == [
        "removed: map 'parse'",
        "renamed: key_by '4-key_by' is called '3-key_by'",
    ]


def test_an_operator_that_was_renamed_is_told_from_one_that_was_added() -> None:
    assert changed(flow_of("parse"), flow_of("read")) == ["renamed: map 'parse' is called 'read'"]


def test_operators_that_are_called_by_their_place_are_matched_by_what_they_read() -> None:
    assert changed(flow_of("", ""), flow_of("", "tidy")) == ["renamed: map '3-map' is called 'tidy'"]


def test_what_an_operator_emits_and_what_it_is_are_compared() -> None:
    before = flow_of("parse")
    assert changed(before, flow_of("parse", emit="final")) == [
        "changed: 'counts' emits final, and emitted updates"
    ]
    operators = tuple(replace(one, kind="filter") if one.uid == "parse" else one for one in before.operators)
    assert changed(before, replace(before, operators=operators)) == [
        "changed: 'parse' is a filter, and was a map"
    ]


def test_a_different_graph_is_refused_with_its_differences() -> None:
    """H3."""
    found = compared(flow_of("parse"), flow_of("read"), is_same_structure=False)
    assert found == AnotherJob(
        "it holds the state of a different graph:\n  renamed: map 'parse' is called 'read'"
    )
    found = compared(flow_of(), flow_of(), is_same_structure=False)
    assert isinstance(found, AnotherJob) and "another release" in found.reason


@pytest.mark.parametrize("details", [None, 7, "two\nlines", "x" * 1_001])
def test_a_connector_that_describes_itself_by_anything_but_a_line_is_refused(details: Any) -> None:
    class Odd(cc.Source):
        def splits(self, parallelism: int) -> list[cc.Split]:
            return []

        def reader(self, split: cc.Split, position: Any) -> cc.SplitReader:
            raise NotImplementedError

        def describe(self) -> str:
            found: str = details
            return found

    flow = cc.Flow("odd")
    flow.source(Odd()).named("in").sink(cc.collect())
    with pytest.raises(ConnectorError, match=r"Odd\.describe\(\) of operator 'in' returned .*one line"):
        identity_of(flow.compile(1, 1))


def test_a_temporary_directory_is_no_part_of_what_a_job_is() -> None:
    assert cc.collect().describe() == ""


def test_a_claimant_is_shown_with_the_time_where_it_is_known() -> None:
    assert shown(Claimant("host7", 4711)) == "pid 4711 on host7"
    assert shown(Claimant("host7", 4711, "2026-01-02T03:04:05.678+00:00")) == (
        "pid 4711 on host7, since 2026-01-02 03:04:05 UTC"
    )


def test_operators_without_inputs_differ_in_nothing_by_default() -> None:
    one = OperatorIdentity("a", "source")
    assert list(differences((one,), (one,))) == []
