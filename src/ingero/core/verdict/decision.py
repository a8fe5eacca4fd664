"""Decisions about members: from healthy to suspect, straggler, recovering and back to healthy."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column
from ingero.core.verdict.fast_channel import is_persistent, margin_of_error, plain_effect
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import BIAS_CAP, VerdictPolicy, samples_between_alarms
from ingero.core.verdict.price import find_hidden
from ingero.core.verdict.stall_channel import STALL_LIMIT, stalls_more_than_peers
from ingero.core.verdict.table import (
    CHRONIC,
    FAST,
    HEALTHY,
    RECOVERING,
    STALL,
    STRAGGLER,
    SUSPECT,
    MemberRows,
)

Mask = NDArray[np.bool_]

RELEASE = 0.3  # of the limit: below this a channel no longer holds
PLAIN_SCALES = 4.0
LASTING = 1.4  # limits that a small effect must reach
QUIET_SAMPLES = 40  # without excess before an episode ends


def decide(
    registry: MemberRegistry, judged: Mask, effect: Column, now_s: float, policy: VerdictPolicy
) -> tuple[list[int], Mask]:
    """Move each member to its next state.

    `judged` are the members that may be blamed now. Returns the members whose state changed, and
    a mask of those that changed because they are gone.
    """
    rows, size = registry.rows, registry.rows.size
    before = rows.state[:size].copy()
    over, holding = _channels(registry, effect)
    _raise(registry, judged & (before == HEALTHY) & over.any(axis=1), over, now_s, policy)
    everyone, channel = np.arange(size), rows.channel[:size]
    is_over, holds = over[everyone, channel], holding[everyone, channel]
    has_effect = judged & _has_effect(registry, effect, policy)
    suspect = rows.state[:size] == SUSPECT
    confirmed = suspect & is_over & has_effect & _keeps_peers_waiting(rows)
    dropped = suspect & ~confirmed & ~holds
    recovering = (before == STRAGGLER) & _is_calm(rows, effect, policy)
    relapsed = (before == RECOVERING) & holds & has_effect
    is_quiet = rows.quiet_samples[:size] >= QUIET_SAMPLES
    recovered = (before == RECOVERING) & ~relapsed & is_quiet & ~holds
    gone = (before != HEALTHY) & (now_s - rows.last_seen_s[:size] > policy.forget_s)
    ended = dropped | recovered | gone
    rows.state[:size][confirmed | relapsed] = STRAGGLER
    rows.state[:size][recovering] = RECOVERING
    rows.quiet_samples[:size][recovering] = 0
    rows.state[:size][ended] = HEALTHY
    reset_channels(rows, ended)
    return np.flatnonzero(rows.state[:size] != before).tolist(), gone


def reset_channels(rows: MemberRows, members: Mask) -> None:
    """Set both channels of members back to zero."""
    rows.cusum[: rows.size][members] = 0.0
    rows.stall_cusum[: rows.size][members] = 0.0


def _raise(
    registry: MemberRegistry, raised: Mask, over: Mask, now_s: float, policy: VerdictPolicy
) -> None:
    """Begin an episode: note when, at which step and which channel raised it."""
    rows, size = registry.rows, registry.rows.size
    rows.state[:size][raised] = SUSPECT
    rows.since_s[:size][raised] = now_s
    rows.raised_frame[:size][raised] = rows.frames[:size][raised]
    rows.channel[:size][raised] = over[raised].argmax(axis=1)
    rows.hidden[:size][raised] = 0.0
    for index in np.flatnonzero(raised & (rows.channel[:size] == FAST)).tolist():
        rows.hidden[index] = find_hidden(registry, index, policy)


def _channels(registry: MemberRegistry, effect: Column) -> tuple[Mask, Mask]:
    """Return, as [member, channel], which channels are over their limit and which still hold.

    The columns are FAST, STALL and CHRONIC, in this order.
    """
    rows, size = registry.rows, registry.rows.size
    bias, scale = rows.raw_bias[:size], rows.scale[:size]
    cusum, limit, stall = rows.cusum[:size], rows.limit[:size], rows.stall_cusum[:size]
    always = (bias > np.maximum(BIAS_CAP, 3 * scale)) & ~rows.is_structural[:size]
    always &= ~registry.cohorts.is_small[rows.cohort[:size]]
    chronic = always & (effect + rows.bias[:size] > 0.5 * bias)
    over = np.stack(((cusum > limit) & ~always, stall > STALL_LIMIT, chronic), axis=1)
    holding = np.stack((cusum > RELEASE * limit, stall > RELEASE * STALL_LIMIT, chronic), axis=1)
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
    chosen = np.select(
        [channel == FAST, channel == STALL], [fast, stalls_more_than_peers(rows)], default=True
    )
    return np.asarray(chosen, bool)


def _is_calm(rows: MemberRows, effect: Column, policy: VerdictPolicy) -> Mask:
    """Tell which members no longer show the effect their channel raised."""
    size, channel = rows.size, rows.channel[: rows.size]
    excess = np.where(channel == CHRONIC, effect + rows.bias[:size], effect)
    calm = excess < policy.gate / 2
    stalls = channel == STALL
    calm[stalls] = (rows.stall_cusum[:size] < RELEASE * STALL_LIMIT)[stalls]
    return np.asarray(calm, bool)


def _keeps_peers_waiting(rows: MemberRows) -> Mask:
    """Tell which suspects arrive at collectives no earlier than their peers.

    A rank that arrives earlier than its peers keeps nobody waiting, however slow it is. Where
    lateness is not measured, the answer is yes.
    """
    size = rows.size
    late = rows.lateness_s[:size]
    known = ~np.isnan(late)
    awaited = np.ones(size, bool)
    if not known.any():
        return awaited
    suspects = known & (rows.state[:size] == SUSPECT)
    for cohort in np.unique(rows.cohort[:size][suspects]).tolist():
        members = known & (rows.cohort[:size] == cohort)
        awaited[members] = late[members] >= np.median(late[members])
    return awaited
