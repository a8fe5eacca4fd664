"""How fragmented the GPU memory of a process is, from the blocks that it holds.

The probes see every allocation and every free, so the free ranges between blocks are known. This
is an estimate of what the driver can still give: an allocator inside the process, such as the one
of PyTorch, cuts the blocks further, and that is not seen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

# Blocks farther apart are in different arenas; the space between them was never reserved.
ARENA_GAP_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The memory of one or more processes, in bytes."""

    blocks: int = 0
    allocated: int = 0
    reserved: int = 0  # from the first to the last block of each arena
    largest_free: int = 0  # range between two blocks

    @property
    def fragmentation(self) -> float:
        """Share of the reserved memory that is free and cannot be used as one block."""
        if not self.reserved:
            return 0.0
        return max(self.reserved - self.allocated - self.largest_free, 0) / self.reserved


def measure_memory(blocks: Iterable[tuple[int, int]]) -> HeldMemory:
    """Return the figures of one process; a block is an address and a size."""
    count = allocated = reserved = largest = end = 0
    for address, size in sorted(blocks):
        count += 1
        allocated += size
        gap = address - end
        if count == 1 or gap >= ARENA_GAP_BYTES:
            reserved += size
        else:  # a block may overlap the one before, where a free was not seen
            largest = max(largest, gap)
            reserved += max(address + size - end, 0)
        end = max(end, address + size)
    return HeldMemory(count, min(allocated, reserved), reserved, largest)


def add_up(processes: Sequence[HeldMemory]) -> HeldMemory:
    """Return the figures of a node; the largest free range is that of the largest process."""
    return HeldMemory(
        sum(one.blocks for one in processes),
        sum(one.allocated for one in processes),
        sum(one.reserved for one in processes),
        sum(one.largest_free for one in processes),
    )
