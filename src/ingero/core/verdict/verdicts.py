"""Verdicts: the rows of an episode as a verdict with cause, evidence, price and next step."""

import hashlib
import math
from typing import Final

import msgspec
import numpy as np

from ingero.contract.collective import CollectiveSource
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.durations import readable_seconds
from ingero.core.verdict.cause_class import class_of
from ingero.core.verdict.channels.advance import advance_effect
from ingero.core.verdict.channels.fast import margin_of_error
from ingero.core.verdict.channels.lateness import ENOUGH, clearest_lateness
from ingero.core.verdict.channels.stall import stall_period
from ingero.core.verdict.channels.step import slow_since
from ingero.core.verdict.job_steps import CalmSteps, rose_at
from ingero.core.verdict.loss import Loss, measure_loss
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    ADVANCE,
    CHRONIC,
    FAST,
    FEW,
    STALL,
    STRAGGLER,
    SUSPECT,
    MemberRows,
)
from ingero.core.verdict.what_if import AS_SLOW

NEXT_STEP: Final = {
    CauseClass.COMPUTE: "check clocks, power cap, temperature, ECC of this GPU; "
    "swap the node at the next checkpoint",
    CauseClass.HOST: "look at the host: scheduler, data loader, disk, garbage collection "
    "(`ingero explain`)",
    CauseClass.STALL: "find what runs on this host with that period "
    "(`ingero explain --last` on the node)",
    CauseClass.STRUCTURAL: "rank 0 often does more (logging, checkpoints); "
    "move that work or ignore this verdict",
    CauseClass.UNKNOWN: "start the job with `ingero run`: GPU-timed collectives "
    "distinguish compute from host",
}
SHOW_WHO: Final = (ADVANCE, STALL)  # channels that show which of two ranks is slow
LATE_NEXT_STEP: Final = "nothing: the job does not lose time by it"
MEASURED_BY: Final[dict[str, str]] = {
    CollectiveSource.EBPF: "host time between probes and waits for the GPU; "
    "the NCCL plugin would measure the GPU's own time",
    CollectiveSource.ANNOTATION: "host time of the steps the job names, outside collectives; "
    "the NCCL plugin would measure the GPU's own time",
}


def episode_id(member: Member, since_s: float) -> str:
    """Return an id that is the same for the same member and first suspicion in every replay."""
    return short_hash((*(str(part) for part in member.key), member.role, f"{since_s:.3f}"))


def describe_member(
    registry: MemberRegistry,
    index: int,
    policy: VerdictPolicy,
    calm: CalmSteps | None = None,
    before: Verdict | None = None,
) -> Verdict:
    """Return the verdict on a member that is slow; the caller sets another state if needed.

    `calm` are the steps before its episode, and `before` is what was said of it while it was slow:
    a class stays for the whole episode.
    """
    rows, member = registry.rows, registry.members[index]
    peers = registry.peers_of(index, policy.stale_s)
    period = stall_period(rows, index) if rows.channel[index] == STALL else None
    error = float(margin_of_error(rows, np.array([index]))[0])
    excess = _excess(rows, index)
    late = None if before is None else before.state is VerdictState.LATE
    loss = measure_loss(
        registry, index, peers, calm, policy, excess=excess, period=period, was_late=late
    )
    reference = _reference(registry, index, len(peers))
    evidence = _evidence(rows, index, f"{excess:+.1%} ±{error:.1%}", reference, period)
    source, (later_s, error_s) = _source_said(member.source), _lateness(registry, index)
    verdict = Verdict(
        episode=episode_id(member, float(rows.since_s[index])),
        state=VerdictState.NOT_SURE,
        node=member.node,
        rank=member.rank,
        job=member.job,
        cause_class=class_of(registry, index, peers, loss, before),
        excess=round(excess, 4),
        error=round(error, 4),
        since=round(float(rows.since_s[index]), 3),
        period=period,
        peers=len(peers),
        confidence=max(_confidence(excess, error), _confidence(later_s, 2 * error_s)),
        evidence=_join(_steps_said(loss), _later_said(later_s), evidence, source),
    )
    verdict = msgspec.structs.replace(verdict, next_step=NEXT_STEP[verdict.cause_class])
    # Own times of two are no comparison, but whom the other one waits for is, and who stalls.
    if registry.cohorts.is_alone[rows.cohort[index]] and rows.channel[index] not in SHOW_WHO:
        return verdict
    verdict = _with_loss(verdict, loss)
    doubt = _doubt(registry, index)
    if not doubt:
        return verdict
    said = f"{verdict.evidence}; {doubt}"
    return msgspec.structs.replace(verdict, state=VerdictState.NOT_SURE, evidence=said)


def _lateness(registry: MemberRegistry, index: int) -> tuple[float, float]:
    """Return by how many seconds a member comes later since it is slow, and the error of that.

    Both are 0 where its own time is over its limit, or where it is not later for certain.
    """
    rows, cohorts = registry.rows, registry.cohorts
    is_over = rows.cusum[index] > rows.limit[index]
    if rows.channel[index] != FAST or is_over:
        return 0.0, 0.0
    since = slow_since(cohorts, int(rows.cohort[index]), rose_at(rows, cohorts, index))
    later_s, error_s = clearest_lateness(rows, index, since)
    return (later_s, error_s) if later_s > ENOUGH * error_s else (0.0, 0.0)


def _doubt(registry: MemberRegistry, index: int) -> str:
    """Return why it is not sure that this member is the slow one, or nothing."""
    rows, cohort = registry.rows, int(registry.rows.cohort[index])
    expected = float(registry.cohorts.expected[cohort])
    if expected < 2:
        return "nobody else has its role, so it may just have more work"
    if expected >= FEW:
        return ""
    mine = np.flatnonzero(rows.cohort[: rows.size] == cohort)
    slow = mine[np.isin(rows.state[mine], (SUSPECT, STRAGGLER))]
    alike = sum(_is_as_slow(rows, other, index) for other in slow.tolist())
    if alike >= 2:  # half of them or more
        return f"{alike} of {expected:.0f} are slow, so the others may be the unusual ones"
    return ""


def _is_as_slow(rows: MemberRows, other: int, index: int) -> bool:
    """Tell whether a member is slow in the way another one is, and by at least half as much."""
    if rows.channel[other] != rows.channel[index]:
        return False
    return _slowness(rows, other) >= AS_SLOW * _slowness(rows, index)


def _slowness(rows: MemberRows, index: int) -> float:
    if rows.channel[index] == ADVANCE:
        return float(advance_effect(rows, np.array([index]))[0])
    return _excess(rows, index)


def _reference(registry: MemberRegistry, index: int, peers: int) -> str:
    """Return what the own time of a member is compared with, as a part of the evidence."""
    cohorts, cohort = registry.cohorts, registry.rows.cohort[index]
    if cohorts.is_alone[cohort]:
        return "its own baseline (fewer than 3 members)"
    if cohorts.is_twinned[cohort]:
        return "the other rank with its role"
    if cohorts.is_small[cohort]:
        return "its own baseline and the other ranks of the job"
    return f"the median of {peers} peers"


def _with_loss(verdict: Verdict, loss: Loss) -> Verdict:
    """Return the verdict with its headline, its price and what to do."""
    return msgspec.structs.replace(
        verdict,
        state=VerdictState.LATE if loss.is_late else VerdictState.STRAGGLER,
        loss=round(loss.share, 4),
        loss_error=None if loss.error is None else round(loss.error, 4),
        at_most=loss.at_most,
        usd_per_hour=loss.usd_per_hour,
        next_step=LATE_NEXT_STEP if loss.is_late else NEXT_STEP[verdict.cause_class],
    )


def _steps_said(loss: Loss) -> str:
    """Return the steps that the loss was measured on, as the beginning of the evidence."""
    if loss.calm_s is None or loss.slow_s is None:
        return ""
    before, now = readable_seconds(loss.calm_s), readable_seconds(loss.slow_s)
    if loss.at_most:
        return f"steps take {now}, calm ones {before}, which vary too much to compare;"
    return f"steps take {now} instead of {before};"


def _later_said(later_s: float) -> str:
    return f"comes {readable_seconds(later_s)} later than usual;" if later_s > 0 else ""


def _source_said(source: str) -> str:
    return f"({MEASURED_BY.get(source, source)})" if source else ""


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def short_hash(parts: tuple[str, ...]) -> str:
    """Return a digest that names an episode."""
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).hexdigest()


def _excess(rows: MemberRows, index: int) -> float:
    """Return the excess of own time as a share, measured as the channel of the episode does."""
    channel = rows.channel[index]
    if channel == STALL:
        return math.expm1(float(rows.stall_size[index]))
    recent = np.nanmean(rows.recent_excess[index])
    if channel == CHRONIC:
        return math.expm1(float(rows.bias[index] + recent))
    return math.expm1(float(recent - rows.hidden[index]))


def _confidence(excess: float, error: float) -> float:
    """Return how likely it is that the excess is not noise.

    This is cautious: the margin of error holds two standard errors and is taken for one.
    """
    likely = 0.5 * (1 + math.erf(excess / max(error, 1e-9) * math.sqrt(2) / 2))
    return round(min(max(likely, 0.5), 0.999), 3)


def _evidence(rows: MemberRows, index: int, size: str, reference: str, period: int | None) -> str:
    channel = rows.channel[index]
    if channel == STALL:
        every = f"every {period} steps" if period else "repeatedly, without a steady period"
        count = int(rows.onset_count[index])
        return f"stalls of {size} {every}, {count} so far, against {reference}"
    if channel == CHRONIC:
        return f"own time {size} against {reference} ever since it was first seen"
    late = float(rows.lateness_s[index])
    waited = "" if np.isnan(late) else f"; peers wait {readable_seconds(late)} for it"
    if rows.hidden[index] > 0:
        reference = (
            f"its own baseline and {reference}, whose compute is hidden while they wait for it"
        )
    if channel == ADVANCE:
        waits = float(advance_effect(rows, np.array([index]))[0])
        return (
            f"at one collective the job waits {waits:.1%} of each step for it alone, "
            f"own time {size} against {reference}"
        )
    ratio = float(rows.cusum[index] / rows.limit[index])
    return f"own time {size} against {reference}, {ratio:.1f}x the decision limit{waited}"
