"""Decisions: healthy, suspect, straggler, recovering and back, one episode from first suspicion to recovery."""

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict import fleet_events
from ingero.core.verdict.channels import (
    STALL_BAR,
    is_persistent,
    plain_effect,
    recent_effect,
    stalls_alone,
)
from ingero.core.verdict.links import judge_links
from ingero.core.verdict.own_times import Column
from ingero.core.verdict.policy import BIAS_CAP, VerdictPolicy, samples_between_alarms
from ingero.core.verdict.price import find_hidden, recent_frames
from ingero.core.verdict.table import (
    CHRONIC,
    FAST,
    HEALTHY,
    RECOVERING,
    STALL,
    STRAGGLER,
    SUSPECT,
    State,
)
from ingero.core.verdict.verdicts import describe_fleet, describe_member, error_bars

Mask = NDArray[np.bool_]

RELEASE = 0.3  # of the bar: below it a channel has let go
PLAIN_SCALES = 4.0
LASTING = 1.4  # bars
QUIET_SAMPLES = 40  # without excess before an episode is over
REFRESH_S = 10.0  # excess, cause and price of open episodes follow what is going on
ADOPT_S = 300.0  # a level that a whole cohort keeps this long is its new normal


class Docket:
    """Open episodes. `decide` moves every member one step and returns the verdicts that changed."""

    def __init__(self, state: State, policy: VerdictPolicy) -> None:
        self._state = state
        self._policy = policy
        self.open: dict[int, Verdict] = {}
        self.open_fleet: dict[int, Verdict] = {}
        self._refreshed_s = 0.0

    def decide(self, live: Mask, reporting: Column, now_s: float) -> list[Verdict]:
        """One tick. `live` are the members heard of lately, `reporting` their number per cohort."""
        rows, size = self._state.rows, self._state.rows.size
        cohort = rows.cohort[:size]
        effect = recent_effect(rows, np.arange(size))
        judged = live & (rows.settled[:size] > 0)
        moving = judged & (effect > self._policy.gate)
        moved = np.bincount(cohort[moving], minlength=self._state.cohorts.size).astype(np.float64)
        known = np.bincount(cohort[judged], minlength=self._state.cohorts.size).astype(np.float64)
        links = judge_links(self._state.cohorts, self._step_s(judged), now_s)
        guards, blocked = fleet_events.judge(
            self._state.cohorts, moved, known, reporting, links, now_s=now_s, policy=self._policy
        )
        changed = self._abandoned() + self._fleet_events(guards, moved, reporting, now_s)
        guarded = blocked[cohort]
        calm = guarded & (rows.state[:size] <= SUSPECT)
        rows.cusum[:size][calm] = 0.0
        rows.stall[:size][calm] = 0.0
        changed += self._members(judged & ~guarded, effect, now_s)
        if now_s - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = now_s
            self._refresh()
        return changed

    def _step_s(self, judged: Mask) -> Column:
        """Length of a step per cohort: the mean of what its members say; NaN where none does."""
        rows, cohorts = self._state.rows, self._state.cohorts
        told = judged & ~np.isnan(rows.span[: rows.size])
        cohort = rows.cohort[: rows.size][told]
        total = np.bincount(cohort, rows.span[: rows.size][told], minlength=cohorts.size)
        count = np.bincount(cohort, minlength=cohorts.size)
        return np.asarray(
            np.divide(total, count, out=np.full(cohorts.size, np.nan), where=count > 0), np.float64
        )

    def _members(self, judged: Mask, effect: Column, now_s: float) -> list[Verdict]:
        rows, size = self._state.rows, self._state.rows.size
        state = rows.state[:size].copy()
        over, held = self._channels(effect)
        raised = judged & (state == HEALTHY) & over.any(axis=1)
        rows.state[:size][raised] = SUSPECT
        rows.since[:size][raised] = now_s
        rows.raised_frame[:size][raised] = rows.frames[:size][raised]
        rows.channel[:size][raised] = over[raised].argmax(axis=1)
        rows.hidden[:size][raised] = 0.0
        for index in np.flatnonzero(raised & (rows.channel[:size] == FAST)).tolist():
            rows.hidden[index] = find_hidden(self._state, index, self._policy)
        channel = rows.channel[:size]
        mine = held[np.arange(size), channel]
        suspect = rows.state[:size] == SUSPECT
        confirmed = (
            suspect
            & judged
            & over[np.arange(size), channel]
            & self._has_effect(effect)
            & self._is_awaited()
        )
        rows.state[:size][confirmed] = STRAGGLER
        let_go = suspect & ~confirmed & ~mine
        rows.state[:size][let_go] = HEALTHY
        recovering = (state == STRAGGLER) & self._is_calm(effect)
        rows.state[:size][recovering] = RECOVERING
        rows.quiet[:size][recovering] = 0
        relapsed = (state == RECOVERING) & judged & mine & self._has_effect(effect)
        rows.state[:size][relapsed] = STRAGGLER
        over_now = (state == RECOVERING) & ~relapsed & (rows.quiet[:size] >= QUIET_SAMPLES) & ~mine
        gone = (state != HEALTHY) & (now_s - rows.last_seen[:size] > self._policy.forget_s)
        rows.state[:size][over_now | gone] = HEALTHY
        for ended in (let_go, over_now | gone):
            rows.cusum[:size][ended] = 0.0
            rows.stall[:size][ended] = 0.0
        return self._report(np.flatnonzero(rows.state[:size] != state).tolist(), gone)

    def _channels(self, effect: Column) -> tuple[Mask, Mask]:
        """Per member and channel: is it over its bar, and does it still hold? Order: fast, stall, chronic."""
        rows, size = self._state.rows, self._state.rows.size
        bias = rows.raw_bias[:size]
        cusum, bar = rows.cusum[:size], rows.bar[:size]
        always = (bias > np.maximum(BIAS_CAP, 3 * rows.scale[:size])) & ~rows.is_structural[:size]
        alone = self._state.cohorts.is_alone[rows.cohort[:size]]
        always &= ~alone
        chronic = always & (effect + rows.bias[:size] > 0.5 * bias)
        over = np.stack(((cusum > bar) & ~always, rows.stall[:size] > STALL_BAR, chronic), axis=1)
        held = np.stack(
            (cusum > RELEASE * bar, rows.stall[:size] > RELEASE * STALL_BAR, chronic), axis=1
        )
        return over, held

    def _has_effect(self, effect: Column) -> Mask:
        """A large effect is confirmed at the bar, a small one must go on until it is well above."""
        rows, size = self._state.rows, self._state.rows.size
        peers = np.maximum(self._state.cohorts.expected[rows.cohort[:size]], 2.0)
        alone_scale = rows.scale[:size] * np.sqrt(
            (peers - 1) / peers
        )  # without the noise of the peers' median
        plain = plain_effect(rows, np.arange(size)) >= np.maximum(
            self._policy.gate, PLAIN_SCALES * alone_scale
        )
        lasting = (effect >= self._policy.gate) & (rows.cusum[:size] >= LASTING * rows.bar[:size])
        stands = effect >= error_bars(rows, np.arange(size))
        between_alarms = samples_between_alarms(
            self._state.cohorts.sample_s[rows.cohort[:size]], self._policy
        )
        channel = rows.channel[:size]
        choices = [
            stands & is_persistent(rows, between_alarms) & (plain | lasting),
            stalls_alone(rows),
        ]
        return np.asarray(
            np.select([channel == FAST, channel == STALL], choices, default=True), bool
        )

    def _is_calm(self, effect: Column) -> Mask:
        rows, size = self._state.rows, self._state.rows.size
        channel = rows.channel[:size]
        calm = (
            np.where(channel == CHRONIC, effect + rows.bias[:size], effect) < self._policy.gate / 2
        )
        calm[channel == STALL] = (rows.stall[:size] < RELEASE * STALL_BAR)[channel == STALL]
        return np.asarray(calm, bool)

    def _is_awaited(self) -> Mask:
        """Who waits for whom: one that comes earlier than its peers keeps nobody waiting, whatever it does alone."""
        rows, size = self._state.rows, self._state.rows.size
        late = rows.late[:size]
        known = ~np.isnan(late)
        if not known.any():
            return np.ones(size, bool)
        awaited = np.ones(size, bool)
        for cohort in np.unique(
            rows.cohort[:size][known & (rows.state[:size] == SUSPECT)]
        ).tolist():
            mine = known & (rows.cohort[:size] == cohort)
            awaited[mine] = late[mine] >= np.median(late[mine])
        return awaited

    def _abandoned(self) -> list[Verdict]:
        """Episodes of members that start over, in another cohort or with too few peers: nobody can follow them."""
        over = [index for index in self.open if self._state.rows.state[index] == HEALTHY]
        return [
            self._resolved(index, "compared anew: its peers or labels changed") for index in over
        ]

    def _resolved(self, index: int, evidence: str) -> Verdict:
        before = self.open.pop(index)
        return msgspec.structs.replace(
            before, state=VerdictState.RESOLVED, evidence=evidence, next_step=""
        )

    def _report(self, members: Iterable[int], gone: Mask) -> list[Verdict]:
        changed = []
        for index in members:
            code = int(self._state.rows.state[index])
            if code == HEALTHY:
                verdict = self._resolved(
                    index, "no data any more" if gone[index] else "back among its peers"
                )
            elif code == RECOVERING:  # cause and size stay those of the slow time
                verdict = msgspec.structs.replace(self.open[index], state=VerdictState.RECOVERING)
                self.open[index] = verdict
            else:
                verdict = self._describe(index)
                if code == SUSPECT:
                    verdict = msgspec.structs.replace(verdict, state=VerdictState.SUSPECT)
                self.open[index] = verdict
            changed.append(verdict)
        return changed

    def _refresh(self) -> None:
        """Newer figures for the open episodes; no news, so nothing is returned."""
        for index, before in self.open.items():
            if before.state in (VerdictState.STRAGGLER, VerdictState.NOT_SURE) and self._goes_on(
                index, before
            ):
                self.open[index] = self._describe(index)

    def _goes_on(self, index: int, before: Verdict) -> bool:
        """Is it still slow? The last steps are newer than the samples, and those of its recovery tell no cause."""
        rows = self._state.rows
        if rows.channel[index] == STALL or before.excess is None:
            return True
        window = recent_frames(rows, index)
        theirs = rows.own[self._state.peers_of(index, self._policy.stale_s)][:, window]
        if np.isnan(theirs).all():
            return True
        return bool(
            np.nanmean(rows.own[index, window]) >= (1 + before.excess / 2) * np.nanmedian(theirs)
        )

    def _describe(self, index: int) -> Verdict:
        return describe_member(self._state, index, self._policy)

    def _fleet_events(
        self, guards: NDArray[np.int8], moved: Column, reporting: Column, now_s: float
    ) -> list[Verdict]:
        cohorts, size = self._state.cohorts, self._state.cohorts.size
        adopt = (guards == fleet_events.SLOWER) & (cohorts.guard[:size] == fleet_events.SLOWER)
        adopt &= now_s - cohorts.guard_since[:size] >= ADOPT_S
        cohorts.usual[:size][adopt] = cohorts.level[:size][adopt]
        changed = []
        for cohort in np.flatnonzero(guards != cohorts.guard[:size]).tolist():
            before = self.open_fleet.pop(cohort, None)
            if before is not None:
                changed.append(
                    msgspec.structs.replace(before, state=VerdictState.RESOLVED, next_step="")
                )
            if guards[cohort] != fleet_events.CLEAR:
                cohorts.guard_since[cohort] = now_s
                event = describe_fleet(
                    self._state,
                    cohort,
                    int(guards[cohort]),
                    int(moved[cohort]),
                    int(reporting[cohort]),
                )
                self.open_fleet[cohort] = event
                changed.append(event)
        cohorts.guard[:size] = guards
        return changed
