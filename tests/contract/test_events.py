"""Sources and operations keep their numbers and are found again by name."""

import pytest

from ingero.contract.events import OP_TEXT, SUMMED_ARG0_OPS, Source, find_op, op_name, source_name


def test_every_op_is_found_by_its_name_in_any_case() -> None:
    for key, (name, _) in OP_TEXT.items():
        assert find_op(name) == find_op(name.upper()) == key


@pytest.mark.parametrize(
    ("source", "op", "name"),
    [
        (1, 5, "cudaStreamSync"),
        (3, 1, "sched_switch"),
        (4, 1, "cuLaunchKernel"),
        (1, 99, "unknown(99)"),
        (3, 99, "host_op(99)"),
        (4, 99, "driver_op(99)"),
        (5, 99, "io_op(99)"),
        (6, 99, "tcp_op(99)"),
        (7, 99, "net_op(99)"),
        (8, 99, "graph_op(99)"),
        (9, 99, "nccl_op_99"),
        (77, 1, "unknown(1)"),
    ],
)
def test_op_names(source: int, op: int, name: str) -> None:
    assert op_name(source, op) == name


def test_spellings_of_the_driver_allocators_are_one_op() -> None:
    assert find_op("cuMemAllocV2") == find_op("cuMemAlloc") == (4, 5)
    assert find_op("cuMemAllocManagedV2") == (4, 6)
    assert find_op("no such call") is None


def test_source_names() -> None:
    assert [source_name(number) for number in (1, 2, 3, 4, 8, 50)] == [
        "cuda", "unknown(2)", "host", "driver", "cuda_graph", "unknown(50)",
    ]  # fmt: skip


def test_pointers_are_never_summed() -> None:
    pointer_valued = {(1, 2), (1, 3), (1, 5), (4, 1), (4, 7), (4, 10)}
    assert not SUMMED_ARG0_OPS & pointer_valued
    assert {key[0] for key in SUMMED_ARG0_OPS} <= {
        Source.CUDA,
        Source.DRIVER,
        Source.HOST,
        Source.IO,
    }
