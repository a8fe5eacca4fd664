"""Everything the engine remembers: one array per fact, one row per member or cohort."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Index
from ingero.core.verdict.columns import (
    Rows,
    bitsets,
    codes,
    flags,
    floats,
    floats32,
    indexes,
    integers,
)

HISTORY = 240  # samples that a baseline is made of before it is frozen
RECENT = 5  # residuals whose median is the effect
FRAMES = 32  # steps kept for price and cause
ALARM_FRAMES = 4  # fewer than any alarm takes, so that all of them belong to the slow period
RECENT_HISTORY = 60  # residuals that show whether a baseline was learned in restless minutes
SHARED = 8  # what ranks can have in common: node, GPU model, role and five labels
CLOSED = 512  # points that a late report is still compared with: half a minute of fast steps
STEP_SAMPLES = 128  # samples of steps kept per cohort: two minutes, or as many long steps
FEW = 5  # members: in a smaller cohort the members of the whole job are counted
ONSETS = 8  # stall onsets kept to find their period
STALLS = 64  # stalls of all members kept per cohort, to know how often anybody stalls
HEALTHY, SUSPECT, STRAGGLER, RECOVERING = range(4)  # MemberRows.state
FAST, STALL, CHRONIC, ADVANCE = range(4)  # MemberRows.channel: the channel that raised an episode
FIRST_WANDER: Final = 0.0125  # of own time: taken for the wander of a cohort that is new
_UNKNOWN: Final = np.nan


KEPT = ("cohort", "last_seen_s", "is_structural", "usd_per_hour", "job", "shares")


class MemberRows(Rows):
    """One row per member; the row of a member that is gone is given to the next new one."""

    # identity
    cohort = indexes()
    job = indexes()
    usd_per_hour = floats(_UNKNOWN)  # of all its GPUs
    shares = integers(width=SHARED)  # digests of node, GPU model, role and labels; 0 for none
    is_structural = flags()  # rank 0, which often does more work than others
    last_seen_s = floats()  # 0 before the first own time

    # the sample being averaged, and how many were made
    residual_sum = floats()
    residual_count = floats()
    samples = integers()

    # baseline: what is normal for this member
    history = floats32(_UNKNOWN, width=HISTORY)  # residuals that the baseline is learned from
    latest = floats32(_UNKNOWN, width=RECENT_HISTORY)  # the last residuals, whatever they are
    baseline_samples = integers()  # how many of them it was made of; 0 without a baseline
    bias = floats()  # residual while healthy
    raw_bias = floats()  # the same before it is capped
    shift = floats()  # change of the bias since the history was full
    excused = floats()  # part of the bias: by how much it rose since its whole job is slower
    adopted = floats()  # the same, of times when it stayed so
    own_scale = floats(_UNKNOWN)  # spread of this member's residuals
    scale = floats(_UNKNOWN)  # that spread, or the cohort's where it is larger
    correlation = floats()  # lag-one autocorrelation of the residuals
    lone_scale = floats(_UNKNOWN)  # of a twin: that spread around its own past
    is_uneven = flags()  # batches always differ from rank to rank
    baseline_log_own = floats(_UNKNOWN)  # log own time while healthy
    # Seconds of GPU idle time above the peers' median while healthy: hosts differ by nature.
    baseline_idle_s = floats(_UNKNOWN)

    # fast channel: a clipped CUSUM of samples
    cusum = floats()
    k = floats(_UNKNOWN)  # its allowance per sample
    limit = floats(_UNKNOWN)  # its decision limit h
    recent_excess = floats(_UNKNOWN, width=RECENT)  # residuals above the baseline
    rose_at = integers()  # sample of its cohort's steps at which the channel last was zero
    rose_frame = integers()  # the same in steps of its cohort
    rises = bitsets()  # did the channel rise? one bit per sample, the newest lowest
    far_run = integers()  # the last so many samples were far out
    far = floats()  # far samples in runs that ended without an episode
    far_again = floats()  # those that directly followed another far sample

    # advance channel: a clipped CUSUM of how long the job waits for this member, in steps
    advance_sum = floats()
    advance_count = floats()
    advance_samples = integers()  # in the history
    advance_turn = integers()  # all samples since there is a baseline
    advance_history = floats32(_UNKNOWN, width=HISTORY)
    advance_learned = integers()  # samples that the baseline was made of; 0 without one
    advance_bias = floats()
    advance_scale = floats(_UNKNOWN)
    advance_k = floats(_UNKNOWN)
    advance_limit = floats(_UNKNOWN)
    advance_cusum = floats()
    advance_rose_at = integers()
    advance_rises = bitsets()
    advance_recent = floats(_UNKNOWN, width=RECENT)
    # How late the GPU started, and the host enqueued, where the job waited most.
    late_frames = integers()
    late_at = integers(width=FRAMES)  # samples of its cohort's steps by then
    start_late_s = floats(_UNKNOWN, width=FRAMES)
    enqueue_late_s = floats(_UNKNOWN, width=FRAMES)
    near_late_s = floats(_UNKNOWN, width=FRAMES)  # enqueue lateness where the host is least ahead
    far_late_s = floats(_UNKNOWN, width=FRAMES)  # the same where it is most ahead
    alone_s = floats(_UNKNOWN, width=FRAMES)  # how long the job waited for this member alone
    mean_late_s = floats(_UNKNOWN, width=FRAMES)  # over the collectives that end for all together
    # The same while it was healthy, in this order, and its mean distance from that.
    usual_late_s = floats(_UNKNOWN, width=6)
    late_noise_s = floats(width=6)
    queue_s = floats(_UNKNOWN, width=FRAMES)  # from enqueue to start of its collectives
    baseline_queue_s = floats(_UNKNOWN)  # the same while it was healthy
    queue_noise_s = floats()  # mean distance from it

    # stall channel: a CUSUM of the likelihood of more stalls than peers have
    stall_cusum = floats()
    stall_rose_at = integers()  # as `rose_at`, for this channel
    is_stalled = flags()
    stall_drift = floats()  # what a step without a stall adds to it, after the last stall
    run_s = floats()  # how long the first one of its present run of stalls was
    run_stalls = floats()  # how many are in it
    run_steps = floats()  # since the first one
    stall_steps = floats()  # steps watched so far
    stall_size = floats()  # mean excess of a stall, as a logarithm
    least_stall_s = floats()  # seconds: the shortest one that would have been seen
    recent_stalls = floats()  # onsets, weighted down with age
    recent_steps = floats()  # steps, weighted down in the same way
    onsets = integers(width=ONSETS)  # steps at which stalls began
    onset_count = integers()

    # the last steps, for price and cause
    frames = integers()  # steps so far
    own_s = floats(_UNKNOWN, width=FRAMES)
    idle_s = floats(_UNKNOWN, width=FRAMES)
    span_s = floats(_UNKNOWN)
    lateness_s = floats(_UNKNOWN)
    common = floats()  # log: what the other members of the job share now, in small cohorts
    last_log_own = floats(_UNKNOWN)  # of a member that does not number its steps

    # episode
    state = codes()
    channel = codes()
    since_s = floats()
    raised_frame = integers()  # `frames` when the episode began
    quiet_samples = integers()  # since the member began to recover
    calm_samples = integers()  # in a row without the effect, while the member is blamed
    hold_samples = integers()  # of calm that a member needs to recover: more if it came back
    ended_s = floats(-np.inf)  # when its last episode ended
    last_step = integers()
    hidden = floats()  # log: own time that peers hide while they wait for this member (`price`)

    def forget(self, members: Index | NDArray[np.bool_]) -> None:
        """Drop baselines, channels and state of members, but keep their identity."""
        self.reset(members, keep=KEPT)


class CohortRows(Rows):
    """One row per cohort."""

    job = indexes()
    first_seen_s = floats()
    last_report_s = floats(np.inf)  # of any member; infinite in a free row
    expected = floats()  # members that should report
    is_small = flags()  # fewer than three members: compared with the baselines of the whole job
    is_alone = flags()  # small, and the job has too few other members to compare with
    is_twinned = flags()  # its two members vary alike, and are compared with each other
    apart = floats32(_UNKNOWN, width=RECENT_HISTORY)  # last samples of one less those of the other
    apart_samples = integers()
    is_split = flags()  # two groups that no label explains

    # pace
    frames = integers()
    first_frame_s = floats(_UNKNOWN)
    frames_per_sample = integers()  # averaged into one sample of about a second; 0 until known
    sample_s = floats(1.0)  # seconds that one sample stands for
    paced_span_s = floats(_UNKNOWN)  # length of a step when that was chosen
    window_frame = integers()  # `frames` when the pace was last looked at
    window_s = floats(_UNKNOWN)  # when that was
    paced_away = integers()  # windows in a row in which the job had another pace
    gap_s = floats(1.0)  # between two reports of one member
    patience_s = floats()  # silence after which a member is not live: several of its steps
    # Steps that were compared, in a ring by step number: members whose reports come late are
    # compared with what their peers showed then.
    closed_step = integers(width=CLOSED)
    closed_middle = floats32(_UNKNOWN, width=CLOSED)  # log of the median own time
    closed_members = floats32(0.0, width=CLOSED)

    # level: log own time of the members without the slowest one
    level = floats(_UNKNOWN)
    baseline_level = floats(_UNKNOWN)
    slow_level = floats(_UNKNOWN)  # the same, smoothed over ten seconds
    wander = floats(FIRST_WANDER)  # spread of that level around its baseline
    high_since_s = floats(_UNKNOWN)
    has_settled = flags()  # own times fell a lot after the start: what was learned is void
    calm_windows = integers()  # in a row that were much calmer than the baselines

    # steps, in samples of about a second: those of the last two minutes, and the one being made
    step_log = floats32(_UNKNOWN, width=STEP_SAMPLES)  # log seconds
    step_quick = floats32(_UNKNOWN, width=STEP_SAMPLES)  # log seconds of the quick ones
    step_level = floats32(_UNKNOWN, width=STEP_SAMPLES)  # log own time, as in `level`
    step_is_calm = floats32(0.0, width=STEP_SAMPLES)  # 1, or 0 where somebody was suspected
    step_samples = integers()
    step_sum_s = floats()
    step_level_sum = floats()
    step_count = floats()
    span_s = floats(_UNKNOWN, width=FRAMES)  # of the last steps
    is_restless = flags()  # somebody in the job is suspected, or it has a fleet event
    # step channel: a clipped CUSUM of these samples
    step_base = floats(_UNKNOWN)  # usual log seconds, less what own times of all explain
    step_noise = floats(_UNKNOWN)
    step_slope = floats()  # how much longer steps are where own times of all are
    step_usual_level = floats()
    step_cusum = floats()
    step_rose_at = integers()  # sample of steps at which the channel last was zero
    step_learned = integers()  # samples so far when it was last learned

    # the last stalls of its members, in a ring
    stall_s = floats32(0.0, width=STALLS)
    stall_member = integers(width=STALLS)
    stall_frame = integers(width=STALLS)  # `frames` then
    stall_count = integers()

    # links
    transfer_s = floats(_UNKNOWN)  # time in collectives of the member that waits least, per step
    waiting_s = floats(_UNKNOWN)  # how much longer the others wait, on average
    baseline_transfer_s = floats(_UNKNOWN)
    baseline_waiting_s = floats(_UNKNOWN)
    away_since_s = floats(_UNKNOWN)  # when the transfer left its baseline

    # fleet event
    event = codes()
    event_since_s = floats()
    event_until_s = floats()
    reason_since_s = floats(_UNKNOWN)
