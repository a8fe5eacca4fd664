"""Places that users share: whoever has most of them makes room for somebody with fewer."""

from collections import Counter
from collections.abc import Sequence


def place_for(uid: int, taken: Sequence[int], most: int) -> int | None:
    """Decide about one more place for a user, given the users of `most` places, oldest first.

    Returns the index of the place that must be given up for it, `len(taken)` if none must, and None
    if the user gets no place. Where all are taken, the user with the most loses the oldest to a
    user with clearly fewer.
    """
    if len(taken) < most:
        return len(taken)
    counts = Counter(taken)
    largest, held = counts.most_common(1)[0]
    return taken.index(largest) if counts[uid] + 1 < held else None
