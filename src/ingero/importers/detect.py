"""Recognise trace files by their content and read files and folders into one set of inputs."""

import codecs
import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ingero.contract.collective import MAX_RANKS, CollectiveRecord, CollectiveSource
from ingero.core.blame.step_trace import StepTrace
from ingero.core.blame.wait_graph import ProcessGroup, RankProgress
from ingero.errors import ForeignFile, IngeroError, MalformedInput, TooLarge
from ingero.files import read_regular, regular_stream
from ingero.importers.archives import XZ_MAGIC, is_tar, read_members, unpack_xz
from ingero.importers.collectives_csv import read_csv
from ingero.importers.flight_recorder import read_dump
from ingero.importers.gzip_file import unpack
from ingero.importers.inspector import read_inspector
from ingero.importers.kineto import read_kineto
from ingero.importers.nccl_ring import RING_MAGIC, read_ring_records
from ingero.importers.steps import read_steps
from ingero.importers.unknown import packed_files, why_all_unknown, why_unknown

MAX_MESSAGE = 1000
# whatever is wrong with one file must leave the others readable
DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_JOB_FACT = re.compile(rb"^(world_size|tp_size|trial_name):", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much is read at most."""

    files: int = 20_000
    file_bytes: int = 1 << 30
    unpacked_bytes: int = 2 << 30


DEFAULT_LIMITS = ReadLimits()


class SeveralJobs(MalformedInput):
    """The files belong to more than one job."""


@dataclass(slots=True)
class Inputs:
    """What was read: records per source, step traces, progress of ranks, and problems."""

    records: dict[CollectiveSource, list[CollectiveRecord]] = field(default_factory=dict)
    inexact: set[CollectiveSource] = field(default_factory=set)
    steps: list[tuple[Path, StepTrace]] = field(default_factory=list)
    progress: dict[int, RankProgress] = field(default_factory=dict)
    dump_of: dict[int, Path] = field(default_factory=dict)
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    world: int | None = None
    used: list[tuple[Path, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    ignored: list[Path] = field(default_factory=list)
    folders: dict[tuple[CollectiveSource, int | None], Path] = field(default_factory=dict)

    def widen(self, world: int | None) -> None:
        """Note that the job has at least `world` ranks; each of them costs memory."""
        if world is not None and not 0 <= world <= MAX_RANKS:
            raise MalformedInput(f"a job of {world} ranks; at most {MAX_RANKS} are possible")
        self.world = max(self.world or 0, world or 0) or None

    def add_dump(self, path: Path, data: bytes) -> None:
        """Add a Flight Recorder dump that was read already; its name ends in the rank."""
        self.used.append((path, _flight_recorder(path, data, self)))

    def add(
        self,
        path: Path,
        source: CollectiveSource,
        records: Sequence[CollectiveRecord],
        *,
        exact: bool,
    ) -> None:
        """Add the records of one file.

        The same rank in two folders means two recordings, which must not be mixed.
        """
        for rank in {record.global_rank for record in records}:
            folder = self.folders.setdefault((source, rank), path.parent)
            if folder != path.parent:
                raise SeveralJobs(
                    f"rank {rank} was recorded in {folder} and in {path.parent}: "
                    "ask about one at a time"
                )
        self.records.setdefault(source, []).extend(records)
        if not exact:
            self.inexact.add(source)


def load(
    paths: Sequence[Path],
    limits: ReadLimits = DEFAULT_LIMITS,
    on_file: Callable[[Path], None] = lambda path: None,
) -> Inputs:
    """Read everything usable in these files and folders; `on_file` is told before each.

    A bad file among good ones is listed in `problems`; without a good one, ForeignFile is raised.
    """
    inputs = Inputs()
    for path, asked_for in find_files(paths, limits.files):
        on_file(path)
        with _problems_noted(path, inputs):
            if kind := _read(path, inputs, limits):
                inputs.used.append((path, kind))
            elif asked_for:
                inputs.problems.append(f"{path}: {why_unknown(path)}")
            else:
                inputs.ignored.append(path)
    inputs.problems += packed_files(inputs.ignored)
    _apply_world(inputs)
    if not any((*inputs.records.values(), inputs.steps, inputs.progress)):
        where = ", ".join(str(p) for p in paths)
        detail = "; ".join(inputs.problems[:3]) or why_all_unknown(inputs.ignored)
        raise ForeignFile(f"nothing to read in {where}: {detail.removeprefix(f'{where}: ')}")
    return inputs


@contextlib.contextmanager
def _problems_noted(path: Path, inputs: Inputs) -> Iterator[None]:
    """Note why a file cannot be read, and go on with others; those of two jobs are an error."""
    try:
        yield
    except SeveralJobs:
        raise
    except IngeroError as error:
        inputs.problems.append(_named(path, str(error)))
    except OSError as error:
        inputs.problems.append(f"{path}: cannot be read: {error.strerror}")
    except RecursionError:
        inputs.problems.append(f"{path}: nested too deeply to be a recording")
    except MemoryError:
        inputs.problems.append(f"{path}: needs more memory than a file of its size should")
    except DAMAGED as error:
        what = f"{path}: holds what no recording holds ({type(error).__name__}: {error})"
        inputs.problems.append(_named(path, what))


def _named(path: Path, message: str) -> str:
    """Return a message that names the file; a part of it may be a long text of the file."""
    named = message if str(path) in message else f"{path}: {message}"
    return named if len(named) <= MAX_MESSAGE else f"{named[:MAX_MESSAGE]}…"


def find_files(paths: Sequence[Path], limit: int) -> list[tuple[Path, bool]]:
    """Return files, and the regular files in folders; True for those that were asked for."""
    found: list[tuple[Path, bool]] = []
    for path in paths:
        if path.is_dir():
            for inner in _files_below(path):
                found.append((inner, False))
                _refuse_more(path, len(found), limit)
        elif path.exists():
            found.append((path, True))
            _refuse_more(path, len(found), limit)
        else:
            raise MalformedInput(f"{path}: no such file or folder")
    return found


def _files_below(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        yield from (path for name in sorted(files) if (path := Path(where, name)).is_file())


def _refuse_more(path: Path, count: int, limit: int) -> None:
    if count > limit:
        raise TooLarge(f"{path}: more than {limit} files; name those that matter")


def _read(path: Path, inputs: Inputs, limits: ReadLimits = DEFAULT_LIMITS) -> str | None:
    """Read one file into `inputs`; return its kind in words, or None when it is unknown."""
    with regular_stream(path) as file:
        head = file.read(16)
    if head.startswith(b"PAR1"):
        inputs.steps.append((path, read_steps(path, problems=inputs.problems)))
        return "step trace"
    if head.startswith(RING_MAGIC):
        return _ring(path, inputs)
    data = read_regular(path, limits.file_bytes)
    if head.startswith(b"\x1f\x8b"):
        data = unpack(path, data, limits.unpacked_bytes)
    elif head.startswith(XZ_MAGIC):
        data = unpack_xz(path, data, limits.unpacked_bytes)
    return _archive(path, data, inputs) if is_tar(data) else _content(path, data, inputs)


def _content(path: Path, data: bytes, inputs: Inputs) -> str | None:
    if data.startswith(RING_MAGIC):
        return _ring(path, inputs, data)
    data = data.removeprefix(codecs.BOM_UTF8)
    for looks_like, read in _KINDS:
        if looks_like(data):
            return read(path, data, inputs)
    return None


def _archive(path: Path, data: bytes, inputs: Inputs) -> str | None:
    """Read every file of an archive; one that is broken is a problem of its own."""
    kinds: list[str] = []
    for inner, content in read_members(path, data):
        with _problems_noted(inner, inputs):
            if (kind := _content(inner, content, inputs)) is not None:
                kinds.append(kind)
    return f"archive of {len(kinds)} files ({kinds[0]})" if kinds else None


def _ring(path: Path, inputs: Inputs, data: bytes | None = None) -> str:
    records, world, lost = read_ring_records(path, data)
    inputs.add(path, CollectiveSource.PLUGIN, records, exact=True)
    inputs.widen(world)
    inputs.problems += lost
    return "NCCL plugin ring"


def _is_json(data: bytes) -> bool:
    return data[:64].lstrip()[:1] in (b"{", b"[")


def _flight_recorder(path: Path, data: bytes, inputs: Inputs) -> str:
    dump = read_dump(path, data)
    if dump.rank in inputs.progress:
        where = inputs.dump_of[dump.rank]
        if where.parent != path.parent:
            raise SeveralJobs(
                f"rank {dump.rank} left a dump in {where.parent} and in {path.parent}: "
                "ask about one at a time"
            )
        raise MalformedInput(
            f"{path}: a second dump of rank {dump.rank} beside {where.name}; keep one per rank"
        )
    inputs.dump_of[dump.rank] = path
    inputs.add(path, CollectiveSource.FLIGHT_RECORDER, dump.records, exact=False)
    inputs.progress[dump.rank] = dump.progress
    inputs.groups.update(dump.groups)
    inputs.widen(dump.world)
    inputs.problems += [dump.left_out] if dump.left_out else []
    return "flight recorder dump"


def _inspector(path: Path, data: bytes, inputs: Inputs) -> str:
    found = read_inspector(path, data.decode("utf-8", "replace"))
    inputs.add(path, CollectiveSource.INSPECTOR, found.records, exact=found.exact_ends)
    inputs.problems += found.notes
    return "NCCL inspector"


def _json(path: Path, data: bytes, inputs: Inputs) -> str | None:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise MalformedInput(f"{path}: broken JSON ({error})") from error
    if (
        isinstance(content, list)
        and content
        and isinstance(content[0], dict)
        and "ph" in content[0]
    ):
        content = {"traceEvents": content}
    if not isinstance(content, dict):
        return None
    if "traceEvents" in content:
        trace = read_kineto(path, content)
        inputs.add(path, CollectiveSource.KINETO, trace.records, exact=True)
        inputs.widen(trace.world)
        inputs.problems += [trace.left_out] if trace.left_out else []
        if trace.nameless:
            inputs.problems.append(
                f"{path}: {trace.nameless} NCCL kernels have no collective name; left out"
            )
        return "kineto trace"
    return (
        _flight_recorder(path, data, inputs) if isinstance(content.get("entries"), list) else None
    )


def _csv(path: Path, data: bytes, inputs: Inputs) -> str:
    text = data.decode("utf-8", "replace")
    records = read_csv(path, text, inputs.problems)
    inputs.add(path, CollectiveSource.PLUGIN, records, exact=True)
    return "collective record file"


def _job_facts(path: Path, data: bytes, inputs: Inputs) -> str:
    world = re.search(rb"^world_size:\s*(\d+)", data, re.MULTILINE)
    inputs.widen(int(world.group(1)) if world else None)
    return "job description"


_Reader = Callable[[Path, bytes, Inputs], str | None]
_KINDS: tuple[tuple[Callable[[bytes], bool], _Reader], ...] = (
    (lambda data: data[:1] == b"\x80", _flight_recorder),
    (lambda data: _is_json(data) and b'"coll_perf"' in data[:65536], _inspector),
    (_is_json, _json),
    (lambda data: b"comm_hash" in data[:4096].split(b"\n", 1)[0], _csv),
    (lambda data: len(data) < 65536 and len(_JOB_FACT.findall(data)) >= 2, _job_facts),
)


def _apply_world(inputs: Inputs) -> None:
    """Take the number of GPUs from a job description beside step traces, where there is one."""
    if inputs.world:
        inputs.steps = [
            (path, replace(trace, world_size=max(inputs.world, trace.worker_rank.size)))
            for path, trace in inputs.steps
        ]
