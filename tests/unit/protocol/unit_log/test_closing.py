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
