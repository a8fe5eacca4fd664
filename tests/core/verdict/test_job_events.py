"""Events of jobs: what slows many ranks, moves between them or belongs to the job itself.

Each test is a world in which a single rank would be the wrong answer, or not the whole one.
"""

import numpy as np
import pytest
from tests.support.verdict_world import (
    blamed,
    events,
    noise,
    run,
    run_labelled,
    steady,
)

from ingero.contract.verdict import CauseClass, VerdictState


def test_a_job_that_is_five_percent_slower_as_a_whole_is_one_event_with_its_loss() -> None:
    own = steady(620, 16, 3, common=0.005)
    own[400:] += np.log1p(0.06)
    found = run_labelled(own)
    (event,) = events(found)
    assert blamed(found) == set()
    assert (event.cause_class, event.node) == (CauseClass.FLEET, "")
    assert event.loss == pytest.approx(0.05, abs=0.02)
    assert event.usd_per_hour == pytest.approx(16 * event.loss, abs=0.01)


def test_when_most_ranks_become_slower_the_others_are_not_taken_for_fast() -> None:
    own = steady(300, 64, 4)
    own[200:, :48] += np.log1p(0.10)
    found = run_labelled(own)
    assert blamed(found) == set()
    assert [event.evidence for event in events(found)] == ["48 of 64 members slowed down together"]


@pytest.mark.parametrize("slow", [16, 24])
def test_ranks_of_a_rack_that_slow_down_together_are_one_event_that_names_it(slow: int) -> None:
    own = steady(260, 64, 5)
    own[200:, 1 : 1 + slow] += np.log1p(0.10)
    found = run_labelled(
        own, lambda rank: {"labels": (("rack", "r7" if 1 <= rank <= slow else f"r{rank % 3}"),)}
    )
    assert blamed(found) == set()
    (event,) = events(found)
    assert (event.shared, event.peers) == ("rack r7", slow)
    assert event.evidence.startswith(f"{slow} of {slow} ranks of rack r7 slowed down within 30 s")


def test_the_ranks_of_one_node_are_one_event_about_the_node() -> None:
    own = steady(320, 16, 6)
    own[200:260, 4:8] += np.log1p(0.10)
    found = run_labelled(own, lambda rank: {"node": f"n{rank // 4}"})
    assert blamed(found) == set()
    (event,) = events(found)
    assert (event.shared, event.node) == ("node n1", "n1")
    assert found[-1][1].state is VerdictState.RESOLVED


def test_ranks_without_anything_in_common_are_named_singly() -> None:
    own = steady(240, 64, 5)
    own[200:, 1:17] += np.log1p(0.10)
    found = run_labelled(own, lambda rank: {"labels": (("rack", f"r{rank % 4}"),)})
    assert blamed(found) == set(range(1, 17))
    assert events(found) == []


def test_slowness_that_moves_from_rank_to_rank_moves_with_the_work() -> None:
    own = steady(400, 8, 7)
    for turn in range(6):
        own[200 + 30 * turn : 230 + 30 * turn, 1 + turn] += np.log1p(0.15)
    found = run_labelled(own)
    (event,) = events(found)
    assert event.cause_class is CauseClass.DATA_IMBALANCE
    assert event.evidence.startswith("moves with the work: ranks 1, 2, 3 were slow")
    assert blamed(found) == {1, 2}  # who was named before it was clear


def test_a_checkpoint_of_one_rank_is_structural_with_period_and_price() -> None:
    own = steady(1100, 8, 8)
    own[100::100, 3] += np.log(8)
    found = run_labelled(own)
    assert blamed(found) == set()
    event = events(found)[0]
    assert (event.cause_class, event.period, event.node) == (CauseClass.STRUCTURAL, 100, "")
    assert event.loss == pytest.approx(7 / (7 + 100 * 1.17), rel=0.2)


def test_an_evaluation_of_one_rank_is_structural_when_it_comes_again() -> None:
    own = steady(1300, 8, 9)
    for begin in (300, 700, 1100):
        own[begin : begin + 50, 0] += np.log1p(1.5)
    found = run_labelled(own)
    event = events(found)[-1]
    assert (event.cause_class, event.period) == (CauseClass.STRUCTURAL, 400)
    late = [s for s, v in found if v.state is VerdictState.STRAGGLER and s > 1050]
    assert late == []


def test_rank_zero_that_always_does_more_is_structural_with_a_price() -> None:
    own = steady(280, 8, 10)
    own[:, 0] += np.log1p(0.3)
    found = run_labelled(own)
    (event,) = events(found)
    assert blamed(found) == set()
    assert (event.cause_class, event.at_most) == (CauseClass.STRUCTURAL, True)
    assert event.loss == pytest.approx(0.28 / 1.45, rel=0.15)
    assert event.usd_per_hour == pytest.approx(8 * event.loss, abs=0.01)


@pytest.mark.parametrize("old", [8, 1])
def test_a_slower_gpu_model_sets_the_pace_and_hides_who_is_slow_behind_it(old: int) -> None:
    own = steady(300, 16, 11)
    own[:, 16 - old :] += np.log(1.6)
    own[200:, 2] += np.log1p(0.10)
    found = run_labelled(own, lambda rank: {"gpu_model": "A100" if rank >= 16 - old else "H100"})
    (event,) = events(found)
    assert event.evidence.startswith("A100 sets the pace")
    assert (event.cause_class, event.shared) == (CauseClass.STRUCTURAL, "GPU model A100")
    assert blamed(found) == set()
    assert {v.rank for _, v in found if v.state is VerdictState.LATE} == {2}


@pytest.mark.parametrize(("slow_s", "pause_s"), [(10, 20), (40, 60)])
def test_a_gpu_that_throttles_now_and_then_is_one_episode(slow_s: int, pause_s: int) -> None:
    own = steady(700, 8, 12)
    turn = np.arange(500) % (slow_s + pause_s)
    own[200:, 5] += np.where(turn < slow_s, np.log1p(0.2), 0.0)
    found = run_labelled(own)
    assert blamed(found) == {5}
    assert len({v.episode for _, v in found}) == 1
    assert sum(v.state is VerdictState.STRAGGLER for _, v in found) <= 2


def test_a_rank_that_compiles_longer_is_warming_up() -> None:
    own = steady(700, 8, 13)
    own[:120] += np.log(10)
    own[:200, 3] += np.log1p(0.4)
    own[500:, 5] += np.log1p(0.10)
    found = run_labelled(own)
    assert {(v.rank, s > 500) for s, v in found if v.rank is not None} == {(5, True)}


def test_what_was_learned_in_restless_first_minutes_is_learned_again() -> None:
    own = steady(700, 8, 14)
    own[:120] += np.random.default_rng(3).normal(0, 0.3, (120, 8))
    own[600:, 5] += np.log1p(0.06)
    found = run_labelled(own)
    named = [s for s, v in found if v.state is VerdictState.STRAGGLER and v.rank == 5]
    assert named
    assert 600 < named[0] <= 615


@pytest.mark.parametrize("step_s", [35, 60, 120])
def test_steps_of_a_minute_are_judged_and_are_no_hang(step_s: int) -> None:
    own = steady(60, 8, 15, common=0.003)
    own[45:, 5] += np.log1p(0.2)
    found = run_labelled(own, step_s=step_s)
    assert {v.cause_class for _, v in found} == {CauseClass.UNKNOWN}
    assert blamed(found) == {5}


@pytest.mark.parametrize("behind_s", [3, 25, 45])
def test_a_node_whose_reports_are_late_is_judged(behind_s: int) -> None:
    own = steady(330, 8, 16)
    own[200:, 5] += np.log1p(0.10)
    found = run_labelled(own, behind_s={5: behind_s})
    assert blamed(found) == {5}
    first = next(s for s, v in found if v.state is VerdictState.STRAGGLER)
    assert 200 < first <= 215 + behind_s


def test_a_pipeline_with_two_replicas_is_quiet_in_health_and_names_who_is_slow() -> None:
    def stage(rank: int) -> dict[str, object]:
        return {"role": f"pp{rank // 2}"}

    own = steady(1500, 8, 17, common=0.03) + np.log([1, 1, 1.1, 1.1, 1.2, 1.2, 1.25, 1.25])
    assert run_labelled(own, stage) == []
    own[1000:, 7] += np.log1p(0.12)
    found = run_labelled(own[:1100], stage)
    assert blamed(found) == {7}
    assert "the other ranks of the job" in found[0][1].evidence


@pytest.mark.parametrize("ranks", [3, 4])
def test_two_slow_ranks_of_few_are_both_named_with_not_sure(ranks: int) -> None:
    own = noise(260, ranks, seed=18)
    own[200:, [1, 2]] += np.log1p(0.10)
    found = run_labelled(own)
    unsure = {v.rank for _, v in found if v.state is VerdictState.NOT_SURE}
    assert unsure == {1, 2}
    assert events(found) == []


def test_own_times_that_rise_while_steps_stay_are_no_event() -> None:
    """Where collectives overlap compute, own time is what is left between them."""
    own = steady(620, 8, 19, common=0.005)
    span = np.full(own.shape, 2.5) * np.exp(np.random.default_rng(4).normal(0, 0.004, own.shape))
    own[400:] += np.log1p(0.5)
    assert run(own, columns={"span_s": span}) == []
    span[400:] *= 1.5
    said = [v.evidence for v in events(run(own, columns={"span_s": span}))]
    assert said and said[0].startswith("all 8 members together are ")


def test_a_job_in_which_nobody_finishes_a_step_is_called_stopped_not_blamed() -> None:
    own = noise(200, 8)
    own[120:] = np.nan
    found = [v for s, v in run(own) if s > 120]
    assert [(v.state, v.cause_class, v.node) for v in found] == [
        (VerdictState.NOT_SURE, CauseClass.HANG, "")
    ]
    assert (
        found[0].evidence == "none of 8 members finished a step lately: the job hangs or has ended"
    )
    assert "ingero blame --live" in found[0].next_step
