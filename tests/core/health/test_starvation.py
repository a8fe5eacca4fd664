"""CPU starvation: the published sequence, what sustains a finding and what ends it."""

import pytest

from ingero.core.health.starvation import (
    FORGET_AFTER,
    MAX_PROCESSES,
    Activity,
    Straggle,
    StraggleWatch,
    check_straggle,
)

PID = 4711


def run(*checks: tuple[int, int] | None, span_s: float = 1.0) -> list[list[Straggle]]:
    """(launches, switches) per check of one process; None when it did not appear."""
    watch, found_at = StraggleWatch(), []
    for number, seen in enumerate(checks):
        activity = {} if seen is None else {PID: Activity(*seen)}
        watch, found = check_straggle(watch, activity, number * span_s)
        found_at.append(found)
    return found_at


def test_published_sequence_vector_68() -> None:
    found_at = run((100, 0), (100, 0), (100, 0), (10, 20), (100, 20))
    assert found_at[:3] == [[], [], []]
    [first], [second] = found_at[3:]
    assert (first.pid, first.switches, first.sustained) == (PID, 20, False)
    # The third sample is part of the baseline.
    assert first.drop_percent == pytest.approx((82 - 10) / 82 * 100)
    assert first.drop_percent == pytest.approx(87.8049, abs=5e-5)
    assert second.sustained
    assert second.drop_percent == 0.0  # throughput is back, the disturbance is not


def test_both_conditions_are_needed() -> None:
    calm = [(100, 0)] * 5
    assert run(*calm, (10, 4))[-1] == []
    assert run(*calm, (71, 20))[-1] == []
    assert [each.sustained for each in run(*calm, (69, 5))[-1]] == [False]


def test_a_longer_span_counts_by_the_second() -> None:
    assert run(*[(500, 0)] * 5, (50, 24), span_s=5.0)[-1] == []
    assert len(run(*[(500, 0)] * 5, (50, 25), span_s=5.0)[-1]) == 1


def test_the_baseline_is_held_while_triggered_and_clears_when_switches_fall() -> None:
    found_at = run(*[(100, 0)] * 6, *[(10, 20)] * 20, (100, 0), (10, 20))
    assert all(each.drop_percent == pytest.approx(90.0) for [each] in found_at[6:26])
    assert found_at[26] == []
    assert [each.sustained for each in found_at[27]] == [False]


def test_a_process_without_any_cpu_is_slow_and_an_idle_one_is_not() -> None:
    assert [each.drop_percent for each in run(*[(100, 0)] * 5, (0, 20))[-1]] == [100.0]
    assert run(*[(100, 0)] * 5, None, (0, 1), (100, 20))[-1] == []


def test_processes_are_forgotten_and_a_clock_that_steps_back_starts_again() -> None:
    found_at = run(*[(100, 0)] * 5, *[None] * FORGET_AFTER, (10, 20))
    assert found_at[-1] == []  # it counts as a new process
    watch, _ = check_straggle(StraggleWatch(), {PID: Activity(100, 0)}, 100.0)
    for now_s in (101.0, 102.0, 103.0, 50.0):
        watch, found = check_straggle(watch, {PID: Activity(100, 0)}, now_s)
        assert found == []
    assert check_straggle(watch, {PID: Activity(10, 20)}, 51.0)[1] == []


def test_only_processes_that_launch_are_followed_and_not_without_end() -> None:
    watch, _ = check_straggle(StraggleWatch(), {1: Activity(0, 900)}, 0.0)
    assert watch.processes == {}
    watch, _ = check_straggle(watch, {pid: Activity(1, 0) for pid in range(2 * MAX_PROCESSES)}, 1.0)
    assert watch.processes is not None
    assert len(watch.processes) == MAX_PROCESSES
