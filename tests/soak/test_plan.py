"""The schedule of a soak: every fault occurs, and what is judged lives long enough."""

import pytest
from tests.soak.plan import Kind, make_plan


@pytest.mark.parametrize("minutes", [2, 10, 16, 30, 60, 240])
def test_every_kind_of_fault_occurs_in_runs_of_any_length(minutes: float) -> None:
    plan = make_plan(minutes)
    assert {fault.kind for fault in plan.faults} == set(Kind)
    assert {"fleet", "echo", "store", "recorder"} <= {f.target for f in plan.faults}
    assert all(0 < fault.at_s < plan.length_s for fault in plan.faults)


@pytest.mark.parametrize("minutes", [16, 30, 60])
def test_there_is_one_fault_in_every_minute_and_both_ways_of_a_wrong_clock(minutes: int) -> None:
    plan = make_plan(minutes)
    assert [fault.at_s for fault in plan.faults] == [60.0 * i for i in range(1, minutes)]
    if minutes >= 30:
        jumps = [fault.target for fault in plan.faults if fault.kind is Kind.JUMP]
        assert {"1", "0", "-1"} <= set(jumps)


@pytest.mark.parametrize("minutes", [2, 16, 30, 60, 240])
def test_a_service_that_is_judged_lives_through_the_second_half_and_some_time_before(
    minutes: float,
) -> None:
    plan = make_plan(minutes)
    late = [f for f in plan.faults if f.at_s >= 0.4 * plan.length_s and f.kind is Kind.KILL]
    assert {fault.target for fault in late} <= {"agents-2"}
    assert late, "faults of every kind go on while it is judged"


@pytest.mark.parametrize("minutes", [2, 16, 30, 60])
def test_the_straggler_is_slow_within_the_run_while_fleet_lives(minutes: float) -> None:
    plan = make_plan(minutes)
    assert plan.judged_from_s <= plan.straggler.from_s < plan.straggler.until_s <= plan.length_s
    assert plan.expects_rank == (minutes >= 16)
