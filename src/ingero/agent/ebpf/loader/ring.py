"""The ring buffer between kernel and agent: batches are copied out with numpy, without wake-ups.

All records of one ring have the same length. A record that is still being written (busy bit) ends
the batch, and the next batch starts there.
"""

import mmap
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.loader.maps import KernelMap
from ingero.agent.ebpf.loader.syscalls import barrier, register_barrier

# the first half of a record's header; its top bit means unfinished
_LENGTH_MASK: Final = np.uint64(0xFFFFFFFF)


class Ring:
    """The only consumer of one ring."""

    def __init__(self, kernel_map: KernelMap, payload: np.dtype[np.void]) -> None:
        self.name = kernel_map.name
        self._mask = kernel_map.max_entries - 1
        self._record = np.dtype([("length", "<u4"), ("page", "<u4"), ("body", payload)])
        if self._record.itemsize % 8:
            raise ValueError(f"records of {self._record.itemsize} bytes are not aligned to 8 bytes")
        page, size = mmap.PAGESIZE, kernel_map.max_entries
        descriptor = kernel_map.descriptor
        self._consumer_page = mmap.mmap(
            descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0
        )
        self._data = mmap.mmap(
            descriptor, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        self._consumer = np.frombuffer(self._consumer_page, np.uint64, 1)
        self._producer = np.frombuffer(self._data, np.uint64, 1)
        self._body_size = payload.itemsize
        self._nothing: NDArray[np.void] = np.empty(0, payload)
        register_barrier()

    def drain(self) -> NDArray[np.void]:
        """Return a copy of all finished records and release their space."""
        at, end = int(self._consumer[0]), int(self._producer[0])
        barrier()
        count = (end - at) // self._record.itemsize
        if not count:
            return self._nothing
        words = self._record.itemsize // 8
        start = mmap.PAGESIZE + (at & self._mask)
        window = np.frombuffer(self._data, np.uint64, count * words, start).reshape(count, words)
        unfinished = (window[:, 0] & _LENGTH_MASK) != self._body_size
        if unfinished.any():
            count = int(unfinished.argmax())
        barrier()
        # copied as plain words: numpy copies structures field by field, five times slower
        records: NDArray[np.void] = window[:count, 1:].copy().view(self._record["body"]).reshape(-1)
        self._consumer[0] = at + count * self._record.itemsize
        return records

    def close(self) -> None:
        del self._consumer, self._producer
        self._consumer_page.close()
        self._data.close()
