"""The growth of running totals, compared with the same sums in plain Python."""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.echo.tools import counters
from ingero.storage.events.migrate import migrate

METRIC = counters.MEMCPY_TOTALS[0]
points = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b"]),  # node
        st.sampled_from([None, 0, 1]),  # rank
        st.sampled_from(['{"direction":"h2d"}', '{"direction":"d2h"}', "{}", None]),
        st.integers(0, 40),  # the total: smaller than before after a restart
    ),
    max_size=24,
)


@pytest.fixture(scope="module")
def store() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    migrate(connection)
    yield connection
    connection.close()


def _write(store: duckdb.DuckDBPyConnection, points: list[tuple[Any, ...]]) -> None:
    store.execute("DELETE FROM events")
    for at, (node, rank, attrs, total) in enumerate(points):
        store.execute(
            "INSERT INTO events BY NAME SELECT 1 AS seq, $1 AS idx, "
            "make_timestamp_ns($1::BIGINT * 500000000) AS ts, make_timestamp(5) AS received_ts, "
            "'c' AS cluster_id, $2 AS node_id, $3 AS rank, $4 AS metric_name, $5 AS attrs, "
            "$6 AS cumulative_value",
            [(at * 7) % 24, node, rank, METRIC, attrs, float(total)],
        )


def _direction(attrs: str | None) -> str:
    return attrs[14:17] if attrs and "direction" in attrs else "unknown"


def _expected(points: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    series = defaultdict(list)
    for at, (node, rank, attrs, total) in enumerate(points):
        series[node, rank, attrs].append((((at * 7) % 24) * 0.5, float(total)))
    steps = defaultdict(list)
    for (node, rank, attrs), found in series.items():
        found.sort()
        for (before_s, before), (at_s, total) in itertools.pairwise(found):
            grown = total if total < before else total - before
            steps[node, _direction(attrs)].append((rank, attrs, grown, at_s - before_s))
    answers = []
    for (node, direction), parts in steps.items():
        grown = sum(step for *_, step, _ in parts)
        seconds = sum(s for *_, s in parts) / len({part[:2] for part in parts})
        rates = np.percentile([step / s for *_, step, s in parts], [50, 99, 100])
        answers.append((str(node), direction, grown, grown / seconds, *rates))
    return sorted(answers)


@settings(deadline=None, max_examples=40)
@given(points=points)
def test_growth_is_the_sum_of_the_steps_of_each_series(
    store: duckdb.DuckDBPyConnection, points: list[tuple[Any, ...]]
) -> None:
    _write(store, points)
    found = store.execute(counters._MEMCPY, ["c", 0, [METRIC]]).fetchall()
    answers = sorted((str(row[0]), *row[1:4], *row[4]) for row in found)
    assert [row[:2] for row in answers] == [row[:2] for row in _expected(points)]
    for row, expected in zip(answers, _expected(points), strict=True):
        assert row[2:] == pytest.approx(expected[2:])
    assert [row[2] for row in found] == sorted((row[2] for row in found), reverse=True)
    launches = store.execute(counters._LAUNCHES, ["c", 0, [METRIC]]).fetchall()
    by_node: dict[str, float] = defaultdict(float)
    for node, _, grown, *_ in _expected(points):
        by_node[node] += grown
    assert {str(row[0]): row[2] for row in launches} == by_node
