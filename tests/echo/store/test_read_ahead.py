"""The journal read ahead: order, what is decoded when, and errors that reach the loader."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.echo_samples import gauge, metrics

from ingero.echo.store.read_ahead import ReadAhead
from ingero.errors import StoreDamaged
from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.journal.frames import segment_path
from ingero.storage.journal.reader import JournalReader
from ingero.storage.journal.writer import JournalWriter

REQUESTS = 9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDbStore]:
    opened = DuckDbStore(tmp_path / "echo.db", 512 << 20, 1)
    opened.load_bytes = 2 * len(metrics(gauge("m0", 0.5)))  # two requests are a full load
    yield opened
    opened.close()


def journal(path: Path, bodies: list[bytes]) -> JournalReader:
    path.mkdir()
    writer = JournalWriter(path, 0, 1 << 16)
    writer.append([(1, body) for body in bodies], 0)
    writer.close()
    return JournalReader(path, 0)


def read_ahead(reader: JournalReader, store: DuckDbStore) -> ReadAhead:
    return ReadAhead(reader, store, lambda: REQUESTS, lambda: None)


def test_loads_come_in_order_and_decoded(tmp_path: Path, store: DuckDbStore) -> None:
    bodies = [metrics(gauge(f"m{number}", 0.5)) for number in range(REQUESTS)]
    ahead = read_ahead(journal(tmp_path / "journal", bodies), store)
    seqs = []
    while (load := ahead.take(ahead=True)).frames:
        assert load.prepared is not None
        assert [frame.seq for frame in load.prepared.fresh.values()] == [
            frame.seq for frame in load.frames
        ]
        assert load.is_full is (len(load.frames) == 2)
        seqs += [frame.seq for frame in load.frames]
    assert seqs == list(range(1, REQUESTS + 1))


def test_what_may_have_ended_the_process_is_not_decoded(tmp_path: Path, store: DuckDbStore) -> None:
    ahead = read_ahead(
        journal(tmp_path / "journal", [b"\xff" * (i + 1) for i in range(REQUESTS)]), store
    )
    assert ahead.take(ahead=False).prepared is None
    assert ahead.take(ahead=True).prepared is None  # malformed: the load finds out


def test_damage_that_is_found_ahead_is_reported_when_its_turn_comes(
    tmp_path: Path, store: DuckDbStore
) -> None:
    bodies = [metrics(gauge("m0", number / 2)) for number in range(REQUESTS)]
    reader = journal(tmp_path / "journal", bodies)
    segment = segment_path(tmp_path / "journal", 1)
    data = bytearray(segment.read_bytes())
    data[data.rindex(bodies[3])] ^= 1
    segment.write_bytes(data)
    ahead = read_ahead(reader, store)
    assert [frame.seq for frame in ahead.take(ahead=True).frames] == [1, 2]
    with pytest.raises(StoreDamaged, match="request 4 cannot be read"):
        ahead.take(ahead=True)
