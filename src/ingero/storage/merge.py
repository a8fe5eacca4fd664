"""Several trace databases into one: read-only sources, one atomic output, nothing counted twice.

Rows move inside SQLite (ATTACH and INSERT … SELECT); indexes are built once at the end. The output appears under its
name only when it is complete.
"""

import filecmp
import itertools
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ingero.errors import ForeignFile, MalformedInput, StoreError
from ingero.storage.merge_sql import (
    COUNTED,
    copy_statements,
    count_oversized_stacks,
    highest_number,
    needs_force_node,
    nodes_of_source,
)
from ingero.storage.schema import OWN_TABLES, TABLES, create_schema
from ingero.storage.trace_db import sibling_files
from ingero.storage.trace_reading import connect_readonly
from ingero.storage.whole_file import sync_directory

ENDING_BYTES: Final = 16 * 1024
UNNAMED_NODE: Final = "unknown"
MAX_PAIRED: Final = 10  # up to so many nodes every pair is compared, beyond it each with the middle one


@dataclass(frozen=True, slots=True)
class MergedFile:
    """What one source added; `skipped` says why a file was left out."""

    path: Path
    events: int = 0
    chains: int = 0
    stacks: int = 0
    oversized_stacks: int = 0
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class MergeSummary:
    """The whole merge. `possible_skew` holds node pairs whose first events lie far apart, in seconds."""

    files: list[MergedFile]
    events: int
    chains: int
    stacks: int
    nodes: list[str]
    possible_skew: list[tuple[str, str, float]] = field(default_factory=list)


Progress = Callable[[int, int, Path], None]


def merge(
    sources: Sequence[Path],
    output: Path,
    *,
    force_node: str | None = None,
    skip_bad: bool = False,
    skew_threshold_s: float = 0.1,
    progress: Progress = lambda done, total, path: None,
) -> MergeSummary:
    """Merge `sources` into `output`; raises naming the file that is in the way."""
    _check_paths(sources, output)
    if force_node is not None and (":" in force_node or not force_node.strip()):
        raise MalformedInput(f"--force-node {force_node!r}: a node name is not empty and has no colon")
    with _private_folder(output) as folder:
        target = folder / "merged.db"
        connection = _new_database(target)
        try:
            merger = _Merger(connection, folder, force_node, skip_bad=skip_bad)
            files = _add_all(merger, sources, progress)
            _build_indexes(connection)
            summary = _summarise(files, merger.first_ns, skew_threshold_s)
        except sqlite3.OperationalError as error:
            raise StoreError(f"cannot write {output}: {error}; make room and try again") from error
        finally:
            connection.close()
        _publish(target, output)
    return summary


def _check_paths(sources: Sequence[Path], output: Path) -> None:
    if not sources:
        raise MalformedInput("name at least one trace database to merge")
    for source in sources:
        if not source.is_file():
            raise StoreError(f"{source} is not there")
        if source.resolve() == output.resolve():
            raise StoreError(f"{output} is also a source; write to another file")
    if output.is_dir() or not output.parent.is_dir():
        raise StoreError(f"cannot write {output}: its folder is not there or it is a folder itself")


@contextmanager
def _private_folder(output: Path) -> Iterator[Path]:
    """A folder beside the output, so that the last step is a rename on one file system."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.resolve().parent))
    except OSError as error:
        raise StoreError(f"cannot write {output}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _add_all(merger: "_Merger", sources: Sequence[Path], progress: Progress) -> list[MergedFile]:
    files = []
    for number, path in enumerate(sources):
        progress(number, len(sources), path)
        try:
            files.append(merger.add(path))
        except (ForeignFile, StoreError) as error:
            if not merger.skip_bad:
                raise
            files.append(MergedFile(path, skipped=str(error)))
    progress(len(sources), len(sources), sources[-1])
    return files


def _new_database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, uri=True)
    connection.execute("PRAGMA page_size = 16384")  # a tenth less work than with SQLite's 4096
    connection.execute("PRAGMA journal_mode = OFF")  # a failed merge is deleted, not rolled back
    connection.execute("PRAGMA synchronous = OFF")  # synced once, before the rename
    connection.execute("PRAGMA cache_size = -65536")
    for name, columns in (TABLES | OWN_TABLES).items():
        connection.execute(f"CREATE TABLE {name} {columns}")
    connection.commit()
    return connection


def _build_indexes(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA threads = 2")
    connection.execute("PRAGMA cache_size = -4096")  # the sort is cut into parts of this size, one a thread
    create_schema(connection)
    connection.commit()


class _Merger:
    """Copies one source after the other and remembers what has gone in."""

    def __init__(self, connection: sqlite3.Connection, folder: Path, force_node: str | None, *, skip_bad: bool) -> None:
        self.connection = connection
        self.folder = folder
        self.force_node = force_node
        self.skip_bad = skip_bad
        self.by_ending: dict[tuple[tuple[int, bytes], ...], dict[Path, Path]] = {}  # sources and their readable copies
        self.nodes: set[str] = set()
        self.first_ns: dict[str, int] = {}  # by node: the time of its first event
        self.used_numbers = 0

    def add(self, path: Path) -> MergedFile:
        """Copy one source; raises before anything of it is copied when it cannot be used."""
        readable = _readable_copy(path, self.folder)
        alike = self.by_ending.setdefault(_ending(readable), {})
        for known, known_readable in alike.items():
            if _same_content(readable, known_readable):
                return MergedFile(path, skipped=f"same content as {known}")
        _check_content(path, readable, self.force_node, to_the_end=self.skip_bad)
        alike[path] = readable
        copied: Counter[str] = Counter()
        self.connection.execute("ATTACH ? AS src", (_uri(readable, immutable=readable == path),))
        try:
            oversized = self._copy_attached(copied)
            self.connection.commit()
        except sqlite3.DatabaseError as error:
            raise ForeignFile(f"{path} is damaged: {error}; --skip-bad merges the other files") from error
        finally:
            with suppress(sqlite3.Error):  # a damaged source cannot even be let go of
                self.connection.commit()
                self.connection.execute("DETACH src")
        events, chains, stacks = (copied[table] for table in COUNTED)
        return MergedFile(path, events, chains, stacks, oversized)

    def _copy_attached(self, copied: Counter[str]) -> int:
        found = nodes_of_source(self.connection)
        node = self.force_node or next((name for name, _, _ in found if name), UNNAMED_NODE)
        unnamed = sum(count for _, _, count in found)
        after = max(self.used_numbers, highest_number(self.connection)) if unnamed else None
        for statement in copy_statements(self.connection, node, after, node_is_new=node not in self.nodes):
            copied[statement.table] += self.connection.execute(statement.sql, statement.parameters).rowcount
        self.used_numbers = (after or self.used_numbers) + unnamed
        self.nodes.add(node)
        for name, first_ns, _ in found:
            self.first_ns[name or node] = min(first_ns, self.first_ns.get(name or node, first_ns))
        return count_oversized_stacks(self.connection)


def _readable_copy(path: Path, folder: Path) -> Path:
    """The source itself; a copy when it has a write-ahead log, because reading that would write beside the source."""
    database, log, _ = sibling_files(path)
    if not (log.exists() and log.stat().st_size):
        return database
    copy = Path(tempfile.mkdtemp(dir=folder)) / path.name
    shutil.copyfile(database, copy)
    shutil.copyfile(log, sibling_files(copy)[1])
    return copy


def _ending(path: Path) -> tuple[tuple[int, bytes], ...]:
    """Size and last bytes of a source: what tells two recordings apart without reading them."""
    endings = []
    for file in sibling_files(path)[:2]:
        if file.exists():
            with file.open("rb") as content:
                size = content.seek(0, os.SEEK_END)
                content.seek(max(0, size - ENDING_BYTES))
                endings.append((size, content.read()))
    return tuple(endings)


def _same_content(one: Path, other: Path) -> bool:
    pairs = zip(sibling_files(one)[:2], sibling_files(other)[:2], strict=True)
    return all(filecmp.cmp(ours, theirs, shallow=False) for ours, theirs in pairs if ours.exists())


def _check_content(path: Path, readable: Path, force_node: str | None, *, to_the_end: bool) -> None:
    """Refuse what cannot be merged. Damage deep inside a file is looked for only where the merge must go on without it:
    otherwise it stops the copy, and with it the merge, anyway."""
    try:
        connection = connect_readonly(readable)
    except (ForeignFile, StoreError) as error:
        raise type(error)(str(error).replace(str(readable), str(path))) from None
    try:
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if to_the_end else "ok"
        if problem != "ok":
            raise ForeignFile(f"{path} is damaged: {problem}; --skip-bad merges the other files")
        if force_node is None and needs_force_node(connection):
            raise ForeignFile(
                f"{path} does not say which node it is from: name it with --force-node NAME, or record again with "
                "`ingero trace --node NAME`"
            )
    except sqlite3.DatabaseError as error:
        raise ForeignFile(f"{path} is damaged: {error}; --skip-bad merges the other files") from None
    finally:
        connection.close()


def _uri(path: Path, *, immutable: bool) -> str:
    return f"file:{quote(str(path))}?mode=ro{'&immutable=1' if immutable else ''}"


def _summarise(files: list[MergedFile], first_ns: Mapping[str, int], skew_threshold_s: float) -> MergeSummary:
    first = sorted(first_ns.items(), key=lambda item: str(item[0]))  # odd files have names that are no text
    pairs = list(itertools.combinations(first, 2)) if len(first) <= MAX_PAIRED else []
    if len(first) > MAX_PAIRED:
        middle = sorted(first, key=lambda item: int(item[1]))[len(first) // 2]
        pairs = [(middle, other) for other in first if other is not middle]
    skew = [
        (early, late, abs(late_ns - early_ns) / 1e9)
        for (early, early_ns), (late, late_ns) in pairs
        if abs(late_ns - early_ns) > skew_threshold_s * 1e9
    ]
    events, chains, stacks = (sum(getattr(file, name) for file in files) for name in ("events", "chains", "stacks"))
    return MergeSummary(files, events, chains, stacks, [node for node, _ in first], skew)


def _publish(target: Path, output: Path) -> None:
    with target.open("rb+") as file:
        os.fsync(file.fileno())
    target.replace(output)
    sync_directory(output.resolve().parent)
