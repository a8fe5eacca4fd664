"""Where a slow link is: what all slow transfers have in common, and no fast one.

A transfer is slow if one of its links is. A link between two ranks makes every communicator slow
that both belong to; the network card of a rank or a node makes all slow that leave it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

Ranks = frozenset[int]
MAX_PAIRS: Final = 4096  # pairs of one communicator that are tried
MAX_LISTED: Final = 8
LINK_NEXT_STEP: Final = (
    "read NIC and switch counters at both ends of this link; check cable and transceiver"
)


@dataclass(frozen=True, slots=True)
class LinkPlace:
    """`text` names the link; `ranks` are its ends, and `node` the node whose card is slow.

    Where it may be one of several links, `among` has the ranks that they are between.
    """

    text: str
    ranks: tuple[int, ...]
    node: str | None = None
    among: tuple[int, ...] = ()

    def touches(self, node: str, ranks: Collection[int | None]) -> bool:
        """Return whether a node, given with its ranks, may be an end of the link."""
        if self.node is not None:
            return self.node == node
        return not set(self.ranks or self.among).isdisjoint(ranks)


def locate_link(
    slow: Collection[Ranks], fast: Collection[Ranks], nodes: Mapping[int, str | None]
) -> LinkPlace | None:
    """Return the link that explains which communicators are slow; None without slow ones.

    Each communicator is given by its ranks, and `nodes` has the node of a rank where it is known.
    """
    if not slow:
        return None
    node = _slow_node(slow, fast, nodes)
    pairs = _slow_pairs(slow, fast)
    if len(pairs) == 1:
        one, other = pairs[0]
        return LinkPlace(f"rank {one} ↔ rank {other}", (one, other))
    if node is not None:
        ranks = tuple(sorted(rank for rank, where in nodes.items() if where == node))
        return LinkPlace(f"node {node}'s NIC", ranks, node)
    single = _slow_ranks(slow, fast)
    if len(single) == 1:
        return LinkPlace(f"the links of rank {single[0]}", (single[0],), nodes.get(single[0]))
    involved = sorted(frozenset.intersection(*slow) or frozenset.union(*slow))
    shown = ", ".join(str(rank) for rank in involved[:MAX_LISTED])
    more = " …" if len(involved) > MAX_LISTED else ""
    return LinkPlace(f"one of the links among ranks {shown}{more}", (), among=tuple(involved))


def _slow_pairs(slow: Collection[Ranks], fast: Collection[Ranks]) -> list[tuple[int, int]]:
    """Return the pairs that all slow communicators hold and no fast one."""
    common = sorted(frozenset.intersection(*slow))
    if len(common) * (len(common) - 1) // 2 > MAX_PAIRS:
        return []
    return [
        pair for pair in combinations(common, 2) if not any(set(pair) <= group for group in fast)
    ]


def _slow_ranks(slow: Collection[Ranks], fast: Collection[Ranks]) -> list[int]:
    """Return the ranks in all slow communicators; those in no fast one, if there are such."""
    common = frozenset.intersection(*slow)
    alone = common - (frozenset.union(*fast) if fast else frozenset())
    return sorted(alone or common)


def _slow_node(
    slow: Collection[Ranks], fast: Collection[Ranks], nodes: Mapping[int, str | None]
) -> str | None:
    """Return the only node that all slow communicators leave, and no fast one does."""

    def left_by(group: Ranks) -> set[str]:
        names = {nodes.get(rank) for rank in group}
        return {name for name in names if name is not None} if len(names) > 1 else set()

    common = set.intersection(*(left_by(group) for group in slow))
    common -= {name for group in fast for name in left_by(group)}
    involved = [rank for group in slow for rank in group]
    several = [name for name in common if len({r for r in involved if nodes.get(r) == name}) > 1]
    return several[0] if len(several) == 1 else None
