"""The store that a test runs on: a file, or a lake where `make e2e-lake` asks for one."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pytest
from tests.support.lakes import lake_for, url_of

from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.events.lake.connection import NAME
from ingero.storage.events.lake.store import LakeStore
from ingero.storage.events.store import EventStore

T = TypeVar("T")
MEMORY_BYTES = 512 << 20
OpenWriter = Callable[[str], LakeStore]
ON_LAKE = os.environ.get("INGERO_TEST_STORE") == "lake"
only_files = pytest.mark.skipif(ON_LAKE, reason="is about the database file")


def examples(count: int) -> int:
    """Return how many examples of a property to try: a lake takes a second for each load."""
    return max(2, count // 6) if ON_LAKE else count


def some(items: Sequence[T]) -> Sequence[T]:
    """Return all of them, or on a lake every twelfth: a statement there takes a round trip more."""
    return items[::12] if ON_LAKE else items


def open_test_store(path: Path, memory_bytes: int = MEMORY_BYTES, threads: int = 1) -> EventStore:
    """Open the store that belongs to `path`."""
    if not ON_LAKE:
        return DuckDbStore(path, memory_bytes, threads)
    address, secrets = lake_for(path, in_bucket=True)
    return LakeStore(address, secrets, path, memory_bytes, threads)


@contextmanager
def lake_writers(folder: Path, *, in_bucket: bool) -> Iterator[OpenWriter]:
    """Yield what opens writers of one lake by name, each with a journal folder of its own."""
    address, secrets = lake_for(folder / "lake", in_bucket=in_bucket)
    with ExitStack() as opened:
        yield lambda name: opened.enter_context(
            closing(LakeStore(address, secrets, folder / name, MEMORY_BYTES, 1))
        )


def store_settings(path: Path) -> dict[str, Any]:
    """Return what `EngineSettings` says about the store that belongs to `path`."""
    if not ON_LAKE:
        return {"database": path}
    address, secrets = lake_for(path, in_bucket=True)
    file = secrets_file(path, secrets)
    return {"database": path, "lake": url_of(address), "lake_secrets": file}


def secrets_file(path: Path, secrets: object) -> Path:
    """Write the secrets of the lake that belongs to `path`."""
    file = path.with_name(path.name + ".secrets")
    fields = ("password", "reader_user", "reader_password", "s3_key_id", "s3_secret")
    lines = [f"{name}: {value}" for name in fields if (value := getattr(secrets, name))]
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    return file


@contextmanager
def writing(store: EventStore) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with the rights of the loader, which readers of a lake do not have."""
    connection = store._connection.cursor()
    if isinstance(store, LakeStore):
        connection.execute(f"USE {NAME}")
    yield connection
    connection.close()


def meta(store: EventStore, key: str) -> int:
    """Return what the store has noted about itself."""
    return store._meta(key)
