"""F091: fragmentation from the blocks that a process holds."""

from hypothesis import given
from hypothesis.strategies import integers, lists, tuples

from ingero.core.recording.gpu_memory import ARENA_GAP_BYTES, HeldMemory, add_up, measure_memory

MIB = 1 << 20


def test_every_second_block_freed_leaves_no_large_range() -> None:
    """Half of the memory is free, and no more than one block of it is in one piece."""
    memory = measure_memory([(number * MIB, MIB) for number in range(1, 128, 2)])
    assert memory == HeldMemory(64, 64 * MIB, 127 * MIB, MIB)
    assert memory.fragmentation == 62 / 127


def test_one_large_range_is_not_fragmented() -> None:
    assert measure_memory([(0, MIB), (100 * MIB, MIB)]).fragmentation == 0.0
    assert measure_memory([(0, MIB), (MIB, MIB)]).fragmentation == 0.0
    assert measure_memory([]) == HeldMemory() and HeldMemory().fragmentation == 0.0


def test_arenas_are_kept_apart() -> None:
    far = ARENA_GAP_BYTES + MIB
    assert measure_memory([(0, MIB), (far, MIB)]) == HeldMemory(2, 2 * MIB, 2 * MIB, 0)


def test_a_node_is_the_sum_of_its_processes() -> None:
    one = HeldMemory(2, 10, 30, 5)
    assert add_up([one, one]) == HeldMemory(4, 20, 60, 10)
    assert add_up([one, one]).fragmentation == one.fragmentation == 0.5


@given(lists(tuples(integers(0, 1 << 47), integers(0, 1 << 40)), max_size=50))
def test_figures_are_in_order_whatever_was_seen(blocks: list[tuple[int, int]]) -> None:
    memory = measure_memory(blocks)
    assert memory == measure_memory(reversed(blocks))
    assert 0 <= memory.allocated <= memory.reserved
    assert memory.largest_free < ARENA_GAP_BYTES
    assert 0.0 <= memory.fragmentation <= 1.0
