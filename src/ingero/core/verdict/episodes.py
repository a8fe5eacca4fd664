"""Open episodes: each begins with the first suspicion of a member and ends with its recovery."""

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.robust import Column
from ingero.core.verdict import fleet_events
from ingero.core.verdict.decision import Mask, decide, reset_channels
from ingero.core.verdict.fast_channel import recent_effect
from ingero.core.verdict.links import judge_links
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.price import recent_frames
from ingero.core.verdict.table import HEALTHY, RECOVERING, STALL, SUSPECT
from ingero.core.verdict.verdicts import describe_fleet_event, describe_member

REFRESH_S = 10.0  # how often excess, cause and price of open episodes are computed again
ADOPT_S = 300.0  # a level that a whole cohort keeps this long becomes its baseline


class Episodes:
    """The open verdict of every episode, by row of its member or cohort."""

    def __init__(self, registry: MemberRegistry, policy: VerdictPolicy) -> None:
        self.open: dict[int, Verdict] = {}
        self.open_fleet: dict[int, Verdict] = {}
        self._registry = registry
        self._policy = policy
        self._refreshed_s = 0.0

    def advance(self, live: Mask, reporting: Column, now_s: float) -> list[Verdict]:
        """Decide about every cohort and member, and return the verdicts that changed.

        `live` are the members that reported lately, `reporting` is their number per cohort.
        """
        rows, size = self._registry.rows, self._registry.rows.size
        cohorts, cohort = self._registry.cohorts, rows.cohort[:size]
        effect = recent_effect(rows, np.arange(size))
        judged = live & (rows.baseline_samples[:size] > 0)
        moving = judged & (effect > self._policy.gate)
        moved = np.bincount(cohort[moving], minlength=cohorts.size).astype(np.float64)
        known = np.bincount(cohort[judged], minlength=cohorts.size).astype(np.float64)
        links = judge_links(cohorts, self._mean_step_s(judged), now_s)
        events, excused = fleet_events.judge(
            cohorts, moved, known, reporting, links, now_s=now_s, policy=self._policy
        )
        changed = self._end_abandoned()
        changed += self._follow_fleet_events(events, moved, reporting, now_s)
        is_excused = excused[cohort]
        reset_channels(rows, is_excused & (rows.state[:size] <= SUSPECT))
        members, gone = decide(
            self._registry, judged & ~is_excused, effect, now_s, policy=self._policy
        )
        changed += self._follow_members(members, gone)
        if now_s - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = now_s
            self._refresh()
        return changed

    def _mean_step_s(self, judged: Mask) -> Column:
        """Return the mean length of a step per cohort, NaN where no member reports it."""
        rows, size = self._registry.rows, self._registry.cohorts.size
        span_s = rows.span_s[: rows.size]
        known = judged & ~np.isnan(span_s)
        cohort = rows.cohort[: rows.size][known]
        total = np.bincount(cohort, span_s[known], minlength=size)
        count = np.bincount(cohort, minlength=size)
        means = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
        return np.asarray(means, np.float64)

    def _end_abandoned(self) -> list[Verdict]:
        """End the episodes of members that started over, in another cohort or with few peers."""
        over = [index for index in self.open if self._registry.rows.state[index] == HEALTHY]
        return [
            self._resolve(index, "compared anew: its peers or labels changed") for index in over
        ]

    def _resolve(self, index: int, evidence: str) -> Verdict:
        return msgspec.structs.replace(
            self.open.pop(index), state=VerdictState.RESOLVED, evidence=evidence, next_step=""
        )

    def _follow_members(self, members: Iterable[int], gone: Mask) -> list[Verdict]:
        """Open, update or end the episodes of members whose state changed."""
        changed = []
        for index in members:
            state = int(self._registry.rows.state[index])
            if state == HEALTHY:
                reason = "no data any more" if gone[index] else "back among its peers"
                changed.append(self._resolve(index, reason))
                continue
            if state == RECOVERING:  # cause and excess stay those of the slow period
                verdict = msgspec.structs.replace(self.open[index], state=VerdictState.RECOVERING)
            else:
                verdict = describe_member(self._registry, index, self._policy)
                if state == SUSPECT:
                    verdict = msgspec.structs.replace(verdict, state=VerdictState.SUSPECT)
            self.open[index] = verdict
            changed.append(verdict)
        return changed

    def _refresh(self) -> None:
        """Compute the figures of open episodes again; this does not count as a change."""
        for index, before in self.open.items():
            is_blamed = before.state in (VerdictState.STRAGGLER, VerdictState.NOT_SURE)
            if is_blamed and self._is_still_slow(index, before):
                self.open[index] = describe_member(self._registry, index, self._policy)

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

    def _follow_fleet_events(
        self, events: NDArray[np.int8], moved: Column, reporting: Column, now_s: float
    ) -> list[Verdict]:
        """Open and end fleet events where the event of a cohort changed."""
        cohorts, size = self._registry.cohorts, self._registry.cohorts.size
        adopt = (events == fleet_events.SLOWER) & (cohorts.event[:size] == fleet_events.SLOWER)
        adopt &= now_s - cohorts.event_since_s[:size] >= ADOPT_S
        cohorts.baseline_level[:size][adopt] = cohorts.level[:size][adopt]
        changed = []
        for cohort in np.flatnonzero(events != cohorts.event[:size]).tolist():
            before = self.open_fleet.pop(cohort, None)
            if before is not None:
                changed.append(
                    msgspec.structs.replace(before, state=VerdictState.RESOLVED, next_step="")
                )
            kind = int(events[cohort])
            if kind != fleet_events.CLEAR:
                cohorts.event_since_s[cohort] = now_s
                self.open_fleet[cohort] = describe_fleet_event(
                    self._registry, cohort, kind, int(moved[cohort]), int(reporting[cohort])
                )
                changed.append(self.open_fleet[cohort])
        cohorts.event[:size] = events
        return changed
