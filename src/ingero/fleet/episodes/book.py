"""The last episodes: the verdicts about each, its cost, and which targets were alerted."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from ingero.contract.episodes.episode import AlertTold, Episode, Moment, Peer
from ingero.contract.live import LiveEpisode, StateChange
from ingero.contract.verdict import Verdict, VerdictState
from ingero.fleet.episodes.inputs import EpisodeInputs
from ingero.fleet.episodes.segment import Segment
from ingero.fleet.verdicts import VerdictService

MAX_EPISODES: Final = 1000  # of all clusters; the oldest of the one with most are dropped
MAX_MOMENTS: Final = 40  # verdicts of one episode; the first ten are always among them
MAX_PEERS: Final = 64
MAX_TOLD: Final = 100  # of one episode
UNSEEN_S: Final = 600.0  # an open episode without a verdict for so long has ended
SHOWN_S: Final = 24 * 3600.0  # how long the page lists an episode that has ended
RESEND_S: Final = 10.0  # how often the page is sent the cost of an open episode
_COSTLY: Final = frozenset({VerdictState.STRAGGLER, VerdictState.FLEET_EVENT})
_BLAMED: Final = _COSTLY | {
    VerdictState.NOT_SURE,
    VerdictState.LATE,
    VerdictState.OVERLOADED,
}


class EpisodeBook:
    """Fed by the service with every push and tick; `now_s` is Unix time that never steps back."""

    def __init__(self, preamble: bytes = b"") -> None:
        self.episodes: dict[str, Episode] = {}  # the oldest first
        self.changed: set[str] = set()  # episodes to be written to disk
        self.removed: set[str] = set()  # episodes to be deleted from disk
        self.inputs = EpisodeInputs(self.changed, preamble)
        self._changed_s: dict[str, float] = {}  # as the page sees it
        self._seen_s: dict[str, float] = {}  # when an open episode was last decided about
        self._last_s = 0.0

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
        self.inputs.tick(changed, encoded, now_s)
        for cluster, verdict in changed:
            self._note(verdicts, cluster, verdict, now_s)
        self._follow(verdicts, now_s)
        while len(self.episodes) > MAX_EPISODES:
            self._forget(self._oldest_of_most())
        self.inputs.advance(verdicts.clusters, now_s)

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
            self._touch(verdict.episode, now_s)

    def note_alert(self, episode: str, alert: AlertTold) -> None:
        """Note that an alert about an episode was delivered to a target, or refused by it."""
        found = self.episodes.get(episode)
        if found is not None and len(found.alerts) < MAX_TOLD:
            found.alerts.append(alert)
            self.changed.add(episode)

    def find(self, episode: str) -> Episode | None:
        """Return an episode by its id, with the size of its inputs as it is now."""
        found = self.episodes.get(episode)
        if found is not None:
            found.inputs_bytes = self.inputs.size_of(episode)
        return found

    def explain(self, episode: Episode, verdicts: VerdictService) -> None:
        """Compare the peers of an open episode now; a closed episode keeps its last comparison."""
        if episode.ended is None and episode.latest.state in _BLAMED:
            _compare_peers(verdicts, episode, self._last_s)

    def restore(self, episode: Episode, segments: list[Segment]) -> None:
        """Add an episode that was kept on disk; call it in the order of their beginning."""
        self.episodes[episode.episode] = episode
        self._changed_s[episode.episode] = episode.ended or episode.verdicts[-1].at
        self.inputs.restore(segments)

    def replace(self, episodes: Iterable[Episode]) -> None:
        """Take over the episodes of another replica; their inputs are not shared."""
        for name in list(self.episodes):
            self._forget(name)
        self.removed.clear()
        for episode in episodes:
            self.restore(episode, [])

    def live_ids(self, cluster: str, now_s: float) -> set[str]:
        """Return the episodes of a cluster that the page lists."""
        return {
            name
            for name, each in self.episodes.items()
            if each.cluster == cluster and (each.ended is None or now_s - each.ended <= SHOWN_S)
        }

    def live_since(self, ids: Iterable[str], changed_s: float) -> list[LiveEpisode]:
        """Return those of the episodes that changed after `changed_s`, in order of their ids."""
        return [
            live_episode(self.episodes[name])
            for name in sorted(ids)
            if self._changed_s.get(name, -math.inf) > changed_s
        ]

    def _touch(self, episode: str, now_s: float) -> None:
        self.changed.add(episode)
        self._changed_s[episode] = now_s

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
        self._touch(verdict.episode, now_s)
        if verdict.state in _BLAMED and not episode.peers:
            _compare_peers(verdicts, episode, now_s)
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
            self._seen_s[verdict.episode] = now_s
            if verdict.usd_per_hour is not None and verdict.state in _COSTLY:
                cost = verdict.usd_per_hour * passed_h
                episode.cost_usd = (episode.cost_usd or 0.0) + cost
                if now_s - self._changed_s[verdict.episode] >= RESEND_S:
                    self._changed_s[verdict.episode] = now_s

        self._end_unseen(now_s)

    def _end_unseen(self, now_s: float) -> None:
        """End episodes that are no longer judged, as after a restart or the end of a job."""
        for name, episode in self.episodes.items():
            if episode.ended is None:
                seen_s = self._seen_s.setdefault(name, now_s)
                if now_s - seen_s > UNSEEN_S:
                    episode.ended = seen_s
                    self._touch(name, now_s)

    def _oldest_of_most(self) -> str:
        """Return the oldest episode of the cluster that has most, so that none loses to another."""
        crowd, _ = Counter(each.cluster for each in self.episodes.values()).most_common(1)[0]
        return next(name for name, each in self.episodes.items() if each.cluster == crowd)

    def _forget(self, episode: str) -> None:
        self.episodes.pop(episode, None)
        self._changed_s.pop(episode, None)
        self._seen_s.pop(episode, None)
        self.changed.discard(episode)
        self.removed.add(episode)
        self.inputs.forget(episode)


def live_episode(episode: Episode) -> LiveEpisode:
    """Return an episode as the page lists it: one change for each run of equal states."""
    changes: list[StateChange] = []
    for moment in episode.verdicts:
        state = str(moment.verdict.state)
        if not changes or changes[-1].state != state:
            changes.append(StateChange(moment.at, state, moment.verdict.evidence))
    return LiveEpisode(
        verdict=episode.latest,
        until=episode.ended,
        changes=changes,
        cost_usd=None if episode.cost_usd is None else round(episode.cost_usd, 4),
    )


def _compare_peers(verdicts: VerdictService, episode: Episode, now_s: float) -> None:
    """Note why the peers are not blamed, those nearest to their limit first."""
    verdict, found = episode.latest, verdicts.clusters.get(episode.cluster)
    if verdict.engine or not verdict.node or found is None:
        return  # replicas of an inference engine are counted by the verdict itself
    reasons = found.engine.peer_reasons(verdict)
    if not reasons:
        return
    nearest = sorted(reasons, key=lambda peer: (-peer.bars, -peer.excess))[:MAX_PEERS]
    episode.peers_of, episode.peers_at = len(reasons), now_s
    episode.peers = [
        Peer(
            node=p.node,
            rank=p.rank,
            excess=p.excess if math.isfinite(p.excess) else 0.0,
            bars=p.bars,
            reason=p.reason,
        )
        for p in nearest
    ]
