"""When links are slow: the stretch of steps in which transfers take longer than comparable ones."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.recorded.loss import Loss, measure_loss
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.suspects import Suspect
from ingero.core.blame.transfer import SlowLink, find_slow_links, measure_transfers
from ingero.core.collectives.columns import Collectives, Floats

BLOCKS = 8
MIN_STEPS = 30  # of a block
_NOBODY = Suspect(-1, 0.0, 0.0, 0.0, 0.0, 0.0, None, (), 0)


@dataclass(frozen=True, slots=True)
class LinkSpell:
    """Slow links with the columns from `begin` to `end` in which they are, and what that costs."""

    links: tuple[SlowLink, ...]
    begin: int
    end: int
    loss: Loss


def find_link_spell(
    collectives: Collectives, row_step: NDArray[np.intp], period_s: Floats, step_s: float
) -> LinkSpell | None:
    """Return the slow links and when they are slow; None where all links are alike."""
    steps = len(period_s)
    edges = np.linspace(0, steps, max(1, min(BLOCKS, steps // MIN_STEPS)) + 1).astype(int).tolist()
    blocks = list(pairwise(edges))
    transfers = measure_transfers(collectives, row_step)
    found = [find_slow_links(transfers, *block, step_s) for block in blocks]
    cost: dict[int, float] = {}
    for links in found:
        for link in links:
            cost[link.comm] = cost.get(link.comm, 0.0) + link.loss_s
    if not cost:
        return None
    worst = max(cost, key=lambda comm: cost[comm])
    first, last = _longest_run([any(link.comm == worst for link in links) for links in found])
    begin, end = blocks[first][0], blocks[last][1]
    links = find_slow_links(transfers, begin, end, step_s)
    if not links:
        return None
    spell = Spell(_NOBODY, begin, end)
    loss = measure_loss(period_s, np.ones(steps), spell, [spell], links_loss(links))
    return LinkSpell(links, begin, end, loss)


def links_loss(links: tuple[SlowLink, ...]) -> float:
    """Return the seconds lost per step: slow communicators with a common rank add up."""
    if not links:
        return 0.0
    has_common = bool(set.intersection(*(set(link.members) for link in links)))
    return sum(link.loss_s for link in links) if has_common else links[0].loss_s


def _longest_run(slow: list[bool]) -> tuple[int, int]:
    """Return the first and the last block of the longest run of slow ones."""
    best, begin = (0, -1), 0
    for at, is_slow in enumerate([*slow, False]):
        if is_slow:
            continue
        if at - begin > best[1] + 1 - best[0]:
            best = (begin, at - 1)
        begin = at + 1
    return best
