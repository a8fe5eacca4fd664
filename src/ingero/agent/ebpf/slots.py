"""Slots: one per traced function and process, in an array shared with the kernel.

The probes count into them; the agent reads counts and writes modes and thresholds in place.
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
    """Which calls become records: all slower than `slow_ns`, every `sample_every`-th (0: none), all that fail.

    Slow and failed ones carry a stack where stacks are wanted.
    """

    slow_ns: int = NEVER_NS
    sample_every: int = 0

    @classmethod
    def everything(cls, slow_ns: int = NEVER_NS) -> "Recording":
        return cls(slow_ns=slow_ns, sample_every=1)


class SlotTable:
    """Owner of the array: hands slots out and takes them back. Slot 0 is never used."""

    def __init__(self, kernel_map: KernelMap) -> None:
        self._memory = kernel_map.map_memory()
        count = kernel_map.max_entries
        self.rows: NDArray[np.void] = np.frombuffer(self._memory, SLOT, count)
        self._free = list(range(count - 1, 0, -1))
        self.refused = 0

    def take(self, pid: int, recording: Recording) -> int | None:
        """A fresh slot for one function of one process; None (counted) when all are in use."""
        if not self._free:
            self.refused += 1
            return None
        return self._prepare(self._free.pop(), pid, recording)

    def take_run(self, pid: int, recordings: list[Recording]) -> int | None:
        """Adjacent slots, for the kernel events of one process: the number of the first."""
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
        self.rows[slot]["tgid"] = pid  # last: from here on the probes may count
        return slot

    def silence(self, slots: list[int]) -> None:
        """Probes touch them no more; the counts stay until others take them."""
        self.rows["tgid"][slots] = 0

    def give_back(self, slots: list[int]) -> None:
        """Only after every link that uses them is closed."""
        self.silence(slots)
        self._free += slots

    def close(self) -> None:
        self.rows = np.empty(0, SLOT)
        with contextlib.suppress(
            BufferError
        ):  # somebody still looks at a row: the memory goes with the last of them
            self._memory.close()
