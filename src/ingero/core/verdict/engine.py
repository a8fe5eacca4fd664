"""The verdict engine: own times in, verdicts out.

It uses no clock, no randomness and no I/O: the same calls give the same bytes. The path of a
measurement through this package, by module:

    own_times → residuals → channels (against a baseline) → decision,
    fleet_events → episodes → verdicts (with price and cause)

`table` declares everything that is remembered, `members` says whose row is whose.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.verdict import Verdict
from ingero.core.robust import Column, Index
from ingero.core.verdict import baseline
from ingero.core.verdict.channels.fast import recent_effect
from ingero.core.verdict.channels.step import learn_steps
from ingero.core.verdict.episodes import Episodes
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.own_times import UNNUMBERED, FrameBuffer, SampleBatch, select
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.residuals import (
    MIN_MEMBERS,
    SMOOTH,
    find_common,
    take_frame,
    take_late,
    take_unnumbered,
)
from ingero.core.verdict.table import STRAGGLER

# A cohort that is still too small then is compared with its own baseline; roles are found when all
# ranks of a job are known.
SMALL_AFTER_S, SMALL_ROLE_AFTER_S = 10.0, 3.0
GONE_S = 3600.0  # a cohort silent for this long is freed; so is a member, when there are too many
MIN_WAIT_S = 2.0  # how long a step waits for the peers, at least
STEPS_WAITED = 3.0  # a member is live for so many of its usual steps after its last report
NEW_FRAMES = 4  # steps after which their usual length is known
REFRESHED_S = 1.0  # how long members that report again need not be looked at
MAX_STEP_S = 600.0  # a longer gap between two reports is a break, not a step


@dataclass(slots=True)
class EngineCounters:
    """Counts of what was not used, by reason, and of what was freed."""

    refused_members: int = 0
    too_few_peers: int = 0
    too_late: int = 0
    freed_members: int = 0
    freed_cohorts: int = 0


@dataclass(frozen=True, slots=True)
class PeerReason:
    """Why a peer is not blamed: its excess over its baseline, and its channel in limits.

    The field names are keys of the JSON that `ingero replay` prints.
    """

    node: str
    rank: int | None
    excess: float
    bars: float  # the fast channel as a multiple of its decision limit
    reason: str


class VerdictEngine:
    """Feed `observe` and call `tick` every second; it returns verdicts that are new or changed."""

    def __init__(self, policy: VerdictPolicy | None = None) -> None:
        self.policy = policy or VerdictPolicy()
        self.counters = EngineCounters()
        self.frames = FrameBuffer()
        self.registry = MemberRegistry(self.policy)
        self._episodes = Episodes(self.registry, self.policy)
        self._unnumbered: list[SampleBatch] = []  # since the last tick
        self._freed: list[int] = []

    def register(self, member: Member, now_s: float) -> int | None:
        """Return the index of a member for batches, or None when there are too many members."""
        registry, limit = self.registry, self.policy.max_members
        if registry.member_count >= limit and registry.find(member) is None:
            self._free(registry.free_silent_members(now_s, GONE_S))
            if registry.member_count >= limit:
                self.counters.refused_members += 1
                return None
        index = registry.put(member, now_s)
        silent_s = now_s - registry.rows.last_seen_s[index]
        patience_s = max(
            self.policy.stale_s, registry.cohorts.patience_s[registry.rows.cohort[index]]
        )
        if member.rank is not None and silent_s > patience_s:
            registry.claim_rank(index, now_s - self._forget_s()[registry.rows.cohort[index]] - 1.0)
        return index

    def refresh(self, members: Index, now_s: float) -> float:
        """Do what `register` does for members that are registered with the same labels.

        Returns until when that need not be done again. A time before `now_s` means that nothing was
        done, and that each of them must be registered.
        """
        rows, cohorts = self.registry.rows, self.registry.cohorts
        cohort, seen_s = rows.cohort[members], rows.last_seen_s[members]
        patience_s = np.maximum(self.policy.stale_s, cohorts.patience_s[cohort])
        if (now_s - seen_s > patience_s).any():
            return -math.inf
        cohorts.last_report_s[cohort] = now_s
        return min(now_s + REFRESHED_S, float(seen_s.min()) + self.policy.stale_s)

    def observe(self, batch: SampleBatch, now_s: float) -> None:
        """Take samples. `now_s` is the receiver's clock; senders' clocks are never compared."""
        if not len(batch):
            return
        rows, cohorts = self.registry.rows, self.registry.cohorts
        reporting = np.flatnonzero(np.bincount(batch.member))
        gap = now_s - rows.last_seen_s[reporting]
        is_regular = (rows.last_seen_s[reporting] > 0) & (gap > 0) & (gap < MAX_STEP_S)
        cohort = rows.cohort[reporting[is_regular]]
        usual_s, is_new = cohorts.gap_s[cohort], cohorts.frames[cohort] < NEW_FRAMES
        # One member that was away moves the usual gap little, long steps of all members do.
        most_s = np.where(is_new, MAX_STEP_S, STEPS_WAITED * usual_s + self.policy.stale_s)
        gap_s = np.minimum(gap[is_regular], most_s)
        cohorts.gap_s[cohort] += np.where(is_new, 0.5, SMOOTH) * (gap_s - usual_s)
        rows.last_seen_s[reporting] = now_s
        cohorts.last_report_s[rows.cohort[reporting]] = now_s
        unnumbered = batch.step == UNNUMBERED
        if unnumbered.any():
            self._unnumbered.append(select(batch, unnumbered))
            batch = select(batch, ~unnumbered)
        if len(batch):
            self.frames.add(batch, now_s)

    def tick(self, now_s: float) -> list[Verdict]:
        """Close complete steps, update channels and episodes; return what is new or changed."""
        registry, rows, size = self.registry, self.registry.rows, self.registry.cohorts.size
        if not rows.size:
            return []
        cohorts = registry.cohorts
        patience_s = np.maximum(self.policy.stale_s, STEPS_WAITED * cohorts.gap_s[:size])
        # How long steps are is not known before there were some.
        is_new = cohorts.frames[:size] < NEW_FRAMES
        cohorts.patience_s[:size] = np.where(is_new, MAX_STEP_S / 2, patience_s)
        live = self._seen_within(now_s, cohorts.patience_s[:size])
        reporting = np.bincount(rows.cohort[: rows.size][live], minlength=size).astype(np.float64)
        self._update_expected(now_s)
        wait_s = np.clip(1.5 * cohorts.gap_s[:size], MIN_WAIT_S, self.policy.stale_s)
        find_common(registry, live)
        for frame in self.frames.close(rows.cohort, reporting, wait_s, now_s):
            self.counters.too_few_peers += take_frame(registry, frame, now_s)
        late = self.frames.take_late()
        if late is not None:
            self.counters.too_late += take_late(registry, late, now_s)
        if self._unnumbered:
            batches, self._unnumbered = self._unnumbered, []
            self.counters.too_few_peers += take_unnumbered(registry, batches, live, now_s)
        baseline.forget_start(rows, registry.cohorts)
        due = baseline.due(rows, registry.cohorts, self.policy)
        if len(due):
            baseline.compute(rows, registry.cohorts, due, self.policy)
        learn_steps(registry.cohorts)
        changed = self._episodes.advance(live, reporting, now_s)
        members, ended = registry.free_ended_cohorts(
            now_s, GONE_S, self._episodes.events.open_fleet
        )
        self._free(members)
        self.counters.freed_cohorts += ended
        return changed

    def take_freed(self) -> list[int]:
        """Return the indexes freed since the last call; they are given to members to come."""
        freed, self._freed = self._freed, []
        return freed

    def current(self) -> list[Verdict]:
        """Return the verdict of each open episode, fleet events first."""
        return [*self._episodes.events.current(), *self._episodes.open.values()]

    def learning(self) -> tuple[int, int]:
        """Return how many members have a baseline, and how many are still learning one."""
        rows = self.registry.rows
        judged = int((rows.baseline_samples[: rows.size] > 0).sum())
        return judged, self.registry.member_count - judged

    def ready_s(self) -> float | None:
        """Return in how many seconds every member that takes part will have a baseline."""
        rows, cohorts = self.registry.rows, self.registry.cohorts
        is_new = (rows.baseline_samples[: rows.size] == 0) & (rows.samples[: rows.size] > 0)
        if not is_new.any():
            return None
        missing = baseline.first_history(rows, cohorts, self.policy) - rows.samples[: rows.size]
        left_s = missing * np.maximum(cohorts.sample_s[rows.cohort[: rows.size]], 1.0)
        return float(np.maximum(left_s[is_new], 0.0).max())

    def chronic(self) -> list[tuple[Member, float]]:
        """Return members that always were slower than their peers, with the share, slowest first.

        Only those that are slower by more than the noise are listed.
        """
        rows, size = self.registry.rows, self.registry.rows.size
        bias = rows.raw_bias[:size]
        is_judged = (rows.baseline_samples[:size] > 0) & ~self.registry.cohorts.is_small[
            rows.cohort[:size]
        ]
        listed = np.flatnonzero(is_judged & (bias > np.maximum(rows.scale[:size], 0.01)))
        order = listed[np.argsort(-bias[listed], kind="stable")]
        return [(self.registry.members[index], float(np.expm1(bias[index]))) for index in order]

    def peer_reasons(self, verdict: Verdict) -> list[PeerReason]:
        """Return why each peer of the member that a verdict is about is not blamed now."""
        rank = -1 if verdict.rank is None else verdict.rank
        index = self.registry.find_named(verdict.job or "", verdict.node, rank)
        if index is None:
            return []
        peers = self.registry.peers_of(index, self.policy.stale_s)
        effects = recent_effect(self.registry.rows, peers)
        return [self._peer_reason(int(p), float(e)) for p, e in zip(peers, effects, strict=True)]

    def _peer_reason(self, index: int, effect: float) -> PeerReason:
        rows, member = self.registry.rows, self.registry.members[index]
        is_judged = rows.baseline_samples[index] > 0
        limits = float(rows.cusum[index] / rows.limit[index]) if is_judged else 0.0
        if not is_judged:
            reason = "its baseline is still being learned"
        elif rows.state[index] == STRAGGLER:
            reason = "it is blamed, too"
        elif limits > 1:
            reason = "above its limit, but the effect is too small or keeps nobody waiting"
        else:
            reason = "below its limit: as fast as its peers"
        excess = 0.0 if np.isinf(effect) else float(np.expm1(effect))
        return PeerReason(member.node, member.rank, excess, limits, reason)

    def _free(self, members: list[int]) -> None:
        self._freed += members
        self.counters.freed_members += len(members)

    def _seen_within(self, now_s: float, within_s: Column) -> NDArray[np.bool_]:
        """Tell which members were seen within the time that their cohort allows."""
        rows = self.registry.rows
        seen_s = rows.last_seen_s[: rows.size]
        return np.asarray((seen_s > 0) & (now_s - seen_s <= within_s[rows.cohort[: rows.size]]))

    def _forget_s(self) -> Column:
        """Return per cohort after how long a silent member is not expected any more."""
        cohorts = self.registry.cohorts
        return np.maximum(self.policy.forget_s, 2 * cohorts.patience_s[: cohorts.size])

    def _update_expected(self, now_s: float) -> None:
        """Expect a report of every member seen lately, and find the cohorts that are small.

        Members of a cohort that becomes small, or stops being small, start over.
        """
        rows, cohorts = self.registry.rows, self.registry.cohorts
        size, seen = cohorts.size, self._seen_within(now_s, self._forget_s())
        expected: Column = np.bincount(rows.cohort[: rows.size][seen], minlength=size).astype(
            np.float64
        )
        cohorts.expected[:size] = expected
        age_s = now_s - cohorts.first_seen_s[:size]
        is_few = (expected > 0) & (expected < MIN_MEMBERS)
        is_old = age_s >= SMALL_AFTER_S
        for cohort in np.flatnonzero(is_few & ~is_old & (age_s >= SMALL_ROLE_AFTER_S)).tolist():
            is_old[cohort] = bool(self.registry.role_of(cohort))
        is_small = np.where(is_old, is_few, cohorts.is_small[:size])
        was_twinned = cohorts.is_twinned[:size].copy()
        cohorts.is_twinned[:size] &= is_small & (expected == 2)
        is_other = (is_small != cohorts.is_small[:size]) | (
            cohorts.is_twinned[:size] != was_twinned
        )
        changed = np.flatnonzero(is_other)
        cohorts.is_small[:size] = is_small
        of_job = np.bincount(cohorts.job[:size], expected)
        cohorts.is_alone[:size] = is_small & (of_job[cohorts.job[:size]] <= MIN_MEMBERS)
        if len(changed):
            rows.forget(np.flatnonzero(np.isin(rows.cohort[: rows.size], changed)))
