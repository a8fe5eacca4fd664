"""The last body of each kind of push per node, within limits, for the next scrape."""

from ingero.compiled import FAST_PATH, compiled_or_pure
from ingero.contract.otlp.body import Encoding

Key = tuple[str, str, str]  # cluster, node, name of the first metric


class KeptBody:
    """One body and when it arrived; the next one replaces its fields."""

    __slots__ = ("at_s", "body", "encoding")

    def __init__(self, at_s: float, body: bytes, encoding: Encoding) -> None:
        self.at_s, self.body, self.encoding = at_s, body, encoding


class KeptBodiesPurely:
    """The pure version: the reference for the compiled one in tests, and its replacement."""

    def __init__(self, max_body_bytes: int, max_bytes: int, max_bodies: int) -> None:
        self.max_body_bytes, self.max_bytes, self.max_bodies = max_body_bytes, max_bytes, max_bodies
        self.bodies: dict[Key, KeptBody] = {}
        self.size_bytes = 0
        self.dropped = 0

    def keep(self, key: Key, body: bytes, encoding: Encoding, now_s: float) -> None:
        """Store a body in place of the last one with the same key."""
        if len(body) > self.max_body_bytes:
            self.dropped += 1
            return
        kept = self.bodies.get(key)
        if kept is None:
            self.bodies[key] = KeptBody(now_s, body, encoding)
            self.size_bytes += len(body)
        else:
            self.size_bytes += len(body) - len(kept.body)
            kept.at_s, kept.body, kept.encoding = now_s, body, encoding
        if self.size_bytes > self.max_bytes or len(self.bodies) > self.max_bodies:
            self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest quarter; this is rare, so pushes do not pay for keeping an order."""
        oldest = sorted(self.bodies, key=lambda key: self.bodies[key].at_s)[
            : 1 + len(self.bodies) // 4
        ]
        for key in oldest:
            self._drop(key)
        self.dropped += len(oldest)

    def expire(self, before_s: float) -> None:
        """Drop every body that arrived before `before_s`."""
        for key in [key for key, kept in self.bodies.items() if kept.at_s < before_s]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self.size_bytes -= len(self.bodies.pop(key).body)


KeptBodies = compiled_or_pure(FAST_PATH, "KeptBodies", KeptBodiesPurely)
