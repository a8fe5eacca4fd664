"""Retention: by age and by size, oldest first, in steps."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.echo_samples import metrics_body

from ingero.contract.otlp.rows import Signal
from ingero.echo.retention import RetentionPolicy, retain
from ingero.storage.events.store import EventStore
from ingero.storage.journal.frames import Frame

DAY_US = 86_400 * 1_000_000
NOW_US = 1_763_168_400_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    opened = EventStore(tmp_path / "echo.db", 1 << 30, 1)
    yield opened
    opened.close()


def fill(store: EventStore, days_ago: list[int], points: int = 10) -> None:
    first = store.applied_seq
    for i, days in enumerate(days_ago):
        body = metrics_body(points=points, first=(first + i) * points)
        store.load([Frame(first + i + 1, 0, NOW_US - days * DAY_US, Signal.METRICS, body)])


def test_old_events_go_and_minutes_stay_longer(store: EventStore) -> None:
    fill(store, [9, 8, 6, 0])
    store.roll_up(NOW_US)
    policy = RetentionPolicy(events_s=7 * 86400, rollups_s=90 * 86400, max_bytes=0, step_rows=10)
    assert list(retain(store, policy, NOW_US)) == [10, 10]
    assert store.scalar("SELECT min(seq) FROM events") == 3
    assert store.scalar('SELECT sum("count")::INT FROM node_metrics') == 40
    assert list(retain(store, policy, NOW_US)) == []
    assert sum(retain(store, policy, NOW_US + 91 * DAY_US)) == 21, "20 events and the minute"


def test_a_database_that_is_too_large_loses_its_oldest_events(store: EventStore) -> None:
    store.cursor().execute(
        "INSERT INTO events (seq, idx, received_ts, attrs) "
        "SELECT range // 1000, range % 1000, make_timestamp(?), to_json({'a': md5(range::VARCHAR), "
        "'b': md5((range * 7)::VARCHAR)}) FROM range(600000)",
        [NOW_US],
    )
    store.checkpoint()
    before = store.used_bytes()
    policy = RetentionPolicy(events_s=7 * 86400, rollups_s=90 * 86400, max_bytes=before // 2)
    deleted = sum(retain(store, policy, NOW_US))
    assert store.used_bytes() <= before // 2
    assert 250_000 < deleted < 450_000, "about the surplus, not more"
    assert store.scalar("SELECT max(seq) FROM events") == 599, "the newest stay"
    assert store.scalar("SELECT value FROM meta WHERE key = 'rows_deleted'") == deleted


def test_a_bound_below_what_an_empty_database_takes_does_not_loop(store: EventStore) -> None:
    fill(store, [0] * 3)
    policy = RetentionPolicy(events_s=7 * 86400, rollups_s=90 * 86400, max_bytes=1)
    assert sum(retain(store, policy, NOW_US)) <= 30
