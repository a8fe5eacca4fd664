"""Files and folders of any supported kind, trace databases included, as one set of inputs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.errors import ForeignFile
from ingero.files import regular_stream
from ingero.importers.detect import DEFAULT_LIMITS, Inputs, load

_SQLITE_MAGIC: Final = b"SQLite format 3\0"


def load_recordings(paths: Sequence[Path], on_file: Callable[[Path], None]) -> Inputs:
    """Read everything usable; `on_file` is told before each file."""
    databases = [path for path in paths if path.is_file() and is_sqlite(path)]
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


def is_sqlite(path: Path) -> bool:
    """Return whether a regular file begins as databases of SQLite do."""
    with regular_stream(path) as file:
        return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC


def _add_database(inputs: Inputs, path: Path) -> None:
    from ingero.storage.trace.collectives import read_collectives

    by_source: dict[CollectiveSource, list[CollectiveRecord]] = {}
    for record in read_collectives(path):
        by_source.setdefault(record.source, []).append(record)
    for source, records in by_source.items():
        inputs.add(path, source, records, exact=source is not CollectiveSource.FLIGHT_RECORDER)
    inputs.used.append((path, "trace database"))
