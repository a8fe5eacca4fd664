"""Own times of ranks that the verdict engine knows, as columns from the push to the engine.

`take` does what `VerdictService.take` and `CauseBook.take` do with the same push, or nothing. Every
push that it does not take is decoded in full and taken by those two.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ingero.contract import names
from ingero.contract.measurements.fields import source_or_none
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.measurements.own_time_columns import POINT_WORDS, OwnTimeColumns
from ingero.contract.measurements.ranks import Measured
from ingero.contract.otlp.values import Plain
from ingero.fleet.intake.known_reports import MAX_RESOURCE_BYTES

if TYPE_CHECKING:
    from ingero.core.verdict.members import Member, MemberRegistry
    from ingero.fleet.cluster_verdicts import ClusterVerdicts
    from ingero.fleet.verdicts import VerdictService

MAX_RANKS = 1 << 18  # of all clusters
_POINT_BYTES = 8 * POINT_WORDS


@dataclass(frozen=True, slots=True)
class KnownRank:
    """A rank as it was registered last, and where else its own times are noted."""

    index: int  # of its row
    member: "Member"
    key: tuple[str, str | None, int | None]  # node, job, rank
    cause_key: tuple[str, str, str | None, int | None]
    states_role: bool
    world_size: int | None
    source: bytes


@dataclass(slots=True)
class KnownPush:
    """The ranks of one node's last push, as long as nothing about any rank changes."""

    resources: list[bytes]
    sources: list[bytes]
    counts: list[int]
    changes: int  # of the engine's members, when the ranks were looked up
    ranks: list[KnownRank]
    rows: NDArray[np.intp]  # of the ranks
    indexes: list[int]  # the same
    members: bytes  # the row of each own time
    cause_keys: list[tuple[str, str, str | None, int | None]]  # of the ranks
    # In between, the engine need not be asked about the ranks again.
    fresh_from_s: float = math.inf
    fresh_until_s: float = -math.inf

    def is_same(self, columns: OwnTimeColumns, registry: "MemberRegistry") -> bool:
        """Whether another push is one of the same ranks, with as many own times each."""
        first = self.ranks[0]
        return (
            self.changes == registry.changes
            and first.index < len(registry.members)
            and registry.members[first.index] is first.member  # not those of another engine
            and self.resources == columns.resources
            and self.sources == columns.sources
            and self.counts == columns.counts
        )


class KnownRanks:
    """The ranks of all clusters, by cluster and the octets of their resource."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[bytes, KnownRank]] = {}
        self._size = 0
        self._pushes: dict[tuple[str, bytes], KnownPush] = {}  # by cluster and first resource

    def take(
        self, verdicts: "VerdictService", columns: OwnTimeColumns, cluster: str, now_s: float
    ) -> bool:
        """Take a push of own times; False where it changed nothing and must be decoded."""
        found = verdicts.clusters.get(cluster)
        if found is None:
            return False
        push = self._pushes.get((cluster, columns.resources[0]))
        # Roles may change without a change of members, once there are collectives.
        if found.jobs or push is None or not push.is_same(columns, found.engine.registry):
            push = self._look_up(found, columns, cluster)
        if push is None:
            return False
        if not push.fresh_from_s <= now_s < push.fresh_until_s:
            push.fresh_from_s = now_s
            push.fresh_until_s = found.engine.refresh(push.rows, now_s)
            if push.fresh_until_s < now_s:
                return False
        found.last_push_s = now_s
        verdicts.counters.own_times += len(columns.points) // _POINT_BYTES
        found.self_timed.update(push.indexes)
        found.own_times.add_encoded(push.members, columns.points, now_s)
        if found.jobs:
            for rank in push.ranks:
                if rank.world_size is not None:
                    found.note_world(rank.member.job, rank.world_size)
        verdicts.causes.note_steps(push.cause_keys, columns.last_span_ms)
        return True

    def _look_up(
        self, found: "ClusterVerdicts", columns: OwnTimeColumns, cluster: str
    ) -> KnownPush | None:
        """Return the ranks of a push, or None when registering one would change anything."""
        known, registry = self._ranks.get(cluster, {}), found.engine.registry
        ranks = []
        for resource, source in zip(columns.resources, columns.sources, strict=True):
            rank = known.get(resource)
            if (
                rank is None
                or rank.source != source
                or found.members.get(rank.key) != rank.index  # freed, or given to another one
                or registry.members[rank.index] is not rank.member
                or not (rank.states_role or found.role_of(rank.key) == rank.member.role)
            ):
                return None
            ranks.append(rank)
        rows = np.array([rank.index for rank in ranks])
        push = self._pushes[cluster, columns.resources[0]] = KnownPush(
            columns.resources,
            columns.sources,
            columns.counts,
            registry.changes,
            ranks,
            rows,
            rows.tolist(),
            np.repeat(rows, columns.counts).astype(np.int64).tobytes(),
            [rank.cause_key for rank in ranks],
        )
        return push

    def learn(self, verdicts: "VerdictService", columns: OwnTimeColumns, cluster: str) -> None:
        """Remember the ranks of a push that was taken in full."""
        found = verdicts.clusters.get(cluster)
        if found is None:
            return
        if self._size + len(columns.resources) > MAX_RANKS:
            self._ranks.clear()
            self._pushes.clear()
            self._size = 0
        known = self._ranks.setdefault(cluster, {})
        for place, resource in enumerate(columns.resources):
            if len(resource) <= MAX_RESOURCE_BYTES:
                source = columns.sources[place]
                rank = _rank(verdicts, found, cluster, columns.attributes(place), source)
                if rank is not None:
                    self._size += resource not in known
                    known[resource] = rank


def _rank(
    verdicts: "VerdictService",
    found: "ClusterVerdicts",
    cluster: str,
    resource: dict[str, Plain],
    source: bytes,
) -> KnownRank | None:
    """Return the rank of a resource, or None where it was refused or is registered otherwise."""
    own = OwnTime(step=None, own_ms=0.0, source=source_or_none(source.decode()))
    member = verdicts.member_of(found, cluster, Measured(resource, (own,), (), 0))
    if member is None or isinstance(resource.get(names.RANK), bool):
        return None
    key = (member.node, member.job, member.rank)
    index = found.members.get(key)
    if index is None or found.engine.registry.members[index] != member:
        return None
    rank, world_size = resource.get(names.RANK), resource.get(names.WORLD_SIZE)
    return KnownRank(
        index=index,
        member=found.engine.registry.members[index],
        key=key,
        cause_key=(cluster, member.node, member.job, rank if isinstance(rank, int) else None),
        states_role=bool(resource.get(names.ROLE)),
        world_size=world_size if key[2] is not None and isinstance(world_size, int) else None,
        source=source,
    )
