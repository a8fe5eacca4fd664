"""Large requests: decoded outside the event loop, and stored in short slices."""

from typing import Final

import msgspec

from ingero.contract.measurements.ranks import split_measurements
from ingero.contract.otlp.body import Encoding, decode
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import Push, decode_push

# reports that are handled without a pause; each may take 0.3 ms
SLICE: Final = 20


class DecodedPush(msgspec.Struct, frozen=True):
    """A large request, decoded outside the event loop; its measurements come in small parts."""

    push: Push
    measurements: tuple[MetricsRequest, ...]


def decode_large_push(body: bytes, encoding: Encoding) -> DecodedPush:
    """Decode a request in any thread; raise MalformedPush or TooLarge."""
    request = decode(MetricsRequest, body, encoding)
    push = decode_push(request)
    parts = split_measurements(request, SLICE) if push.has_measurements else ()
    return DecodedPush(push, tuple(parts))
