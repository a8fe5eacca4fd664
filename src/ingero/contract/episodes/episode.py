"""An episode: what was said about one slow member from the first suspicion to its recovery."""

import re

import msgspec

from ingero.contract.verdict import Verdict
from ingero.errors import ConfigError

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


def check_episode_id(text: str) -> str:
    """Return the id of an episode, which is safe in paths; raise ConfigError for anything else."""
    if not _ID.fullmatch(text):
        raise ConfigError(f"{text!r} is not the id of an episode; `ingero status` shows the ids")
    return text


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict of an episode; `at` is in Unix seconds."""

    at: float
    verdict: Verdict


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer of the slow member and why it was not blamed.

    `excess` is its own time above its baseline as a share, `bars` its evidence as a share of the
    decision limit.
    """

    node: str
    rank: int | None
    excess: float
    bars: float
    reason: str


class EpisodeSummary(msgspec.Struct, kw_only=True):
    """One episode with its latest verdict; times are in Unix seconds.

    `cost_usd` is what the job has lost so far, null where no price is known. `inputs_bytes` is the
    size of the kept inputs; 0 means that the episode cannot be replayed any more.
    """

    episode: str
    cluster: str
    began: float
    ended: float | None
    cost_usd: float | None
    inputs_bytes: int
    latest: Verdict


class AlertTold(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message about an episode.

    `message` is begin, acknowledge or end. `outcome` is delivered, waiting, refused, given up or
    held back, and `why` says more about the last four.
    """

    target: str
    message: str
    outcome: str
    at: float
    why: str = ""


class Episode(EpisodeSummary, kw_only=True):
    """An episode with every verdict about it, why nobody else was blamed, and who was told.

    `peers` are those of the `peers_of` peers that were closest to their limit at `peers_at`.
    `alert_targets` are the targets that Fleet is configured to tell.
    """

    verdicts: list[Moment]
    peers: list[Peer]
    peers_of: int = 0
    peers_at: float | None = None
    alerts: list[AlertTold] = []
    alert_targets: list[str] = []


class EpisodeList(msgspec.Struct, frozen=True):
    """The last episodes, the newest first."""

    episodes: list[EpisodeSummary]
