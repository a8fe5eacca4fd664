"""Files and folders of any supported kind, trace databases included, as one set of inputs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.errors import ForeignFile
from ingero.files import regular_stream
from ingero.importers.detect import DEFAULT_LIMITS, Inputs, load

SQLITE_MAGIC = b"SQLite format 3\0"


def load_recordings(
    paths: Sequence[Path], on_file: Callable[[Path], None] = lambda path: None
) -> Inputs:
    """Read everything usable; `on_file` is told before each file."""
    databases = [path for path in paths if path.is_file() and starts_with(path, SQLITE_MAGIC)]
    others = [path for path in paths if path not in databases]
    inputs = load(others, DEFAULT_LIMITS, on_file) if others else Inputs()
    for path in databases:
        on_file(path)
        _add_database(inputs, path)
    if databases and not inputs.records:
        raise ForeignFile(
            f"{databases[0]}: its table `collectives` is empty; `ingero import` fills it"
        )
    return inputs


def starts_with(path: Path, magic: bytes) -> bool:
    """Return whether a regular file begins with these bytes."""
    with regular_stream(path) as file:
        return file.read(len(magic)) == magic


def _add_database(inputs: Inputs, path: Path) -> None:
    from ingero.storage.trace.collectives import read_collectives

    by_source: dict[CollectiveSource, list[CollectiveRecord]] = {}
    for record in read_collectives(path):
        by_source.setdefault(record.source, []).append(record)
    for source, records in by_source.items():
        inputs.add(path, source, records, exact=source is not CollectiveSource.FLIGHT_RECORDER)
    inputs.used.append((path, "trace database"))
