"""Slowness that belongs to the job: rank 0 that does more, a slower GPU model, periodic work.

These cost time and have a price, but no node is broken.
"""

from dataclasses import dataclass, field

import numpy as np

from ingero.core import periods
from ingero.core.durations import readable_seconds
from ingero.core.verdict.baseline import is_refined
from ingero.core.verdict.channels.stall import MIN_ONSETS, stall_period
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import BIAS_CAP, VerdictPolicy
from ingero.core.verdict.table import HEALTHY, ONSETS
from ingero.core.verdict.what_if import loss_share

MODEL_GAP = 0.10  # of own time: smaller differences between GPU models are left alone
# Work that a job does every so many steps (checkpoint, evaluation, logging), not a fault of a host.
MIN_PERIOD = 50
EXACT = 0.02  # of the period: work counted in steps is punctual
RECURRING = 3  # slow periods: both gaps between them must be equal
MIN_LOSS = 0.005  # of the time: less is not worth an event


@dataclass(frozen=True, slots=True)
class Finding:
    """Something structural: which member or cohort, what it is, and what the job loses at most."""

    key: tuple[str, int]
    cohort: int
    text: str
    loss: float
    member: int | None = None
    period: int | None = None
    shared: str = ""


def find_structural(registry: MemberRegistry, policy: VerdictPolicy) -> list[Finding]:
    """Return what is structural now, in all jobs."""
    return [
        *_first_ranks(registry, policy),
        *_slow_models(registry),
        *_periodic_stalls(registry, policy),
    ]


def _first_ranks(registry: MemberRegistry, policy: VerdictPolicy) -> list[Finding]:
    """Find ranks 0 that always do more than their peers."""
    rows, size = registry.rows, registry.rows.size
    bias = rows.raw_bias[:size]
    found = rows.is_structural[:size] & (bias > np.maximum(BIAS_CAP, 3 * rows.scale[:size]))
    found &= is_refined(rows, registry.cohorts, policy)
    found &= ~registry.cohorts.is_small[rows.cohort[:size]] & (rows.last_seen_s[:size] > 0)
    found &= ~registry.cohorts.is_split[rows.cohort[:size]]
    findings = []
    for index in np.flatnonzero(found).tolist():
        peers = registry.peers_of(index, policy.stale_s)
        everyone = np.append(peers, index)
        loss = loss_share(
            rows.own_s[everyone], rows.span_s[everyone], np.arange(len(everyone)) == len(peers)
        )
        text = (
            f"rank {registry.members[index].rank} takes {np.expm1(bias[index]):.0%} longer than "
            f"the median of {len(peers)} peers ever since it was first seen: it does more work"
        )
        findings.append(Finding(("first", index), int(rows.cohort[index]), text, loss, index))
    return findings


def _slow_models(registry: MemberRegistry) -> list[Finding]:
    """Find the GPU model that sets the pace of a job with several.

    What its ranks usually take counts: a model that has become slower is an event of its cohort.
    """
    cohorts, findings = registry.cohorts, []
    models = np.array([bool(key) and bool(key[3]) for key in registry.cohort_keys])
    known = models & ~np.isnan(cohorts.baseline_level[: cohorts.size])
    jobs, counts = np.unique(cohorts.job[: cohorts.size][known], return_counts=True)
    for job in jobs[counts >= 2].tolist():
        of_job = np.flatnonzero(known & (cohorts.job[: cohorts.size] == job)).tolist()
        for cohort in of_job:
            beside = [c for c in registry.models_beside(cohort) if c in of_job]
            order = sorted(beside, key=lambda each: -float(cohorts.baseline_level[each]))
            if len(order) < 2 or order[0] != cohort:
                continue
            slow_s, next_s = (float(np.exp(cohorts.baseline_level[each])) for each in order[:2])
            if slow_s > (1 + MODEL_GAP) * next_s:
                findings.append(_slow_model(registry, cohort, slow_s, next_s))
    return findings


def _slow_model(registry: MemberRegistry, cohort: int, slow_s: float, next_s: float) -> Finding:
    rows, model = registry.rows, registry.cohort_keys[cohort][3]
    members = np.flatnonzero(rows.cohort[: rows.size] == cohort)
    spans = rows.span_s[members]
    step_s = slow_s if np.isnan(spans).all() else float(np.nanmedian(spans))
    text = (
        f"{model} sets the pace: its {len(members)} ranks take {readable_seconds(slow_s)} "
        f"where those of the next faster model take {readable_seconds(next_s)}"
    )
    loss = min((slow_s - next_s) / step_s, 1.0)
    return Finding(("model", cohort), cohort, text, loss, shared=f"GPU model {model}")


def _periodic_stalls(registry: MemberRegistry, policy: VerdictPolicy) -> list[Finding]:
    """Find members that stall every so many steps, punctually and rarely: a checkpoint."""
    rows, findings = registry.rows, []
    often = (rows.onset_count[: rows.size] >= MIN_ONSETS) & (rows.state[: rows.size] == HEALTHY)
    for index in np.flatnonzero(often).tolist():
        period = stall_period(rows, index)
        if period is None or period < MIN_PERIOD or not _is_punctual(registry, index, period):
            continue
        peers = registry.peers_of(index, policy.stale_s)
        if not len(peers) or rows.onset_count[index] < 3 * np.median(rows.onset_count[peers]) + 2:
            continue
        own_s = float(np.nanmedian(rows.own_s[peers]))
        lost_s = float(np.expm1(rows.stall_size[index])) * own_s
        step_s = max(registry.usual_step_s(int(rows.cohort[index])), own_s)
        loss = lost_s / (lost_s + period * step_s)
        if loss < MIN_LOSS:
            continue
        text = (
            f"rank {registry.members[index].rank} takes {readable_seconds(lost_s)} longer "
            f"every {period} steps: a checkpoint, an evaluation or another task of this rank"
        )
        findings.append(
            Finding(("period", index), int(rows.cohort[index]), text, loss, index, period)
        )
    return findings


def _is_punctual(registry: MemberRegistry, index: int, period: int) -> bool:
    rows = registry.rows
    onsets = np.sort(rows.onsets[index][: min(int(rows.onset_count[index]), ONSETS)])
    is_current = rows.last_step[index] - onsets[-1] <= 2 * period
    return bool(is_current and np.abs(np.diff(onsets) - period).max() <= max(EXACT * period, 1))


@dataclass(slots=True)
class Recurrences:
    """Steps at which slow periods of members began, to find those that come again and again."""

    begins: dict[int, list[int]] = field(default_factory=dict)

    def begin(self, member: int, step: int) -> None:
        """Note that a slow period began."""
        steps = self.begins.setdefault(member, [])
        if steps and step < steps[-1]:  # the job started over
            steps.clear()
        steps.append(step)
        del steps[:-RECURRING]

    def period_of(self, member: int) -> int | None:
        """Return the steps between slow periods that come regularly."""
        period = periods.stall_period(self.begins.get(member, []))
        return None if period is None or period < MIN_PERIOD else period

    def forget(self, member: int) -> None:
        """Drop a member that is gone."""
        self.begins.pop(member, None)
