"""What a terminal knows of Fleet: the clusters as the live stream has told them so far."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ingero.contract.live import (
    LiveDelta,
    LiveEpisode,
    LiveMessage,
    LiveRanks,
    LiveSnapshot,
    LiveTick,
    apply_delta,
)
from ingero.core.live.headline import who

MAX_LOG: Final = 500
URGENCY: Final = ("slow", "fleet_event", "not_sure", "suspect", "silenced", "calm")


@dataclass(slots=True)
class TopState:
    """Takes messages of the stream; `log` holds what happened, as time and text."""

    clusters: dict[str, LiveSnapshot] = field(default_factory=dict)
    ranks: LiveRanks | None = None
    at: float = 0.0
    version: str = ""
    log: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MAX_LOG))
    logged: int = 0  # lines ever added, also those that were dropped

    def take(self, message: LiveMessage) -> None:
        """Take one message."""
        if isinstance(message, LiveSnapshot):
            self._note(message.episodes, self.clusters.get(message.cluster_id))
            self.clusters[message.cluster_id] = message
        elif isinstance(message, LiveDelta):
            before = self.clusters.get(message.cluster_id)
            if before is not None:
                self._note(message.episodes or [], before)
                self.clusters[message.cluster_id] = apply_delta(before, message)
        elif isinstance(message, LiveRanks):
            self.ranks = message
        elif isinstance(message, LiveTick):
            self.at, self.version = message.at, message.version
            for gone in self.clusters.keys() - set(message.clusters):
                del self.clusters[gone]

    def say(self, text: str, at: float | None = None) -> None:
        """Add a line to the log."""
        self.log.append((self.at if at is None else at, text))
        self.logged += 1

    def forget_job(self) -> None:
        """Drop the ranks of the job that is no longer asked for."""
        self.ranks = None

    def _note(self, episodes: list[LiveEpisode], before: LiveSnapshot | None) -> None:
        """Log the changes of episodes that were not known yet; of old ones only the last."""
        known = {each.verdict.episode: each for each in before.episodes} if before else {}
        lines = []
        for episode in episodes:
            verdict, old = episode.verdict, known.get(episode.verdict.episode)
            new = episode.changes[len(old.changes) :] if old else episode.changes[-1:]
            job = f", job {verdict.job}" if verdict.job else ""
            lines += [(c.at, f"{who(verdict)}{job}: {plain_state(c.state)}") for c in new]
        for at, text in sorted(lines):
            self.say(text, at)


def plain_state(state: str) -> str:
    """Return the word for a state of an episode."""
    words = {"straggler": "slow", "fleet_event": "all slow", "not_sure": "not sure"}
    return words.get(state, state)
