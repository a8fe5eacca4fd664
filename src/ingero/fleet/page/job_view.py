"""The ranks of one job as the stream shows them; it loads the verdict engine."""

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from ingero.contract.live import LiveRank, LiveRanks, LiveSteps, encode_message
from ingero.core.live.strip import StepStrip
from ingero.core.robust import nan_median
from ingero.core.verdict.channels.advance import advance_effect
from ingero.core.verdict.channels.fast import recent_effect
from ingero.core.verdict.table import FRAMES, RECENT

if TYPE_CHECKING:
    from ingero.fleet.cluster_verdicts import ClusterVerdicts

STATES: Final = ("healthy", "suspect", "straggler", "recovering")
LEARNING: Final = "learning"
MAX_RANKS: Final = 1024  # in the picture of steps
REPEATED: Final = 12  # steps before the new ones that are sent again: some ranks report late


Members = list[tuple[int, str, int]]  # (rank, node, row index); rank -1 where it is not known


def members_by_job(cluster: "ClusterVerdicts") -> dict[str | None, Members]:
    """Return the members of every job, in order of their ranks."""
    found: dict[str | None, Members] = {}
    for (node, job, rank), index in cluster.members.items():
        found.setdefault(job, []).append((-1 if rank is None else rank, node, index))
    for members in found.values():
        members.sort()
    return found


def encode_ranks(
    cluster: "ClusterVerdicts", found: Members, cluster_id: str, job_id: str, at: float
) -> bytes:
    """Encode every rank of a job, in order of their numbers."""
    ranks = list_ranks(cluster, found)
    message = LiveRanks(cluster_id=cluster_id, job_id=job_id, at=at, ranks=ranks)
    return encode_message(message) + b"\n"


def encode_steps(
    found: Members,
    strip: StepStrip,
    cluster_id: str,
    job_id: str,
    at: float,
    after: int | None,
) -> tuple[int, bytes]:
    """Encode the steps of a job after one, and some before it, or all; return the last, too."""
    shown = [each for each in found if each[0] >= 0][:MAX_RANKS]
    members = np.array([index for _, _, index in shown], np.int64)
    first = None if after is None else after - REPEATED
    steps, values = strip.percentages(members, first)
    if not steps:
        return (0 if after is None else after), b""
    message = LiveSteps(
        cluster_id=cluster_id,
        job_id=job_id,
        at=at,
        whole=after is None,
        of=len(found),
        ranks=[rank for rank, _, _ in shown],
        steps=steps,
        values=values,
    )
    return steps[-1], encode_message(message) + b"\n"


def list_ranks(cluster: "ClusterVerdicts", found: Members) -> list[LiveRank]:
    """Return every rank of a job, or node where ranks are not known."""
    registry = cluster.engine.registry
    if not found:
        return []
    rows, at = registry.rows, np.array([index for _, _, index in found])
    last = (rows.frames[at][:, None] - np.arange(1, RECENT + 1)) % FRAMES
    own_ms = nan_median(rows.own_s[at[:, None], last], axis=1) * 1e3
    is_judged = rows.baseline_samples[at] > 0
    effect, awaited = recent_effect(rows, at), advance_effect(rows, at)
    excess = np.where(np.isfinite(effect), np.expm1(effect), np.nan)
    ranks = []
    for place, (rank, node, index) in enumerate(found):
        lateness_s = cluster.lateness_s.get(index)
        state = STATES[int(rows.state[index])]
        ranks.append(
            LiveRank(
                None if rank < 0 else rank,
                node,
                registry.members[index].role,
                LEARNING if not is_judged[place] and state == STATES[0] else state,
                _known(own_ms[place], 3),
                _known(excess[place], 4),
                None if lateness_s is None else round(lateness_s * 1e3, 3),
                _known(awaited[place], 4),
            )
        )
    return ranks


def _known(value: float, digits: int) -> float | None:
    """Return a rounded number, or None for one that is not known."""
    return round(float(value), digits) if math.isfinite(value) else None
