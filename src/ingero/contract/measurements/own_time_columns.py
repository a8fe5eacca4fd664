"""A push of own times alone, as columns straight from its bytes.

Nearly every measurement that reaches Fleet is such a push: own times of the ranks of one node, in
protobuf. Values of `ranks.py` would cost a hundred times more than these columns. What is unusual
is left to `decode_ranks`, which is also the definition: for every body, the columns are absent or
hold the same own times.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingero.compiled import CODECS, compiled_or_pure
from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import MetricsRequest, Plain, plain_attributes

# A body of this size holds fewer fields, shorter texts and fewer levels than the limits of any
# request, so that none of them need be counted.
MAX_BODY_BYTES: Final = 64 * 1024


POINT_WORDS: Final = 6  # of eight bytes each, in one own time


class OwnTimeColumns(NamedTuple):
    """The own times of all resources of a push, one resource after the other.

    `resources` are encoded, `counts` says how many own times each has, `sources` where they come
    from, and `last_span_ms` the span of the last one. `points` holds the own times themselves, six
    words each: step (-1 for one without a number), count and end in Unix nanoseconds as whole
    numbers, then own, idle and span in milliseconds as doubles.
    """

    resources: list[bytes]
    counts: list[int]
    sources: list[bytes]
    last_span_ms: list[float]
    points: bytes

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Step, count and end of the own times, as rows."""
        return np.frombuffer(self.points, np.int64).reshape(-1, POINT_WORDS)[:, :3].T

    @property
    def times_ms(self) -> NDArray[np.float64]:
        """Own, idle and span of the own times, as rows."""
        return np.frombuffer(self.points, np.float64).reshape(-1, POINT_WORDS)[:, 3:].T

    def attributes(self, place: int) -> dict[str, Plain]:
        """Return the attributes of one resource; raises MalformedPush."""
        return _resource_attributes(self.resources[place])


def _resource_attributes(encoded: bytes) -> dict[str, Plain]:
    """Return the attributes of an encoded resource, decoded as a request of nothing else."""
    request = decode_protobuf(MetricsRequest, _field(_field(encoded)))
    resource = request.resource_metrics[0].resource
    return {} if resource is None else plain_attributes(resource.attributes)


def _field(message: bytes) -> bytes:
    """Return a message as the first field of another one."""
    size, length = len(message), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return b"\n" + bytes((*length, size)) + message


def _never_columns(body: bytes) -> None:
    """Leave every body to the full decoder: what runs without compiled codecs."""


_decode: Any = compiled_or_pure(CODECS, "decode_own_times", _never_columns)


def decode_own_time_columns(body: bytes) -> OwnTimeColumns | None:
    """Return the columns of a protobuf body; None where it must be decoded in full.

    Resources are not decoded and may be malformed: `resources` is meant for a look-up of those that
    the full decoder accepted before.
    """
    found = _decode(body) if len(body) <= MAX_BODY_BYTES else None
    return None if found is None else OwnTimeColumns(*found)
