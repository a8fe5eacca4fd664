"""The lifecycle of a node: published sequences, and samples that must not count."""

import pytest

from ingero.contract.types import NodeState
from ingero.core.health.lifecycle import (
    Lifecycle,
    LifecyclePolicy,
    Reading,
    recent_launches,
    update_lifecycle,
)
from ingero.errors import ConfigError

A, C, S = NodeState.ACTIVE, NodeState.CALIBRATING, NodeState.STALE
I = NodeState.IDLE  # noqa: E741 - as in the published table
F = None  # a failed read


def live(
    policy: LifecyclePolicy,
    *launches: int | None,
    warmup: int = 30,
    life: Lifecycle | None = None,
) -> list[Lifecycle]:
    life = life or Lifecycle()
    lives = []
    for second, count in enumerate(launches):
        life = update_lifecycle(
            life, Reading(at_s=float(second), launches=count), float(second), policy, warmup
        )
        lives.append(life)
    return lives


@pytest.mark.parametrize(
    ("config", "launches", "states"),
    [
        pytest.param((3, 5, 3), (10,) * 5, (C, C, C, C, A), id="32"),
        pytest.param((3, 0, 3), (10, 0, 0, 0), (A, A, A, I), id="33"),
        pytest.param((1, 5, 3), (10,) * 5 + (0, 5), (C, C, C, C, A, I, C), id="34"),
        pytest.param((1, 3, 3), (10, 10, 10, 0, 5, 10, 10), (C, C, A, I, C, C, A), id="35"),
        pytest.param((1, 0, 3), (10, F, F, F), (A, A, A, S), id="36"),
        pytest.param((3, 0, 3), (10, F, F, 10, F), (A, A, A, A, A), id="37"),
        pytest.param((3, 3, 1), (F, 1, 1, 1), (S, C, C, A), id="38"),
        pytest.param((3, 0, 3), (10, 0, 0, 10, 0, 0), (A,) * 6, id="39"),
        pytest.param((2, 0, 3), (10, -5, -1), (A, A, I), id="40"),
    ],
)
def test_published_sequences(
    config: tuple[int, int, int], launches: tuple[int | None, ...], states: tuple[NodeState, ...]
) -> None:
    idle, warmup, stale = config
    policy = LifecyclePolicy(idle_intervals=idle, stale_read_failures=stale)
    assert tuple(life.state for life in live(policy, *launches, warmup=warmup)) == states


def test_samples_from_the_future_are_failed_reads_vector_41() -> None:
    policy = LifecyclePolicy(stale_read_failures=2)
    life = update_lifecycle(Lifecycle(), Reading(at_s=0.0, launches=10), 0.0, policy, 0)
    soon = update_lifecycle(life, Reading(at_s=31.0, launches=10), 1.0, policy, 0)
    assert (soon.state, soon.failures) == (A, 0)
    for now in (1.0, 2.0):
        life = update_lifecycle(life, Reading(at_s=now + 3600, launches=10), now, policy, 0)
    assert life.state is S


def test_recent_launches_vectors_42_43() -> None:
    life = live(LifecyclePolicy(recent_window=10), 1, 2, 3, 4, 5)[-1]
    assert [recent_launches(life, since) for since in (0.0, 3.0, 3600.0)] == [15, 9, 0]
    assert len(live(LifecyclePolicy(recent_window=3), *[1] * 10)[-1].recent) == 3
    assert len(live(LifecyclePolicy(idle_intervals=5), *[1] * 100)[-1].recent) == 20


@pytest.mark.parametrize("sleep", [(0,), (F,)])
def test_waking_up_says_so_once_so_that_the_old_baseline_is_dropped(
    sleep: tuple[int | None, ...],
) -> None:
    policy = LifecyclePolicy(idle_intervals=1, stale_read_failures=1)
    lives = live(policy, 10, *sleep, 10, 10, warmup=0)
    assert [life.woke for life in lives] == [False, False, True, False]
    assert [life.state for life in lives] == [A, S if sleep == (F,) else I, C, A]


def test_bug_idle_since_boot_never_becomes_active_on_a_zero_baseline() -> None:
    """The reference counted samples without launches, became active and raised an episode."""
    assert {life.state for life in live(LifecyclePolicy(), *[0] * 50, warmup=5)} == {C}


def test_bug_failed_reads_do_not_advance_calibration() -> None:
    policy = LifecyclePolicy(stale_read_failures=10)
    assert [life.state for life in live(policy, 5, F, F, 5, 5, warmup=3)] == [C, C, C, C, A]


def test_a_restored_node_starts_active() -> None:
    assert live(LifecyclePolicy(), 10, life=Lifecycle(state=A))[-1].state is A


@pytest.mark.parametrize(
    "wrong",
    [
        {"idle_intervals": 0},
        {"idle_intervals": 2**20 + 1},
        {"stale_read_failures": 0},
    ],
)
def test_policy_out_of_range_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LifecyclePolicy(**wrong)
