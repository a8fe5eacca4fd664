"""The verdict engine: own times in, verdicts out. No clock, no chance, no I/O: the same calls give the same bytes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.verdict import Verdict
from ingero.core.verdict import baseline
from ingero.core.verdict.channels import recent_effect
from ingero.core.verdict.decision import Docket
from ingero.core.verdict.own_times import UNNUMBERED, Column, FrameBuffer, SampleBatch, select
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.residuals import MIN_PEERS, SMOOTH, take_frame, take_loose
from ingero.core.verdict.table import STRAGGLER, Member, State

ALONE_AFTER_S = 30.0  # a cohort that is still too small then is compared with its own past
GONE_S = 3600.0  # a cohort silent for this long is over; a member alone makes room when there are too many
MIN_WAIT_S = 2.0  # for the peers of a step


@dataclass(slots=True)
class EngineCounters:
    """What was not used, and why; what was freed because it is over."""

    refused_members: int = 0
    too_few_peers: int = 0
    freed_members: int = 0
    freed_cohorts: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """How one member stands: its excess over its baseline, its channel in bars, and why it is not blamed."""

    node: str
    rank: int | None
    excess: float
    bars: float
    reason: str


class VerdictEngine:
    """Feed `observe`, call `tick` every second; `tick` returns the verdicts that are new or changed."""

    def __init__(self, policy: VerdictPolicy | None = None) -> None:
        self.policy = policy or VerdictPolicy()
        self.counters = EngineCounters()
        self.frames = FrameBuffer()
        self.state = State()
        self._docket = Docket(self.state, self.policy)
        self._loose: list[SampleBatch] = []  # unnumbered samples since the last tick
        self._freed: list[int] = []

    def register(self, member: Member, now_s: float) -> int | None:
        """The index of a member for batches; None when there are too many."""
        if self.state.known >= self.policy.max_members and self.state.find(member) is None:
            self._free(self.state.let_go(now_s, GONE_S))
            if self.state.known >= self.policy.max_members:
                self.counters.refused_members += 1
                return None
        index = self.state.put(member, now_s)
        if (
            member.rank is not None
            and now_s - self.state.rows.last_seen[index] > self.policy.stale_s
        ):
            self.state.take_seat(index, now_s - self.policy.forget_s - 1.0)
        return index

    def observe(self, batch: SampleBatch, now_s: float) -> None:
        """Take samples in. `now_s` is the receiver's clock; senders' clocks are never compared."""
        if not len(batch):
            return
        rows, cohorts = self.state.rows, self.state.cohorts
        heard = np.unique(batch.member)
        gap = now_s - rows.last_seen[heard]
        usual = (rows.last_seen[heard] > 0) & (gap > 0) & (gap < self.policy.stale_s)
        cohort = rows.cohort[heard[usual]]
        cohorts.gap_s[cohort] += SMOOTH * (gap[usual] - cohorts.gap_s[cohort])
        rows.last_seen[heard] = now_s
        cohorts.heard_s[rows.cohort[heard]] = now_s
        loose = batch.step == UNNUMBERED
        if loose.any():
            self._loose.append(select(batch, loose))
            batch = select(batch, ~loose)
        if len(batch):
            self.frames.add(batch, now_s)

    def tick(self, now_s: float) -> list[Verdict]:
        """Close what is complete, update every channel and return the verdicts that are new or changed."""
        state, rows, size = self.state, self.state.rows, self.state.cohorts.size
        if not rows.size:
            return []
        live = self._heard(now_s, self.policy.stale_s)
        reporting = np.bincount(rows.cohort[: rows.size][live], minlength=size).astype(np.float64)
        self._expect(now_s)
        wait = np.clip(1.5 * state.cohorts.gap_s[:size], MIN_WAIT_S, self.policy.stale_s)
        for frame in self.frames.close(rows.cohort, reporting, wait, now_s):
            self.counters.too_few_peers += take_frame(state, frame, now_s)
        if self._loose:
            self.counters.too_few_peers += take_loose(state, self._loose, live, now_s)
            self._loose = []
        due = baseline.due(rows, self.policy)
        if len(due):
            baseline.settle(rows, state.cohorts, due, self.policy)
        news = self._docket.decide(live, reporting, now_s)
        members, ended = state.end_cohorts(now_s, GONE_S, self._docket.open_fleet)
        self._free(members)
        self.counters.freed_cohorts += ended
        return news

    def take_freed(self) -> list[int]:
        """Indexes whose member is over, since the last call: the next one to register may get them."""
        freed, self._freed = self._freed, []
        return freed

    def current(self) -> list[Verdict]:
        """Every open episode, fleet events first."""
        return [*self._docket.open_fleet.values(), *self._docket.open.values()]

    def learning(self) -> tuple[int, int]:
        """How many members have a baseline to be judged by, and how many are still learning it."""
        judged = int((self.state.rows.settled[: self.state.rows.size] > 0).sum())
        return judged, self.state.known - judged

    def chronic(self) -> list[tuple[Member, float]]:
        """Members that always were slower than their peers by more than the noise, with the share, slowest first."""
        rows, size = self.state.rows, self.state.rows.size
        bias = rows.raw_bias[:size]
        alone = self.state.cohorts.is_alone[rows.cohort[:size]]
        listed = np.flatnonzero(
            (rows.settled[:size] > 0) & ~alone & (bias > np.maximum(rows.scale[:size], 0.01))
        )
        order = listed[np.argsort(-bias[listed], kind="stable")]
        return [(self.state.members[index], float(np.expm1(bias[index]))) for index in order]

    def standings(self, verdict: Verdict) -> list[Standing]:
        """How everybody in the cohort of a verdict stands now; the one it is about is left out."""
        index = self.state.find_named(
            verdict.job or "", verdict.node, -1 if verdict.rank is None else verdict.rank
        )
        if index is None:
            return []
        peers = self.state.peers_of(index, self.policy.stale_s)
        effects = recent_effect(self.state.rows, peers)
        return [self._standing(int(p), float(e)) for p, e in zip(peers, effects, strict=True)]

    def _standing(self, index: int, effect: float) -> Standing:
        rows, member = self.state.rows, self.state.members[index]
        bars = float(rows.cusum[index] / rows.bar[index]) if rows.settled[index] else 0.0
        if not rows.settled[index]:
            reason = "still learning what is normal for it"
        elif rows.state[index] == STRAGGLER:
            reason = "is blamed, too"
        elif bars > 1:
            reason = "over the bar, but the effect is too small or keeps nobody waiting"
        else:
            reason = "below the bar: as fast as its peers"
        return Standing(
            member.node,
            member.rank,
            0.0 if np.isinf(effect) else float(np.expm1(effect)),
            bars,
            reason,
        )

    def _free(self, members: list[int]) -> None:
        self._freed += members
        self.counters.freed_members += len(members)

    def _heard(self, now_s: float, within_s: float) -> NDArray[np.bool_]:
        seen = self.state.rows.last_seen[: self.state.rows.size]
        return (seen > 0) & (now_s - seen <= within_s)

    def _expect(self, now_s: float) -> None:
        """Who should report: everybody heard of lately. A cohort that stays below three is compared with its past."""
        rows, cohorts, size = self.state.rows, self.state.cohorts, self.state.cohorts.size
        expected: Column = np.bincount(
            rows.cohort[: rows.size][self._heard(now_s, self.policy.forget_s)], minlength=size
        ).astype(np.float64)
        cohorts.expected[:size] = expected
        old = now_s - cohorts.first_seen[:size] >= ALONE_AFTER_S
        alone = np.where(old, (expected > 0) & (expected < MIN_PEERS), cohorts.is_alone[:size])
        changed = np.flatnonzero(alone != cohorts.is_alone[:size])
        cohorts.is_alone[:size] = alone
        if len(changed):
            rows.forget(np.flatnonzero(np.isin(rows.cohort[: rows.size], changed)))
