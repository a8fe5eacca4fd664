"""Slowness that moves from rank to rank: when three in turn are one event, and when it is over."""

import pytest

from ingero.core.verdict.events.moves import Moves


def moved(*periods: tuple[int, float, float | None]) -> Moves:
    """Return slow periods of one job as (member, begin, end)."""
    moves = Moves()
    for member, began_s, ended_s in periods:
        moves.begin(1, member, began_s)
        if ended_s is not None:
            moves.end(1, member, ended_s)
    return moves


@pytest.mark.parametrize(
    ("third_s", "is_moving"), [(230.0, True), (230.1, False), (170.0, True), (169.9, False)]
)
def test_slowness_moves_when_three_ranks_are_slow_in_turn(third_s: float, is_moving: bool) -> None:
    """One begins within 30 s of the end of another."""
    moves = moved((3, 0.0, 100.0), (5, 110.0, 200.0), (7, third_s, None))
    assert moves.is_moving(1, third_s) == is_moving
    assert moves.is_carried(1, 7, third_s) == is_moving
    assert not moves.is_carried(1, 5, third_s)
    assert not moves.is_moving(2, third_s)


def test_a_rank_that_is_slow_again_hands_nothing_over_to_itself() -> None:
    moves = moved((3, 0.0, 100.0), (3, 110.0, 200.0), (3, 210.0, 300.0))
    assert not moves.is_moving(1, 300.0)


def test_a_rank_that_stays_slow_far_longer_than_the_others_is_not_carried() -> None:
    """The others were slow for up to 100 s: twice that and 30 s more are allowed."""
    moves = moved((3, 0.0, 100.0), (5, 110.0, 200.0), (7, 210.0, None))
    assert moves.is_carried(1, 7, 210.0 + 230.0)
    assert not moves.is_carried(1, 7, 210.0 + 230.1)


def test_a_move_is_over_ten_minutes_after_the_last_slow_period() -> None:
    moves = moved((3, 0.0, 100.0), (5, 110.0, 200.0), (7, 210.0, 300.0))
    assert moves.is_moving(1, 899.9)
    assert not moves.is_moving(1, 900.0)
    moves.forget(900.0)
    assert moves.periods
    moves.forget(900.1)
    assert not moves.periods


def test_members_in_turn_are_listed_and_sixteen_are_kept() -> None:
    moves = moved((3, 0.0, 100.0), (5, 110.0, None), (7, 120.0, None))
    assert moves.going_on(1) == [5, 7]
    assert moves.ranks_in_turn(1) == [3, 5, 7]
    assert (moves.going_on(2), moves.ranks_in_turn(2)) == ([], [])
    for number in range(20):
        moves.begin(1, number, 200.0)
    assert moves.ranks_in_turn(1) == list(range(4, 20))
