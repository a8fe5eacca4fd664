"""Decisions about members: from healthy to suspect, straggler, recovering and back to healthy."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index
from ingero.core.verdict.baseline import is_refined
from ingero.core.verdict.channels.advance import advance_effect, has_advance, is_own_delay
from ingero.core.verdict.channels.fast import is_persistent, margin_of_error, plain_effect
from ingero.core.verdict.channels.stall import is_now_and_then
from ingero.core.verdict.channels.stall_rates import stall_limit, stalls_more_than_peers
from ingero.core.verdict.channels.step import growth_of_steps, slow_since
from ingero.core.verdict.job_steps import rose_at
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import BIAS_CAP, VerdictPolicy, samples_between_alarms
from ingero.core.verdict.table import (
    ADVANCE,
    CHRONIC,
    FAST,
    HEALTHY,
    RECENT,
    RECENT_HISTORY,
    RECOVERING,
    STALL,
    STEP_SAMPLES,
    STRAGGLER,
    SUSPECT,
    MemberRows,
)
from ingero.core.verdict.what_if import find_hidden

Mask = NDArray[np.bool_]

RELEASE = 0.3  # of the limit: below this a channel no longer holds
PLAIN_SCALES = 4.0
LASTING = 1.4  # limits that a small effect must reach
QUIET_SAMPLES = 40  # without excess before an episode ends
AGAIN_S = 600.0  # a member that is slow again this soon goes on with its episode
PAUSE, MAX_HOLD = 10, 150  # samples
BEFORE = 20  # samples before a member seems slow that its own time is compared with
GREW = 0.015  # of a step: as much as a rank must cost to be worth an alarm


def decide(
    registry: MemberRegistry,
    judged: Mask,
    effect: Column,
    now_s: float,
    policy: VerdictPolicy,
    behind: Mask | None = None,
) -> tuple[list[int], Mask]:
    """Move each member to its next state.

    `judged` are the members that may be blamed now, `behind` those that explain why the steps of
    their jobs are longer. Returns the members whose state changed, and a mask of those that changed
    because they are gone.
    """
    rows, size = registry.rows, registry.rows.size
    before = rows.state[:size].copy()
    behind = np.zeros(size, bool) if behind is None else behind & judged
    over, holding = _channels(registry, effect, policy)
    always = _is_always_slow(registry)
    over[:, FAST] |= behind & ~always
    over[:, CHRONIC] |= behind & always
    _raise(registry, judged & (before == HEALTHY) & over.any(axis=1), over, now_s, policy)
    # What the job waits for is clearer than own time where that is noisy: it takes over.
    clearer = (rows.state[:size] == SUSPECT) & (rows.channel[:size] == FAST) & over[:, ADVANCE]
    rows.channel[:size][clearer] = ADVANCE
    rows.channel[:size][_is_late_with_others(rows, holding[:, FAST], policy)] = FAST
    _find_stalls(registry, over[:, STALL] | behind)
    everyone, channel = np.arange(size), rows.channel[:size]
    is_over, holds = over[everyone, channel], holding[everyone, channel]
    is_over |= behind
    has_effect = judged & (behind | _has_effect(registry, effect, policy))
    suspect = rows.state[:size] == SUSPECT
    confirmed = suspect & is_over & has_effect & _keeps_peers_waiting(rows)
    confirmed &= ~_only_passes_on(registry, confirmed)
    dropped = suspect & ~confirmed & ~holds
    recovering = (before == STRAGGLER) & _is_calm_for_long(registry, effect, policy) & ~behind
    relapsed = (before == RECOVERING) & holds & has_effect
    is_quiet = rows.quiet_samples[:size] >= QUIET_SAMPLES
    recovered = (before == RECOVERING) & ~relapsed & is_quiet & ~holds
    gone = (before != HEALTHY) & (now_s - rows.last_seen_s[:size] > policy.forget_s)
    ended = dropped | recovered | gone
    _hold_longer(rows, relapsed, rows.quiet_samples[:size])
    rows.state[:size][confirmed | relapsed] = STRAGGLER
    rows.ended_s[:size][ended & (before >= STRAGGLER)] = now_s
    rows.state[:size][recovering] = RECOVERING
    rows.quiet_samples[:size][recovering] = 0
    rows.state[:size][ended] = HEALTHY
    rows.calm_samples[:size][ended] = 0
    _reset_ended(rows, dropped, recovered | gone)
    return np.flatnonzero(rows.state[:size] != before).tolist(), gone


def _find_stalls(registry: MemberRegistry, stalls: Mask) -> None:
    """Judge suspects by their stalls where these are all that is slow.

    Stalls of every tenth step raise the mean of every second, too, and are no slow GPU.
    """
    rows, size = registry.rows, registry.rows.size
    asked = (rows.state[:size] == SUSPECT) & np.isin(rows.channel[:size], (FAST, ADVANCE))
    for index in np.flatnonzero(asked & stalls).tolist():
        if is_now_and_then(rows, registry.cohorts, index):
            rows.channel[index] = STALL


def reset_channels(rows: MemberRows, members: Mask, *, stalls: bool = True) -> None:
    """Set the channels of members back to zero; those of their stalls only if `stalls` is true."""
    rows.cusum[: rows.size][members] = 0.0
    rows.advance_cusum[: rows.size][members] = 0.0
    if stalls:
        rows.stall_cusum[: rows.size][members] = 0.0


def _reset_ended(rows: MemberRows, dropped: Mask, over: Mask) -> None:
    """Set the channels of members to zero whose episode is `over`, and those of suspicions dropped.

    What the other channels gathered of a member stays when a suspicion is dropped.
    """
    reset_channels(rows, over)
    channel = rows.channel[: rows.size]
    rows.cusum[: rows.size][dropped & (channel == FAST)] = 0.0
    rows.stall_cusum[: rows.size][dropped & (channel == STALL)] = 0.0
    rows.advance_cusum[: rows.size][dropped & (channel == ADVANCE)] = 0.0


def _raise(
    registry: MemberRegistry, raised: Mask, over: Mask, now_s: float, policy: VerdictPolicy
) -> None:
    """Begin an episode: note when, at which step and which channel raised it."""
    rows, size = registry.rows, registry.rows.size
    rows.state[:size][raised] = SUSPECT
    back = raised & (now_s - rows.ended_s[:size] <= AGAIN_S)
    gone_s = now_s - rows.ended_s[:size]
    sample_s = registry.cohorts.sample_s[rows.cohort[:size]]
    _hold_longer(rows, back, QUIET_SAMPLES + np.where(back, gone_s, 0.0) / sample_s)
    rows.hold_samples[:size][raised & ~back] = 0
    rows.since_s[:size][raised & ~back] = now_s  # one that comes back goes on with its episode
    rows.raised_frame[:size][raised] = rows.frames[:size][raised]
    rows.channel[:size][raised] = over[raised].argmax(axis=1)
    rows.hidden[:size][raised] = 0.0
    for index in np.flatnonzero(raised).tolist():
        if rows.channel[index] not in (FAST, ADVANCE):
            continue
        rows.hidden[index] = find_hidden(registry, index, policy)


def _hold_longer(rows: MemberRows, members: Mask, calm: Column | Index) -> None:
    """Make members that came back after `calm` samples stay blamed through such a pause.

    A GPU that throttles for ten seconds of thirty is one episode in one state.
    """
    longer = np.minimum(2 * np.asarray(calm, np.float64) + PAUSE, MAX_HOLD)
    held = np.where(members, np.maximum(rows.hold_samples[: rows.size], longer), 0.0)
    rows.hold_samples[: rows.size][members] = held[members].astype(np.int64)


def _is_calm_for_long(registry: MemberRegistry, effect: Column, policy: VerdictPolicy) -> Mask:
    """Tell which members are calm for as many samples as their episode asks for."""
    rows, size = registry.rows, registry.rows.size
    calm = _is_calm(registry, effect, policy) & (rows.state[:size] == STRAGGLER)
    since = rows.calm_samples[:size]
    # Noise does not end a calm that began; only a channel that rises again does.
    goes_on = (since > 0) & (calm | (rows.cusum[:size] < RELEASE * rows.limit[:size]))
    since[:] = np.where(goes_on, since, np.where(calm, rows.samples[:size], 0))
    return np.asarray(calm & (rows.samples[:size] - since >= rows.hold_samples[:size]), bool)


def _is_always_slow(registry: MemberRegistry) -> Mask:
    """Tell which members have been slower than their peers since they were first seen."""
    rows, size = registry.rows, registry.rows.size
    bias, scale = rows.raw_bias[:size], rows.scale[:size]
    always = (bias > np.maximum(BIAS_CAP, 3 * scale)) & ~rows.is_structural[:size]
    return np.asarray(always & ~registry.cohorts.is_small[rows.cohort[:size]], bool)


def _channels(registry: MemberRegistry, effect: Column, policy: VerdictPolicy) -> tuple[Mask, Mask]:
    """Return, as [member, channel], which channels are over their limit and which still hold.

    The columns are FAST, STALL, CHRONIC and ADVANCE, in this order.
    """
    rows, size = registry.rows, registry.rows.size
    cusum, limit, stall = rows.cusum[:size], rows.limit[:size], rows.stall_cusum[:size]
    stalls = stall_limit(registry.cohorts, policy)[rows.cohort[:size]]
    always = _is_always_slow(registry)
    # A rank that compiles longer than others is slow at first, and then it is not.
    is_warm = is_refined(rows, registry.cohorts, policy)
    chronic = always & is_warm & (effect + rows.bias[:size] > 0.5 * rows.raw_bias[:size])
    waited, enough = rows.advance_cusum[:size], rows.advance_limit[:size]
    # What was waited for some time ago is no reason to suspect anybody now.
    waits = (waited > enough) & (advance_effect(rows, np.arange(size)) >= policy.gate)
    if waits.any():
        waits &= is_own_delay(rows, _surely(registry, effect))
    over = np.stack(((cusum > limit) & ~always, stall > stalls, chronic, waits), axis=1)
    holding = np.stack(
        (
            cusum > RELEASE * limit,
            stall > RELEASE * stalls,
            chronic,
            waited > RELEASE * enough,
        ),
        axis=1,
    )
    return over, holding


def _has_effect(registry: MemberRegistry, effect: Column, policy: VerdictPolicy) -> Mask:
    """Tell which members show an effect large or lasting enough to be blamed for.

    A large effect is confirmed at the limit, a small one must last until it is well above.
    """
    rows, size = registry.rows, registry.rows.size
    cohort, channel = rows.cohort[:size], rows.channel[:size]
    peers = np.maximum(registry.cohorts.expected[cohort], 2.0)
    # The scale without the noise that the peers' median adds.
    alone_scale = rows.scale[:size] * np.sqrt((peers - 1) / peers)
    plain = plain_effect(rows, np.arange(size)) >= np.maximum(
        policy.gate, PLAIN_SCALES * alone_scale
    )
    lasting = (effect >= policy.gate) & (rows.cusum[:size] >= LASTING * rows.limit[:size])
    is_certain = effect >= margin_of_error(rows, np.arange(size))
    between_alarms = samples_between_alarms(registry.cohorts.sample_s[cohort], policy)
    fast = is_certain & is_persistent(rows, between_alarms) & (plain | lasting)
    stalls = np.zeros(size, bool)
    asked = np.flatnonzero((channel == STALL) & (rows.state[:size] != HEALTHY))
    stalls[asked] = stalls_more_than_peers(rows, registry.cohorts, asked, policy)
    awaited = has_advance(rows, _surely(registry, effect), policy)
    chosen = np.select(
        [channel == FAST, channel == STALL, channel == ADVANCE],
        [fast, stalls, awaited],
        default=True,
    )
    return np.asarray(chosen, bool)


def _surely(registry: MemberRegistry, effect: Column) -> Column:
    """Return the effect without its error in cohorts that are too small to compare members.

    A stage of a pipeline that gets its data late is waited for, too, and its own time is noisy.
    """
    rows, size = registry.rows, registry.rows.size
    is_small = registry.cohorts.is_small[rows.cohort[:size]]
    return effect - np.where(is_small, margin_of_error(rows, np.arange(size)), 0.0)


def _is_calm(registry: MemberRegistry, effect: Column, policy: VerdictPolicy) -> Mask:
    """Tell which members no longer show the effect their channel raised."""
    rows, size = registry.rows, registry.rows.size
    channel = rows.channel[:size]
    excess = np.where(channel == CHRONIC, effect + rows.bias[:size], effect)
    calm = excess < policy.gate / 2
    waited = np.flatnonzero(channel == ADVANCE)
    if len(waited):
        calm[waited] = advance_effect(rows, waited) < policy.gate / 2
    stalls = channel == STALL
    enough = stall_limit(registry.cohorts, policy)[rows.cohort[:size]]
    calm[stalls] = (rows.stall_cusum[:size] < RELEASE * enough)[stalls]
    return np.asarray(calm, bool)


def _is_late_with_others(rows: MemberRows, holds: Mask, policy: VerdictPolicy) -> Mask:
    """Tell which blamed members the job no longer waits for alone, while they are slow as before.

    Another member that is as late takes the advance from both. `holds` tells for whom the fast
    channel does; all but one of the last samples must be slow, so that a recovery is none of these.
    """
    size = rows.size
    late: Mask = (rows.state[:size] >= STRAGGLER) & (rows.channel[:size] == ADVANCE) & holds
    asked = np.flatnonzero(late)
    if len(asked):
        is_slow = plain_effect(rows, asked) >= np.maximum(policy.gate, margin_of_error(rows, asked))
        late[asked] = is_slow & (advance_effect(rows, asked) < policy.gate / 2)
    return late


def _keeps_peers_waiting(rows: MemberRows) -> Mask:
    """Tell which suspects arrive at collectives no earlier than their peers.

    A rank that arrives earlier than its peers keeps nobody waiting, however slow it is. Where
    lateness is not measured, the answer is yes; so it is for stalls, since most steps have none,
    and where the advance shows that the job waits: exchanges do not count as lateness.
    """
    size = rows.size
    late = rows.lateness_s[:size]
    known = ~np.isnan(late) & (rows.channel[:size] != STALL)
    awaited = np.ones(size, bool)
    if not known.any():
        return awaited
    suspects = known & (rows.state[:size] == SUSPECT)
    for cohort in np.unique(rows.cohort[:size][suspects]).tolist():
        members = known & (rows.cohort[:size] == cohort)
        awaited[members] = late[members] >= np.median(late[members])
    return awaited | (rows.advance_cusum[:size] > rows.advance_limit[:size])


def _only_passes_on(registry: MemberRegistry, suspects: Mask) -> Mask:
    """Tell whose own time fell although the steps of the job grew: somebody else is slow.

    Peers that wait for a slow rank compute meanwhile, so their own times fall. One that waits for
    it elsewhere, and keeps its own group waiting, hides less of its work and seems slow beside
    them. Steps grow only with the own time of whoever is behind it. Own times of twins vary by more
    than they grow.
    """
    rows, found = registry.rows, np.zeros(registry.rows.size, bool)
    asked = suspects & np.isin(rows.channel[: rows.size], (FAST, ADVANCE))
    asked &= ~registry.cohorts.is_twinned[rows.cohort[: rows.size]]
    for index in np.flatnonzero(asked).tolist():
        if growth_of_steps(registry.cohorts, int(rows.cohort[index])) >= GREW:
            found[index] = _own_growth(registry, index) < 0
    return found


def _own_growth(registry: MemberRegistry, index: int) -> float:
    """Return by how much the own time of a member grew since it seems slow, as a logarithm.

    It is NaN where too few samples from before are left.
    """
    rows, cohorts, cohort = registry.rows, registry.cohorts, int(registry.rows.cohort[index])
    count, samples = int(cohorts.step_samples[cohort]), int(rows.samples[index])
    slow = max(count - slow_since(cohorts, cohort, rose_at(rows, cohorts, index)), 1)
    ages = np.arange(min(slow + BEFORE, samples, RECENT_HISTORY))
    if len(ages) < slow + RECENT:
        return float("nan")
    away = rows.latest[index, (samples - 1 - ages) % RECENT_HISTORY]  # from the peers' median
    log_own = away + cohorts.step_level[cohort, (count - 1 - ages) % STEP_SAMPLES]
    return float(np.median(log_own[:slow]) - np.median(log_own[slow:]))
