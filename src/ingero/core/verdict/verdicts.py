"""Verdicts: the rows of an episode as a verdict with cause, evidence, price and next step."""

import hashlib
import math
from typing import Final

import numpy as np

from ingero.contract.collective import CollectiveSource
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.robust import Index
from ingero.core.verdict import fleet_events
from ingero.core.verdict.fast_channel import margin_of_error
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.price import own_shown, price, recent_frames
from ingero.core.verdict.stall_channel import stall_period
from ingero.core.verdict.table import CHRONIC, STALL, MemberRows

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
FLEET_CAUSE: Final = {
    fleet_events.SPLIT: CauseClass.STRUCTURAL,
    fleet_events.LINKS: CauseClass.NETWORK,
    fleet_events.STOPPED: CauseClass.HANG,
}
FLEET_NEXT_STEP: Final = {
    fleet_events.SPLIT: "label what differs (GPU model, role), so that each group has its own "
    "cohort",
    fleet_events.LINKS: "read NIC and switch counters; `ingero blame` on saved rings of the plugin "
    "names the communicator",
    fleet_events.STOPPED: "if it should run: `ingero blame --live` on its nodes reads their dumps "
    "and names the rank",
}
SHARED_NEXT_STEP: Final = "look for what they share: switch, storage, power, a code or data change"
MEASURED_BY: Final[dict[str, str]] = {
    CollectiveSource.EBPF: "host time between probes and waits for the GPU; "
    "the NCCL plugin would measure the GPU's own time",
    CollectiveSource.ANNOTATION: "host time of the steps the job names, outside collectives; "
    "the NCCL plugin would measure the GPU's own time",
}


def episode_id(member: Member, since_s: float) -> str:
    """Return an id that is the same for the same member and first suspicion in every replay."""
    return _short_hash((*(str(part) for part in member.key), member.role, f"{since_s:.3f}"))


def describe_member(registry: MemberRegistry, index: int, policy: VerdictPolicy) -> Verdict:
    """Return the verdict on a member as a straggler; the caller sets another state if needed."""
    rows, member = registry.rows, registry.members[index]
    peers = registry.peers_of(index, policy.stale_s)
    is_stall = rows.channel[index] == STALL
    error = float(margin_of_error(rows, np.array([index]))[0])
    cause = CauseClass.STALL if is_stall else cause_of(rows, index, peers)
    period = stall_period(rows, index) if is_stall else None
    excess = _excess(rows, index)
    is_small = bool(registry.cohorts.is_small[rows.cohort[index]])
    usd = None if is_small else price(rows, index, peers, policy, excess=excess, period=period)
    reference = (
        "its own baseline (fewer than 3 members)"
        if is_small
        else f"the median of {len(peers)} peers"
    )
    evidence = _evidence(rows, index, f"{excess:+.1%} ±{error:.1%}", reference, period)
    source = MEASURED_BY.get(member.source, member.source)
    return Verdict(
        episode=episode_id(member, float(rows.since_s[index])),
        state=VerdictState.NOT_SURE if is_small else VerdictState.STRAGGLER,
        node=member.node,
        rank=member.rank,
        job=member.job,
        cause=cause,
        excess=round(excess, 4),
        error=round(error, 4),
        since=round(float(rows.since_s[index]), 3),
        period=period,
        peers=len(peers),
        usd_per_hour=usd,
        confidence=_confidence(excess, error),
        evidence=f"{evidence} ({source})" if source else evidence,
        next_step=NEXT_STEP[cause],
    )


def describe_fleet_event(
    registry: MemberRegistry, cohort: int, kind: int, moved: int, live: int
) -> Verdict:
    """Return one verdict for a whole cohort; its node is empty because no node is to blame."""
    cohorts, key = registry.cohorts, registry.cohort_keys[cohort]
    since = float(cohorts.event_since_s[cohort])
    is_unsure = kind in (fleet_events.SPLIT, fleet_events.STOPPED)
    rise = float(np.expm1(cohorts.level[cohort] - cohorts.baseline_level[cohort]))
    return Verdict(
        episode=_short_hash((*key, f"{since:.3f}")),
        state=VerdictState.NOT_SURE if is_unsure else VerdictState.FLEET_EVENT,
        node="",
        job=key[1] or None,
        cause=FLEET_CAUSE.get(kind, CauseClass.FLEET),
        excess=round(rise, 4) if kind == fleet_events.SLOWER else None,
        since=round(since, 3),
        peers=live,
        evidence=fleet_events.describe(cohorts, cohort, kind, moved, live),
        next_step=FLEET_NEXT_STEP.get(kind, SHARED_NEXT_STEP),
    )


def cause_of(rows: MemberRows, index: int, peers: Index) -> CauseClass:
    """Return HOST when the GPU was idle during most of the excess, COMPUTE when it was busy.

    Without GPU timing the cause is UNKNOWN.
    """
    window = recent_frames(rows, index)
    idle = rows.idle_s[np.append(peers, index)][:, window]
    own = own_shown(rows, index, peers, window)
    if np.isnan(idle[-1]).all() or np.isnan(idle[:-1]).all():
        return CauseClass.UNKNOWN
    idle_excess = float(
        np.nanmean(idle[-1]) - np.nanmedian(idle[:-1]) - np.nan_to_num(rows.baseline_idle_s[index])
    )
    own_excess = float(np.nanmean(own[-1]) - np.nanmedian(own[:-1]))
    return CauseClass.HOST if idle_excess > 0.5 * own_excess else CauseClass.COMPUTE


def _short_hash(parts: tuple[str, ...]) -> str:
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
    waited = "" if np.isnan(late) else f"; peers wait {late * 1000:.1f} ms for it"
    if rows.hidden[index] > 0:
        reference = (
            f"its own baseline and {reference}, whose compute is hidden while they wait for it"
        )
    ratio = float(rows.cusum[index] / rows.limit[index])
    return f"own time {size} against {reference}, {ratio:.1f}x the decision limit{waited}"
