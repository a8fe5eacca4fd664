"""Episodes in words: turns rows of the table into verdicts with evidence, price and the next thing to do."""

import hashlib
import math

import numpy as np

from ingero.contract.collective import CollectiveSource
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.verdict import fleet_events
from ingero.core.verdict.channels import stall_period
from ingero.core.verdict.own_times import Column, Index
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.price import own_shown, price, recent_frames
from ingero.core.verdict.table import CHRONIC, RECENT, STALL, Member, MemberRows, State

NEXT_STEP = {
    CauseClass.COMPUTE: "check clocks, power cap, temperature, ECC of this GPU; swap the node at the next checkpoint",
    CauseClass.HOST: "look at the host: scheduler, data loader, disk, garbage collection (`ingero explain`)",
    CauseClass.STALL: "find what runs on this host with that period (`ingero explain --last` on the node)",
    CauseClass.STRUCTURAL: "rank 0 often does more (logging, checkpoints); move that work or ignore",
    CauseClass.UNKNOWN: "start the job with `ingero run` so that GPU-timed collectives tell compute from host",
}
FLEET_CAUSE = {
    fleet_events.SPLIT: CauseClass.STRUCTURAL,
    fleet_events.LINKS: CauseClass.NETWORK,
    fleet_events.STOPPED: CauseClass.HANG,
}
FLEET_NEXT = {
    fleet_events.SPLIT: "label what differs (GPU model, role), so that each group has its own cohort",
    fleet_events.LINKS: "read NIC and switch counters; `ingero blame` on saved rings of the plugin names the communicator",
    fleet_events.STOPPED: "if it should run: `ingero blame --live` on its nodes reads their dumps and names the rank",
}


def episode_id(member: Member, since_s: float) -> str:
    """The same id for the same member and the same first suspicion, in every replay."""
    text = "\x1f".join((*(str(part) for part in member.key), member.role, f"{since_s:.3f}"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def describe_member(state: State, index: int, policy: VerdictPolicy) -> Verdict:
    """The verdict on one member as a straggler; the caller sets another state where it applies."""
    rows, member, peers = state.rows, state.members[index], state.peers_of(index, policy.stale_s)
    channel = int(rows.channel[index])
    error = float(error_bars(rows, np.array([index]))[0])
    cause = CauseClass.STALL if channel == STALL else cause_of(rows, index, peers)
    period = stall_period(rows, index) if channel == STALL else None
    excess = _excess(rows, index, channel)
    alone = bool(state.cohorts.is_alone[rows.cohort[index]])
    against = "its own past (fewer than 3 peers)" if alone else f"the median of {len(peers)} peers"
    return Verdict(
        episode=episode_id(member, float(rows.since[index])),
        state=VerdictState.NOT_SURE if alone else VerdictState.STRAGGLER,
        node=member.node,
        rank=member.rank,
        job=member.job,
        cause=cause,
        excess=round(excess, 4),
        error=round(error, 4),
        since=round(float(rows.since[index]), 3),
        period=period,
        peers=len(peers),
        usd_per_hour=None
        if alone
        else price(rows, index, peers, policy, excess=excess, period=period),
        confidence=_confidence(excess, error),
        evidence=_evidence(rows, index, f"{excess:+.1%} ±{error:.1%}", against, period)
        + _measured_by(member.source),
        next_step=NEXT_STEP[cause],
    )


def _measured_by(source: str) -> str:
    """Which source it was, and what the better one would add."""
    if source == CollectiveSource.EBPF:
        return " (host time between probes and waits for the GPU; the NCCL plugin would see the GPU's own)"
    if source == CollectiveSource.ANNOTATION:
        return " (host time of the steps the job names, outside collectives; the NCCL plugin would see the GPU's own)"
    return f" ({source})" if source else ""


def describe_fleet(state: State, cohort: int, kind: int, moved: int, live: int) -> Verdict:
    """One event for a whole cohort; its node is empty because none is to blame."""
    cohorts, key = state.cohorts, state.cohort_keys[cohort]
    since = float(cohorts.guard_since[cohort])
    return Verdict(
        episode=hashlib.blake2b(
            "\x1f".join((*key, f"{since:.3f}")).encode(), digest_size=8
        ).hexdigest(),
        state=VerdictState.NOT_SURE
        if kind in (fleet_events.SPLIT, fleet_events.STOPPED)
        else VerdictState.FLEET_EVENT,
        node="",
        job=key[1] or None,
        cause=FLEET_CAUSE.get(kind, CauseClass.FLEET),
        excess=round(float(np.expm1(cohorts.level[cohort] - cohorts.usual[cohort])), 4)
        if kind == fleet_events.SLOWER
        else None,
        since=round(since, 3),
        peers=live,
        evidence=fleet_events.describe(cohorts, cohort, kind, moved, live),
        next_step=FLEET_NEXT.get(
            kind, "look for what they share: switch, storage, power, a code or data change"
        ),
    )


def error_bars(rows: MemberRows, members: Index) -> Column:
    """Two standard errors of the mean of the last residuals."""
    correlation = np.clip(rows.correlation[members], 0.0, 0.9)
    return np.asarray(
        2 * rows.scale[members] * np.sqrt((1 + correlation) / (1 - correlation) / RECENT),
        np.float64,
    )


def cause_of(rows: MemberRows, index: int, peers: Index) -> CauseClass:
    """Host when most of the excess is time the GPU sat idle, compute when it was busy, unknown without GPU timing."""
    window = recent_frames(rows, index)
    idle = rows.idle[np.append(peers, index)][:, window]
    own = own_shown(rows, index, peers, window)
    if np.isnan(idle[-1]).all() or np.isnan(idle[:-1]).all():
        return CauseClass.UNKNOWN
    idle_excess = float(
        np.nanmean(idle[-1]) - np.nanmedian(idle[:-1]) - np.nan_to_num(rows.usual_idle[index])
    )
    own_excess = float(np.nanmean(own[-1]) - np.nanmedian(own[:-1]))
    return CauseClass.HOST if idle_excess > 0.5 * own_excess else CauseClass.COMPUTE


def _excess(rows: MemberRows, index: int, channel: int) -> float:
    if channel == STALL:
        return math.expm1(float(rows.stall_size[index]))
    if channel == CHRONIC:
        return math.expm1(float(rows.bias[index] + np.nanmean(rows.recent[index])))
    return math.expm1(float(np.nanmean(rows.recent[index]) - rows.hidden[index]))


def _confidence(excess: float, error: float) -> float:
    """How likely the excess is no noise; cautious, as it takes the two standard errors of the bar for one."""
    return round(
        min(max(0.5 * (1 + math.erf(excess / max(error, 1e-9) * math.sqrt(2) / 2)), 0.5), 0.999), 3
    )


def _evidence(rows: MemberRows, index: int, size: str, against: str, period: int | None) -> str:
    channel = rows.channel[index]
    if channel == STALL:
        every = f"every {period} steps" if period else "again and again, without a steady period"
        return f"stalls of {size} {every}, {int(rows.onset_count[index])} so far, against {against}"
    if channel == CHRONIC:
        return f"own time {size} against {against} ever since it was first seen"
    late = float(rows.late[index])
    waited = "" if np.isnan(late) else f"; peers wait {late * 1000:.1f} ms for it"
    if rows.hidden[index] > 0:
        against = f"its own past and {against}, whose compute is hidden while they wait for it"
    ratio = float(rows.cusum[index] / rows.bar[index])
    return f"own time {size} against {against}, {ratio:.1f}x the bar{waited}"
