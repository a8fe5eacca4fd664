"""The classifier: edges, hysteresis without a trap, confirmations, stable episodes, closings."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.health.classifier import (
    RECOVERY_DWELL,
    Classification,
    ClassifierPolicy,
    Closing,
    classify,
    close,
    episode_id,
)
from ingero.errors import ConfigError

ONE = ClassifierPolicy(confirmations=1)
THREE = ClassifierPolicy()


def run(
    scores: list[float], threshold: float, policy: ClassifierPolicy, **options: bool
) -> list[Classification]:
    state = Classification()
    states = []
    for tick, score in enumerate(scores):
        state = classify(
            state, score, threshold, policy, node="train/n1", now_ns=tick * 10**9, **options
        )
        states.append(state)
    return states


def flags(states: list[Classification]) -> str:
    return "".join("S" if state.is_straggler else "H" for state in states)


@pytest.mark.parametrize(
    ("scores", "threshold", "expected"),
    [
        pytest.param([0.62, 0.81, 0.82], 0.80, "SSH", id="67"),
        pytest.param([0.80], 0.80, "H", id="67-at-the-threshold-is-healthy"),
        pytest.param(
            [0.75, 0.79, 0.81, 0.79, 0.81, 0.79, 0.83], 0.80, "SSSSSSH", id="67-oscillation"
        ),
        pytest.param([0.81, 0.80, 0.79, 0.81, 0.8199, 0.82], 0.80, "HHSSSH", id="V4"),
        pytest.param([0.92, 0.58], 0.87, "HS", id="F008"),
    ],
)
def test_published_sequences(scores: list[float], threshold: float, expected: str) -> None:
    assert flags(run(scores, threshold, ONE)) == expected


def test_edges_are_reported_once_f032() -> None:
    states = run([0.62, 0.62, 0.81, 0.90, 0.90], 0.80, ONE)
    assert [state.raised for state in states] == [True, False, False, False, False]
    assert [state.closing for state in states] == [None, None, None, Closing.RECOVERED, None]


def test_bug_hysteresis_trap_vector_71() -> None:
    """0.9214 + 0.02 is above the 0.94 this node can score: the reference never lets it recover."""
    states = run([0.94, 0.90, *[0.94] * RECOVERY_DWELL], 0.9214, ONE)
    assert flags(states) == "HS" + "S" * (RECOVERY_DWELL - 1) + "H"


def test_bug_one_tick_below_the_threshold_is_not_an_event() -> None:
    assert flags(run([0.9, 0.5, 0.9, 0.5, 0.5, 0.9], 0.8, THREE)) == "HHHHHH"
    assert flags(run([0.5, 0.5, 0.5], 0.8, THREE)) == "HHS"


def test_a_threshold_that_falls_with_all_nodes_raises_no_episode() -> None:
    """Each score is below its own threshold, but the last threshold is below the older scores."""
    state = Classification()
    for tick, (score, threshold) in enumerate(
        [(0.80, 0.83), (0.70, 0.73), (0.60, 0.63), (0.50, 0.53), (0.40, 0.43)]
    ):
        state = classify(state, score, threshold, THREE, node="n", now_ns=tick)
        assert not state.is_straggler
    for tick, threshold in enumerate((0.43, 0.43)):
        state = classify(state, 0.40, threshold, THREE, node="n", now_ns=tick)
    assert state.is_straggler  # the other nodes are stable and this one is slow


@given(st.floats(0.5, 0.9), st.floats(0.0, 0.0199))
def test_alternation_around_the_threshold_yields_few_transitions(
    threshold: float, swing: float
) -> None:
    states = run([threshold - swing, threshold + swing] * 50, threshold, ONE)
    changes = sum(state.raised or state.closing is not None for state in states)
    assert changes <= 2


def test_not_a_number_changes_nothing() -> None:
    below = run([0.5, 0.5], 0.8, THREE)[-1]
    assert classify(below, math.nan, 0.8, THREE, node="n", now_ns=0).recent == (0.5, 0.5)
    straggler = run([0.5], 0.8, ONE)[-1]
    assert classify(straggler, math.nan, 0.8, ONE, node="n", now_ns=0).episode == straggler.episode


def test_bug_episode_id_is_stable_from_first_to_last_message() -> None:
    """The reference used a new id in every tick, so nothing identified the episode."""
    states = run([0.5, 0.5, 0.5, 0.9], 0.8, ONE)
    assert {state.episode for state in states[:3]} == {states[3].closed}
    assert [state.sequence for state in states] == [1, 2, 3, 4]


def test_two_episodes_have_two_ids_and_a_replay_has_the_same() -> None:
    first = [state.episode for state in run([0.5, 0.9, 0.5], 0.8, ONE)]
    assert first[0] != first[2]
    assert first == [state.episode for state in run([0.5, 0.9, 0.5], 0.8, ONE)]
    assert episode_id("a", 1) != episode_id("b", 1)


@pytest.mark.parametrize("reason", [Closing.LEFT_ACTIVE, Closing.MODE_LOST, Closing.SHUTDOWN])
def test_bug_every_way_out_of_an_episode_closes_it(reason: Closing) -> None:
    """In the reference an episode stayed open when the node went idle, lost its mode or stopped."""
    open_episode = run([0.5], 0.8, ONE)[-1]
    closed = close(open_episode, reason)
    assert (closed.closing, closed.closed, closed.is_straggler) == (
        reason,
        open_episode.episode,
        False,
    )
    assert close(closed, reason) == Classification()


def test_without_quorum_an_open_episode_may_close_and_none_may_open() -> None:
    assert flags(run([0.5] * 10, 0.8, THREE, may_raise=False)) == "H" * 10
    straggler = run([0.5] * 3, 0.8, THREE)[-1]
    held = classify(straggler, 0.5, 0.8, THREE, node="n", now_ns=0, may_raise=False)
    assert held.is_straggler
    assert not classify(held, 0.9, 0.8, THREE, node="n", now_ns=0, may_raise=False).is_straggler


@pytest.mark.parametrize(
    "wrong", [{"hysteresis": 0.5}, {"hysteresis": -0.01}, {"confirmations": 0}]
)
def test_policy_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ClassifierPolicy(**wrong)
