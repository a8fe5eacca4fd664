"""Open episodes: each begins with the first suspicion of a member and ends with its recovery."""

from collections.abc import Iterable

import msgspec
import numpy as np

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.robust import Column
from ingero.core.verdict.baseline import first_history
from ingero.core.verdict.channels.fast import recent_effect
from ingero.core.verdict.channels.step import find_behind, slow_since
from ingero.core.verdict.decision import Mask, decide, reset_channels
from ingero.core.verdict.events.carried import find_carried
from ingero.core.verdict.events.job_events import JobEvents
from ingero.core.verdict.job_steps import (
    CalmSteps,
    find_calm,
    follow_jump,
    mark_restless,
    rose_at,
)
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import CHRONIC, HEALTHY, RECOVERING, STALL, STRAGGLER, SUSPECT
from ingero.core.verdict.verdicts import describe_member
from ingero.core.verdict.what_if import recent_frames

REFRESH_S = 10.0  # how often excess, cause and price of open episodes are computed again
# Figures of young episodes change with every sample: each tick computes those of so many again, in
# turns. In larger cohorts that takes longer than all the rest of a tick, so there they wait.
YOUNG_S, YOUNG_AT_ONCE, YOUNG_PEERS = 60.0, 3, 1000
AFTER_FIRST = 2  # samples after a first baseline: who is slow from then on was so before
BLAMED = (VerdictState.STRAGGLER, VerdictState.LATE, VerdictState.NOT_SURE)


class Episodes:
    """The open verdict of every episode, by row of its member, and the events of jobs."""

    def __init__(self, registry: MemberRegistry, policy: VerdictPolicy) -> None:
        self.open: dict[int, Verdict] = {}
        self.events = JobEvents(registry, policy)
        self._registry = registry
        self._policy = policy
        self._refreshed_s = 0.0
        self._calm: dict[int, CalmSteps | None] = {}  # steps before each open episode
        self._blamed: dict[int, Verdict] = {}  # what was said while the member was slow
        self._unsaid: set[int] = set()  # blamed members that an event of their job explains

    def advance(self, live: Mask, reporting: Column, now_s: float) -> list[Verdict]:
        """Decide about every cohort and member, and return the verdicts that changed.

        `live` are the members that reported lately, `reporting` is their number per cohort.
        """
        rows, size = self._registry.rows, self._registry.rows.size
        effect = recent_effect(rows, np.arange(size))
        judged = live & (rows.baseline_samples[:size] > 0)
        carried = find_carried(self._registry, judged, effect, self._policy)
        changed, is_excused = self.events.advance(judged, effect, carried, reporting, now_s)
        changed += self._end_abandoned()
        for index in [each for each in self._calm if rows.job[each] in self.events.slowed]:
            self._calm[index] = None  # the steps of before were those of a faster job
        reset_channels(rows, is_excused & (rows.state[:size] <= SUSPECT))
        # Own time that peers hide while they wait explains what lasts, and no stalls.
        reset_channels(rows, carried & (rows.state[:size] <= SUSPECT), stalls=False)
        is_excused |= carried
        may_be_blamed = judged & ~is_excused & ~self.events.grouped
        behind = find_behind(self._registry, may_be_blamed & np.isfinite(effect), self._policy)
        members, gone = decide(self._registry, may_be_blamed, effect, now_s, self._policy, behind)
        changed += self._follow_members(members, gone, now_s)
        if now_s - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = now_s
            changed += self._refresh(now_s)
        else:
            changed += self._describe_again(self._young(now_s))
        self._mark_restless()
        return changed

    def _mark_restless(self) -> None:
        """Mark the cohorts of jobs that have an open episode or event: their steps are not calm.

        Those of a member that recovers are calm again.
        """
        rows, cohorts = self._registry.rows, self._registry.cohorts
        job = cohorts.job[: cohorts.size]
        slow = [each for each in (*self.open, *self._unsaid) if rows.state[each] != RECOVERING]
        jobs = [*rows.job[slow].tolist(), *self.events.slow_jobs()]
        cohorts.is_restless[: cohorts.size] = np.isin(job, jobs) if jobs else False

    def _end_abandoned(self) -> list[Verdict]:
        """End the episodes of members that started over, or that an event explains now."""
        rows = self._registry.rows
        over = [index for index in self.open if rows.state[index] == HEALTHY]
        changed = [
            self._resolve(index, "compared anew: its peers or labels changed") for index in over
        ]
        grouped = [index for index in self.open if self.events.in_group(index)]
        for index in grouped:
            rows.state[index] = HEALTHY
            changed.append(self._resolve(index, "one of several: see the event of its job"))
        return changed

    def _resolve(self, index: int, evidence: str) -> Verdict:
        self._forget(index)
        return msgspec.structs.replace(
            self.open.pop(index), state=VerdictState.RESOLVED, evidence=evidence, next_step=""
        )

    def _forget(self, index: int) -> None:
        self._calm.pop(index, None)
        self._blamed.pop(index, None)
        self._unsaid.discard(index)

    def _follow_members(self, members: Iterable[int], gone: Mask, now_s: float) -> list[Verdict]:
        """Open, update or end the episodes of members whose state changed."""
        changed = []
        for index in members:
            state = int(self._registry.rows.state[index])
            if state == HEALTHY:
                reason = "no data any more" if gone[index] else "back among its peers"
                if index in self.open:
                    changed.append(self._resolve(index, reason))
                self._forget(index)
            elif state == RECOVERING:
                self.events.note_end(index, now_s)
                changed += self._recover(index)
            else:
                changed += self._suspect(index, state, now_s)
        return changed

    def _recover(self, index: int) -> list[Verdict]:
        """Begin the recovery of a member; cause and figures stay those of its slow period."""
        if index not in self.open:
            return []
        self.open[index] = msgspec.structs.replace(
            self._blamed.get(index, self.open[index]), state=VerdictState.RECOVERING
        )
        return [self.open[index]]

    def _suspect(self, index: int, state: int, now_s: float) -> list[Verdict]:
        """Open or update an episode, unless an event of the job explains it."""
        if index not in self._calm:
            self._find_calm(index)
        verdict = self._describe(index)
        # One that costs nothing neither hands slowness on nor takes it over.
        if state == STRAGGLER and verdict.state is not VerdictState.LATE:
            self.events.note_slow(index, now_s)
        if state == STRAGGLER and self.events.explains(index, now_s):
            self._unsaid.add(index)
            if index not in self.open:
                return []
            return [self._resolve_as_explained(index)]
        if state == SUSPECT:
            verdict = msgspec.structs.replace(verdict, state=VerdictState.SUSPECT)
        else:
            self._blamed[index] = verdict
        self.open[index] = verdict
        return [verdict]

    def _resolve_as_explained(self, index: int) -> Verdict:
        return msgspec.structs.replace(
            self.open.pop(index),
            state=VerdictState.RESOLVED,
            evidence="explained by the event of its job",
            next_step="",
        )

    def _describe(self, index: int) -> Verdict:
        calm, cohort = self._calm.get(index), int(self._registry.rows.cohort[index])
        if calm is not None:
            calm = self._calm[index] = follow_jump(self._registry.cohorts, cohort, calm)
        return describe_member(self._registry, index, self._policy, calm, self._blamed.get(index))

    def _find_calm(self, index: int) -> None:
        """Keep the calm steps before an episode that begins, and mark those since then."""
        rows, cohorts = self._registry.rows, self._registry.cohorts
        cohort = int(rows.cohort[index])
        since = slow_since(cohorts, cohort, rose_at(rows, cohorts, index))
        self._calm[index] = None
        if rows.channel[index] != CHRONIC and not self._is_slow_since_warm_up(index, since):
            self._calm[index] = find_calm(cohorts, cohort, since, only_near=True)
        mark_restless(cohorts, cohort, int(cohorts.step_samples[cohort]) - since)

    def _is_slow_since_warm_up(self, index: int, since: int) -> bool:
        """Tell whether a member became slow before its first baseline: then no steps were calm."""
        rows, cohorts = self._registry.rows, self._registry.cohorts
        slow = int(cohorts.step_samples[rows.cohort[index]]) - since
        first = first_history(rows, cohorts, self._policy)[index]
        return bool(rows.samples[index] - slow <= first + AFTER_FIRST)

    def _refresh(self, now_s: float) -> list[Verdict]:
        """Compute the figures of all open episodes and events again; return those that changed."""
        changed = self.events.refresh(now_s)
        for index in sorted(self._unsaid):
            still = self._registry.rows.state[index] == STRAGGLER
            if still and not self.events.explains(index, now_s):
                self._unsaid.discard(index)
                self.open[index] = self._blamed[index] = self._describe(index)
                changed.append(self.open[index])
        return changed + self._describe_again(list(self.open))

    def _young(self, now_s: float) -> list[int]:
        """Return episodes that began lately, as many as a tick allows; each has its turn."""
        rows, expected = self._registry.rows, self._registry.cohorts.expected
        young = [
            index
            for index in self.open
            if now_s - rows.since_s[index] < YOUNG_S and expected[rows.cohort[index]] <= YOUNG_PEERS
        ]
        turn = int(now_s) * YOUNG_AT_ONCE % len(young) if len(young) > YOUNG_AT_ONCE else 0
        return (young[turn:] + young[:turn])[:YOUNG_AT_ONCE]

    def _describe_again(self, members: list[int]) -> list[Verdict]:
        """Compute the figures of open episodes again, and return those whose state changed."""
        changed = []
        for index in members:
            before = self.open[index]
            is_slow = self._registry.rows.calm_samples[index] == 0
            if before.state in BLAMED and is_slow and self._is_still_slow(index, before):
                self.open[index] = self._blamed[index] = self._describe(index)
                if self.open[index].state is not before.state:
                    changed.append(self.open[index])
        return changed

    def _is_still_slow(self, index: int, before: Verdict) -> bool:
        """Tell whether the last steps are slow, too.

        They are newer than the samples; steps of a recovery say nothing about the cause.
        """
        rows = self._registry.rows
        if rows.channel[index] == STALL or before.excess is None:
            return True
        window = recent_frames(rows, index)
        theirs = rows.own_s[self._registry.peers_of(index, self._policy.stale_s)][:, window]
        if np.isnan(theirs).all():
            return True
        mean = np.nanmean(rows.own_s[index, window])
        return bool(mean >= (1 + before.excess / 2) * np.nanmedian(theirs))
