"""The live matcher of one cluster: it holds records until their collective is complete."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ingero.core.collectives.columns import Collectives, Floats, concat
from ingero.core.collectives.matching import Groups, MatchPolicy, count_ranks, match_collectives


@dataclass(frozen=True, slots=True)
class Matched:
    """Records of finished collectives: all ranks reported, or the time to wait is over.

    `groups` are dense group codes. `awaited` are the records of collectives that are not finished;
    they have the same tables.
    """

    collectives: Collectives
    groups: Groups
    awaited: Collectives


class CollectiveMatcher:
    """Pending records of one cluster.

    Beyond the limits of the policy, the least recently used communicators and the oldest groups are
    evicted and counted.
    """

    def __init__(self, policy: MatchPolicy | None = None) -> None:
        self.policy = policy or MatchPolicy()
        self.evicted_comms = 0
        self.evicted_groups = 0
        self._parts: list[Collectives] = []
        self._arrived: list[Floats] = []
        self._last_seen: dict[int, None] = {}  # communicators, least recently used first

    def add(self, collectives: Collectives, now_s: float) -> None:
        """Add records; beyond the limit the least recently used communicators are evicted."""
        self._parts.append(collectives)
        self._arrived.append(np.full(len(collectives), now_s))
        for comm in np.unique(collectives.comm).tolist():
            self._last_seen.pop(comm, None)
            self._last_seen[comm] = None
        surplus = len(self._last_seen) - self.policy.max_comms
        if surplus > 0:
            self._drop_comms(
                [comm for comm, _ in zip(self._last_seen, range(surplus), strict=False)]
            )

    def close(self, now_s: float) -> Matched:
        """Return and remove every complete or expired group."""
        pending, arrived = self._pending()
        groups = match_collectives(pending, self.policy)
        size = int(groups.max(initial=-1)) + 1
        first = np.full(size, np.inf)
        np.minimum.at(first, groups, arrived)
        wanted = np.zeros(size, np.int32)
        np.maximum.at(wanted, groups, pending.nranks)
        over = (count_ranks(pending, groups, size) >= wanted) | (
            now_s - first > self.policy.max_age_s
        )
        surplus = int((~over).sum()) - self.policy.max_groups
        if surplus > 0:
            oldest = np.argsort(np.where(over, np.inf, first), kind="stable")[:surplus]
            over[oldest] = True
            self.evicted_groups += surplus
        done = over[groups]
        awaited = pending.take(~done)
        self._parts, self._arrived = [awaited], [arrived[~done]]
        codes = np.cumsum(over) - 1
        return Matched(pending.take(done), codes[groups[done]], awaited)

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def _pending(self) -> tuple[Collectives, Floats]:
        parts = [part for part in self._parts if len(part)]
        arrived = np.concatenate(self._arrived) if self._arrived else np.empty(0)
        return (parts[0] if len(parts) == 1 else concat(parts)), arrived

    def _drop_comms(self, comms: Iterable[int]) -> None:
        gone = list(comms)
        for comm in gone:
            del self._last_seen[comm]
        self.evicted_comms += len(gone)
        pending, arrived = self._pending()
        kept = ~np.isin(pending.comm, np.array(gone, np.uint64))
        self._parts, self._arrived = [pending.take(kept)], [arrived[kept]]
