"""The answer about a step trace: numbers follow from the simulated job."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.step_jobs import StepJob, as_trace, trace_rows

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import NEXT_STEPS, Answer
from ingero.core.blame.step_trace import StepTrace
from ingero.core.blame.steps import blame_steps
from ingero.core.durations import readable_seconds

# Four micro-batches; forward takes 0.3 s and backward 0.6 s, so that a worker computes for 3.6 s.
QUIET = StepJob(noise=0.0, chronic=0.0, micro=4, steps=4, pp=2, dp=4)


def quiet_trace(**change: object) -> StepTrace:
    return as_trace(trace_rows(replace(QUIET, **change)), gpus_per_worker=2)  # type: ignore[arg-type]


def slow_worker() -> Answer:
    return blame_steps(quiet_trace(slow={(2, 1): 1.5}))


def healthy() -> Answer:
    return blame_steps(quiet_trace())


def seconds(answer: Answer, what: str) -> float:
    (fix,) = [fix for fix in answer.fixes if fix.what == what]
    assert answer.step_time_s is not None
    assert fix.step_time_s + fix.saved_s == pytest.approx(answer.step_time_s)
    return fix.saved_s


def test_the_culprit_carries_what_is_known_about_it() -> None:
    (culprit,) = slow_worker().culprits
    assert (culprit.worker, culprit.rank, culprit.cause) == ("dp2/pp1", 12, CauseClass.COMPUTE)
    assert culprit.excess == pytest.approx(0.5)
    assert culprit.excess_s == pytest.approx(1.8)
    assert culprit.error == pytest.approx(np.hypot(0.003, 0.01 / 2 * 1.75))
    assert culprit.confidence == 0.99
    assert culprit.period is None
    assert culprit.collective == "grads-reduce-scatter"
    assert culprit.detail == ("ranks 12–13; own compute over 3 peers of stage 1 in 100% of steps")
    assert culprit.next_step == NEXT_STEPS[CauseClass.COMPUTE]


def test_a_worker_of_one_gpu_is_one_rank() -> None:
    trace = replace(quiet_trace(slow={(2, 1): 1.5}), world_size=8)
    (culprit,) = blame_steps(trace).culprits
    assert culprit.detail.startswith("rank 12; own compute")


def test_the_loss_is_the_difference_to_the_job_without_the_slow_worker() -> None:
    slow, sound = slow_worker(), healthy()
    assert slow.step_time_s is not None and sound.step_time_s is not None
    expected = slow.step_time_s - sound.step_time_s
    assert slow.loss_s == pytest.approx(expected, abs=0.002)
    assert seconds(slow, "dp2/pp1 (rank 12)") == pytest.approx(expected, abs=0.002)
    assert (slow.gpus, slow.steps, slow.source) == (16, 4, "step trace")
    assert (slow.cause, slow.not_sure, slow.notes) == (CauseClass.COMPUTE, None, ())
    assert (sound.cause, sound.loss_s, sound.culprits) == (None, 0.0, ())
    saved = [fix.saved_s for fix in slow.fixes]
    assert saved == sorted(saved, reverse=True)


def test_the_heat_map_shows_own_time_relative_to_the_stage() -> None:
    heat = slow_worker().heat
    assert heat is not None
    assert heat.rows[:3] == ("dp0/pp0 (rank 0)", "dp0/pp1 (rank 8)", "dp1/pp0 (rank 2)")
    assert heat.columns == (5, 8, 11, 14)
    expected = np.ones((8, 4))
    expected[5] = 1.5
    assert heat.values == pytest.approx(expected)


def test_evidence_says_what_was_compared() -> None:
    answer = slow_worker()
    assert answer.evidence[0] == (
        "dp2/pp1 (rank 12): own compute 1.50x its stage, slowest of its stage in 100% of 4 steps"
    )
    assert answer.evidence[1].startswith("all other workers are within the error bar ±")
    assert answer.evidence[2] == ("unequal stages cost 0 s a step, unequal micro-batches 0 s")
    assert answer.step_time_s is not None
    replayed = f"replayed step {readable_seconds(answer.step_time_s)}, with every"
    assert answer.evidence[3].startswith(replayed)
    assert len(answer.evidence) == 4


def test_two_slow_workers_are_priced_alone_and_together() -> None:
    answer = blame_steps(quiet_trace(slow={(0, 0): 1.5, (3, 1): 1.4}))
    assert [c.worker for c in answer.culprits] == ["dp0/pp0", "dp3/pp1"]
    assert healthy().step_time_s is not None and answer.step_time_s is not None
    together = seconds(answer, "all of them")
    assert answer.loss_s == together
    assert together == pytest.approx(answer.step_time_s - healthy().step_time_s, abs=0.002)
    one, other = seconds(answer, "dp0/pp0 (rank 0)"), seconds(answer, "dp3/pp1 (rank 14)")
    assert min(one, other) == pytest.approx(0.0)  # the slower one still holds the job
    assert 0 < max(one, other) < together


@pytest.mark.parametrize(("factor", "is_named"), [(1.03, False), (1.05, True)])
def test_a_worker_hidden_behind_a_slower_one_is_not_named(factor: float, is_named: bool) -> None:
    """Behind a worker that is 50 % slower, 8 % of that is 4 %: less makes no difference now."""
    change = {"pp": 1, "dp": 8, "steps": 12, "slow": {(1, 0): 1.5, (4, 0): factor}}
    answer = blame_steps(quiet_trace(**change))
    assert [c.worker for c in answer.culprits] == ["dp1/pp0", "dp4/pp0"][: 1 + is_named]
    assert answer.step_time_s is not None
    fixed_s = answer.step_time_s - seconds(answer, "dp1/pp0 (rank 2)")
    left = blame_steps(quiet_trace(**change | {"slow": {(4, 0): factor}}))
    assert fixed_s == pytest.approx(left.step_time_s, abs=0.002)  # the other one holds the job
    assert ("all of them" in {fix.what for fix in answer.fixes}) == is_named


def test_one_culprit_has_no_joint_fix() -> None:
    assert "all of them" not in {fix.what for fix in slow_worker().fixes}


@pytest.mark.parametrize(("shared", "is_said"), [(0.0, False), (0.3, False), (0.9, True)])
def test_data_is_the_cause_only_if_forward_and_backward_vary_together(
    shared: float, is_said: bool
) -> None:
    """Backward takes twice as long as forward, apart from what varies on its own."""
    trace = quiet_trace(imbalance=0.5, steps=8)
    backward = np.array([node.optype == "backward-compute" for node in trace.nodes])
    own = np.roll(trace.duration_s[backward], 3, axis=2)  # of other steps, which are independent
    duration = trace.duration_s.copy()
    duration[backward] = shared * trace.duration_s[backward] + (1 - shared) * own
    answer = blame_steps(replace(trace, duration_s=duration))
    assert answer.cause is CauseClass.DATA_IMBALANCE
    assert any("vary together" in line for line in answer.evidence) == is_said


def test_work_that_varies_in_one_direction_only_is_not_called_data() -> None:
    trace = quiet_trace(imbalance=0.5, steps=8)
    backward = np.array([node.optype == "backward-compute" for node in trace.nodes])
    steady = np.where(backward[:, None, None], 0.6, trace.duration_s)
    answer = blame_steps(replace(trace, duration_s=steady))
    assert not any("vary together" in line for line in answer.evidence)


def test_shares_of_the_loss_go_to_the_slowest_workers_and_to_the_last_stage() -> None:
    """One of eight workers is slow; with it at the ideal pace, the loss is gone."""
    last, first = slow_worker(), blame_steps(quiet_trace(slow={(2, 0): 1.5}))
    assert last.shares == pytest.approx({"m_w": 1.0, "m_s": 1.0}, abs=0.2)
    assert first.shares["m_w"] == pytest.approx(1.0, abs=0.2)
    assert first.shares["m_s"] == pytest.approx(0.0, abs=0.15)
    assert set(healthy().shares) <= {"m_w", "m_s"}


def test_three_percent_of_the_workers_are_rounded_up() -> None:
    """Two of 33 workers are slow, and one is 3 %: half of the loss stays. Of 34, two are."""
    slow = {(4, 0): 1.5, (9, 0): 1.5}
    shares = {
        dp: blame_steps(quiet_trace(pp=1, dp=dp, micro=2, slow=slow)).shares["m_w"]
        for dp in (33, 34)
    }
    assert shares[33] == pytest.approx(0.0, abs=0.05)
    assert shares[34] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("slower", "is_measurable"), [(0.005, False), (0.006, True)])
def test_no_shares_of_a_loss_that_is_not_measurable(slower: float, is_measurable: bool) -> None:
    """All work takes the same time, but for one worker; it costs 0.08 % or 0.12 % of the step."""
    trace = quiet_trace()
    compute = np.array([node.optype.endswith("compute") for node in trace.nodes])
    duration = np.where(compute[:, None, None], 0.3, 0.01) * np.ones_like(trace.duration_s)
    duration[np.array([node.stage == 1 for node in trace.nodes]) & compute, 2] *= 1 + slower
    answer = blame_steps(replace(trace, duration_s=duration))
    assert answer.shares.keys() == ({"m_w", "m_s"} if is_measurable else set())


def test_an_unequal_stage_costs_what_balance_would_save() -> None:
    """The second stage takes 1.4 times as long; balanced, both take 1.2 times."""
    answer = blame_steps(quiet_trace(stage_factor={1: 1.4}))
    balanced = blame_steps(quiet_trace(stage_factor={0: 1.2, 1: 1.2}))
    assert (answer.culprits, answer.cause) == ((), CauseClass.STRUCTURAL)
    assert answer.step_time_s is not None and balanced.step_time_s is not None
    expected = answer.step_time_s - balanced.step_time_s
    assert answer.loss_s == pytest.approx(expected, abs=0.005)
    assert seconds(answer, "stages balanced") == answer.loss_s
    assert seconds(answer, "micro-batches equal") == pytest.approx(0.0, abs=1e-6)
    cost = f"unequal stages cost {readable_seconds(answer.loss_s)} a step"
    assert answer.evidence[-2].startswith(cost)


def test_uneven_micro_batches_cost_what_equal_ones_would_save() -> None:
    answer = blame_steps(quiet_trace(imbalance=0.5, steps=8))
    assert (answer.culprits, answer.cause) == ((), CauseClass.DATA_IMBALANCE)
    assert answer.loss_s == seconds(answer, "micro-batches equal")
    assert answer.loss_s is not None and answer.step_time_s is not None
    equal_s = answer.step_time_s - answer.loss_s
    # Equal micro-batches take the mean of all: a little more than the median of their lengths.
    assert equal_s == pytest.approx(healthy().step_time_s * np.exp(0.5**2 / 2), rel=0.1)
    (line,) = [line for line in answer.evidence if "vary together" in line]
    assert "correlation 1.00" in line


def test_one_stage_cannot_be_unequal() -> None:
    answer = blame_steps(quiet_trace(pp=1, imbalance=0.5, steps=8))
    assert answer.cause is CauseClass.DATA_IMBALANCE
    assert answer.loss_s == seconds(answer, "micro-batches equal")


def test_a_slow_worker_beside_an_unequal_stage_is_left_out_of_its_cost() -> None:
    """The named worker is replaced by its peers before stages are compared."""
    both = blame_steps(quiet_trace(stage_factor={1: 1.4}, slow={(2, 1): 1.5}))
    alone = blame_steps(quiet_trace(stage_factor={1: 1.4}))
    assert [c.worker for c in both.culprits] == ["dp2/pp1"]
    assert seconds(both, "stages balanced") == pytest.approx(
        seconds(alone, "stages balanced"), abs=0.01
    )
    assert seconds(both, "micro-batches equal") == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(("factor", "is_cause"), [(1.11, False), (1.12, True)])
def test_a_loss_below_three_percent_of_the_step_is_no_cause(factor: float, is_cause: bool) -> None:
    answer = blame_steps(quiet_trace(stage_factor={1: factor}))
    saved_s = seconds(answer, "stages balanced")
    assert answer.step_time_s is not None
    assert saved_s / answer.step_time_s == pytest.approx(0.03, abs=0.002)
    assert (answer.cause, answer.loss_s) == (
        (CauseClass.STRUCTURAL, saved_s) if is_cause else (None, 0.0)
    )


def test_too_many_slow_workers_of_a_stage_are_a_question() -> None:
    answer = blame_steps(quiet_trace(slow={(2, 1): 1.5, (3, 1): 1.5}))
    assert answer.culprits == ()
    assert answer.not_sure is not None
    assert answer.not_sure.startswith("too many workers of a stage")
    assert "(dp2/pp1 (rank 12), dp3/pp1 (rank 14))" in answer.not_sure


def test_rivals_are_named_beside_the_culprit() -> None:
    slow = {(2, 0): 1.045, (5, 0): 1.034}
    answer = blame_steps(quiet_trace(pp=1, dp=8, slow=slow))
    assert [c.worker for c in answer.culprits] == ["dp2/pp0"]
    assert answer.not_sure is not None
    assert answer.not_sure.startswith("dp2/pp0 (rank 4) or dp5/pp0 (rank 10) lie within one")
    assert answer.evidence[1].startswith("next: dp5/pp0 (rank 10) at 1.034x its stage, error bar")


def test_one_replica_leaves_a_doubt_and_few_replicas_a_note() -> None:
    one = blame_steps(quiet_trace(dp=1, stage_factor={1: 1.4}))
    assert one.not_sure is not None and one.not_sure.startswith("there is only one replica")
    assert one.notes == ("1 replicas: too few workers of one role to compare well",)
    two = blame_steps(quiet_trace(dp=2, stage_factor={1: 1.4}))
    assert two.not_sure is None
    assert two.notes == ("2 replicas: too few workers of one role to compare well",)
    assert blame_steps(quiet_trace(dp=3)).notes == ()
    skipped = blame_steps(replace(quiet_trace(), skipped_steps=2))
    assert skipped.notes == ("2 steps lack operations of some worker and are left out",)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_all_times_scaled_scale_the_answer(factor: float) -> None:
    trace = quiet_trace(slow={(2, 1): 1.5})
    scaled = replace(trace, start_s=factor * trace.start_s, duration_s=factor * trace.duration_s)
    answer, again = slow_worker(), blame_steps(scaled)
    assert again.loss_s == pytest.approx(factor * (answer.loss_s or 0), rel=1e-6)
    assert again.ideal_step_time_s == pytest.approx(factor * (answer.ideal_step_time_s or 0))
    assert again.culprits[0].excess == pytest.approx(answer.culprits[0].excess)
    assert again.shares == pytest.approx(answer.shares)


def test_renaming_replicas_renames_the_answer() -> None:
    trace = quiet_trace(slow={(2, 1): 1.5})
    order = [3, 2, 0, 1]
    moved = replace(
        trace,
        start_s=trace.start_s[:, order],
        duration_s=trace.duration_s[:, order],
        worker_rank=trace.worker_rank[order],
    )
    answer = blame_steps(moved)
    assert [(c.worker, c.rank) for c in answer.culprits] == [("dp1/pp1", 12)]
    assert answer.loss_s == pytest.approx(slow_worker().loss_s)
    assert answer.shares == pytest.approx(slow_worker().shares)
