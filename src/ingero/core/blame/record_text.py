"""Evidence, notes and open questions of an answer about recorded collectives."""

from collections.abc import Sequence

import numpy as np

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Culprit
from ingero.core.blame.recorded.blamed import Blamed
from ingero.core.blame.recorded.uneven import LastArrivers
from ingero.core.blame.recorded_job import RecordedJob, is_connected, unexplained_wait
from ingero.core.blame.suspects import Suspect
from ingero.core.blame.transfer import SlowLink
from ingero.core.counted import counted
from ingero.core.durations import readable_seconds
from ingero.core.robust import nan_median

LOSS_FLOOR = 0.03  # of a step: a smaller loss is not a cause
DATA_FLOOR = 0.05  # of a step lost to whoever is slowest in it, to call uneven data the cause
MOST_LISTED = 16


def describe_evidence(
    job: RecordedJob, blamed: Sequence[Blamed], links: Sequence[SlowLink], stages_s: float
) -> list[str]:
    """Return what the records show, as one sentence each."""
    lines = [line for each in blamed for line in _blamed_lines(job, each)]
    lines += _other_ranks(job, {each.worker for each in blamed})
    lines += [link.describe(job.collectives.recorders) for link in links[:2]]
    if stages_s > LOSS_FLOOR * job.step_s:
        lines.append(
            f"the slowest role takes {readable_seconds(stages_s)} more than the mean of the roles"
        )
    if not blamed and job.last.added >= DATA_FLOOR:
        lines.append(_last_line(job.last, job.step_s, job.exact_ends))
    return lines


def _last_line(last: LastArrivers, step_s: float, exact_ends: bool) -> str:
    by_host = f"; {last.launched:.0%} of that is launched late by the host" if exact_ends else ""
    return (
        f"whoever comes last adds {readable_seconds(last.added * step_s)} a step "
        f"({last.added:.1%}){by_host}"
    )


def _blamed_lines(job: RecordedJob, each: Blamed) -> list[str]:
    suspect, name = each.spell.suspect, job.name(each.worker)
    inside = each.spell.columns(len(job.measured.workers.steps))
    own_s = np.nanmedian(job.measured.workers.own_s[each.worker, inside])
    lines = []
    if each.loss.calm_s is not None:
        lines.append(
            f"{name}: a step takes {readable_seconds(each.loss.slow_s)} while it is slow, and "
            f"{readable_seconds(each.loss.calm_s)} in calm steps of this recording"
        )
    if job.lateness is not None:
        lines.append(
            f"{name}: its GPU starts {readable_seconds(each.gpu_s)} after the others where that "
            f"matters most, its host enqueues {readable_seconds(each.host_s)} after theirs; "
            f"it adds {readable_seconds(each.charge_s)} a step"
        )
    else:
        lines.append(
            f"{name}: own time {readable_seconds(own_s)} a step, "
            f"{suspect.excess:+.1%} ±{suspect.error:.1%} over {suspect.peers} peers"
        )
    inside_s = nan_median(job.measured.waiting_s[:, inside], 1)
    others_s = np.nanmedian(np.delete(inside_s, each.worker))
    lines.append(
        f"time inside collectives a step: {readable_seconds(inside_s[each.worker])} here, "
        f"{readable_seconds(others_s)} at the others, who wait"
    )
    return lines


def _other_ranks(job: RecordedJob, named: set[int]) -> list[str]:
    excess = job.findings.excess
    others = [w for w in range(len(excess)) if w not in named and np.isfinite(excess[w])]
    dropped = {s.worker for s in job.findings.suspects}
    also = [job.name(w) for w in others if w in dropped]
    if also:
        return [f"{', '.join(also)} also over its peers, but fixing that saves almost nothing now"]
    if others:
        most = float(np.max(np.abs(excess[others])))
        what = "own times" if job.lateness is None else "lateness"
        near = "less than 0.1%" if most < 0.0005 else f"at most {most:.1%}"
        count = counted(len(others), "rank")
        of_whom = f"the other {count.removeprefix('1 ')}" if named else f"all {count}"
        return [f"{what} of {of_whom}: {near} from the median of their role"]
    return []


def describe_doubt(
    job: RecordedJob,
    suspects: Sequence[Suspect],
    culprits: Sequence[Culprit],
    links: Sequence[SlowLink],
) -> str | None:
    """Return why the answer is not certain and what would settle it; None when it is certain."""
    findings = job.findings
    if findings.split:
        names = ", ".join(job.name(w) for w in findings.split)
        return (
            f"too many ranks of one role are slow together to blame single ones ({names}): "
            "compare GPU models"
        )
    if links and not culprits:
        ranks = ", ".join(str(job.collectives.recorders[m].global_rank) for m in links[0].members)
        return (
            f"the slow link is one of ranks {ranks}: "
            "NIC counters or a pairwise transfer test would show which"
        )
    if findings.rivals and suspects:
        names = " and ".join(job.name(w) for w in (suspects[-1].worker, *findings.rivals))
        return (
            f"{names} lie within one error bar of each other: "
            "more steps, or their GPU clocks, would separate them"
        )
    if culprits:
        if culprits[0].cause is not CauseClass.UNKNOWN:
            return None
        return (
            "the rank is clear, its class is not: "
            "only the NCCL plugin records enqueue and GPU start on one clock"
        )
    if not links and unexplained_wait(job) >= LOSS_FLOOR:
        return (
            "all ranks wait, and ranks without records cannot be compared: "
            "one of those may be the slow one"
        )
    if not is_connected(job):
        return (
            "some ranks meet in no collective of a step, so that who waits for whom is not known: "
            "sends and receives may be missing, which the NCCL Inspector does not record"
        )
    if np.bincount(job.measured.workers.cohort).max() == 1:
        return (
            "every role has only one rank: a slow stage may be caused by the partition or by its "
            "rank; a second replica would show which"
        )
    return None


def describe_notes(job: RecordedJob, repeated: int) -> list[str]:
    """Return what a reader must know about the records; `repeated` ones were dropped."""
    missing, notes = job.missing_ranks(), []
    if missing:
        shown = ", ".join(map(str, missing[:MOST_LISTED]))
        present = job.world - len(missing)
        notes.append(f"partial set: {present} of {job.world} ranks; missing {shown}")
    if repeated:
        notes.append(f"{repeated} records are repeated, in one file or several, and count once")
    return notes
