"""When a group ends."""

import pytest

from crosscut.protocol.unit_log.closing import GroupEnd, GrowingGroup, group_end

GROWING = {"has_content": True, "can_end": True, "is_settled": True}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"age_ms": 20}, GroupEnd.END),
        ({"age_ms": 19}, GroupEnd.GROW),
        ({"is_idle": True}, GroupEnd.END),
        ({"size_bytes": 1_000}, GroupEnd.END),
        ({"size_bytes": 999}, GroupEnd.GROW),
        ({"is_awaited": True}, GroupEnd.END),
        ({"is_awaited": True, "has_content": False}, GroupEnd.END),
        ({"age_ms": 20, "is_settled": False}, GroupEnd.SETTLE),
        ({"is_awaited": True, "can_end": False}, GroupEnd.GROW),
        ({"size_bytes": 1_000, "can_end": False}, GroupEnd.GROW),
        ({"is_idle": True, "has_content": False}, GroupEnd.GROW),
    ],
)
def test_a_group_ends(facts: dict[str, int], expected: GroupEnd) -> None:
    assert group_end(GrowingGroup(**{**GROWING, **facts}), 20, 1_000) is expected


def test_without_an_interval_a_group_ends_as_soon_as_the_log_is_free() -> None:
    assert group_end(GrowingGroup(True, True, True), 0) is GroupEnd.END


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"size_bytes": 4_999, "age_ms": 99}, GroupEnd.GROW),
        ({"size_bytes": 5_000}, GroupEnd.HOLD),
        ({"age_ms": 100}, GroupEnd.HOLD),
        ({"age_ms": 100, "is_awaited": True}, GroupEnd.HOLD),
        ({"age_ms": 100, "has_content": False}, GroupEnd.HOLD),
        ({"size_bytes": 5_000, "can_end": True}, GroupEnd.END),
        ({"size_bytes": 5_000, "can_end": True, "is_settled": False}, GroupEnd.SETTLE),
    ],
)
def test_a_group_does_not_grow_for_ever_while_the_log_is_busy(
    facts: dict[str, int], expected: GroupEnd
) -> None:
    group = GrowingGroup(**{**GROWING, "can_end": False, **facts})
    assert group_end(group, 20, 1_000, hold_bytes=5_000, hold_ms=100) is expected


def test_nothing_is_added_while_sinks_are_behind_and_what_there_is_is_committed() -> None:
    behind = {**GROWING, "takes_input": False}
    assert group_end(GrowingGroup(**behind), 20) is GroupEnd.END
    assert group_end(GrowingGroup(**{**behind, "is_settled": False}), 20) is GroupEnd.SETTLE
    assert group_end(GrowingGroup(**{**behind, "has_content": False}), 20) is GroupEnd.HOLD
    assert group_end(GrowingGroup(**{**behind, "can_end": False}), 20) is GroupEnd.HOLD
