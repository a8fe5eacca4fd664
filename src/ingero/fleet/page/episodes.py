"""The episodes of the last 24 hours: when each changed, and what it has cost so far."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ingero.contract.live import EpisodeAnswer, LiveEpisode, PeerNotBlamed, StateChange
from ingero.contract.verdict import Verdict, VerdictState

KEPT_S: Final = 24 * 3600.0
MAX_EPISODES: Final = 2000  # of one cluster; the oldest are dropped
MAX_CHANGES: Final = 100  # of one episode; those in the middle are dropped
MAX_PEERS: Final = 20  # kept per episode: those closest to their limit
RESEND_S: Final = 10.0  # how often the cost of an open episode is sent
_COSTLY: Final = frozenset({VerdictState.STRAGGLER, VerdictState.FLEET_EVENT})


@dataclass(slots=True)
class _Episode:
    verdict: Verdict
    changed_s: float
    until: float | None = None
    changes: list[StateChange] = field(default_factory=list)
    cost_usd: float | None = None
    peers: EpisodeAnswer | None = None


class EpisodeLog:
    """The episodes of one cluster, by id. It is kept whether or not anybody watches."""

    def __init__(self) -> None:
        self._episodes: dict[str, _Episode] = {}
        self._ticked_s: float | None = None

    def note(self, changed: Iterable[Verdict], now_s: float) -> None:
        """Take verdicts that are new or changed."""
        for verdict in changed:
            found = self._episodes.get(verdict.episode)
            if found is None:
                found = self._episodes[verdict.episode] = _Episode(verdict, now_s)
            if not found.changes or found.changes[-1].state != verdict.state:
                found.changes.append(StateChange(now_s, str(verdict.state), verdict.evidence))
                if len(found.changes) > MAX_CHANGES:
                    del found.changes[MAX_CHANGES // 2]
            found.verdict, found.changed_s = verdict, now_s
            found.until = now_s if verdict.state is VerdictState.RESOLVED else None

    def tick(self, opened: Iterable[Verdict], now_s: float) -> None:
        """Add the cost of a second to the open episodes, and drop old ones."""
        elapsed_s = 0.0 if self._ticked_s is None else max(now_s - self._ticked_s, 0.0)
        self._ticked_s = now_s
        for verdict in opened:
            found = self._episodes.get(verdict.episode)
            if found is None or verdict.usd_per_hour is None or verdict.state not in _COSTLY:
                continue
            found.cost_usd = (found.cost_usd or 0.0) + verdict.usd_per_hour * elapsed_s / 3600
            if now_s - found.changed_s >= RESEND_S:
                found.changed_s = now_s
        for gone in [
            name
            for name, each in self._episodes.items()
            if each.until is not None and now_s - each.until > KEPT_S
        ]:
            del self._episodes[gone]
        while len(self._episodes) > MAX_EPISODES:
            del self._episodes[next(iter(self._episodes))]

    def keep_peers(self, episode: str, peers: Sequence[PeerNotBlamed], now_s: float) -> None:
        """Keep why nobody else is blamed: the peers that are closest to their limit."""
        found = self._episodes.get(episode)
        if found is not None and peers:
            nearest = sorted(peers, key=lambda peer: (-peer.bars, -peer.excess))[:MAX_PEERS]
            found.peers = EpisodeAnswer(episode=episode, at=now_s, of=len(peers), peers=nearest)

    def peers(self, episode: str) -> EpisodeAnswer | None:
        """Return why nobody else was blamed; None for an unknown episode."""
        found = self._episodes.get(episode)
        if found is None:
            return None
        return found.peers or EpisodeAnswer(episode=episode, at=None, of=0, peers=[])

    def ids(self) -> set[str]:
        """Return the ids of all episodes."""
        return set(self._episodes)

    def since(self, changed_s: float) -> list[LiveEpisode]:
        """Return the episodes that changed after `changed_s`, in order of their ids."""
        return [
            LiveEpisode(
                verdict=each.verdict,
                until=each.until,
                changes=list(each.changes),
                cost_usd=None if each.cost_usd is None else round(each.cost_usd, 4),
            )
            for _, each in sorted(self._episodes.items())
            if each.changed_s > changed_s
        ]
