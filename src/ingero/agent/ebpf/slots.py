"""Slots: one per traced function and process, in an array shared with the kernel.

The probes count in them; the agent reads the counts and writes modes and limits in place.
"""

import contextlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.layout import SLOT
from ingero.agent.ebpf.loader.maps import KernelMap

NEVER_NS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Recording:
    """Which calls become records: slower than `slow_ns`, every `sample_every`-th (0: none), failed.

    Slow and failed ones carry a stack where stacks are enabled.
    """

    slow_ns: int = NEVER_NS
    sample_every: int = 0

    @classmethod
    def everything(cls, slow_ns: int = NEVER_NS) -> "Recording":
        return cls(slow_ns=slow_ns, sample_every=1)


class SlotTable:
    """Owner of the array, which allocates and frees slots. Slot 0 is never used."""

    def __init__(self, kernel_map: KernelMap) -> None:
        self._memory = kernel_map.map_memory()
        count = kernel_map.max_entries
        self.rows: NDArray[np.void] = np.frombuffer(self._memory, SLOT, count)
        self._free = list(range(count - 1, 0, -1))
        self.refused = 0

    def take(self, pid: int, recording: Recording) -> int | None:
        """Return a new slot for one function of one process; None (counted) when all are in use."""
        if not self._free:
            self.refused += 1
            return None
        return self._prepare(self._free.pop(), pid, recording)

    def take_run(self, pid: int, recordings: list[Recording]) -> int | None:
        """Take adjacent slots for the kernel events of one process; return the first."""
        free = sorted(self._free)
        need = len(recordings)
        for index in range(len(free) - need + 1):
            if free[index + need - 1] - free[index] == need - 1:
                first = free[index]
                taken = set(range(first, first + need))
                self._free = [slot for slot in self._free if slot not in taken]
                for offset, recording in enumerate(recordings):
                    self._prepare(first + offset, pid, recording)
                return first
        self.refused += 1
        return None

    def _prepare(self, slot: int, pid: int, recording: Recording) -> int:
        self.rows[slot] = np.zeros((), SLOT)
        self.rows[slot]["slow_ns"] = recording.slow_ns
        self.rows[slot]["sample_every"] = recording.sample_every
        self.rows[slot]["tgid"] = pid  # written last: from here on the probes count
        return slot

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def silence(self, slots: list[int]) -> None:
        """Stop counting in these slots; the counts stay until the slots are reused."""
        self.rows["tgid"][slots] = 0

    def give_back(self, slots: list[int]) -> None:
        """Free slots; only after every link that uses them is closed."""
        self.silence(slots)
        self._free += slots

    def close(self) -> None:
        self.rows = np.empty(0, SLOT)
        # a row is still referenced: the memory is freed with the last reference
        with contextlib.suppress(BufferError):
            self._memory.close()
