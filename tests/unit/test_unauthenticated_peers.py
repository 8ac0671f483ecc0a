"""Who may stay among those that have proven nothing, and what is said of those refused."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.wire.unauthenticated_peers import ADDRESS_MAX, LINE_EVERY_S, ROOM_MAX, Lobby, Reason, Refusals


def lobby(seed: int = 1) -> Lobby[int]:
    return Lobby(Random(seed).randrange)


def addresses(count: int) -> list[str]:
    return [f"10.0.{index // 250}.{index % 250}" for index in range(count)]


def test_there_is_room_for_a_limited_number_of_unauthenticated_peers() -> None:
    found = lobby()
    gone = [found.enter(peer, address) for peer, address in enumerate(addresses(2 * ROOM_MAX))]
    assert gone[:ROOM_MAX] == [None] * ROOM_MAX
    assert None not in gone[ROOM_MAX:]
    assert len(found) == ROOM_MAX


def test_whoever_has_to_go_is_drawn_by_lot_and_the_newcomer_is_in_the_draw() -> None:
    drawn: list[int] = []

    def draw(count: int) -> int:
        drawn.append(count)
        return (0, count - 1, 5)[len(drawn) - 1]

    found = Lobby[int](draw)
    for peer, address in enumerate(addresses(ROOM_MAX)):
        found.enter(peer, address)
    assert found.enter(1_000, "10.9.9.1") is not None
    assert drawn == [1], "each address has one: a draw among those of the first that has the most"
    many = Lobby[int](draw)
    for peer in range(ADDRESS_MAX):
        many.enter(peer, "10.0.0.1")
    assert many.enter(1_000, "10.0.0.1") == 1_000
    assert many.enter(1_001, "10.0.0.1") == 5
    assert drawn[1:] == [ADDRESS_MAX + 1] * 2


def test_everybody_of_an_address_is_equally_likely_to_go() -> None:
    """Not the oldest and not the newest: a genuine peer among a flood has its chance."""
    gone: Counter[bool] = Counter()
    for seed in range(40):
        found = lobby(seed)
        for peer in range(2 * ADDRESS_MAX):
            leaves = found.enter(peer, "10.0.0.1")
            gone[leaves is not None and leaves < ADDRESS_MAX] += leaves is not None
    # Of those that were there first, about 1 - 1/e have gone once as many have come after them.
    assert 0.60 < gone[True] / (40 * ADDRESS_MAX) < 0.67


def test_a_flood_that_says_nothing_pushes_out_nobody_who_has_said_hello() -> None:
    found = lobby()
    for peer in range(50):
        found.enter(peer, "10.0.0.1")
        assert found.greeted(peer) is None
    for peer in range(1_000, 9_000):
        leaves = found.enter(peer, "10.0.0.1")
        assert leaves is None or leaves >= 1_000
    assert set(range(50)) <= set(found.peers())


def test_a_flood_that_says_hello_leaves_room_for_newcomers() -> None:
    """Hellos can be listened to and sent again: they prove nothing."""
    found = lobby()
    for peer in range(3_000):
        found.enter(peer, "10.0.0.1")
        leaves = found.greeted(peer)
        assert leaves is None or peer >= ADDRESS_MAX
    assert len(found) == ADDRESS_MAX
    for peer in range(5_000, 5_000 + ADDRESS_MAX):
        assert found.enter(peer, "10.0.0.1") is None


def test_a_flood_from_one_address_pushes_out_nobody_from_another() -> None:
    found = lobby()
    for peer in range(ROOM_MAX - ADDRESS_MAX):
        found.enter(peer, f"10.1.0.{peer}")
    for peer in range(1_000, 9_000):
        leaves = found.enter(peer, "10.0.0.1")
        assert leaves is None or leaves >= 1_000
    assert set(range(ROOM_MAX - ADDRESS_MAX)) <= set(found.peers())


def test_where_the_room_is_full_the_address_with_the_most_has_to_make_place() -> None:
    found = lobby()
    for peer in range(ADDRESS_MAX):
        found.enter(peer, "10.0.0.1")
    for peer in range(1_000, 1_000 + ROOM_MAX - ADDRESS_MAX):
        found.enter(peer, "10.0.0.2")
    assert found.enter(2_000, "10.0.0.3") in range(ADDRESS_MAX)


def test_whoever_has_left_makes_room() -> None:
    found = lobby()
    for peer in range(ADDRESS_MAX):
        found.enter(peer, "10.0.0.1")
    found.leave(7)
    found.leave(7)
    assert found.enter(1_000, "10.0.0.1") is None
    assert found.greeted(7) is None
    assert 7 not in found.peers()


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "enter", "greeted", "leave"]), st.integers(0, 60), st.integers(0, 2)),
    max_size=200,
)


@given(steps=STEPS, seed=st.integers(0, 1_000))
def test_the_rooms_are_those_of_a_model_of_two_dicts(steps: list[tuple[str, int, int]], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crosscut.wire.unauthenticated_peers.ROOM_MAX", 8)
        patch.setattr("crosscut.wire.unauthenticated_peers.ADDRESS_MAX", 5)
        found = lobby(seed)
        silent: dict[int, str] = {}
        greeted: dict[int, str] = {}
        for verb, peer, address_index in steps:
            room, leaves = silent, None
            if verb == "enter" and peer not in silent and peer not in greeted:
                silent[peer] = f"10.0.0.{address_index}"
                leaves = found.enter(peer, silent[peer])
            elif verb == "greeted":
                if peer in silent:
                    greeted[peer] = silent.pop(peer)
                    room = greeted
                leaves = found.greeted(peer)
            elif verb == "leave":
                found.leave(peer)
                silent.pop(peer, None)
                greeted.pop(peer, None)
            by_address = Counter(room.values())
            if leaves is not None:
                gone = room.pop(leaves)
                assert by_address[gone] > 5 or (
                    len(room) == 8 and by_address[gone] == max(by_address.values())
                )
            assert max(Counter(room.values()).values(), default=0) <= 5
            assert len(room) <= 8
            assert sorted(found.peers()) == sorted((*silent, *greeted))
            assert len(found) == len(silent) + len(greeted)


def test_the_first_refusal_is_said_at_once_and_the_next_ones_together_after_a_while() -> None:
    """S13."""
    found = Refusals("job 'words'")
    first = found.note(Reason.LEFT, "10.0.0.1", 100.0)
    assert first is not None
    assert first.startswith(
        "job 'words' has refused 1 connections that did not prove the job's secret "
        "(went away without a proof: 1), the newest from 10.0.0.1."
    )
    for _ in range(5_000):
        assert found.note(Reason.CROWDED, "10.0.0.2", 100.0 + LINE_EVERY_S - 0.1) is None
    next_line = found.note(Reason.UNPROVEN, "10.0.0.3", 100.0 + LINE_EVERY_S)
    assert next_line is not None
    assert "5001 connections" in next_line
    assert "(no proof of the secret: 1, too many at once: 5000), the newest from 10.0.0.3" in next_line
    assert found.note(Reason.UNPROVEN, "10.0.0.3", 100.0 + LINE_EVERY_S + 1) is None
    assert found.counts == {
        "went away without a proof": 1,
        "too many at once": 5_000,
        "no proof of the secret": 2,
    }
