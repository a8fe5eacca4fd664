"""What must be true at the end: every acknowledged event is stored once and unchanged.

Also: nobody but the injected straggler was ever named.
"""

import random
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf

BATCH = 20
METRIC = "soak.value"
CLUSTER = "soak-producers"
BATCH_ATTR = "soak.batch"
Point = tuple[int, float]  # time in nanoseconds, value


def points_of(batch: int, first_ns: int) -> list[Point]:
    """Return the points of a batch: times that are unique, and values that nobody would guess."""
    chance = random.Random(batch)
    return [(first_ns + batch * BATCH + i, chance.random()) for i in range(BATCH)]


def digest_of(points: Iterable[Point]) -> int:
    """Return a checksum of points, whatever their order."""
    return zlib.crc32(b"".join(struct.pack("<qd", *point) for point in sorted(points)))


def body_of(batch: int, points: Iterable[Point], padding: str = "") -> bytes:
    """Encode the request of a batch; `padding` makes it larger without more events."""
    labels: dict[str, otlp.Plain] = {BATCH_ATTR: batch} | ({"padding": padding} if padding else {})
    attributes = otlp.attributes(labels)
    metric = otlp.Metric(
        name=METRIC,
        gauge=otlp.Gauge(
            data_points=tuple(
                otlp.NumberPoint(time_unix_nano=at_ns, as_double=value, attributes=attributes)
                for at_ns, value in points
            )
        ),
    )
    who = {"ingero.cluster.id": CLUSTER, "ingero.node.id": f"producer-{batch % 8}"}
    resource = otlp.ResourceMetrics(
        resource=otlp.Resource(attributes=otlp.attributes(who)),
        scope_metrics=(otlp.ScopeMetrics(metrics=(metric,)),),
    )
    return encode_protobuf(otlp.MetricsRequest(resource_metrics=(resource,)))


@dataclass(frozen=True, slots=True)
class Account:
    """Batches that were acknowledged, and how many of them are missing, doubled or changed."""

    acknowledged: int
    lost: int
    doubled: int
    changed: int

    @property
    def is_right(self) -> bool:
        return self.acknowledged > 0 and not (self.lost or self.doubled or self.changed)


@dataclass
class Ledger:
    """The digest of every acknowledged batch."""

    acknowledged: dict[int, int] = field(default_factory=dict)

    def compare(self, stored: Iterable[tuple[int, Point]]) -> Account:
        """Compare with stored points of (batch, point); others may be stored unacknowledged."""
        found: dict[int, list[Point]] = {}
        for batch, point in stored:
            found.setdefault(batch, []).append(point)
        lost = doubled = changed = 0
        for batch, digest in self.acknowledged.items():
            points = found.get(batch, [])
            if len(points) < BATCH:
                lost += 1
            elif len(points) > BATCH:
                doubled += 1
            elif digest_of(points) != digest:
                changed += 1
        doubled += sum(
            len(points) > BATCH for batch, points in found.items() if batch not in self.acknowledged
        )
        return Account(len(self.acknowledged), lost, doubled, changed)


@dataclass(frozen=True, slots=True)
class Named:
    """A node that somebody named as slow: when, and where that was read."""

    at_s: float
    node: str
    where: str


@dataclass(frozen=True, slots=True)
class Injected:
    """The one node that is really slow, from `from_s` to `until_s`."""

    node: str
    from_s: float
    until_s: float


def false_names(named: Iterable[Named], injected: Injected) -> list[Named]:
    """Return every naming of a node that was not slow, and every naming before it was."""
    return [each for each in named if each.node != injected.node or each.at_s < injected.from_s]


def missing_names(
    named: Iterable[Named], injected: Injected, expected_where: Iterable[str]
) -> list[str]:
    """Return the places that should have named the slow node while it was slow and did not."""
    seen = {
        each.where
        for each in named
        if each.node == injected.node and injected.from_s <= each.at_s <= injected.until_s
    }
    return [where for where in expected_where if where not in seen]
