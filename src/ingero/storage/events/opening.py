"""Which store a setting names: the file, or a lake."""

from pathlib import Path

from ingero.errors import StoreError
from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.events.lake.address import LakeSecrets, parse_lake_address
from ingero.storage.events.lake.identity import is_in_lake, mark_moved
from ingero.storage.events.lake.store import LakeStore
from ingero.storage.events.store import EventStore


def open_store(
    database: Path, address: str, secrets: LakeSecrets, memory_bytes: int, threads: int
) -> EventStore:
    """Open the lake at `address`, or without one the file `database`; raise StoreError.

    The journal lies beside `database` in both cases.
    """
    if not address:
        if is_in_lake(database):
            raise StoreError(
                f"the events of {database} are in a lake; start Echo with --store, or name another "
                "--db-path"
            )
        return DuckDbStore(database, memory_bytes, threads)
    store = LakeStore(parse_lake_address(address), secrets, database, memory_bytes, threads)
    if database.exists() and not is_in_lake(database):
        if not store.has_written():
            store.close()
            raise StoreError(
                f"{database} holds events of its own; `ingero-echo migrate {database} STORE` moves "
                "them into the lake, or name another --db-path"
            )
        mark_moved(database)  # the move was committed, but could not say so
    return store
