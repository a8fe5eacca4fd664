"""The inputs of the last episodes, from which each can be replayed, within a limit of memory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import Verdict
from ingero.fleet.episodes.segment import Segment, join_segments

if TYPE_CHECKING:
    from ingero.fleet.cluster_verdicts import ClusterVerdicts

MAX_BYTES: Final = 64 << 20  # of all inputs, those of episodes and those of the last minute
MAX_SEGMENTS: Final = 8  # of one episode; the first four are always among them
SEGMENT_S: Final = 60.0
SEGMENT_BYTES: Final = 4 << 20
MAX_STATE_BYTES: Final = 16 << 20  # of an engine: some 3,000 ranks


@dataclass(slots=True)
class InputCounters:
    """Counts of inputs that were not kept, by reason."""

    dropped_too_large: int = 0  # engines of clusters with too many ranks
    dropped_no_room: int = 0  # segments
    dropped_episodes: int = 0  # whose inputs made room for newer ones


class EpisodeInputs:
    """Keeps pushes and ticks in segments; those in which no episode has a verdict are dropped.

    `changed` gets the episodes whose kept inputs have changed.
    """

    def __init__(self, changed: set[str], preamble: bytes) -> None:
        self.counters = InputCounters()
        self.max_bytes = MAX_BYTES
        self._changed, self._preamble = changed, preamble
        self._open: dict[str, Segment] = {}  # by cluster
        self._kept: list[Segment] = []  # the oldest first

    def push(
        self, request: MetricsRequest, cluster: str, at_s: float, *, is_first: bool = False
    ) -> None:
        """Keep one push; with the first one of a cluster, its engine is still empty."""
        segment = self._open.get(cluster)
        if segment is None:
            if not is_first:
                return
            segment = self._open[cluster] = Segment(cluster, at_s, None)
        try:
            segment.push(at_s, request)
        except OverflowError:  # a number beyond 64 bits: without it no replay is the same
            del self._open[cluster]

    def push_encoded(self, body: bytes, cluster: str, at_s: float) -> None:
        """Keep a push as it was received; the cluster is known already."""
        segment = self._open.get(cluster)
        if segment is not None:
            segment.push_encoded(at_s, body)

    def tick(
        self, changed: Sequence[tuple[str, Verdict]], encoded: Iterable[bytes], now_s: float
    ) -> None:
        """Keep the tick and the verdicts of it, `encoded` as a replay compares them."""
        for segment in self._open.values():
            segment.tick(now_s)
        for (cluster, verdict), body in zip(changed, encoded, strict=True):
            if cluster in self._open and not verdict.engine:  # their inputs are not kept
                self._open[cluster].verdict(now_s, verdict.episode, body)

    def advance(self, clusters: Mapping[str, "ClusterVerdicts"], now_s: float) -> None:
        """End segments that are long enough, and keep within the limit."""
        for name in [name for name in self._open if name not in clusters]:
            self._end_segment(name)
        for name, cluster in clusters.items():
            self._advance(name, cluster, now_s)
        self.make_room()

    def size_of(self, episode: str) -> int:
        """Return the size of the inputs of one episode; they may be shared with others."""
        segments = (s for s in (*self._kept, *self._open.values()) if episode in s.episodes)
        return sum(segment.size_bytes for segment in segments)

    def segments_of(self, episode: str) -> list[Segment]:
        """Return what the inputs of an episode can be joined from, in any thread."""
        found = [segment for segment in self._kept if episode in segment.episodes]
        return [s.copy() for s in (*found, *self._open.values()) if episode in s.episodes]

    def join(self, segments: list[Segment]) -> bytes:
        """Return the recording of these segments; this takes a while, so call it in a thread."""
        return join_segments(self._preamble, segments)

    def unpacked(self) -> list[Segment]:
        """Return the closed segments that are not packed yet; pack them in a thread."""
        return [segment for segment in self._kept if segment.packed is None]

    def end(self) -> None:
        """Close every segment, because the service ends."""
        for cluster in list(self._open):
            self._end_segment(cluster)

    def restore(self, segments: list[Segment]) -> None:
        """Add segments that were kept on disk."""
        self._kept += segments
        self.make_room()

    def forget(self, episode: str) -> None:
        """Drop the inputs that only this episode needs."""
        for segment in (*self._kept, *self._open.values()):
            segment.episodes.discard(episode)
        self._free()

    @property
    def size_bytes(self) -> int:
        """The size of everything kept."""
        return sum(segment.size_bytes for segment in (*self._kept, *self._open.values()))

    def _advance(self, name: str, cluster: "ClusterVerdicts", now_s: float) -> None:
        """End a segment that is long enough, and begin the next with the engine's state."""
        segment = self._open.get(name)
        if segment is not None and (
            now_s - segment.began_s < SEGMENT_S and segment.size_bytes < SEGMENT_BYTES
        ):
            return
        if segment is None and int(now_s) % int(SEGMENT_S):
            return  # one that was dropped starts again within a minute
        self._end_segment(name)
        rows = cluster.engine.registry
        if rows.rows.size_bytes + rows.cohorts.size_bytes > MAX_STATE_BYTES:
            self.counters.dropped_too_large += 1
            return
        self._open[name] = Segment(name, now_s, cluster)

    def _end_segment(self, cluster: str) -> None:
        segment = self._open.pop(cluster, None)
        if segment is None or not segment.episodes:
            return
        self._kept.append(segment)
        for episode in sorted(segment.episodes):
            mine = [each for each in self._kept if episode in each.episodes]
            if len(mine) > MAX_SEGMENTS:
                mine[MAX_SEGMENTS // 2].episodes.discard(episode)
            self._changed.add(episode)
        self._free()

    def make_room(self) -> None:
        """Drop the oldest inputs beyond the limit."""
        while self.size_bytes > self.max_bytes and self._kept:
            for episode in self._kept[0].episodes:
                for segment in self._kept[1:]:
                    segment.episodes.discard(episode)
                self.counters.dropped_episodes += 1
                self._changed.add(episode)
            del self._kept[0]
            self._free()
        while self.size_bytes > self.max_bytes and self._open:
            largest = max(self._open, key=lambda cluster: self._open[cluster].size_bytes)
            del self._open[largest]
            self.counters.dropped_no_room += 1

    def _free(self) -> None:
        self._kept = [segment for segment in self._kept if segment.episodes]
