"""The live matcher: limits, evictions and finished groups."""

import numpy as np
from tests.support.collective_rows import collective

from ingero.core.collectives.live_matching import CollectiveMatcher
from ingero.core.collectives.matching import MatchPolicy


def test_f070_one_communicator_over_the_limit_evicts_the_least_recent() -> None:
    """F070."""
    matcher = CollectiveMatcher(MatchPolicy(max_comms=3))
    for comm in (1, 2, 3, 1, 4):
        matcher.add(collective([1.0] * 4, seq=comm, comm=comm).take(np.arange(2)), now_s=0.0)
    assert matcher.evicted_comms == 1
    assert set(matcher.close(now_s=10.0).collectives.comm.tolist()) == {1, 3, 4}


def test_groups_over_the_limit_are_closed_oldest_first_and_counted() -> None:
    matcher = CollectiveMatcher(MatchPolicy(max_groups=2))
    for seq in range(3):
        matcher.add(collective([1.0] * 4, seq=seq).take(np.arange(3)), now_s=seq * 0.1)
    assert matcher.close(now_s=0.5).collectives.seq.tolist() == [0, 0, 0]
    assert matcher.evicted_groups == 1
    assert len(matcher) == 6


def test_a_group_is_handed_out_when_complete_or_too_old_and_once() -> None:
    whole = collective([1.0] * 4, seq=1)
    matcher = CollectiveMatcher()
    matcher.add(whole.take(np.arange(3)), now_s=0.0)
    assert len(matcher.close(now_s=1.0).collectives) == 0
    matcher.add(whole.take(np.arange(3, 4)), now_s=1.0)
    assert sorted(matcher.close(now_s=1.0).collectives.rank.tolist()) == [0, 1, 2, 3]
    matcher.add(whole.take(np.arange(3)), now_s=2.0)
    assert len(matcher.close(now_s=5.0).collectives) == 3
    assert len(matcher) == 0
