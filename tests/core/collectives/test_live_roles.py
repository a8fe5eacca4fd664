"""Roles of live ranks are found from their communicators."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.core.collectives.live_roles import STEPS, LiveRoles

MB = 1 << 20
Use = tuple[str, int, tuple[int, ...], int]  # operation, communicator, members, bytes
Send = tuple[int, int, int]  # communicator, from, to


def record(
    op: str, comm: int, members: tuple[int, ...], rank: int, size: int, step: int
) -> CollectiveRecord:
    return CollectiveRecord(
        job="j", node="n", global_rank=rank, comm=comm, seq=step, op=op, rank=members.index(rank),
        nranks=len(members), peer=None, datatype="bfloat16", reduce_op=None, size_bytes=size,
        start_ns=0, end_ns=1, gpu_duration_ns=1, stream=None, source=CollectiveSource.PLUGIN,
        step=step, place=0,
    )  # fmt: skip


def found(world: int, uses: list[Use], sends: list[Send] = [], wanted: int = 0) -> list[str] | None:  # noqa: B006
    """The roles of ranks 0 … that use these communicators in every step; 99 has everybody."""
    roles = LiveRoles()
    feed(roles, range(world), world, uses, sends)
    answer = roles.find({rank: rank for rank in range(world)}, wanted or world)
    return None if answer is None else [answer[rank] for rank in range(world)]


def feed(
    roles: LiveRoles, ranks: Iterable[int], world: int, uses: list[Use], sends: list[Send]
) -> None:
    everybody = tuple(range(world))
    for rank, step in product(ranks, range(STEPS)):
        rows = [
            record(op, comm, members, rank, size + step * (op == "AllToAll"), step)
            for op, comm, members, size in uses
            if rank in members
        ]
        for comm, source, target in sends:
            if rank in (source, target):
                op, peer = ("Send", target) if rank == source else ("Recv", source)
                row = record(op, comm, everybody, rank, MB, step)
                rows.append(replace(row, peer=peer, seq=None))
        roles.take(rank, rows)


def groups(
    comm: int, members: list[tuple[int, ...]], op: str = "AllReduce", size: int = MB
) -> list[Use]:
    return [(op, comm + at, each, size) for at, each in enumerate(members)]


def both_ways(*pairs: tuple[int, int]) -> list[Send]:
    return [(99, *edge) for one, other in pairs for edge in ((one, other), (other, one))]


def test_all_ranks_of_a_data_parallel_job_have_one_role() -> None:
    """F067: and tensor groups beside data groups do not change that."""
    assert found(4, groups(1, [(0, 1, 2, 3)])) == [""] * 4
    assert found(4, [*groups(1, [(0, 1), (2, 3)]), *groups(5, [(0, 2), (1, 3)])]) == [""] * 4


def test_stages_of_a_pipeline_are_roles_and_their_replicas_share_them() -> None:
    sends = both_ways((0, 2), (2, 4), (1, 3), (3, 5))
    uses = groups(1, [(0, 1), (2, 3), (4, 5)])
    assert found(6, uses, sends) == ["stage0", "stage0", "stage1", "stage1", "stage2", "stage2"]


def test_interleaved_stages_that_send_round_a_circle_are_roles() -> None:
    sends = both_ways((0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1))
    uses = groups(1, [(0, 1), (2, 3), (4, 5)])
    assert found(6, uses, sends) == ["stage0", "stage0", "stage1", "stage1", "stage2", "stage2"]


def test_tensor_groups_inside_stages_belong_to_them() -> None:
    tensor = groups(1, [(0, 1), (2, 3), (4, 5), (6, 7)])
    data = groups(9, [(0, 4), (1, 5), (2, 6), (3, 7)])
    sends = both_ways((0, 2), (1, 3), (4, 6), (5, 7))
    roles = found(8, [*tensor, *data], sends)
    assert roles == ["stage0", "stage0", "stage1", "stage1"] * 2


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_exchanges_between_experts_make_no_stages(ranks: int) -> None:
    """An all-to-all is made of sends from everybody to everybody."""
    sends = [(99, one, other) for one, other in product(range(ranks), repeat=2) if one != other]
    assert found(ranks, groups(1, [tuple(range(ranks))]), sends) == [""] * ranks


def test_an_exchange_between_two_experts_is_told_by_what_they_send_to_themselves() -> None:
    sends = [(99, one, other) for one, other in product(range(2), repeat=2)]
    assert found(2, groups(1, [(0, 1)]), sends) == [""] * 2
    assert found(2, groups(1, [(0,), (1,)]), both_ways((0, 1))) == ["stage0", "stage1"]


def test_a_ring_that_passes_blocks_on_makes_no_stages() -> None:
    sends = [(99, rank, (rank + 1) % 4) for rank in range(4)]
    assert found(4, groups(1, [(0, 1, 2, 3)]), sends) == [""] * 4


def test_sizes_that_change_with_the_data_make_no_roles() -> None:
    uses = [*groups(1, [(0, 1)], "AllToAll", MB), *groups(2, [(2, 3)], "AllToAll", 2 * MB)]
    assert found(4, [*uses, *groups(7, [(0, 1, 2, 3)])]) == [""] * 4


def test_ranks_with_other_work_have_another_role() -> None:
    assert found(4, [*groups(1, [(0, 1)]), *groups(2, [(2, 3)], size=5 * MB)]) == [
        "group0",
        "group0",
        "group1",
        "group1",
    ]


def test_nothing_is_said_before_all_ranks_are_known() -> None:
    assert found(4, groups(1, [(0, 1, 2, 3)]), wanted=8) is None


def test_roles_keep_their_names_when_further_ranks_report() -> None:
    """Who sends to a rank that is not known yet is in no stage with others because of that."""
    sends, uses = both_ways((0, 2), (2, 4), (1, 3), (3, 5)), groups(1, [(0, 1), (2, 3), (4, 5)])
    roles = LiveRoles()
    feed(roles, (2, 4), 6, uses, sends)
    assert roles.find({2: 2, 4: 4}, 0) == {2: "stage0", 4: "stage1"}
    feed(roles, (0, 1, 3, 5), 6, uses, sends)
    assert roles.find({rank: rank for rank in range(6)}, 6) == {
        0: "stage2", 1: "stage2", 2: "stage0", 3: "stage0", 4: "stage1", 5: "stage1",
    }  # fmt: skip
    apart = LiveRoles()
    feed(apart, (0, 4), 6, uses, sends)
    assert apart.find({0: 0, 4: 4}, 0) == {0: "stage0", 4: "stage1"}


def test_roles_are_found_again_when_communicators_change() -> None:
    roles, ranks = LiveRoles(), {0: 0, 1: 1}
    for rank, step in product(ranks, range(STEPS)):
        roles.take(rank, [record("AllReduce", 1, (0, 1), rank, MB, step)])
    assert roles.find(ranks, 2) == {0: "", 1: ""}
    assert roles.find(ranks, 2) is None  # nothing is new
    for rank, step in product(ranks, range(STEPS)):
        roles.take(rank, [record("AllReduce", 2 + rank, (rank,), rank, (rank + 1) * MB, step)])
    assert roles.find(ranks, 2) == {0: "group0", 1: "group1"}
    roles.forget(1)
    assert roles.find({0: 0}, 1) == {0: ""}
