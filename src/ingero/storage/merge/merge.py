"""Merging trace databases into one, without changing the sources or counting anything twice.

Rows move inside SQLite (ATTACH and INSERT … SELECT), and indexes are built once at the end. The
output appears under its name only when it is complete.
"""

import errno
import functools
import itertools
import operator
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ingero.errors import ForeignFile, MalformedInput, StoreError
from ingero.files import publish_file
from ingero.storage.merge.source import check_content, damaged, ending, readable_copy, same_content
from ingero.storage.merge.statements import (
    Statement,
    add_up_aggregates,
    copy_displaced_events,
    copy_events,
    copy_statements,
    count_events,
    count_incomplete_events,
    count_oversized_stacks,
    highest_number,
    node_of_sessions,
    nodes_of_source,
)
from ingero.storage.trace.database import NO_ROOM
from ingero.storage.trace.schema import OWN_TABLES, TABLES, create_schema

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
UNNAMED_NODE: Final = "unknown"
# with up to this many nodes every pair is compared; with more, each with the median one
MAX_PAIRED: Final = 10


@dataclass(frozen=True, slots=True)
class MergedFile:
    """What one source added to the output, or in `skipped` why it was left out."""

    path: Path
    events: int = 0
    chains: int = 0
    stacks: int = 0
    oversized_stacks: int = 0
    renumbered_events: int = 0  # their ids were taken by other events
    incomplete_events: int = 0  # left out: no time, process, kind or duration
    known_events: int = 0  # left out: another file already had them
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class MergeSummary:
    """The result of a merge.

    `possible_skew` lists pairs of nodes whose first events are many seconds apart.
    """

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
    """Merge `sources` into `output`; errors name the file that caused them."""
    try:
        _check_paths(sources, output)
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be read: {error.strerror}") from None
    if force_node is not None and (":" in force_node or not force_node.strip()):
        raise MalformedInput(
            f"--force-node {force_node!r}: a node name must not be empty or contain a colon"
        )
    with _private_folder(output) as folder:
        target = folder / "merged.db"
        try:
            with closing(_new_database(target)) as connection:
                merger = _Merger(connection, folder, force_node, skip_bad=skip_bad)
                files = _add_all(merger, sources, progress)
                add_up_aggregates(connection)
                _build_indexes(connection)
        except (sqlite3.DatabaseError, OSError) as error:
            raise StoreError(
                f"cannot write {output}: {error}; is there room in its folder?"
            ) from error
        _publish(target, output, sources)
    return _summarise(files, merger.first_ns, skew_threshold_s)


def _check_paths(sources: Sequence[Path], output: Path) -> None:
    if not sources:
        raise MalformedInput("name at least one trace database to merge")
    for source in sources:
        if not source.is_file():
            problem = "is not a file" if source.exists() else "does not exist"
            raise StoreError(
                f"{source} {problem}; name trace databases that `ingero trace --record` wrote"
            )
        if output.exists() and source.samefile(output):
            raise StoreError(f"{output} is also a source; write to another file")
    if not output.parent.is_dir() or (output.exists() and not output.is_file()):
        raise StoreError(
            f"cannot write {output}: its folder does not exist, or it is not a regular file"
        )


@contextmanager
def _private_folder(output: Path) -> Iterator[Path]:
    """Yield a folder beside the output, so that the last step is a rename on one file system."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=_real(output).parent))
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
            if not merger.skip_bad or isinstance(error, _HalfCopied):
                raise
            files.append(MergedFile(path, skipped=str(error)))
    if all(file.skipped for file in files):
        raise StoreError(
            "none of the files can be merged:\n  "
            + "\n  ".join(str(file.skipped) for file in files)
        )
    progress(len(sources), len(sources), sources[-1])
    return files


def _new_database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, uri=True)
    # a node name may be any bytes
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    # about a tenth less work than with SQLite's default of 4096
    connection.execute("PRAGMA page_size = 16384")
    connection.execute("PRAGMA journal_mode = OFF")  # a failed merge is deleted, not rolled back
    connection.execute("PRAGMA synchronous = OFF")  # synced once, before the rename
    connection.execute("PRAGMA cache_size = -65536")
    for name, columns in (TABLES | OWN_TABLES).items():
        connection.execute(f"CREATE TABLE {name} {columns}")
    connection.commit()
    return connection


def _build_indexes(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA threads = 2")
    # the sort is split into parts of this size, one per thread
    connection.execute("PRAGMA cache_size = -4096")
    create_schema(connection)
    connection.commit()


class _HalfCopied(ForeignFile):
    """A source failed after some of its rows had been copied."""


class _Merger:
    """Copies the sources one after the other and keeps track of what has been merged."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        folder: Path,
        force_node: str | None,
        *,
        skip_bad: bool,
    ) -> None:
        self.connection = connection
        self.folder = folder
        self.force_node = force_node
        self.skip_bad = skip_bad
        self.by_ending: dict[
            tuple[tuple[int, bytes], ...], dict[Path, Path]
        ] = {}  # sources and their readable copies
        self.nodes: set[str] = set()
        self.first_ns: dict[str, int] = {}  # the time of each node's first event
        self.used_numbers = 0

    def add(self, path: Path) -> MergedFile:
        """Copy one source. A source that cannot be used raises before any row is copied."""
        try:
            readable = readable_copy(path, self.folder)
            alike = self.by_ending.setdefault(ending(readable), {})
        except (sqlite3.Error, OSError) as error:
            if _is_full(error):
                raise
            raise StoreError(f"{path} cannot be read: {error}") from None
        for known, known_readable in alike.items():
            if same_content(readable, known_readable):
                return MergedFile(path, skipped=f"same content as {known}")
        check_content(path, readable, self.force_node, to_the_end=self.skip_bad)
        alike[path] = readable
        self.connection.execute("ATTACH ? AS src", (_uri(readable, immutable=readable == path),))
        rows_before = self.connection.total_changes
        try:
            merged = self._copy_attached(path)
            self.connection.commit()
        except sqlite3.DatabaseError as error:
            if _is_full(error):
                raise
            if self.connection.total_changes > rows_before:
                raise _HalfCopied(
                    f"{path} is damaged: {error}; merge the others without it"
                ) from error
            raise damaged(path, error) from error
        finally:
            with suppress(sqlite3.Error):  # a damaged source cannot even be detached
                self.connection.commit()
                self.connection.execute("DETACH src")
        return merged

    def _copy_attached(self, path: Path) -> MergedFile:
        found = nodes_of_source(self.connection)
        named = next((name for name, _, _ in found if name), None) or node_of_sessions(
            self.connection
        )
        node = self.force_node or named or UNNAMED_NODE
        names = {name or node for name, _, _ in found}
        merged = self._copy_events(path, node, names, unnamed=sum(count for *_, count in found))
        statements = copy_statements(
            self.connection,
            node,
            is_only_node=len(names) <= 1,
            node_is_new=not names & self.nodes,
            is_copy=merged.known_events > 0,
        )
        copied: Counter[str] = Counter()
        for statement in statements:
            copied[statement.table] += self._run(statement)
        self.nodes |= names
        for name, first_ns, _ in found:
            self.first_ns[name or node] = min(first_ns, self.first_ns.get(name or node, first_ns))
        return replace(
            merged,
            chains=copied["causal_chains"],
            stacks=copied["stack_traces"],
            oversized_stacks=count_oversized_stacks(self.connection),
        )

    def _copy_events(self, path: Path, node: str, names: set[str], unnamed: int) -> MergedFile:
        after = self._used_numbers(names) if unnamed else None
        copied = self._run(copy_events(self.connection, node, after))
        self.used_numbers = (after or self.used_numbers) + unnamed
        left = count_events(self.connection) - copied
        if not left:
            return MergedFile(path, copied)
        renumbered = self._run(
            copy_displaced_events(self.connection, node, self._used_numbers(names))
        )
        incomplete = count_incomplete_events(self.connection)
        return MergedFile(
            path,
            copied + renumbered,
            renumbered_events=renumbered,
            incomplete_events=incomplete,
            known_events=left - renumbered - incomplete,
        )

    def _run(self, statement: Statement) -> int:
        return self.connection.execute(statement.sql, statement.parameters).rowcount

    def _used_numbers(self, names: set[str]) -> int:
        return max([self.used_numbers, *(highest_number(self.connection, name) for name in names)])


def _is_full(error: Exception) -> bool:
    """Return whether the output failed, not the source."""
    return (
        getattr(error, "sqlite_errorcode", None) in NO_ROOM
        or getattr(error, "errno", None) in DISK_FULL
    )


def _uri(path: Path, *, immutable: bool) -> str:
    return f"file:{quote(str(path))}?mode=ro{'&immutable=1' if immutable else ''}"


def _summarise(
    files: list[MergedFile], first_ns: Mapping[str, int], skew_threshold_s: float
) -> MergeSummary:
    # some files have names that are not valid text
    first = sorted(first_ns.items(), key=lambda item: str(item[0]))
    pairs = list(itertools.combinations(first, 2)) if len(first) <= MAX_PAIRED else []
    if len(first) > MAX_PAIRED:
        middle = sorted(first, key=lambda item: int(item[1]))[len(first) // 2]
        pairs = [(middle, other) for other in first if other is not middle]
    skew = [
        (early, late, abs(late_ns - early_ns) / 1e9)
        for (early, early_ns), (late, late_ns) in pairs
        if abs(late_ns - early_ns) > skew_threshold_s * 1e9
    ]
    events, chains, stacks = (
        sum(getattr(file, name) for file in files) for name in ("events", "chains", "stacks")
    )
    return MergeSummary(files, events, chains, stacks, [node for node, _ in first], skew)


def _real(output: Path) -> Path:
    """Return the target of a link, so that the target is replaced and not the link."""
    return Path(os.path.realpath(output))


def _common_mode(sources: Sequence[Path]) -> int:
    """Return who may read the result: whoever may read every source."""
    modes = [source.stat().st_mode for source in sources]
    return 0o600 | functools.reduce(operator.and_, modes) & 0o044


def _publish(target: Path, output: Path, sources: Sequence[Path]) -> None:
    try:
        target.chmod(target.stat().st_mode & _common_mode(sources))
        publish_file(target, _real(output))
    except OSError as error:
        raise StoreError(f"cannot write {output}: {error.strerror}") from None
