"""Entries that wait to be appended to the cluster log, within bounds."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from ingero.contract.replicas import entries
from ingero.contract.replicas.entries import Named, encode_entry, pack_bodies

MAX_BODIES_BYTES: Final = 32 << 20  # measurements that wait
PART_BYTES: Final = 2 << 20  # of measurements in one entry, before they are compressed
MAX_NAMED: Final = 2000  # reports in one entry
MAX_WAIT_S: Final = 5.0  # older measurements are dropped: they would count at a wrong time
MAX_WAITING: Final = 10_000
Body = tuple[float, str, bytes]  # when it arrived, its cluster, and the push


class Outbox:
    """Filled by pushes and by operators, emptied four times a second."""

    def __init__(self, author: str) -> None:
        self._author = author
        self._bodies: deque[Body] = deque()
        self._size = 0
        self._parts: list[tuple[float, bytes]] = []  # encoded measurements, and their oldest
        self._others: list[bytes] = []
        self._taken = 0  # of `_others`, in the last batch
        self._awaited: dict[bytes, asyncio.Future[None]] = {}
        self._number = time.time_ns()  # later processes of the same name count on above it
        self.dropped = 0  # measurements

    def add_push(self, cluster: str, body: bytes, now_s: float) -> None:
        """Take a push with measurements."""
        self._bodies.append((now_s, cluster, body))
        self._size += len(body)
        while self._size > MAX_BODIES_BYTES:
            self._size -= len(self._bodies.popleft()[2])
            self.dropped += 1

    def add(self, entry: entries.Entry) -> None:
        """Queue an entry that must not be lost while the log cannot be reached."""
        if len(self._others) < MAX_WAITING:
            self._others.append(encode_entry(entry))

    def add_awaited(self, entry: entries.Entry) -> "asyncio.Future[None]":
        """Queue an entry, and return a future that is done once the entry was applied here."""
        body = encode_entry(entry)
        self._others.append(body)
        return self._awaited.setdefault(body, asyncio.get_running_loop().create_future())

    def note_applied(self, body: bytes) -> None:
        """Note that an entry was applied."""
        found = self._awaited.pop(body, None) if self._awaited else None
        if found is not None and not found.done():
            found.set_result(None)

    def encode_rows(self, cluster: str, packed: bytes, named: Sequence[Named]) -> list[bytes]:
        """Encode changed nodes of a cluster as entries; nothing is kept for a second try."""
        return [
            encode_entry(
                entries.Rows(
                    self._author,
                    cluster,
                    b"" if start else packed,
                    tuple(named[start : start + MAX_NAMED]),
                )
            )
            for start in range(0, max(len(named), 1), MAX_NAMED)
        ]

    async def batch(self, now_s: float, last_number: int) -> list[bytes]:
        """Return everything that waits; it stays in the outbox until `note_appended`.

        `last_number` is the last batch under this name that was applied: the clock of an earlier
        process may have been ahead.
        """
        self._number = max(self._number, last_number)
        fresh = [(made_s, part) for made_s, part in self._parts if now_s - made_s <= MAX_WAIT_S]
        self.dropped += len(self._parts) - len(fresh)
        self._parts = fresh
        for bodies in self._take_bodies():
            packed = await asyncio.to_thread(pack_bodies, [each[1:] for each in bodies])
            self._number += 1
            entry = entries.Measured(self._author, self._number, packed)
            self._parts.append((bodies[0][0], encode_entry(entry)))
        self._taken = len(self._others)
        return [*(part for _, part in self._parts), *self._others]

    def note_appended(self) -> None:
        """Note that the last batch was appended."""
        self._parts.clear()
        del self._others[: self._taken]

    def _take_bodies(self) -> list[list[Body]]:
        """Take all pushes, in parts of a size that replicas read without delay."""
        parts: list[list[Body]] = []
        size = PART_BYTES
        for body in self._bodies:
            if size >= PART_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(body)
            size += len(body[2])
        self._bodies.clear()
        self._size = 0
        return parts
