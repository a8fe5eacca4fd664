"""Episodes of engines: from the first finding to its end, with one id and one verdict."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.inference.replicas import ReplicaKey


class FindingKind(StrEnum):
    """What is wrong with an engine."""

    STALLED = "stalled"
    SLOW = "slow"
    KV_PRESSURE = "kv_pressure"
    QUEUE = "queue"
    UNEVEN = "uneven"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one tick says about an engine; without an identity and a time yet."""

    kind: FindingKind
    node: str
    engine: str
    model: str
    rank: int | None
    state: VerdictState
    cause_class: CauseClass
    evidence: str
    cause: str = ""
    next_step: str
    loss: float | None = None
    peers: int = 0
    usd_per_hour: float | None = None


# How long a finding must hold before it is named, and be gone before it is resolved. A stall has
# waited for its limit already, and one step ends it.
HOLD_S: Final = {
    FindingKind.STALLED: 0.0,
    FindingKind.SLOW: 5.0,
    FindingKind.KV_PRESSURE: 5.0,
    FindingKind.QUEUE: 0.0,
    FindingKind.UNEVEN: 10.0,
}
CLEAR_S: Final = {
    FindingKind.STALLED: 0.0,
    FindingKind.SLOW: 10.0,
    FindingKind.KV_PRESSURE: 30.0,
    FindingKind.QUEUE: 30.0,
    FindingKind.UNEVEN: 30.0,
}
EpisodeKey = tuple[ReplicaKey, FindingKind]


@dataclass(slots=True)
class _Episode:
    since_s: float
    seen_s: float
    verdict: Verdict | None = None  # once it is named


class EngineEpisodes:
    """The open episodes of one cluster."""

    def __init__(self) -> None:
        self._open: dict[EpisodeKey, _Episode] = {}

    def __len__(self) -> int:
        return len(self._open)

    def current(self) -> list[Verdict]:
        """Return the verdicts of open episodes."""
        return [one.verdict for one in self._open.values() if one.verdict is not None]

    def update(
        self,
        findings: Mapping[EpisodeKey, Finding],
        since: Mapping[EpisodeKey, float],
        now_s: float,
    ) -> list[Verdict]:
        """Take the findings of a tick; return the verdicts that are new, changed or resolved.

        `since` says when a finding began, where that is known better than its first tick.
        """
        changed = []
        for key, finding in findings.items():
            episode = self._open.get(key)
            if episode is None:
                episode = self._open[key] = _Episode(since.get(key, now_s), now_s)
            episode.seen_s = now_s
            if now_s - episode.since_s >= HOLD_S[key[1]]:
                verdict = _verdict(key, finding, episode)
                if _is_news(episode.verdict, verdict):
                    episode.verdict = verdict
                    changed.append(verdict)
        for key, episode in list(self._open.items()):
            if key not in findings and now_s - episode.seen_s >= CLEAR_S[key[1]]:
                del self._open[key]
                if episode.verdict is not None:
                    changed.append(
                        msgspec.structs.replace(episode.verdict, state=VerdictState.RESOLVED)
                    )
        return changed


def _is_news(before: Verdict | None, after: Verdict) -> bool:
    """Return whether a verdict says something new; figures that move every second are none."""
    if before is None or before.state is not after.state or before.engine != after.engine:
        return True
    return bool(after.cause) and not before.cause


def _verdict(key: EpisodeKey, finding: Finding, episode: _Episode) -> Verdict:
    return Verdict(
        episode=_episode_id(key, episode.since_s),
        state=finding.state,
        node=finding.node,
        rank=finding.rank,
        job=finding.model or None,
        cause_class=finding.cause_class,
        loss=None if finding.loss is None else round(finding.loss, 4),
        cause=finding.cause,
        since=round(episode.since_s, 3),
        peers=finding.peers,
        usd_per_hour=None if finding.usd_per_hour is None else round(finding.usd_per_hour, 4),
        evidence=finding.evidence,
        next_step=finding.next_step,
        engine=finding.engine,
    )


def _episode_id(key: EpisodeKey, since_s: float) -> str:
    """Return an id that is the same for the same engine and finding in every replay."""
    (node, port, rank), kind = key
    text = "\x1f".join((node, str(port), str(rank), str(kind), f"{since_s:.3f}"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
