"""F157: probing stays in its budget and is reduced first where it costs most."""

from hypothesis import given
from hypothesis import strategies as st

from ingero.core.recording.governor import (
    GovernorPolicy,
    Load,
    ProbeLevel,
    Watch,
    decide,
    plan_watches,
    probe_cost,
)

POLICY = GovernorPolicy()
LAUNCH = Load("cuLaunchKernel", 40_000, 1700, 850)
QUIET = Load("cudaStreamSynchronize", 100, 1700, 850)
COLLECTIVE = Load("ncclAllReduce", 500, 1700, 850, keep=True)

loads = st.lists(
    st.builds(
        Load,
        st.uuids().map(str),
        st.floats(0, 1e6),
        st.floats(1000, 20_000),
        st.floats(500, 1000),
        keep=st.booleans(),
    ),
    max_size=8,
)


def test_quiet_process_is_watched_in_full() -> None:
    decision = decide([QUIET, COLLECTIVE], 0.0, 0, POLICY)
    assert set(decision.watches.values()) == {Watch()}
    assert decision.charged_share == decision.cost_share == 600 * 1700 / 1e9


def test_launch_bound_process_goes_to_a_duty_cycle_that_fits() -> None:
    decision = decide([LAUNCH, QUIET, COLLECTIVE], 0.0, 0, POLICY)
    watch = decision.watches["cuLaunchKernel"]
    assert watch.level is ProbeLevel.DUTY and 0.05 < watch.duty < 0.2
    assert decision.watches["ncclAllReduce"] == Watch()
    assert decision.charged_share <= POLICY.budget_share


def test_moderate_rate_loses_only_the_return_probe() -> None:
    decision = decide([Load("cuLaunchKernel", 8_000, 1700, 850), QUIET], 0.0, 0, POLICY)
    assert decision.watches["cuLaunchKernel"] == Watch(ProbeLevel.ENTRY)
    assert decision.watches["cudaStreamSynchronize"] == Watch()


def test_a_function_called_too_often_is_switched_off() -> None:
    decision = decide([Load("f", 2_000_000, 13_000, 12_000)], 0.0, 0, POLICY)
    assert decision.watches["f"] == Watch(ProbeLevel.OFF) and decision.cost_share == 0


def test_waiting_for_the_gpu_absorbs_the_cost() -> None:
    """22,500 traced calls/s cost 3.8 % of a core.

    The GPU-bound job that makes them waits half of the time.
    """
    decision = decide([Load("cuLaunchKernel", 22_500, 1700, 850)], 0.5, 0, POLICY)
    assert decision.watches["cuLaunchKernel"] == Watch()
    assert decision.cost_share > 0.03 and decision.charged_share == 0


def test_loosens_only_after_several_decisions_within_budget() -> None:
    slow = [Load("cuLaunchKernel", 100, 1700, 850, Watch(ProbeLevel.ENTRY))]
    calm = 0
    for _ in range(POLICY.calm_ticks - 1):
        decision = decide(slow, 0.0, calm, POLICY)
        assert decision.watches["cuLaunchKernel"] == Watch(ProbeLevel.ENTRY)
        calm = decision.calm
    assert decide(slow, 0.0, calm, POLICY).watches["cuLaunchKernel"] == Watch()


@given(loads, st.floats(0, 1))
def test_the_cost_is_never_above_the_allowance(some: list[Load], waited: float) -> None:
    decision = decide(some, waited, 0, POLICY)
    assert decision.charged_share <= POLICY.budget_share + 1e-9


@given(loads, st.floats(0.001, 0.5))
def test_the_plan_reduces_something_only_where_needed(some: list[Load], allowance: float) -> None:
    watches = plan_watches(some, allowance, POLICY.least_duty)
    fits = sum(probe_cost(load, Watch()) for load in some) <= allowance
    assert fits == (set(watches.values()) <= {Watch()})


@given(loads, st.floats(12_000, 1e6))
def test_kept_functions_are_reduced_last(some: list[Load], calls: float) -> None:
    """One kept function alone is too expensive, so that everything before it is reduced."""
    kept = Load("ncclAllReduce", calls, 1700, 850, keep=True)
    watches = plan_watches([*some, kept], 0.01, POLICY.least_duty)
    assert watches[kept.name].level is not ProbeLevel.FULL
    others = [load for load in some if not load.keep and probe_cost(load, Watch()) > 0]
    assert all(watches[load.name].level in (ProbeLevel.DUTY, ProbeLevel.OFF) for load in others)
