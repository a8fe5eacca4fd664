"""The last episodes: what was said about each, and the inputs that it can be replayed from."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ingero.contract.episodes.episode import Episode, Moment, Peer
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import Verdict, VerdictState
from ingero.fleet.episodes.segment import Segment, join_segments
from ingero.fleet.verdicts import VerdictService

MAX_BYTES: Final = 64 << 20  # of all inputs, those of episodes and those of the last minute
MAX_EPISODES: Final = 1000
MAX_MOMENTS: Final = 40  # verdicts of one episode; the first ten are always among them
MAX_PEERS: Final = 64
MAX_SEGMENTS: Final = 8  # of one episode; the first four are always among them
SEGMENT_S: Final = 60.0
SEGMENT_BYTES: Final = 4 << 20
MAX_STATE_BYTES: Final = 16 << 20  # of an engine: some 3,000 ranks
_BLAMED: Final = frozenset(
    {
        VerdictState.STRAGGLER,
        VerdictState.FLEET_EVENT,
        VerdictState.NOT_SURE,
        VerdictState.LATE,
        VerdictState.OVERLOADED,
    }
)
log = logging.getLogger(__name__)


@dataclass(slots=True)
class EpisodeCounters:
    """Counts of inputs that were not kept, by reason."""

    dropped_too_large: int = 0  # engines of clusters with too many ranks
    dropped_no_room: int = 0  # segments
    dropped_episodes: int = 0  # whose inputs made room for newer ones


class EpisodeBook:
    """Fed by the service with every push and tick; `now_s` is Unix time that never steps back."""

    def __init__(self, preamble: bytes = b"", max_bytes: int = MAX_BYTES) -> None:
        self.episodes: dict[str, Episode] = {}  # the oldest first
        self.counters = EpisodeCounters()
        self.changed: set[str] = set()  # episodes to be written to disk
        self.removed: set[str] = set()  # episodes to be deleted from disk
        self._preamble, self.max_bytes = preamble, max_bytes
        self._open: dict[str, Segment] = {}  # by cluster
        self._kept: list[Segment] = []  # the oldest first
        self._last_s = 0.0

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
        self,
        verdicts: VerdictService,
        changed: Sequence[tuple[str, Verdict]],
        encoded: Iterable[bytes],
        now_s: float,
    ) -> None:
        """Keep the tick and the engine's verdicts, `encoded` as a replay compares them.

        Call it with what the engine returned, before `note`.
        """
        for segment in self._open.values():
            segment.tick(now_s)
        for (cluster, verdict), body in zip(changed, encoded, strict=True):
            if cluster in self._open and not verdict.engine:  # their inputs are not kept
                self._open[cluster].verdict(now_s, verdict.episode, body)
            self._note(verdicts, cluster, verdict, now_s)
        self._follow(verdicts, now_s)
        for name in [name for name in self._open if name not in verdicts.clusters]:
            self._end_segment(name)
        for name in verdicts.clusters:
            self._advance(verdicts, name, now_s)
        self._make_room()

    def note(self, verdicts: Sequence[tuple[str, Verdict]], now_s: float) -> None:
        """Take changed verdicts as they are shown, with their causes and silences."""
        for _, verdict in verdicts:
            episode = self.episodes.get(verdict.episode)
            if episode is None:
                continue
            if episode.verdicts[-1].at == now_s:
                episode.verdicts.pop()
            episode.verdicts.append(Moment(at=now_s, verdict=verdict))
            episode.latest = verdict
            self.changed.add(verdict.episode)

    def find(self, episode: str) -> Episode | None:
        """Return an episode by its id, with the size of its inputs as it is now."""
        found = self.episodes.get(episode)
        if found is not None:
            segments = (s for s in (*self._kept, *self._open.values()) if episode in s.episodes)
            found.inputs_bytes = sum(segment.size_bytes for segment in segments)
        return found

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

    def restore(self, episode: Episode, segments: list[Segment]) -> None:
        """Add an episode that was kept on disk; call it in the order of their beginning."""
        self.episodes[episode.episode] = episode
        self._kept += segments
        self._make_room()

    @property
    def size_bytes(self) -> int:
        """The size of everything kept."""
        return sum(segment.size_bytes for segment in (*self._kept, *self._open.values()))

    def _note(self, verdicts: VerdictService, cluster: str, verdict: Verdict, now_s: float) -> None:
        episode = self.episodes.get(verdict.episode)
        if episode is None:
            if verdict.state is VerdictState.RESOLVED:
                return
            episode = self.episodes[verdict.episode] = Episode(
                episode=verdict.episode, cluster=cluster, began=verdict.since, ended=None,
                cost_usd=None, inputs_bytes=0, latest=verdict, verdicts=[], peers=[],
            )  # fmt: skip
        episode.latest = verdict
        episode.verdicts.append(Moment(at=now_s, verdict=verdict))
        if len(episode.verdicts) > MAX_MOMENTS:
            del episode.verdicts[10]
        self.changed.add(verdict.episode)
        if verdict.state in _BLAMED and not episode.peers and verdict.node:
            episode.peers = _peers(verdicts, cluster, verdict)
        if verdict.state is VerdictState.RESOLVED:
            episode.ended = now_s
            if not any(moment.verdict.state in _BLAMED for moment in episode.verdicts):
                self._forget(verdict.episode)  # a suspicion that was not confirmed

    def _follow(self, verdicts: VerdictService, now_s: float) -> None:
        """Add what a second of each open episode costs, and take its newest figures."""
        passed_h = min(max(now_s - self._last_s, 0.0), 10.0) / 3600 if self._last_s else 0.0
        self._last_s = now_s
        for name, verdict in verdicts.current():
            episode = self.episodes.get(verdict.episode)
            if episode is None or episode.cluster != name:
                continue
            episode.latest = verdicts.mark(name, verdict)
            if verdict.usd_per_hour is not None and verdict.state is VerdictState.STRAGGLER:
                cost = verdict.usd_per_hour * passed_h
                episode.cost_usd = (episode.cost_usd or 0.0) + cost

    def _advance(self, verdicts: VerdictService, cluster: str, now_s: float) -> None:
        """End a segment that is long enough, and begin the next with the engine's state."""
        segment = self._open.get(cluster)
        if segment is not None and (
            now_s - segment.began_s < SEGMENT_S and segment.size_bytes < SEGMENT_BYTES
        ):
            return
        if segment is None and int(now_s) % int(SEGMENT_S):
            return  # one that was dropped starts again within a minute
        self._end_segment(cluster)
        rows = verdicts.clusters[cluster].engine.registry
        if rows.rows.size_bytes + rows.cohorts.size_bytes > MAX_STATE_BYTES:
            self.counters.dropped_too_large += 1
            return
        self._open[cluster] = Segment(cluster, now_s, verdicts.clusters[cluster])

    def _end_segment(self, cluster: str) -> None:
        segment = self._open.pop(cluster, None)
        if segment is None or not segment.episodes:
            return
        self._kept.append(segment)
        for episode in sorted(segment.episodes):
            mine = [each for each in self._kept if episode in each.episodes]
            if len(mine) > MAX_SEGMENTS:
                mine[MAX_SEGMENTS // 2].episodes.discard(episode)
            self.changed.add(episode)
        self._free()

    def _make_room(self) -> None:
        while len(self.episodes) > MAX_EPISODES:
            self._forget(next(iter(self.episodes)))
        while self.size_bytes > self.max_bytes and self._kept:
            for episode in self._kept[0].episodes:
                for segment in self._kept[1:]:
                    segment.episodes.discard(episode)
                self.counters.dropped_episodes += 1
                self.changed.add(episode)
            del self._kept[0]
            self._free()
        while self.size_bytes > self.max_bytes and self._open:
            largest = max(self._open, key=lambda cluster: self._open[cluster].size_bytes)
            del self._open[largest]
            self.counters.dropped_no_room += 1

    def _forget(self, episode: str) -> None:
        self.episodes.pop(episode, None)
        self.changed.discard(episode)
        self.removed.add(episode)
        for segment in (*self._kept, *self._open.values()):
            segment.episodes.discard(episode)
        self._free()

    def _free(self) -> None:
        self._kept = [segment for segment in self._kept if segment.episodes]


def _peers(verdicts: VerdictService, cluster: str, verdict: Verdict) -> list[Peer]:
    """Return why the peers were not blamed, those nearest to their limit first."""
    if verdict.engine:
        return []  # replicas of an inference engine, which the verdict itself counts
    reasons = verdicts.clusters[cluster].engine.peer_reasons(verdict)
    nearest = sorted(reasons, key=lambda peer: -peer.bars)[:MAX_PEERS]
    return [
        Peer(node=p.node, rank=p.rank, excess=p.excess, bars=p.bars, reason=p.reason)
        for p in nearest
    ]
