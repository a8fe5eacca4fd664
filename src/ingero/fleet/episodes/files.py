"""Episodes on disk: one file for each, with what was said about it and its packed inputs."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Final

import msgspec

from ingero.contract.episodes.episode import Episode
from ingero.errors import ForeignFile, StoreError, TooLarge
from ingero.files import read_regular, replace_file
from ingero.fleet.episodes.book import EpisodeBook
from ingero.fleet.episodes.inputs import MAX_BYTES
from ingero.fleet.episodes.segment import Segment

SUFFIX: Final = ".episode"
_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
log = logging.getLogger(__name__)


class _Stored(msgspec.Struct, frozen=True):
    """The content of a file."""

    episode: Episode
    packed: list[bytes]


class EpisodeFiles:
    """Keeps the episodes of a book in a folder; without a folder it only packs their inputs."""

    def __init__(self, book: EpisodeBook, folder: Path | None) -> None:
        self._book, self._folder = book, folder
        self._problem = ""  # why the last write failed
        self.failures = 0

    def load(self) -> None:
        """Read the episodes of an earlier process; a file that cannot be read is left alone."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            paths = list(self._folder.glob(f"*{SUFFIX}"))
        except OSError as error:
            raise StoreError(f"cannot use {self._folder}: {error.strerror}") from None
        found = []
        for path in paths:
            try:
                data = read_regular(path, 2 * MAX_BYTES)
                found.append(msgspec.msgpack.decode(data, type=_Stored))
            except (OSError, ForeignFile, TooLarge, msgspec.DecodeError) as error:
                log.warning("episode_unreadable", extra={"file": str(path), "why": str(error)})
        for stored in sorted(found, key=lambda each: each.episode.began):
            name, cluster = stored.episode.episode, stored.episode.cluster
            segments = [Segment.from_packed(cluster, name, packed) for packed in stored.packed]
            self._book.restore(stored.episode, segments)

    async def settle(self) -> None:
        """Pack the segments that have ended, and write and delete files; all in a thread."""
        book = self._book
        for segment in book.inputs.unpacked():
            segment.close(await asyncio.to_thread(segment.pack))
        changed, removed = book.changed.copy(), book.removed.copy()
        book.changed.clear()
        book.removed.clear()
        if self._folder is None or not (changed or removed):
            return
        contents = {name: self._content(name) for name in changed if _NAME.fullmatch(name)}
        try:
            await asyncio.to_thread(_write, self._folder, contents, removed)
        except (OSError, StoreError) as error:
            self.failures += 1
            book.changed |= changed  # written when the disk has room again
            book.removed |= removed
            self._note(str(error))
        else:
            self._note("")

    def _note(self, problem: str) -> None:
        """Log a problem once, however many writes it lets fail."""
        if problem and problem != self._problem:
            log.error("episodes_not_written", extra={"why": problem})
        self._problem = problem

    def _content(self, name: str) -> bytes:
        episode = self._book.find(name)
        if episode is None:
            return b""
        segments = self._book.inputs.segments_of(name)
        packed = [segment.packed for segment in segments if segment.packed is not None]
        return msgspec.msgpack.encode(_Stored(episode, packed))


def _write(folder: Path, contents: dict[str, bytes], removed: set[str]) -> None:
    for name, content in contents.items():
        if content:
            replace_file(folder / f"{name}{SUFFIX}", content)
    for name in removed:
        if _NAME.fullmatch(name):
            (folder / f"{name}{SUFFIX}").unlink(missing_ok=True)
