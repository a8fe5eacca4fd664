"""Retention: by age and by size, oldest first, in steps.

A lake deletes whole days, and its files go later: `tests/storage/events/lake` is about that.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.echo_samples import metrics_body
from tests.support.stores import meta, only_files, open_test_store

from ingero.contract.otlp.rows import Signal
from ingero.echo.retention import RetentionPolicy, retain
from ingero.storage.events.store import EventStore
from ingero.storage.journal.frames import Frame

DAY_US = 86_400 * 1_000_000
NOW_US = 1_763_168_400_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    opened = open_test_store(tmp_path / "echo.db", 1 << 30, 1)
    yield opened
    opened.close()


def fill(store: EventStore, days_ago: list[int], points: int = 10) -> None:
    first = store.applied_seq
    for i, days in enumerate(days_ago):
        body = metrics_body(points=points, first=(first + i) * points)
        store.load([Frame(first + i + 1, 0, NOW_US - days * DAY_US, Signal.METRICS, body)])


@only_files
def test_old_events_go_and_minutes_stay_longer(store: EventStore) -> None:
    fill(store, [9, 8, 6, 0])
    store.roll_up(NOW_US)
    policy = RetentionPolicy(events_s=7 * 86400, rollups_s=90 * 86400, max_bytes=0, step_rows=10)
    assert list(retain(store, policy, NOW_US)) == [10, 10, 2], "and the minutes of their arrival"
    assert store.scalar("SELECT min(seq) FROM events") == 3
    assert store.scalar('SELECT sum("count")::INT FROM node_metrics') == 40
    assert list(retain(store, policy, NOW_US)) == []
    assert sum(retain(store, policy, NOW_US + 91 * DAY_US)) == 23, (
        "20 events, their minutes of arrival, and the minute"
    )


@only_files
def test_straggler_events_are_bounded_by_the_size_of_the_database(store: EventStore) -> None:
    store.cursor().execute(
        "INSERT INTO straggler_events (seq, idx, received_ts, score) "
        "SELECT range, 0, make_timestamp(?), md5(range::VARCHAR) || md5((range * 7)::VARCHAR) "
        "FROM range(200000)",
        [NOW_US],
    )
    store.checkpoint()
    before = store.used_bytes()
    policy = RetentionPolicy(events_s=7 * 86400, rollups_s=90 * 86400, max_bytes=before // 2)
    assert sum(retain(store, policy, NOW_US)) > 50_000
    assert store.used_bytes() <= before // 2


@only_files
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
    assert meta(store, "rows_deleted") == deleted


def test_a_bound_below_what_an_empty_database_takes_does_not_loop(store: EventStore) -> None:
    fill(store, [0] * 3)
    policy = RetentionPolicy(events_s=7 * 86400, rollups_s=90 * 86400, max_bytes=1)
    assert sum(retain(store, policy, NOW_US)) <= 30


def fill_audit(store: EventStore, rows: int) -> None:
    store.cursor().execute(
        "INSERT INTO audit_log SELECT make_timestamp(? + range), md5(range::VARCHAR), '', NULL, "
        "'http', md5((range * 3)::VARCHAR), [], 401, NULL, NULL, '10.0.0.1', 1 FROM range(?)",
        [NOW_US - rows, rows],
    )
    store.checkpoint()


@only_files
def test_the_audit_log_shrinks_before_any_event_is_deleted(store: EventStore) -> None:
    fill(store, [0] * 7, points=100)
    store.checkpoint()
    enough = store.used_bytes() + (2 << 20)
    fill_audit(store, 300_000)
    assert store.used_bytes() > enough
    policy = RetentionPolicy(events_s=7 * 86400, rollups_s=90 * 86400, max_bytes=enough)
    sum(retain(store, policy, NOW_US))
    assert store.used_bytes() <= enough
    assert store.scalar("SELECT count(*) FROM events") == 700
    assert 0 < store.scalar("SELECT count(*) FROM audit_log") < 1_000, "the newest stay"


@only_files
def test_the_audit_log_has_its_own_limits_in_rows_and_bytes(store: EventStore) -> None:
    fill_audit(store, 5_000)
    keep = {"events_s": 7 * 86400, "rollups_s": 90 * 86400, "max_bytes": 0}
    sum(retain(store, RetentionPolicy(**keep, audit_rows=2_000), NOW_US))
    assert store.scalar("SELECT count(*) FROM audit_log") == 1_900
    oldest = store.scalar("SELECT min(epoch_us(ts)) FROM audit_log")
    assert oldest == NOW_US - 1_900, "the newest stay"
    sum(retain(store, RetentionPolicy(**keep, audit_bytes=20_000), NOW_US))
    rows, size = store.audit_size()
    assert size <= 20_000
    assert rows > 100
