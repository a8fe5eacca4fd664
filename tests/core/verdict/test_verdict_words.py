"""What a verdict says: class, loss, confidence and evidence, from the rows of a member."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.verdict_tables import CALM, PEERS, POLICY, world

from ingero.contract.verdict import CauseClass, VerdictState
from ingero.core.verdict.cause_class import _class_by_queue, cause_of
from ingero.core.verdict.job_steps import CalmSteps, close_steps, follow_steps
from ingero.core.verdict.loss import Loss, measure_loss
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.table import (
    ADVANCE,
    CHRONIC,
    FAST,
    ONSETS,
    RECENT,
    STALL,
)
from ingero.core.verdict.verdicts import (
    LATE_NEXT_STEP,
    NEXT_STEP,
    _with_loss,
    describe_member,
    episode_id,
)


def test_a_slow_member_is_described_with_all_that_is_known() -> None:
    verdict = describe_member(world(usd_per_gpu_hour=2.0, source="nccl"), 0, POLICY)
    assert verdict.state is VerdictState.STRAGGLER
    assert (verdict.node, verdict.rank, verdict.job) == ("n1", 1, "j")
    assert (verdict.peers, verdict.since, verdict.period) == (7, 77.0, None)
    assert verdict.excess == round(math.expm1(0.1), 4)
    assert verdict.error == round(2 * 0.01 / math.sqrt(RECENT), 4)
    assert verdict.confidence == 0.999
    # Without calm steps at most the excess of own time is lost.
    share = math.expm1(0.1) / math.exp(0.1)
    assert (verdict.loss, verdict.loss_error, verdict.at_most) == (round(share, 4), None, True)
    assert verdict.usd_per_hour == round(8 * 2.0 * share, 2)
    assert verdict.cause_class is CauseClass.UNKNOWN
    assert verdict.next_step == NEXT_STEP[CauseClass.UNKNOWN]
    assert verdict.evidence == (
        "own time +10.5% ±0.9% against the median of 7 peers, 1.2x the decision limit (nccl)"
    )


@pytest.mark.parametrize(
    ("excess", "confidence"), [(0.0, 0.5), (-0.1, 0.5), (0.00894, 0.841), (0.0179, 0.977)]
)
def test_confidence_takes_the_margin_for_one_standard_error(
    excess: float, confidence: float
) -> None:
    verdict = describe_member(world(excess=math.log1p(excess)), 0, POLICY)
    assert verdict.confidence == pytest.approx(confidence, abs=0.002)


def test_an_episode_has_one_name_and_another_one_has_another() -> None:
    member = Member(cluster="c", node="n", rank=1, job="j")
    name = episode_id(member, 77.0)
    assert name == episode_id(member, 77.0001)
    others = {episode_id(member, 78.0), episode_id(replace(member, rank=2), 77.0),
              episode_id(replace(member, role="x"), 77.0)}  # fmt: skip
    assert name not in others and len(others) == 3


def test_what_the_peers_wait_and_hide_is_evidence() -> None:
    registry = world()
    registry.rows.lateness_s[0] = 0.0123
    registry.rows.hidden[0] = 0.02
    verdict = describe_member(registry, 0, POLICY)
    assert verdict.evidence.endswith("; peers wait 12.3 ms for it")
    assert "against its own baseline and the median of 7 peers" in verdict.evidence
    assert verdict.excess == round(math.expm1(0.08), 4)


def test_stalls_are_described_by_size_period_and_number() -> None:
    registry = world()
    rows = registry.rows
    rows.channel[0], rows.stall_size[0], rows.onset_count[0] = STALL, math.log(1.5), 12
    rows.onsets[0] = 100 + 10 * np.arange(ONSETS)
    verdict = describe_member(registry, 0, POLICY)
    assert (verdict.period, verdict.cause_class) == (10, CauseClass.STALL)
    assert verdict.excess == 0.5
    assert verdict.evidence.startswith("stalls of +50.0% ±0.9% every 10 steps, 12 so far, against")
    rows.onsets[0] = [100, 107, 130, 133, 160, 190, 195, 240]
    rows.recent_stalls[0], rows.recent_steps[0] = 4.0, 100.0
    verdict = describe_member(registry, 0, POLICY)
    assert verdict.period is None
    assert "repeatedly, without a steady period" in verdict.evidence


def test_a_member_that_always_was_slow_is_described_with_its_bias() -> None:
    registry = world(excess=0.0)
    registry.rows.channel[0], registry.rows.bias[0] = CHRONIC, 0.05
    registry.rows.recent_excess[0] = 0.03
    verdict = describe_member(registry, 0, POLICY)
    assert verdict.excess == round(math.expm1(0.08), 4)
    assert verdict.evidence.endswith("ever since it was first seen")


def test_what_the_job_waits_for_one_member_alone_is_evidence() -> None:
    registry = world()
    registry.rows.channel[0], registry.rows.advance_recent[0] = ADVANCE, 0.07
    verdict = describe_member(registry, 0, POLICY)
    said = "at one collective the job waits 7.0% of each step for it alone, own time"
    assert verdict.evidence.startswith(said)
    assert verdict.loss == pytest.approx(0.0952)  # the waits of a step add up
    registry.rows.hidden[0] = 0.1  # not where peers compute meanwhile
    assert describe_member(registry, 0, POLICY).loss == 0.07


@pytest.mark.parametrize(
    ("idle_s", "usual_s", "cause"),
    [
        (0.054, 0.0, CauseClass.HOST),  # half of an excess of 0.105 s
        (0.051, 0.0, CauseClass.COMPUTE),
        (0.054, 0.002, CauseClass.COMPUTE),  # hosts differ by nature
        (np.nan, 0.0, CauseClass.UNKNOWN),
    ],
)
def test_a_gpu_that_is_idle_in_most_of_the_excess_waits_for_its_host(
    idle_s: float, usual_s: float, cause: CauseClass
) -> None:
    registry = world()
    registry.rows.idle_s[:8] = 0.0
    registry.rows.idle_s[0] = idle_s
    registry.rows.baseline_idle_s[0] = usual_s
    assert cause_of(registry.rows, 0, PEERS) is cause


@pytest.mark.parametrize(
    ("enqueue_s", "harmless_s", "frames", "cause"),
    [
        (0.05, 0.0, 4, CauseClass.HOST),  # half of what its GPU is late
        (0.049, 0.0, 4, CauseClass.COMPUTE),
        (0.06, 0.02, 4, CauseClass.COMPUTE),  # peers enqueue as late without any consequence
        (0.08, 0.02, 4, CauseClass.HOST),
        (0.06, 0.11, 4, CauseClass.UNKNOWN),  # more than all of the delay is nothing unusual
        (0.04, 0.11, 4, CauseClass.COMPUTE),
        (0.08, 0.0, 3, CauseClass.UNKNOWN),  # too few steps
        (0.05, 0.0, 40, CauseClass.HOST),
    ],
)
def test_where_whole_steps_are_known_the_enqueue_decides(
    enqueue_s: float, harmless_s: float, frames: int, cause: CauseClass
) -> None:
    rows = world().rows
    rows.late_frames[0] = frames
    rows.start_late_s[0, :frames], rows.enqueue_late_s[0, :frames] = 0.1, enqueue_s
    rows.start_late_s[PEERS], rows.enqueue_late_s[PEERS] = 0.0, harmless_s
    assert cause_of(rows, 0, PEERS) is cause


def test_a_gpu_that_is_as_idle_as_those_of_most_peers_does_not_wait_for_its_host() -> None:
    rows = world().rows
    rows.idle_s[:8] = 0.06
    rows.idle_s[1] = 0.0
    assert cause_of(rows, 0, PEERS) is CauseClass.COMPUTE
    rows.idle_s[1:8] = 0.0
    assert cause_of(rows, 0, PEERS) is CauseClass.HOST


def test_a_member_without_any_excess_is_not_held_up_by_its_host() -> None:
    rows = world(excess=0.0).rows
    rows.idle_s[:8] = 0.0
    assert cause_of(rows, 0, PEERS) is CauseClass.COMPUTE


def test_steps_in_which_nobody_waited_for_it_do_not_decide() -> None:
    rows = world().rows
    rows.late_frames[0] = 8
    rows.start_late_s[0, :8] = [0.1, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0]
    rows.enqueue_late_s[0, :8] = [0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.9, 0.9]
    assert cause_of(rows, 0, PEERS) is CauseClass.COMPUTE


def test_a_class_stays_for_the_whole_episode_once_it_is_known() -> None:
    registry = world()
    registry.rows.idle_s[:8] = 0.0
    first = describe_member(registry, 0, POLICY)
    assert first.cause_class is CauseClass.COMPUTE
    registry.rows.idle_s[0] = 0.1
    assert describe_member(registry, 0, POLICY, before=first).cause_class is CauseClass.COMPUTE
    assert describe_member(registry, 0, POLICY).cause_class is CauseClass.HOST


def with_steps(longer: float, excess: float = 0.1) -> MemberRegistry:
    """Return a job whose last twenty steps are longer by a share of themselves."""
    registry = world(excess=excess)
    only = np.array([1])
    for _ in range(20):
        follow_steps(
            registry.cohorts, only, np.array([0]), np.array([1 / (1 - longer)]), np.zeros(1)
        )
        close_steps(registry.cohorts, only)
    return registry


def lost(
    longer: float, was_late: bool | None = None, excess: float = 0.1, calm: CalmSteps = CALM
) -> tuple[float, bool, bool]:
    """Return the loss, whether it is only an upper bound, and whether the member is just late."""
    found = measure_loss(
        with_steps(longer, excess), 0, PEERS, calm, POLICY,
        excess=math.expm1(excess), period=None, was_late=was_late,
    )  # fmt: skip
    return round(found.share, 4), found.at_most, found.is_late


@pytest.mark.parametrize(
    ("longer", "was_late", "is_late"),
    [
        (0.0149, None, True),
        (0.0151, None, False),
        (0.029, True, True),  # what was said stays until the change is twice as clear
        (0.031, True, False),
        (0.0074, False, True),
        (0.0076, False, False),
        (-0.01, None, True),
    ],
)
def test_a_member_without_a_loss_is_only_late(
    longer: float, was_late: bool | None, is_late: bool
) -> None:
    assert lost(longer, was_late) == (max(round(longer, 4), 0.0), False, is_late)


def test_steps_that_vary_too_much_give_an_upper_bound() -> None:
    """Own times allow for 9.5 %, and a change of 1 % ± 10 % does not rule that out."""
    noisy = replace(CALM, noise=0.1, error=0.1)
    found = lost(0.01, calm=noisy)
    assert found[1:] == (True, False)
    # Not less than the own times of the member say, nor than the steps may have lost.
    assert found[0] >= round(math.expm1(0.1) / math.exp(0.1), 4)
    assert found[0] >= 0.01 + 1.6 * 0.1
    assert lost(0.01, calm=replace(noisy, error=0.05))[2], "which 1 % ± 5 % does"


def test_an_own_time_that_hides_behind_others_costs_nothing() -> None:
    assert lost(0.05, excess=0.0005)[2]


def test_stalls_cost_what_the_steps_lost_where_own_times_are_next_to_nothing() -> None:
    """In a pipeline hardly any time is left between sends and receives."""
    registry = with_steps(0.05, 0.0005)
    registry.rows.channel[0] = STALL
    registry.rows.recent_stalls[0], registry.rows.recent_steps[0] = 10.0, 100.0
    found = measure_loss(
        registry, 0, PEERS, CALM, POLICY, excess=0.0005, period=None, was_late=None
    )
    assert not found.is_late
    assert found.share == pytest.approx(0.05, abs=0.01)


def test_the_headline_says_what_the_steps_were_measured_as() -> None:
    verdict = describe_member(with_steps(0.2), 0, POLICY, CALM)
    assert verdict.evidence.startswith("steps take 1.25 s instead of 1 s; own time")
    assert (verdict.loss, verdict.at_most) == (0.2, False)
    assert verdict.loss_error is not None and 0 < verdict.loss_error < 0.01
    late = describe_member(with_steps(0.0), 0, POLICY, CALM)
    assert (late.state, late.next_step) == (VerdictState.LATE, LATE_NEXT_STEP)
    short = replace(CALM, log_s=math.log(0.1))
    assert "instead of 100 ms;" in describe_member(with_steps(0.2), 0, POLICY, short).evidence
    noisy = replace(CALM, noise=0.5, error=0.5)
    unsure = describe_member(with_steps(0.01), 0, POLICY, noisy)
    assert "which vary too much to compare;" in unsure.evidence


@pytest.mark.parametrize(
    ("queue_s", "noise_s", "found"),
    [
        (1.2, 0.0, CauseClass.COMPUTE),  # it waits longer by half of the loss, at least 2 %
        (1.04, 0.0, None), (1.06, 0.0, CauseClass.COMPUTE),
        (1.2, 0.09, CauseClass.COMPUTE), (1.2, 0.11, None),  # two noises
        (0.94, 0.0, CauseClass.HOST), (0.96, 0.0, None),  # half of what the job lost is gone
    ],
)  # fmt: skip
def test_the_queue_of_a_gpu_tells_it_from_its_host(
    queue_s: float, noise_s: float, found: CauseClass | None
) -> None:
    rows = world().rows
    rows.baseline_queue_s[0], rows.queue_noise_s[0], rows.late_frames[0] = 1.0, noise_s, 8
    rows.queue_s[0, :8] = queue_s
    lost = Loss(0.1, 0.01, is_late=False, usd_per_hour=None, calm_s=0.9, slow_s=1.0)
    assert _class_by_queue(rows, 0, lost) is found
    rows.late_frames[0] = 3
    assert _class_by_queue(rows, 0, lost) is None, "three steps say nothing"


def test_figures_of_a_loss_have_four_digits() -> None:
    verdict = describe_member(world(), 0, POLICY)
    lost = Loss(1 / 7, 1 / 70, is_late=False, usd_per_hour=1.23)
    found = _with_loss(verdict, lost)
    assert (found.loss, found.loss_error, found.usd_per_hour) == (0.1429, 0.0143, 1.23)


def test_confidence_has_three_digits() -> None:
    verdict = describe_member(world(excess=math.log1p(0.00894)), 0, POLICY)
    assert verdict.confidence is not None
    assert 0.8 < verdict.confidence == round(verdict.confidence, 3)


def test_a_verdict_has_four_digits_of_its_loss() -> None:
    verdict = describe_member(world(excess=math.log1p(1 / 6)), 0, POLICY)
    assert (verdict.loss, verdict.excess) == (0.1429, 0.1667)


@pytest.mark.parametrize(
    ("channel", "found"), [(FAST, CauseClass.STALL), (CHRONIC, CauseClass.UNKNOWN)]
)
def test_steps_that_are_slow_now_and_then_are_stalls(channel: int, found: CauseClass) -> None:
    registry = world(excess=0.0)
    rows = registry.rows
    rows.own_s[0, :5], rows.baseline_log_own[0], rows.recent_stalls[0] = 2.0, 0.0, 3.0
    rows.channel[0] = channel
    assert describe_member(registry, 0, POLICY).cause_class is found
