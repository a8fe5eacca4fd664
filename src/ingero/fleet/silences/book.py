"""The silences in force: which nodes and jobs cause no alerts, until when and why.

They are kept in a file where one is configured.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ingero.contract.silence import LiftRequest, Silence, SilenceRequest
from ingero.contract.verdict import Verdict
from ingero.errors import ConfigError, ForeignFile, StoreError, TooLarge
from ingero.files import read_regular, replace_file

MAX_SILENCES = 1000
MAX_FILE_BYTES = 4 << 20
log = logging.getLogger(__name__)


class TooManySilences(StoreError):
    """More silences than any operator sets on purpose."""

    def __init__(self) -> None:
        super().__init__(
            f"{MAX_SILENCES} silences are in force; lift some first (`ingero silence list`)"
        )


class Silences:
    """All silences in force; a second one for the same target replaces the first."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._kept: dict[tuple[str, str | None], Silence] = {}
        if path is not None and path.exists():
            self._kept = {(each.target, each.cluster): each for each in _read(path)}

    def put(self, asked: SilenceRequest, now_s: float) -> Silence:
        """Start a silence; raise StoreError for too many, or for a file that cannot be written."""
        silence = self.accept(asked, now_s)
        self.take(silence, now_s)
        return silence

    def accept(self, asked: SilenceRequest, now_s: float) -> Silence:
        """Return the silence that an operator asks for; raise StoreError for too many."""
        self.expire(now_s)
        if (asked.target, asked.cluster) not in self._kept and len(self._kept) >= MAX_SILENCES:
            raise TooManySilences()
        return Silence(
            target=asked.target,
            cluster=asked.cluster,
            since=now_s,
            until=now_s + asked.for_s,
            why=asked.why,
        )

    def take(self, silence: Silence, now_s: float) -> None:
        """Add a silence that was accepted, here or by another replica; raises StoreError."""
        self.expire(now_s)
        self._replace(self._kept | {(silence.target, silence.cluster): silence})
        log.info("silenced", extra={"target": silence.target, "until": silence.until})

    def restore(self, silences: Sequence[Silence]) -> None:
        """Replace all silences by those that other replicas have."""
        self._kept = {(each.target, each.cluster): each for each in silences[:MAX_SILENCES]}

    def matching(self, asked: LiftRequest) -> list[Silence]:
        """Return the silences of a target, in one cluster or in all."""
        return [
            s
            for s in self._kept.values()
            if s.target == asked.target and asked.cluster in (None, s.cluster)
        ]

    def lift(self, asked: LiftRequest) -> list[Silence]:
        """End the silences of a target, in one cluster or in all, and return them."""
        ended = self.matching(asked)
        if ended:
            self._replace({key: s for key, s in self._kept.items() if s not in ended})
            log.info("silence_lifted", extra={"target": asked.target})
        return ended

    def active(self, now_s: float) -> list[Silence]:
        """Return the silences in force, the first to end first."""
        return sorted(
            (s for s in self._kept.values() if now_s < s.until), key=lambda s: (s.until, s.target)
        )

    def expire(self, now_s: float) -> None:
        """Forget silences that have ended; the file is written with the next change."""
        if any(s.until <= now_s for s in self._kept.values()):
            self._kept = {key: s for key, s in self._kept.items() if now_s < s.until}

    def about(self, cluster: str, node: str, job: str | None, now_s: float) -> str:
        """Return until when and why a node is silenced, by its longest silence; else empty."""
        found = [s for s in self._kept.values() if now_s < s.until and s.covers(cluster, node, job)]
        return _text(max(found, key=lambda s: s.until)) if found else ""

    def mark(self, cluster: str, verdict: Verdict, now_s: float) -> Verdict:
        """Return the verdict, marked with its silence where the node or job has one."""
        if not self._kept:
            return verdict
        text = self.about(cluster, verdict.node, verdict.job, now_s)
        return msgspec.structs.replace(verdict, silenced=text) if text else verdict

    def _replace(self, kept: dict[tuple[str, str | None], Silence]) -> None:
        if self._path is not None:
            replace_file(self._path, msgspec.json.encode(list(kept.values())))
        self._kept = kept


def _text(silence: Silence) -> str:
    return f"until {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(silence.until))}: {silence.why}"


def _read(path: Path) -> list[Silence]:
    try:
        data = read_regular(path, MAX_FILE_BYTES)
        return msgspec.json.decode(data, type=list[Silence])
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ForeignFile, TooLarge) as error:
        raise ConfigError(f"{error}: not a file of silences") from None
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path} is not a file of silences: {error}; move it away to start without"
        ) from None
