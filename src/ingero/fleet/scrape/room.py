"""Room for characters of labels: what a scrape shows, and what is learned about bodies.

A push of a few kilobytes can hold thousands of points, each with all labels of its resource and two
dozen long ones of its own, so that a limit of series alone would allow gigabytes.
"""

from typing import Final

# For each series that a scrape may have. Usual lines have about 150, those of a stranger 12,000.
LINE_CHARACTERS: Final = 256


class Room:
    """Characters that are left for the labels of `max_series` series."""

    __slots__ = ("left",)

    def __init__(self, max_series: int) -> None:
        self.left = max_series * LINE_CHARACTERS

    def take(self, characters: int) -> bool:
        """Take characters if that many are left, and return whether they were."""
        if characters > self.left:
            return False
        self.left -= characters
        return True
