"""The state of the verdict engines on disk, so that a restart goes on with open episodes."""

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ingero.errors import ForeignFile, StoreError, TooLarge
from ingero.files import read_regular, replace_file
from ingero.fleet.episodes.state_codec import decode_state, encode_state

if TYPE_CHECKING:
    from ingero.fleet.verdicts import VerdictService

SUFFIX: Final = ".state"
EVERY_S: Final = 30.0
MAX_AGE_S: Final = 600.0  # what happened meanwhile is not known
MAX_FILE_BYTES: Final = 64 << 20
MAX_ENGINE_BYTES: Final = 8 << 20  # in memory: encoding a larger one would delay pushes
log = logging.getLogger(__name__)


class _Stored(msgspec.Struct, frozen=True):
    """The content of a file."""

    cluster: str
    at_s: float
    state: bytes


class EngineStates:
    """Keeps the engine of every cluster in a folder; without a folder a restart relearns."""

    def __init__(self, verdicts: "VerdictService", folder: Path | None) -> None:
        self._verdicts, self._folder = verdicts, folder
        self._next_s = 0.0
        self.failures = 0

    def load(self, now_s: float) -> None:
        """Take over the engines of an earlier process, or say that everything is learned anew."""
        if self._folder is None:
            log.info("relearning", extra={"why": "verdict.state_dir is not set"})
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            paths = sorted(self._folder.glob(f"*{SUFFIX}"))
        except OSError as error:
            raise StoreError(f"cannot use {self._folder}: {error.strerror}") from None
        for path in paths:
            try:
                stored = msgspec.msgpack.decode(read_regular(path, MAX_FILE_BYTES), type=_Stored)
                if now_s - stored.at_s > MAX_AGE_S:
                    raise ForeignFile(f"it is {now_s - stored.at_s:.0f} s old")
                self._verdicts.clusters[stored.cluster] = decode_state(stored.state)
            except (OSError, ForeignFile, TooLarge, msgspec.DecodeError) as error:
                log.warning("relearning", extra={"file": str(path), "why": str(error)})
            else:
                log.info("engine_restored", extra={"cluster": stored.cluster})

    async def settle(self, now_s: float, *, is_last: bool = False) -> None:
        """Write every engine when it is time to; encoded here, written in a thread."""
        if self._folder is None or (now_s < self._next_s and not is_last):
            return
        self._next_s = now_s + EVERY_S
        contents = {}
        for name, cluster in self._verdicts.clusters.items():
            registry = cluster.engine.registry
            if (
                registry.rows.size_bytes + registry.cohorts.size_bytes <= MAX_ENGINE_BYTES
                or is_last
            ):
                stored = _Stored(name, now_s, encode_state(cluster))
                contents[_file_name(name)] = msgspec.msgpack.encode(stored)
        try:
            await asyncio.to_thread(_write, self._folder, contents)
        except (OSError, StoreError) as error:
            self.failures += 1
            log.error("engines_not_written", extra={"why": str(error)})


def _file_name(cluster: str) -> str:
    return hashlib.sha256(cluster.encode()).hexdigest()[:32] + SUFFIX


def _write(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        replace_file(folder / name, content)
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name not in contents:
            path.unlink(missing_ok=True)
