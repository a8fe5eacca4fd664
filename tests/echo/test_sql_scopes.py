"""Whatever SQL a caller with a scope writes, it sees the rows of its clusters only.

F094. The rows of the other tenant, the audit log and the catalogue carry a canary.
"""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from tests.support.sql_grammar import TABLES, statements
from tests.support.stores import examples
from tests.support.two_tenants import CANARY, OURS, THEIRS, TwoTenants, two_tenants

MANY = [OURS, *(f"cluster-{number}" for number in range(20))]


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoTenants]:
    with two_tenants(tmp_path_factory.mktemp("scopes")) as opened:
        yield opened


@pytest.fixture(scope="module", params=[[OURS], MANY], ids=["one cluster", "many clusters"])
def ask(
    request: pytest.FixtureRequest, tenants: TwoTenants
) -> Iterator[Callable[[str], tuple[str, str]]]:
    with tenants.session(request.param) as session:
        yield session


def test_the_canary_would_be_seen(tenants: TwoTenants) -> None:
    for table in TABLES:
        assert CANARY in tenants.ask(f"SELECT * FROM {table} ORDER BY cluster_id DESC", None)[1]


@settings(max_examples=examples(200))
@given(sql=statements())
@example(sql="SELECT count(*) FROM events WHERE node_id::INTEGER > 5")
@example(sql="SELECT node_id::INTEGER FROM events ORDER BY ALL")
@example(sql="SELECT 1 FROM events WHERE attrs")
@example(sql="SELECT count(*) FROM events WHERE json(node_id) IS NOT NULL AND seq > 3")
@example(sql="SELECT count(*) FROM counter_rates WHERE (attrs->>'v')::INTEGER > 0")
@example(sql="SELECT * FROM events e JOIN nccl_ops o ON e.node_id::INTEGER = o.node_id::INTEGER")
def test_no_statement_shows_rows_of_others(ask: Callable[[str], tuple[str, str]], sql: str) -> None:
    """Neither in a result nor in an error: a cast must not meet the values of others."""
    _, text = ask(sql)
    assert CANARY not in text
    assert THEIRS not in text


def test_casts_meet_own_values_only(ask: Callable[[str], tuple[str, str]]) -> None:
    """All own nodes are numbers, so that an error would come from a row of the other tenant."""
    for sql in (
        "SELECT sum(node_id::INTEGER) FROM events",
        "SELECT count(*) FROM events WHERE node_id::INTEGER >= 0 AND seq % 3 >= 0",
        "SELECT count(*) FROM events WHERE CASE WHEN seq > 9 THEN node_id::INTEGER >= 0 END",
        "SELECT count(*) FROM events e JOIN nccl_ops o ON e.node_id::INTEGER = o.seq",
        "SELECT count(*) FROM verdicts WHERE evidence::INTEGER IN (1, 2, 3, 4, 5, 6, 7, 8)",
        "SELECT node_id::INTEGER, count(*) FROM node_metrics GROUP BY ALL",
    ):
        assert ask(sql)[0] == "ok", sql
