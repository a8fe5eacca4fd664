"""Events of jobs: what slows many ranks, moves between them or belongs to the job itself."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.robust import Column
from ingero.core.verdict.baseline import adopt_excuse, end_excuse, excuse_rise
from ingero.core.verdict.channels.fast import margin_of_error, recent_effect
from ingero.core.verdict.channels.step import growth_of_steps
from ingero.core.verdict.decision import Mask
from ingero.core.verdict.events import fleet_events
from ingero.core.verdict.events.describe import (
    describe_fleet_event,
    describe_group,
    describe_moves,
    describe_structural,
)
from ingero.core.verdict.events.groups import Groups
from ingero.core.verdict.events.links import judge_links
from ingero.core.verdict.events.moves import Moves
from ingero.core.verdict.events.structural import Finding, Recurrences, find_structural
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import FAST, FEW, RECENT, SUSPECT

# Of what the steps grew by, both as logarithms: own time is a part of the step, so a group whose
# own time grew by less than a quarter of it is no reason, as for members in the step channel.
EXPLAINED = 0.25
ADOPT_S = 300.0  # a level that a whole cohort keeps this long becomes its baseline


class JobEvents:
    """The open events: of cohorts by their row, of jobs by the row of the job."""

    def __init__(self, registry: MemberRegistry, policy: VerdictPolicy) -> None:
        self.open_fleet: dict[int, Verdict] = {}
        self.open_groups: dict[int, Verdict] = {}
        self.open_moves: dict[int, Verdict] = {}
        self.open_structural: dict[tuple[str, int], Verdict] = {}
        self._registry, self._policy = registry, policy
        self._groups, self._moves, self._again = Groups(registry), Moves(), Recurrences()
        self.grouped = np.zeros(0, bool)
        self.slowed: list[int] = []  # jobs that were just said to be slower as a whole

    def current(self) -> list[Verdict]:
        """Return the open events."""
        return [
            *self.open_fleet.values(),
            *self.open_groups.values(),
            *self.open_moves.values(),
            *self.open_structural.values(),
        ]

    def slow_jobs(self) -> list[int]:
        """Return the rows of jobs with an event that makes their steps longer."""
        cohorts = self._registry.cohorts
        return [*cohorts.job[list(self.open_fleet)].tolist(), *self.open_groups, *self.open_moves]

    def in_group(self, index: int) -> bool:
        """Tell whether an open group event explains a member."""
        group = self._groups.of_job.get(int(self._registry.rows.job[index]))
        return group is not None and group.is_open and bool(self.grouped[index])

    def explains(self, index: int, now_s: float) -> bool:
        """Tell whether a blamed member is slow with the work, or by work that comes again."""
        job = int(self._registry.rows.job[index])
        return self._moves.is_carried(job, index, now_s) or (
            self._again.period_of(index) is not None
        )

    def note_slow(self, index: int, now_s: float) -> None:
        """Note that a member became slow and costs time."""
        rows = self._registry.rows
        if rows.channel[index] != FAST:
            return
        job, cohort = int(rows.job[index]), rows.cohort[index]
        since = self._registry.cohorts.frames[cohort] - rows.rose_frame[index]
        step_s = self._registry.cohorts.sample_s[cohort] / max(
            int(self._registry.cohorts.frames_per_sample[cohort]), 1
        )
        for each in self._moves.going_on(job):  # its state follows later
            if recent_effect(rows, np.array([each]))[0] < self._policy.gate:
                self._moves.end(job, each, now_s)
        self._moves.begin(job, index, now_s - float(since * step_s))
        self._again.begin(index, int(rows.last_step[index]))

    def note_end(self, index: int, now_s: float) -> None:
        """Note that a member is not slow any more."""
        self._moves.end(int(self._registry.rows.job[index]), index, now_s)

    def advance(
        self, judged: Mask, effect: Column, carried: Mask, reporting: Column, now_s: float
    ) -> tuple[list[Verdict], Mask]:
        """Return the events that changed, and the members that these excuse.

        Members that are `carried` by another one did not slow down with it. Members of a group are
        not blamed either, but their channels go on: they hold the group.
        """
        rows, size = self._registry.rows, self._registry.rows.size
        cohorts, cohort = self._registry.cohorts, rows.cohort[:size]
        margin = np.nan_to_num(margin_of_error(rows, np.arange(size)))
        moving = fleet_events.find_moving(
            rows.job[:size], judged & ~carried, effect, margin, self._policy.gate
        )
        who = fleet_events.who_moved(cohorts, cohort, judged, effect, rows.scale[:size], moving)
        moved = np.bincount(cohort[who], minlength=cohorts.size).astype(np.float64)
        known = np.bincount(cohort[judged], minlength=cohorts.size).astype(np.float64)
        links = judge_links(cohorts, self._mean_step_s(judged), now_s)
        events, excused = fleet_events.judge(
            cohorts, moved, known, reporting, links, self._in_groups(judged, known),
            now_s=now_s, policy=self._policy,
        )  # fmt: skip
        changed = self._follow_fleet_events(events, who, moved, reporting, now_s)
        explains = moving & self._explains(moving, effect)
        self.grouped = self._groups.advance(judged & ~excused[cohort], explains, now_s)
        changed += self._follow_groups()
        changed += self._follow_moves(now_s)
        return changed, excused[cohort]

    def _explains(self, moving: Mask, effect: Column) -> Mask:
        """Tell whose own time grew by enough to be a reason for longer steps.

        Who waits for a slow link, for instance, has a little more own time, too.
        """
        cohorts, cohort = self._registry.cohorts, self._registry.rows.cohort[: len(moving)]
        growth = np.zeros(cohorts.size)
        for each in np.unique(cohort[moving]).tolist():
            growth[each] = np.nan_to_num(growth_of_steps(cohorts, each))
        return np.asarray(effect >= EXPLAINED * growth[cohort], bool)

    def refresh(self, now_s: float) -> list[Verdict]:
        """Find what is structural, and return the events that are new or over."""
        findings = {each.key: each for each in find_structural(self._registry, self._policy)}
        findings |= {each.key: each for each in self._recurring()}
        changed = []
        for key in [key for key in self.open_structural if key not in findings]:
            changed.append(_over(self.open_structural.pop(key)))
        for key, finding in findings.items():
            before = self.open_structural.get(key)
            since_s = now_s if before is None else before.since
            self.open_structural[key] = describe_structural(
                self._registry, finding, since_s, self._policy
            )
            if before is None:
                changed.append(self.open_structural[key])
        self._moves.forget(now_s)
        return changed

    def _recurring(self) -> list[Finding]:
        """Return members whose slow periods come again after the same number of steps."""
        rows, findings = self._registry.rows, []
        for index in list(self._again.begins):
            period, begins = self._again.period_of(index), self._again.begins[index]
            since = int(rows.last_step[index]) - begins[-1]
            if since < 0 or (period is not None and since > 2 * period):
                self._again.forget(index)
            elif period is not None:
                rank = self._registry.members[index].rank
                text = f"rank {rank} is slow again every {period} steps: work of this rank alone"
                before = self.open_structural.get(("again", index))
                loss = 0.0 if before is None or before.loss is None else before.loss
                slow = max(float(np.nanmedian(rows.recent_excess[index])), 0.0)
                loss = max(loss, slow * self._slow_share(index, period))
                findings.append(
                    Finding(("again", index), int(rows.cohort[index]), text, min(loss, 1.0), index,
                            period)
                )  # fmt: skip
        return findings

    def _slow_share(self, index: int, period: int) -> float:
        """Return in which share of the time a member that is slow again and again is slow."""
        job = int(self._registry.rows.job[index])
        lengths = [
            p.ended_s - p.began_s
            for p in self._moves.periods.get(job, [])
            if p.member == index and p.ended_s is not None
        ]
        cohorts, cohort = self._registry.cohorts, self._registry.rows.cohort[index]
        per_step_s = float(cohorts.sample_s[cohort]) / max(
            int(cohorts.frames_per_sample[cohort]), 1
        )
        return min(max(lengths, default=0.0) / (period * per_step_s), 1.0)

    def _follow_groups(self) -> list[Verdict]:
        changed = []
        groups = {job: group for job, group in self._groups.of_job.items() if group.is_open}
        for job in [job for job in self.open_groups if job not in groups]:
            changed.append(_over(self.open_groups.pop(job)))
        for job, group in groups.items():
            verdict = describe_group(self._registry, group, self._policy)
            if job not in self.open_groups:
                changed.append(verdict)
            self.open_groups[job] = verdict
        return changed

    def _follow_moves(self, now_s: float) -> list[Verdict]:
        changed = []
        for job in [job for job in self.open_moves if not self._moves.is_moving(job, now_s)]:
            changed.append(_over(self.open_moves.pop(job)))
        for job in self._moves.periods:
            if job not in self.open_moves and self._moves.is_moving(job, now_s):
                members = self._moves.ranks_in_turn(job)
                self.open_moves[job] = describe_moves(self._registry, members, now_s)
                changed.append(self.open_moves[job])
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

    def _in_groups(self, judged: Mask, known: Column) -> Mask:
        """Tell of which cohorts most members are in an open group."""
        rows, inside = self._registry.rows, np.zeros(len(judged), bool)
        inside[: len(self.grouped)] = self.grouped  # members may have joined since
        inside &= judged & np.isin(rows.job[: len(judged)], list(self.open_groups))
        count = np.bincount(rows.cohort[: len(judged)][inside], minlength=len(known))
        return np.asarray(count > 0.5 * known, bool)

    def _follow_fleet_events(
        self, events: NDArray[np.int8], who: Mask, moved: Column, reporting: Column, now_s: float
    ) -> list[Verdict]:
        """Open and end fleet events where the event of a cohort changed."""
        cohorts, size = self._registry.cohorts, self._registry.cohorts.size
        self._adopt_levels(events, now_s)
        changed, self.slowed = [], []
        is_new = events != cohorts.event[:size]
        # All that end come first: another cohort of the same job may show the same from now on.
        is_over = is_new & (cohorts.event[:size] == fleet_events.SLOWER)
        for cohort in np.flatnonzero(is_over).tolist():
            self._end_excuse(cohort, now_s)
        for cohort in np.flatnonzero(is_new).tolist():
            before = self.open_fleet.pop(cohort, None)
            if before is not None:
                changed.append(_over(before))
            kind = int(events[cohort])
            if kind != fleet_events.CLEAR:
                cohorts.event_since_s[cohort] = now_s
                counted = self._counted(cohort, kind)
                self.open_fleet[cohort] = describe_fleet_event(
                    self._registry, cohort, kind, int(moved[counted].sum()),
                    int(reporting[counted].sum()), self._policy,
                    self._shared(counted, kind, who),
                )  # fmt: skip
                changed.append(self.open_fleet[cohort])
                if kind == fleet_events.SLOWER:
                    self._excuse(cohort, counted, now_s)
        cohorts.event[:size] = events
        return changed

    def _adopt_levels(self, events: NDArray[np.int8], now_s: float) -> None:
        """Take the level of jobs that are slower as a whole as usual, when it has stayed so."""
        cohorts, size = self._registry.cohorts, self._registry.cohorts.size
        lasting = (events == fleet_events.SLOWER) & (cohorts.event[:size] == fleet_events.SLOWER)
        lasting &= now_s - cohorts.event_since_s[:size] >= ADOPT_S
        if lasting.any():
            of_job = np.isin(cohorts.job[:size], cohorts.job[:size][lasting])
            high = lasting | (of_job & ~np.isnan(cohorts.high_since_s[:size]))
            cohorts.baseline_level[:size][high] = cohorts.level[:size][high]

    def _excuse(self, cohort: int, counted: Mask, now_s: float) -> None:
        """Compare members of a job that is slower as a whole as they are now with each other."""
        rows, cohorts = self._registry.rows, self._registry.cohorts
        self.slowed.append(int(cohorts.job[cohort]))
        usual = (rows.baseline_samples[: rows.size] > 0) & (rows.state[: rows.size] <= SUSPECT)
        members = np.flatnonzero(usual & counted[rows.cohort[: rows.size]])
        lasting_s = now_s - float(cohorts.high_since_s[cohort])
        excuse_rise(rows, members, max(int(lasting_s / cohorts.sample_s[cohort]), RECENT))

    def _end_excuse(self, cohort: int, now_s: float) -> None:
        """Compare them as before, unless the job has got used to its new pace."""
        rows, cohorts = self._registry.rows, self._registry.cohorts
        of_job = rows.job[: rows.size] == cohorts.job[cohort]
        excused = np.flatnonzero(of_job & (rows.excused[: rows.size] > 0))
        is_short = now_s - cohorts.event_since_s[cohort] < ADOPT_S
        (end_excuse if is_short else adopt_excuse)(rows, excused)

    def _counted(self, cohort: int, kind: int) -> Mask:
        """Return the cohorts of a job that an event is about."""
        cohorts, size = self._registry.cohorts, self._registry.cohorts.size
        of_job = cohorts.job[:size] == cohorts.job[cohort]
        if kind != fleet_events.SLOWER:
            is_few = cohorts.expected[cohort] < FEW
            return np.asarray(of_job if is_few else np.arange(size) == cohort, bool)
        high = of_job & ~np.isnan(cohorts.high_since_s[:size])
        high[cohort] = True
        return np.asarray(high, bool)

    def _shared(self, counted: Mask, kind: int, who: Mask) -> str:
        """Return what the members that slowed down share, and hardly anybody else in their job."""
        rows, inside = self._registry.rows, counted[self._registry.rows.cohort[: len(who)]]
        if kind not in (fleet_events.TOGETHER, fleet_events.SLOWER):
            return ""
        seen = rows.last_seen_s[: len(who)] > 0
        slow = np.flatnonzero(inside & (who if kind == fleet_events.TOGETHER else seen))
        if len(slow) < 2:
            return ""
        everyone = np.flatnonzero(seen & (rows.job[: len(who)] == rows.job[slow[0]]))
        shared = self._groups.find_shared(slow, everyone)
        return "" if shared is None else " ".join(shared)


def _over(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(verdict, state=VerdictState.RESOLVED, next_step="")
