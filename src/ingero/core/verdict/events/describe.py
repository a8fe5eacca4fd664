"""Verdicts about jobs and groups, in which no single node is to blame."""

import math
from typing import Final

import numpy as np

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.cost import loss_per_hour
from ingero.core.verdict.events import fleet_events
from ingero.core.verdict.events.groups import Group
from ingero.core.verdict.events.structural import Finding
from ingero.core.verdict.job_steps import find_calm, recent_steps
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.verdicts import short_hash
from ingero.core.verdict.what_if import job_usd

FLEET_CAUSE: Final = {
    fleet_events.SPLIT: CauseClass.STRUCTURAL,
    fleet_events.LINKS: CauseClass.NETWORK,
    fleet_events.STOPPED: CauseClass.HANG,
}
FLEET_NEXT_STEP: Final = {
    fleet_events.SPLIT: "label what differs (GPU model, role), so that each group has its own "
    "cohort",
    fleet_events.LINKS: "read NIC and switch counters; `ingero blame` on saved rings of the plugin "
    "names the communicator",
    fleet_events.STOPPED: "if it should run: `ingero blame --live` on its nodes reads their dumps "
    "and names the rank",
}
SHARED_NEXT_STEP: Final = "look for what they share: switch, storage, power, a code or data change"
STRUCTURAL_NEXT_STEP: Final = (
    "move that work to another time or rank, balance the shares, or accept the price"
)
MOVES_NEXT_STEP: Final = (
    "balance the work: routing of experts, lengths of sequences, sizes of batches"
)
RISING = 15  # samples: a smoothed level is high this much later than the steps are
WINDOW = 30  # samples that the steps of an event are measured on


def describe_fleet_event(
    registry: MemberRegistry,
    cohort: int,
    kind: int,
    moved: int,
    live: int,
    policy: VerdictPolicy,
    shared: str = "",
) -> Verdict:
    """Return one verdict for a whole cohort; without a node, unless that is what they share."""
    cohorts, key = registry.cohorts, registry.cohort_keys[cohort]
    since = float(cohorts.event_since_s[cohort])
    is_unsure = kind in (fleet_events.SPLIT, fleet_events.STOPPED)
    is_slower = kind == fleet_events.SLOWER
    rise = fleet_events.rise_of(cohorts, cohort)
    loss, is_measured = _loss_since_high(registry, cohort) if is_slower else (None, False)
    if is_slower and loss is None:
        loss = rise / (1 + rise)
    return Verdict(
        episode=short_hash((*key, f"{since:.3f}")),
        state=VerdictState.NOT_SURE if is_unsure else VerdictState.FLEET_EVENT,
        node=_node_of(shared),
        job=key[1] or None,
        cause_class=FLEET_CAUSE.get(kind, CauseClass.FLEET),
        loss=None if loss is None else round(loss, 4),
        at_most=loss is not None and not is_measured,
        shared=shared,
        excess=round(rise, 4) if is_slower else None,
        since=round(since, 3),
        peers=live,
        usd_per_hour=None if loss is None else _price(registry, cohort, loss, policy),
        evidence=fleet_events.describe(cohorts, cohort, kind, moved, live, shared),
        next_step=_look_at(shared) if shared else FLEET_NEXT_STEP.get(kind, SHARED_NEXT_STEP),
    )


def _node_of(shared: str) -> str:
    """Return the node that an event is about, or nothing."""
    kind, _, value = shared.partition(" ")
    return value if kind == "node" else ""


def _look_at(shared: str) -> str:
    return f"look at what {shared} has in common: power, cooling, switch, storage"


def describe_group(registry: MemberRegistry, group: Group, policy: VerdictPolicy) -> Verdict:
    """Return one verdict for ranks that slowed down together, with what they share."""
    rows, first = registry.rows, group.members[0]
    member, cohort = registry.members[first], int(rows.cohort[first])
    count = len(group.members)
    excess = float(np.expm1(np.nanmedian(rows.recent_excess[group.members])))
    since = int(rows.rose_at[group.members].min())
    loss, is_measured = _loss_of_cohort(registry, cohort, since)
    if loss is None:
        loss = max(excess, 0.0) / (1 + max(excess, 0.0))
    ranks = ", ".join(str(registry.members[index].rank) for index in group.members[:8])
    more = f" and {count - 8} more" if count > 8 else ""
    return Verdict(
        episode=short_hash((*member.cohort, group.shared, f"{group.began_s:.3f}")),
        state=VerdictState.FLEET_EVENT,
        node=_node_of(group.shared),
        job=member.job,
        cause_class=CauseClass.STRUCTURAL if group.kind == "stage" else CauseClass.FLEET,
        loss=round(loss, 4),
        at_most=not is_measured,
        shared=group.shared,
        excess=round(excess, 4),
        since=round(group.began_s, 3),
        peers=group.of,
        usd_per_hour=_price(registry, cohort, loss, policy),
        evidence=f"{count} of {group.of} ranks of {group.shared} slowed down within 30 s by "
        f"{excess:.1%} of own time: ranks {ranks}{more}",
        next_step=_look_at(group.shared),
    )


def describe_moves(registry: MemberRegistry, members: list[int], since_s: float) -> Verdict:
    """Return one verdict for slowness that moves from rank to rank."""
    named = [registry.members[index] for index in members]
    ranks = ", ".join(str(member.rank) for member in named)
    return Verdict(
        episode=short_hash((*named[-1].key[:2], "moves", f"{since_s:.3f}")),
        state=VerdictState.FLEET_EVENT,
        node="",
        job=named[-1].job,
        cause_class=CauseClass.DATA_IMBALANCE,
        since=round(since_s, 3),
        peers=len(set(members)),
        evidence=f"moves with the work: ranks {ranks} were slow one after the other, each until "
        "the next began",
        next_step=MOVES_NEXT_STEP,
    )


def describe_structural(
    registry: MemberRegistry, finding: Finding, since_s: float, policy: VerdictPolicy
) -> Verdict:
    """Return one verdict for work or hardware that slows the job by its nature."""
    key = registry.cohort_keys[finding.cohort]
    return Verdict(
        episode=short_hash((*key, *(str(part) for part in finding.key), f"{since_s:.3f}")),
        state=VerdictState.FLEET_EVENT,
        node="",
        job=key[1] or None,
        cause_class=CauseClass.STRUCTURAL,
        loss=round(finding.loss, 4),
        at_most=True,
        shared=finding.shared,
        since=round(since_s, 3),
        period=finding.period,
        usd_per_hour=_price(registry, finding.cohort, finding.loss, policy),
        evidence=finding.text,
        next_step=STRUCTURAL_NEXT_STEP,
    )


def _loss_since_high(registry: MemberRegistry, cohort: int) -> tuple[float | None, bool]:
    """Return the loss since the own times of a cohort are high, and whether it is known."""
    cohorts = registry.cohorts
    lasting_s = float(cohorts.event_since_s[cohort] - cohorts.high_since_s[cohort])
    samples = int(np.nan_to_num(lasting_s) / cohorts.sample_s[cohort]) + RISING
    return _loss_of_cohort(registry, cohort, int(cohorts.step_samples[cohort]) - samples)


def _loss_of_cohort(registry: MemberRegistry, cohort: int, since: int) -> tuple[float | None, bool]:
    """Return what the steps of a cohort lost against its calm ones, and whether that is known."""
    cohorts = registry.cohorts
    calm = find_calm(cohorts, cohort, since)
    if calm is None:
        return None, False
    calm = calm.steadier()
    log_s = recent_steps(cohorts, cohort, since, WINDOW).like(calm)
    if not len(log_s):
        return None, False
    return max(1 - math.exp(calm.log_s - float(np.median(log_s))), 0.0), True


def _price(
    registry: MemberRegistry, cohort: int, loss: float, policy: VerdictPolicy
) -> float | None:
    members = np.flatnonzero(registry.rows.cohort[: registry.rows.size] == cohort)
    if not len(members):
        return None
    usd = job_usd(registry.rows, int(members[0]), policy)
    return None if math.isnan(usd) else round(loss_per_hour(loss, usd), 2)
