"""Names and handles of a file sink, and what is decided from them: nothing here looks at a disk."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from crosscut.connectors.files.staged_names import (
    Handle,
    HandleFile,
    Published,
    StagedPart,
    Step,
    TaskNames,
    committed_name,
    ledger_name,
    next_step,
    task_of,
)
from crosscut.contracts.connectors import JSON, SinkContext
from crosscut.errors import ConnectorError, FlowError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId

STAGED = "2-0123456789abcdef.txt.staged"
BEFORE = "1-fedcba9876543210.txt.staged"
STAGE = ".crosscut/lineage/out/v-3"


def names(
    lineage: str = "lineage", uid: str = "out", vertex: str = "v", index: int = 3, epoch: int = 2
) -> TaskNames:
    task = TaskId(VertexId(vertex), index)
    return TaskNames(SinkContext(Lineage(lineage), Epoch(epoch), task, uid, driver="driver-1"), "txt")


def good(**changes: JSON) -> dict[str, JSON]:
    handle = names().handle([StagedPart(STAGED, "", 8, 2)], BEFORE, CheckpointId(17))
    assert isinstance(handle, dict)
    return handle | changes


FINAL = str(good()["final"])


def refused(handle: JSON, whose: TaskNames | None = None) -> None:
    with pytest.raises(ConnectorError, match="is not a transaction of sink 'out'") as caught:
        (whose or names()).checked(handle, "/out")
    assert "/out" in str(caught.value)


def test_a_handle_is_taken_back_by_the_same_task_in_any_later_epoch() -> None:
    handle = json.loads(json.dumps(good()))
    for epoch in (2, 3, 400):
        found = names(epoch=epoch).checked(handle, "/out")
        assert (found.staged, found.files[0].final) == (STAGED, FINAL)
        assert (found.size_bytes, found.record_count, found.checkpoint_id) == (8, 2, 17)


@pytest.mark.parametrize("whose", [{"lineage": "another"}, {"vertex": "w"}, {"vertex": "v-3"}, {"index": 4}])
def test_a_handle_of_another_lineage_or_task_is_refused(whose: dict[str, Any]) -> None:
    """M5."""
    refused(good(), names(**whose))
    refused(names(**whose).handle([StagedPart(STAGED, "", 8, 2)], BEFORE, CheckpointId(17)))


def test_a_handle_of_another_sink_is_refused() -> None:
    """M5."""
    refused(names(uid="other").handle([StagedPart(STAGED, "", 8, 2)], BEFORE, CheckpointId(17)))


@pytest.mark.parametrize(
    "staged",
    [
        "../secret",
        "/etc/passwd",
        f"{STAGE}/../v-3/{STAGED}",
        f"{STAGE}/{STAGED}/x",
        f"{STAGE}/x/{STAGED}",
        f"/{STAGE}/{STAGED}",
        f"{STAGE}//{STAGED}",
        f"{STAGE}/{STAGED}\0",
        f"{STAGE}/{STAGED}\n",
        f"{STAGE}/3-0123456789abcdef.txt.staged",
        f"{STAGE}/2-0123456789abcdee.txt.staged",
        f"{STAGE}/2-0123456789abcdef.jsonl.staged",
        f"{STAGE}/\u0662-0123456789abcdef.txt.staged",
        f"{STAGE}/{'2' * 5_000}-0123456789abcdef.txt.staged",
        "\ud800",
        "",
        None,
        7,
        [STAGED],
    ],
)
def test_a_handle_with_another_staged_name_is_refused(staged: JSON) -> None:
    """M5: by name, with no other error, whatever stands there."""
    refused(good(staged=staged))


@pytest.mark.parametrize(
    "final",
    [
        f"../{FINAL}",
        f"/tmp/{FINAL}",
        f"{FINAL}/../x",
        f"{FINAL}\0",
        f"{FINAL}\n",
        ".bashrc",
        FINAL.replace("000017", "000018"),
        FINAL.replace("-00000002-", "-00000003-"),
        FINAL.replace("part-00003", "part-00004"),
        FINAL.replace("-out-", "-other-"),
        FINAL.replace(".txt", ".jsonl"),
        FINAL.replace("000000000017", "00000000001\u0667"),
        FINAL.replace("000000000017", "1" * 5_000),
        FINAL[:-5] + ("0" if FINAL[-5] != "0" else "1") + FINAL[-4:],
        "\ud800",
        None,
        {},
    ],
)
def test_a_handle_with_another_final_name_is_refused(final: JSON) -> None:
    """M5."""
    refused(good(final=final))


@pytest.mark.parametrize("after", ["", STAGED, "\ud800", None, 7])
def test_a_handle_that_follows_another_one_than_it_was_made_for_is_refused(after: JSON) -> None:
    refused(good(after=after))


@pytest.mark.parametrize("number", [-1, 0, True, 1.0, "8", None, 2**63, 10**400])
@pytest.mark.parametrize("field", ["bytes", "records"])
def test_a_handle_with_impossible_numbers_is_refused(field: str, number: JSON) -> None:
    """M5."""
    refused(good(**{field: number}))


@pytest.mark.parametrize("handle", [None, "x", 1, [], {}, {"staged": f"{STAGE}/{STAGED}", "final": FINAL}])
def test_what_is_no_handle_is_refused(handle: JSON) -> None:
    refused(handle)


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "a\0"])
def test_names_that_could_lead_elsewhere_are_refused_when_they_are_made(name: str) -> None:
    """M5."""
    for identity in ({"lineage": name}, {"uid": name}, {"vertex": name}):
        with pytest.raises(FlowError, match="is not usable"):
            names(**identity)


def test_files_of_one_transaction_sort_as_they_were_written() -> None:
    """I5: else who reads them by name finds a key's records in another order."""
    parts = [StagedPart(f"2-{n:016x}.txt.staged", "", 8, 2) for n in range(20)]
    handle = names().handle(parts, BEFORE, CheckpointId(17))
    found = names(epoch=3).checked(handle, "/out")
    finals = [one.final for one in found.files]
    assert [one.staged for one in found.files] == [one.name for one in parts]
    assert finals == sorted(finals)
    assert all(committed_name(one, "txt") == committed_name(FINAL, "txt") for one in finals)


def test_files_of_one_transaction_that_have_no_numbers_are_taken_back() -> None:
    parts = [StagedPart(f"2-{n:016x}.txt.staged", "", 8, 2) for n in range(3)]
    handle = names().handle(parts, BEFORE, CheckpointId(17))
    text = re.sub(r"-[0-9a-f]{6}([0-9a-f]{12}\.txt)", r"-\1", json.dumps(handle))
    before = json.loads(text)
    assert before != handle
    assert [one.staged for one in names().checked(before, "/out").files] == [one.name for one in parts]


def test_what_a_name_says_is_read_back() -> None:
    said = committed_name(FINAL, "txt")
    assert said is not None
    assert (said.index, said.checkpoint_id, said.epoch, said.sink_uid) == (3, 17, 2, "out")
    assert committed_name(FINAL, "jsonl") is None
    assert committed_name("part-00000-4f6c-c000.txt", "txt") is None
    owner = ledger_name(names().ledger)
    assert owner is not None
    assert (owner.epoch, owner.driver) == (2, "driver-1")
    assert task_of("v-3-11") == TaskId(VertexId("v-3"), 11)
    assert task_of("check-0123456789abcdef") is None


# What is published.


def transaction(n: int, after: str = "") -> Handle:
    return Handle(f"t{n}", after, CheckpointId(n), (HandleFile(f"t{n}", f"final {n}", 1, 1),))


def published(through: int, *missing: int) -> Published:
    last = f"t{through}" if through else ""
    return Published(CheckpointId(through), frozenset(map(CheckpointId, missing)), last, Epoch(1), "a")


def within(one: Published) -> set[int]:
    return {n for n in range(1, 30) if CheckpointId(n) in one}


@pytest.mark.parametrize(
    ("before", "found", "lost", "after"),
    [
        (published(0), (5,), (), published(5)),
        (published(5), (7, 6), (), published(7)),
        (published(5), (), (9,), published(5)),
        (published(5), (7, 9), (8,), published(9, 8)),
        (published(9, 8), (), (8,), published(9, 8)),
        (published(9, 8), (8,), (), published(9)),
        (published(9, 8), (12,), (8, 11), published(12, 8, 11)),
        (published(9), (4,), (), published(9)),
    ],
)
def test_publishing_more_compacts_to_everything_up_to_n_but_for_what_was_lost(
    before: Published, found: tuple[int, ...], lost: tuple[int, ...], after: Published
) -> None:
    more = before.with_more(map(transaction, found), map(transaction, lost), Epoch(1), "a")
    assert within(more) == within(after)
    assert (more.through, more.missing, more.last) == (after.through, after.missing, after.last)


def test_what_two_ledgers_know_together_is_what_one_of_them_knows() -> None:
    known = [published(through, *missing) for through in (0, 3, 7) for missing in ((), (2,), (2, 5), (6,))]
    known = [one for one in known if all(n < one.through for n in one.missing)]
    for one, other in itertools.product(known, repeat=2):
        assert within(one.joined(other)) >= within(one) | within(other)
        assert within(one.joined(other)) == within(other.joined(one))
        assert one.missing & other.missing <= one.joined(other).missing
        assert one.joined(other).last == max(one, other, key=lambda each: each.through).last


def test_what_is_to_be_published_has_to_follow_what_is_published() -> None:
    """N1: ids do not tell two histories apart, which may go on from one checkpoint with the same ids."""
    chain = [transaction(4, "t3"), transaction(6, "t4")]
    for through in (3, 4, 6):
        assert published(through).leads_to(chain)
    assert published(0).leads_to(chain), "nothing is known"
    assert published(5).leads_to([]), "nothing is to be published"
    assert not published(5).leads_to(chain)
    assert not published(2).leads_to(chain)


def test_what_was_dropped_is_no_gap_unless_it_is_known_to_be_committed() -> None:
    """P6, P7: 2 was the newest that was committed when 3 and 4 were staged, and 3 is dropped."""
    chain = [replace(transaction(4, "t3"), before=("t2",))]
    assert published(2).leads_to(chain, CheckpointId(2))
    assert not published(2).leads_to(chain, CheckpointId(3)), "3 is lost there"
    assert not published(1).leads_to(chain, CheckpointId(1))


STEPS: Mapping[tuple[bool, bool, bool, bool], Step] = {
    # staged, visible, one file, published
    (True, False, False, False): Step.PUBLISH,
    (True, False, False, True): Step.PUBLISH,
    (False, True, False, False): Step.DONE,
    (False, True, False, True): Step.DONE,
    (True, True, True, False): Step.TIDY,
    (True, True, True, True): Step.TIDY,
    (True, True, False, False): Step.IN_THE_WAY,
    (True, True, False, True): Step.IN_THE_WAY,
    (False, False, False, True): Step.TAKEN,
    (False, False, False, False): Step.LOST,
}


@pytest.mark.parametrize(("facts", "step"), STEPS.items())
def test_what_is_done_follows_from_where_the_file_is_and_from_the_ledger_if_it_is_nowhere(
    facts: tuple[bool, bool, bool, bool], step: Step
) -> None:
    is_staged, is_visible, is_one_file, is_published = facts
    found = next_step(
        is_staged=is_staged, is_visible=is_visible, is_one_file=is_one_file, is_published=is_published
    )
    assert found is step
