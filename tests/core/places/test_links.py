"""Where a slow link is, by what slow transfers have in common."""

import pytest

from ingero.core.places.links import LinkPlace, locate_link

NODES: dict[int, str | None] = {rank: f"n{rank // 2}" for rank in range(8)}


def groups(*members: tuple[int, ...]) -> list[frozenset[int]]:
    return [frozenset(each) for each in members]


def test_two_ranks_that_are_slow_only_together_share_a_slow_link() -> None:
    found = locate_link(groups((3, 7)), groups((3, 1), (7, 5), (2, 6)), NODES)
    assert found == LinkPlace("rank 3 ↔ rank 7", (3, 7))


def test_a_pair_is_found_in_wide_communicators() -> None:
    slow, fast = groups((0, 2, 4), (0, 4, 6)), groups((0, 2, 6), (2, 4, 6))
    found = locate_link(slow, fast, {})
    assert found is not None and found.text == "rank 0 ↔ rank 4"


def test_a_rank_whose_communicators_are_all_slow_has_slow_links() -> None:
    slow, fast = groups((3, 1), (3, 5), (3, 7)), groups((1, 5), (5, 7), (1, 7))
    found = locate_link(slow, fast, {})
    assert found == LinkPlace("the links of rank 3", (3,))


def test_a_node_whose_communicators_are_slow_where_they_leave_it_has_a_slow_card() -> None:
    """Ranks 2 and 3 share node n1; what stays on the node is fast."""
    slow, fast = groups((2, 4), (3, 5), (2, 0)), groups((2, 3), (4, 6), (0, 6))
    assert locate_link(slow, fast, NODES) == LinkPlace("node n1's NIC", (2, 3), "n1")
    assert locate_link(slow, [*fast, frozenset({3, 7})], NODES) != LinkPlace(
        "node n1's NIC", (2, 3), "n1"
    )


def test_one_slow_communicator_of_many_leaves_the_link_open() -> None:
    found = locate_link(groups((0, 2, 4, 6)), groups((1, 3, 5, 7)), {})
    assert found == LinkPlace("one of the links among ranks 0, 2, 4, 6", (), among=(0, 2, 4, 6))


@pytest.mark.parametrize("fast", [[], groups((0, 1))])
def test_without_slow_communicators_there_is_no_link(fast: list[frozenset[int]]) -> None:
    assert locate_link([], fast, NODES) is None
