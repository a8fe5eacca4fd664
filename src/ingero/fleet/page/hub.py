"""The live streams of Fleet's page: every cluster is encoded once a tick, for all streams.

Nothing is encoded while nobody watches; only the last steps of ranks are always kept.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from ingero.contract.live import LiveTick, encode_message
from ingero.core.live.strip import StepStrip
from ingero.fleet.episodes.book import EpisodeBook
from ingero.fleet.page.cluster_view import ClusterView, Moment
from ingero.fleet.processor import FleetProcessor
from ingero.fleet.verdicts import VerdictService
from ingero.transport.bearer import Key

if TYPE_CHECKING:
    from ingero.fleet.page import job_view

MAX_STREAMS: Final = 100
MAX_WAITING: Final = 5  # ticks that a stream may be behind before it starts over
PIECE: Final = 1 << 16  # bytes that are written at once; a client that does not read holds no more
_VERSION: Final = version("ingero")


class LiveStream:
    """One client: the clusters and job that it follows, and the lines that wait to be sent.

    `owner` is the token that opened the stream, or an address where there are no tokens.
    """

    def __init__(self, key: Key, cluster: str | None, job: str | None, owner: Hashable) -> None:
        self.key, self.cluster, self.job, self.owner = key, cluster, job, owner
        self.clusters: frozenset[str] = frozenset()  # whose snapshots it has had
        self.waiting: list[list[bytes]] = []  # of each tick; clients share the lines
        self.is_behind = True
        self.is_over = False
        self.wake = asyncio.Event()

    def wants(self, cluster: str) -> bool:
        """Return whether the stream covers a cluster."""
        return self.cluster in (None, cluster) and self.key.may_see(cluster)

    def put(self, lines: list[bytes]) -> None:
        """Add the lines of a tick; a stream that is too far behind starts over instead."""
        if len(self.waiting) >= MAX_WAITING:
            self.waiting.clear()
            self.is_behind = True
        if not self.is_behind:
            self.waiting.append(lines)
        self.wake.set()

    def close(self) -> None:
        """End the stream."""
        self.is_over = True
        self.wake.set()


class LiveHub:
    """All streams, and one view of each cluster that somebody watches."""

    def __init__(
        self, processor: FleetProcessor, verdicts: VerdictService, episodes: EpisodeBook
    ) -> None:
        self._processor, self._verdicts, self._episodes = processor, verdicts, episodes
        self._views: dict[str, ClusterView] = {}
        self._snapshots: dict[str, bytes] = {}  # of this tick
        self._strips: dict[str, StepStrip] = {}
        self._last_steps: dict[tuple[str, str], int] = {}  # of watched jobs, as sent
        self._members: dict[str, Mapping[str | None, job_view.Members]] = {}  # of this tick
        self._now = Moment(0.0, 0.0)
        self.streams: list[LiveStream] = []
        self.opened = 0
        self.refused = 0  # also those that were closed to make room
        self.restarted = 0  # streams that fell behind and got a new snapshot
        self.sent_bytes = 0

    def open(
        self,
        key: Key,
        cluster: str | None,
        job: str | None,
        now: Moment,
        owner: Hashable = None,
    ) -> LiveStream | None:
        """Add a stream; `leave` must be called at its end. None where there are too many.

        Where it is full, who has most streams loses the oldest one to somebody with fewer.
        """
        if len(self.streams) >= MAX_STREAMS:
            self.refused += 1
            if not self._make_room(owner):
                return None
        self.opened += 1
        if not self.streams:  # nobody watched: what views remember is old
            self._views.clear()
            self._snapshots.clear()
            self._members.clear()
            self._last_steps.clear()
        self._now = max(self._now, now, key=lambda each: each.monotonic_s)
        stream = LiveStream(key, cluster, job, owner)
        stream.wake.set()
        self.streams.append(stream)
        return stream

    def _make_room(self, owner: Hashable) -> bool:
        count = Counter(stream.owner for stream in self.streams)
        crowd, most = count.most_common(1)[0]
        if most <= count[owner] + 1:
            return False
        oldest = next(stream for stream in self.streams if stream.owner == crowd)
        oldest.close()
        self.leave(oldest)
        return True

    def leave(self, stream: LiveStream) -> None:
        """Note that a stream has ended, or that it never began."""
        if stream in self.streams:
            self.streams.remove(stream)

    async def lines(self, stream: LiveStream) -> AsyncIterator[bytes]:
        """Yield what a stream is sent, in pieces, until it or Fleet ends."""
        is_first = True
        while not stream.is_over:
            await stream.wake.wait()
            stream.wake.clear()
            if stream.is_behind:
                stream.is_behind = False
                stream.waiting.clear()
                self.restarted += not is_first
                is_first = False
                stream.waiting.append(self._beginning(stream))
            while stream.waiting and not stream.is_over:
                for piece in pieces(stream.waiting.pop(0)):
                    self.sent_bytes += len(piece)
                    yield piece

    def tick(self, now: Moment) -> None:
        """Keep the steps of this tick, and send every stream what is new."""
        self._follow_steps()
        self._snapshots.clear()
        self._members.clear()
        self._now = now
        if not self.streams:
            return
        names = self._watched(self._processor.clusters)
        for gone in self._views.keys() - names:
            del self._views[gone]
        deltas = {name: self._view(name).delta(now) for name in names}
        jobs: dict[tuple[str, str], bytes] = {}
        for stream in self.streams:
            wanted = [name for name in names if stream.wants(name)]
            lines = [
                deltas[name] if name in stream.clusters else self._snapshot(name) for name in wanted
            ]
            stream.clusters = frozenset(wanted)
            lines += [self._job(name, stream.job, jobs, whole=False) for name in wanted]
            stream.put([*lines, self._tick_line(wanted)])

    def close(self) -> None:
        """End every stream; clients connect again, with their token checked again."""
        for stream in self.streams:
            stream.close()

    def _follow_steps(self) -> None:
        clusters = self._verdicts.clusters
        for gone in self._strips.keys() - clusters.keys():
            del self._strips[gone]
        for name, cluster in clusters.items():
            if cluster.observed is not None:
                self._strips.setdefault(name, StepStrip()).add(*cluster.observed, cluster.keys)

    def _watched(self, clusters: Iterable[str]) -> list[str]:
        return [
            name for name in sorted(clusters) if any(stream.wants(name) for stream in self.streams)
        ]

    def _beginning(self, stream: LiveStream) -> list[bytes]:
        """Return the first lines of a stream: the tick, and a snapshot of each cluster."""
        wanted = [name for name in sorted(self._processor.clusters) if stream.wants(name)]
        stream.clusters = frozenset(wanted)
        jobs: dict[tuple[str, str], bytes] = {}
        return [
            *(self._snapshot(name) for name in wanted),
            *(self._job(name, stream.job, jobs, whole=True) for name in wanted),
            self._tick_line(wanted),
        ]

    def _view(self, name: str) -> ClusterView:
        cluster, view = self._processor.clusters[name], self._views.get(name)
        if view is None or view.cluster is not cluster:
            ttl_s = self._processor.policy.ttl_s
            view = self._views[name] = ClusterView(cluster, self._verdicts, self._episodes, ttl_s)
            view.delta(self._now)  # from here on, only changes
        return view

    def _snapshot(self, name: str) -> bytes:
        if name not in self._snapshots:
            self._snapshots[name] = self._view(name).snapshot(self._now)
        return self._snapshots[name]

    def _job(
        self, cluster: str, job: str | None, encoded: dict[tuple[str, str], bytes], *, whole: bool
    ) -> bytes:
        """Encode the ranks of a job and its last steps: the `whole` picture, or what is new."""
        found = self._verdicts.clusters.get(cluster)
        if job is None or found is None:
            return b""
        key = (cluster, job)
        if key not in encoded:
            # loads the verdict engine, which `found` has done already
            from ingero.fleet.page import job_view  # noqa: PLC0415 - see above

            if cluster not in self._members:
                self._members[cluster] = job_view.members_by_job(found)
            members = self._members[cluster].get(job, [])
            at, after = self._now.unix_s, None if whole else self._last_steps.get(key)
            strip = self._strips.get(cluster) or StepStrip()
            last, steps = job_view.encode_steps(members, strip, cluster, job, at, after)
            if not whole and members:
                self._last_steps[key] = last
            encoded[key] = job_view.encode_ranks(found, members, cluster, job, at) + steps
        return encoded[key]

    def _tick_line(self, clusters: list[str]) -> bytes:
        tick = LiveTick(at=self._now.unix_s, version=_VERSION, clusters=clusters)
        return encode_message(tick) + b"\n"


def pieces(lines: list[bytes]) -> Iterator[bytes]:
    """Yield what is sent of a tick: small lines together, large ones in parts."""
    if sum(map(len, lines)) <= PIECE:
        yield b"".join(lines)
        return
    for line in lines:
        for start in range(0, len(line), PIECE):
            yield line[start : start + PIECE]
