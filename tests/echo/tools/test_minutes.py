"""Answers from minutes of arrival are the answers from all events."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.questions_data import gauge, metrics, total
from tests.support.stores import examples, open_test_store, writing

from ingero.contract import names
from ingero.contract.otlp.rows import Signal
from ingero.echo.retention import RetentionPolicy, retain
from ingero.echo.store.api import QueryLimits, QueryResult, StoreApi
from ingero.echo.store.query import run_query
from ingero.echo.tools import history, scores, stragglers
from ingero.echo.tools.arrivals import applied, before_window
from ingero.echo.tools.asker import Asker
from ingero.echo.tools.covered import MINUTE_US, Minutes
from ingero.echo.tools.minutes import load_minutes
from ingero.storage.events.arrivals import arrivals_of
from ingero.storage.events.store import EventStore
from ingero.storage.journal.frames import Frame
from ingero.transport.bearer import Key

START_US = 1_763_168_400_000_000
ALL_TIME = "all"
_GATHERED = """SELECT cluster_id, node_id, metric_name, sum(events), max(newest_ts), min(first_seq),
  max(last_seq), sum(points), min(first_ts), max(last_ts), sum(numbers), round(sum(sum), 6),
  min(min), max(max), min(min_total), max(max_total)
FROM {arrived} GROUP BY ALL ORDER BY ALL"""


class _Reading:
    """The store without its process."""

    def __init__(self, store: EventStore) -> None:
        self._store = store

    async def query(self, sql: str, params: list[Any], limits: QueryLimits) -> QueryResult:
        return run_query(self._store.cursor(), sql, params, limits)


def asker_of(store: EventStore) -> Asker:
    return Asker(cast(StoreApi, _Reading(store)), Key("test", b""), cast(Any, None))


class _Arriving:
    """Requests that arrive one after the other."""

    def __init__(self, store: EventStore) -> None:
        self.store = store
        self.seq = store.applied_seq

    def push(self, at_s: float, node: str, value: float, kind: str = "push") -> None:
        self.seq += 1
        at_us = START_US + int(at_s * 1e6)
        sent_ns = (at_us - (90 * 1_000_000 if kind == "late" else 0)) * 1000
        sent_ns = 0 if kind == "timeless" else sent_ns
        body = metrics(
            "c1",
            node,
            [
                gauge(names.HEALTH_SCORE, [value], start_ns=sent_ns),
                total("gpu.memcpy.bytes_total", [at_us % 10_007], start_ns=sent_ns),
            ],
        )
        self.store.load([Frame(self.seq, self.seq, at_us, Signal.METRICS, body)])


def gathered(store: EventStore, arrived: str) -> list[tuple[Any, ...]]:
    return store.cursor().execute(_GATHERED.format(arrived=arrived)).fetchall()


pushes = st.lists(
    st.tuples(
        st.floats(0, 80),  # seconds since the push before
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([0.2, 0.5, 0.95]),
        st.sampled_from(["push", "push", "late", "timeless", "roll"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(pushes=pushes, since_s=st.floats(-10, 400), deleted=st.integers(0, 3))
def test_minutes_and_edges_hold_every_event_once(
    pushes: list[tuple[float, str, float, str]],
    since_s: float,
    deleted: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    store = open_test_store(tmp_path_factory.mktemp("echo") / "echo.db")
    arriving, at_s = _Arriving(store), 0.0
    for gap_s, node, value, kind in pushes:
        at_s += gap_s
        arriving.push(at_s, node, value, kind)
        if kind == "roll":
            store.roll_up(START_US)
    if deleted:
        store.delete_step("events", None, deleted)
    asker, since_us = asker_of(store), START_US + int(since_s * 1e6)
    minutes = asyncio.run(load_minutes(asker))
    raw = arrivals_of(f"received_ts >= make_timestamp({since_us})")
    assert gathered(store, minutes.arrived(since_us, "true")) == gathered(store, f"({raw})")
    assert asyncio.run(_answers(asker)) == asyncio.run(_answers(asker, without_minutes=True))
    store.close()


async def _answers(asker: Asker, *, without_minutes: bool = False) -> list[object]:
    """Return what questions make of minutes; without them, everything is read from events."""
    with pytest.MonkeyPatch.context() as patch:
        if without_minutes:

            async def none(_: Asker) -> Minutes:
                return Minutes(0, {0: 0})

            for module in (scores, stragglers, history):
                patch.setattr(module, "load_minutes", none)
        found = replace(await scores.load_scores(asker, "c1", ALL_TIME), threshold=0.9)
        since = await stragglers._slow_since(asker, "c1", ALL_TIME, found, list(found.nodes))
        return [found, since, await _totals(asker)]


async def _totals(asker: Asker) -> list[int]:
    """Return how many events of a node there are, now and up to an earlier request."""
    newest = await applied(asker)
    found = []
    for until in (newest, {writer: last - 2 for writer, last in newest.items()}):
        both = [
            await history._total(
                asker,
                "events",
                "cluster_id = $1 AND node_id = $2",
                ["c1", "a"],
                history._Place({}, until),
                is_in_minutes=is_in_minutes,
            )
            for is_in_minutes in (False, True)
        ]
        assert both[0] == both[1]
        found.append(both[0])
    return found


def with_five_minutes(folder: Path) -> EventStore:
    """Return a store that got a push every 20 s."""
    store = open_test_store(folder / "echo.db")
    arriving = _Arriving(store)
    for at_s in range(0, 300, 20):
        arriving.push(at_s, "a", 0.9)
    return store


def test_whole_minutes_are_not_read_from_events(tmp_path: Path) -> None:
    store = with_five_minutes(tmp_path)
    store.roll_up(START_US)
    minutes = asyncio.run(load_minutes(asker_of(store)))
    before = gathered(store, minutes.arrived(0, "true"))
    with writing(store) as connection:
        inside = START_US + 2 * MINUTE_US
        connection.execute(f"DELETE FROM events WHERE received_ts > make_timestamp({inside})")
    assert gathered(store, minutes.arrived(0, "true")) == before
    store.close()


def test_a_roll_up_between_two_statements_counts_nothing_twice(tmp_path: Path) -> None:
    store = with_five_minutes(tmp_path)
    known = asyncio.run(load_minutes(asker_of(store)))
    before = gathered(store, known.arrived(0, "true"))
    store.roll_up(START_US)
    assert gathered(store, known.arrived(0, "true")) == before
    store.close()


def test_the_first_request_of_a_window_is_found_in_minutes(tmp_path: Path) -> None:
    store = with_five_minutes(tmp_path)
    store.roll_up(START_US)
    asker = asker_of(store)

    async def before(at_s: float) -> int:
        newest = await applied(asker)
        places = await before_window(asker, START_US + int(at_s * 1e6), newest)
        return max(places.values()) - store.first_seq

    assert [asyncio.run(before(at_s)) for at_s in (-5, 0, 130, 280, 900)] == [0, 0, 7, 14, 15]
    store.close()


def test_minutes_go_with_their_events(tmp_path: Path) -> None:
    store = open_test_store(tmp_path / "echo.db")
    arriving = _Arriving(store)
    for at_s in (0, 20, 86_400 * 2, 86_400 * 2 + 20):
        arriving.push(at_s, "a", 0.9)
    store.roll_up(START_US)
    policy = RetentionPolicy(events_s=3600, rollups_s=86_400 * 30, max_bytes=0)
    list(retain(store, policy, START_US + (86_400 * 2 + 60) * 1_000_000))
    assert store.row_counts()["events"] == 4
    assert store.scalar("SELECT count(*) FROM arrivals") == 2
    store.close()
