"""A segment: the state of one cluster's engine at some time, and every input since then.

Replaying a segment gives its verdicts again, byte for byte.
"""

import pickle
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.storage.input_log import MAGIC, PUSH, STATE, TICK, VERDICT, encode_frame

if TYPE_CHECKING:
    from ingero.fleet.cluster_verdicts import ClusterVerdicts

_encode = msgspec.msgpack.Encoder().encode
_DECODER = msgspec.msgpack.Decoder(MetricsRequest)
_ENCODED: Final = "encoded push"  # a push that needs no encoding any more
_FRAME_BYTES: Final = 64  # of memory for each input, besides its body


class Segment:
    """Inputs of one cluster since `began_s`; `episodes` are those that have a verdict in it.

    Inputs are kept in whatever form is fastest, until `pack` turns them into a recording.
    """

    def __init__(self, cluster: str, began_s: float, state: "ClusterVerdicts | None") -> None:
        self.cluster, self.began_s = cluster, began_s
        self.episodes: set[str] = set()
        # This process alone reads it again, so that the fastest encoding is safe.
        self._state = b"" if state is None else pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
        self._inputs: list[tuple[str, float, bytes]] = []
        self.size_bytes = len(self._state)
        self.packed: bytes | None = None

    @classmethod
    def from_packed(cls, cluster: str, episode: str, packed: bytes) -> "Segment":
        """Return a segment that was packed before, for one of its episodes."""
        segment = cls(cluster, 0.0, None)
        segment.packed, segment.size_bytes, segment.episodes = packed, len(packed), {episode}
        return segment

    def push(self, at_s: float, request: MetricsRequest) -> None:
        """Keep one push; raises OverflowError for a number that no recording can hold."""
        self._add(PUSH, at_s, _encode(request))

    def push_encoded(self, at_s: float, body: bytes) -> None:
        """Keep one push as it was received, in protobuf."""
        self._add(_ENCODED, at_s, body)

    def tick(self, at_s: float) -> None:
        """Keep that the engine was ticked."""
        self._add(TICK, at_s, b"")

    def verdict(self, at_s: float, episode: str, body: bytes) -> None:
        """Keep a verdict, with which a replay is compared."""
        self._add(VERDICT, at_s, body)
        self.episodes.add(episode)

    def _add(self, kind: str, at_s: float, body: bytes) -> None:
        self._inputs.append((kind, at_s, body))
        self.size_bytes += len(body) + _FRAME_BYTES

    def pack(self) -> bytes:
        """Return the frames of a recording, compressed; safe in another thread once closed."""
        if self.packed is not None:
            return self.packed
        return zlib.compress(b"".join(self._frames(self._inputs)), 1)

    def close(self, packed: bytes) -> None:
        """Replace the inputs by their packed form."""
        self.packed, self.size_bytes = packed, len(packed)
        self._state, self._inputs = b"", []

    def copy(self) -> "Segment":
        """Return an open segment as it is now, to pack it while more inputs arrive."""
        copied = Segment(self.cluster, self.began_s, None)
        copied._state, copied._inputs = self._state, self._inputs.copy()
        copied.packed = self.packed
        return copied

    def _frames(self, inputs: list[tuple[str, float, bytes]]) -> Iterator[bytes]:
        from ingero.fleet.episodes.state_codec import encode_state  # noqa: PLC0415 - only if kept

        if self._state:
            state = encode_state(pickle.loads(self._state))  # noqa: S301 - made by this process
            yield encode_frame(STATE, self.began_s, self.cluster, state)
        for kind, at_s, body in inputs:
            plain = encode_protobuf(_DECODER.decode(body)) if kind == PUSH else body
            yield encode_frame(PUSH if kind == _ENCODED else kind, at_s, self.cluster, plain)


def join_segments(preamble: bytes, segments: list[Segment]) -> bytes:
    """Return one recording of several segments, as `ingero replay` reads it."""
    frames = (zlib.decompress(segment.pack()) for segment in segments)
    return b"".join([MAGIC, preamble, *frames])
