"""Barrier waits: the time from the enqueue of a collective to the host's wait for its stream."""

from collections.abc import Sequence
from typing import Final

STALE_NS: Final = 1_000_000_000  # a wait that begins later belongs to something else


def barrier_waits(
    collectives: Sequence[tuple[int, int | None]], waits: Sequence[tuple[int, int]]
) -> list[int | None]:
    """Return the barrier wait of each collective of one process, or None.

    `collectives` are (enqueue time, stream), `waits` are (start time, stream). A wait belongs only
    to the last collective enqueued before it on its stream. None means that the host did not wait
    for the collective in time, or that its stream is unknown (0 is the default stream, which waits
    for everything).
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
