"""Barrier waits as they are published: from the enqueue of a collective to the host's wait for its stream."""

from collections.abc import Sequence
from typing import Final

STALE_NS: Final = 1_000_000_000  # a wait that begins later is about something else


def barrier_waits(
    collectives: Sequence[tuple[int, int | None]], waits: Sequence[tuple[int, int]]
) -> list[int | None]:
    """One value per collective (enqueued, stream) of a process, in the order given; `waits` are (began, stream).

    A wait belongs to the last collective enqueued on its stream before it, and to no other. None: nobody waited for
    this one in time, or its stream is not known (0 is the default stream, which waits for everything).
    """
    found: list[int | None] = [None] * len(collectives)
    moments = [
        (enqueued, 0, index) for index, (enqueued, stream) in enumerate(collectives) if stream
    ]
    moments += [(began, 1, index) for index, (began, stream) in enumerate(waits) if stream]
    last: dict[int, int] = {}
    for at_ns, is_wait, index in sorted(moments):
        if not is_wait:
            last[collectives[index][1] or 0] = index
            continue
        newest = last.pop(waits[index][1], None)
        if newest is not None and at_ns - collectives[newest][0] <= STALE_NS:
            found[newest] = at_ns - collectives[newest][0]
    return found
