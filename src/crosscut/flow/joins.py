"""The arguments of joins, checked."""

from __future__ import annotations

from typing import Any, get_args

from crosscut.contracts.windows import LocalDays, Session, Sliding, Tumbling, Window, whole_ms
from crosscut.errors import FlowError
from crosscut.flow.arguments import flow_error, output_name, shown
from crosscut.flow.draft import Draft
from crosscut.foundation.durations import Duration
from crosscut.graph.joins import How, IntervalJoinSpec, LatestHow, LatestJoinSpec, WindowJoinSpec


def interval_join_spec(
    draft: Draft, lower: Duration, upper: Duration, how: How, late: str | None
) -> IntervalJoinSpec:
    """Return the spec of `KeyedStream.interval_join`."""
    kind = "interval_join"
    lower_ms = whole_ms(lower, "lower", is_signed=True)
    upper_ms = whole_ms(upper, "upper", is_signed=True)
    if lower_ms > upper_ms:
        raise flow_error(
            draft, kind, f"lower={lower!r} is more than upper={upper!r}: nothing lies between them"
        )
    return IntervalJoinSpec(
        lower_ms, upper_ms, _one_of(draft, kind, how, get_args(How)), _late(draft, kind, late)
    )


def window_join_spec(
    draft: Draft, window: Window, how: How, allowed_lateness: Duration, late: str | None
) -> WindowJoinSpec:
    """Return the spec of `KeyedStream.window_join`."""
    kind = "window_join"
    if not isinstance(window, Tumbling | LocalDays | Sliding | Session):
        raise flow_error(
            draft,
            kind,
            f"expected cc.tumbling(...), cc.sliding(...) or cc.session(...), found {shown(window)}: in other "
            f"windows records of two streams don't meet at any time",
        )
    lateness_ms = whole_ms(allowed_lateness, "allowed_lateness")
    return WindowJoinSpec(
        window, _one_of(draft, kind, how, get_args(How)), lateness_ms, _late(draft, kind, late)
    )


def latest_join_spec(draft: Draft, how: LatestHow, late: str | None) -> LatestJoinSpec:
    """Return the spec of `KeyedStream.latest_join`."""
    kind = "latest_join"
    return LatestJoinSpec(_one_of(draft, kind, how, get_args(LatestHow)), _late(draft, kind, late))


def _one_of(draft: Draft, kind: str, how: Any, expected: tuple[str, ...]) -> Any:
    if how not in expected:
        raise flow_error(draft, kind, f"how={how!r}: expected one of {', '.join(map(repr, expected))}")
    return how


def _late(draft: Draft, kind: str, late: str | None) -> str | None:
    return None if late is None else output_name(draft, kind, late)


def not_to_join(draft: Draft, kind: str, other: object) -> FlowError:
    """Return what is wrong with `other`, which is no keyed stream of the flow."""
    return flow_error(
        draft,
        kind,
        f"expected a keyed stream of this flow to join with, found {shown(other)}: give it keys first, as in "
        f"stream.key_by(function), from the same Flow object",
    )
