"""User SQL from end to end: refused or bounded, and never across cluster scopes."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.echo_service import TOKEN, Reply, RunningEcho
from tests.support.hostile_sql import REFUSED
from tests.support.questions_data import score
from tests.support.waiting import PATIENCE_S, until

from ingero.echo.tools import analysis

TEAM_A = "team-a-token-0123456789abcdef"
BOMBS = [
    "SELECT max(length(s)) FROM (WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s "
    "FROM t) SELECT s FROM t)",
    "SELECT printf('%1500000000d', 1)",
    "SELECT format('{:>1500000000}', 'x')",
    "SELECT len(list(range)) FROM range(1000000000)",
    "SELECT list(a.range || b.range) FROM range(30000) a, range(30000) b",
    "SELECT length(string_agg(md5(range::VARCHAR), ',')) FROM range(200000000)",
    "SELECT length(array_to_string(list_transform(list(range), x -> 'long text ' || x), ',')) "
    "FROM range(100000000)",
    "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range % 7 = b.range % 11",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    "SELECT a.range FROM range(100000000) a, range(100000000) b ORDER BY hash(a.range, b.range)",
    "SELECT json_group_array(md5(range::VARCHAR)) FROM range(100000000)",
    "SELECT map_from_entries(list((range, range))) FROM range(100000000)",
    # runs for hours inside one call
    "SELECT levenshtein(string_agg('a', ''), string_agg('b', '')) FROM range(1000000)",
]
# who ends the store waits before the next statement, so each bomb has a token of its own
BOMBERS = [f"bomber-{number}-token-0123456789" for number in range(len(BOMBS) + 2)]
ACL = f"""
- key_name: team-a
  token: {TEAM_A}
  allowed_clusters: ["a's", a2]
""" + "".join(f"- key_name: {token[:10]}\n  token: {token}\n" for token in BOMBERS)


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEcho]:
    with scoped_echo(tmp_path_factory.mktemp("sql")) as running:
        yield running


@contextlib.contextmanager
def scoped_echo(folder: Path) -> Iterator[RunningEcho]:
    (folder / "acl.yaml").write_text(ACL)
    (folder / "acl.yaml").chmod(0o600)
    settings = {
        "bearer_rate": 10_000,
        "bearer_burst": 100_000,
        "store_memory": 2 << 30,
        "store_threads": 1,
    }
    with RunningEcho(folder, bearer_acl_file=folder / "acl.yaml", **settings) as running:
        for cluster in ("a's", "a2", "b"):
            for node in range(3):
                assert running.send(score(cluster, f"{cluster}-{node}", [0.9, 0.8])).status == 200
        yield running


def retried(echo: RunningEcho, sql: str, token: str = TOKEN) -> Reply:
    """Ask again after Retry-After. A store that ran out of memory ends shortly after its answer."""
    end_s = time.monotonic() + PATIENCE_S
    while (reply := echo.sql(sql, token)).status == 503 and time.monotonic() < end_s:
        assert int(reply.headers["retry-after"]) >= 1
        time.sleep(0.1)
    return reply


def test_f122_f123_every_escape_is_refused_end_to_end(echo: RunningEcho) -> None:
    assert len(REFUSED) > 100
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(echo.sql, REFUSED))
    let_in = [
        (sql[:80], reply.status, reply.code)
        for sql, reply in zip(REFUSED, replies, strict=True)
        if reply.status != 400
    ]
    assert let_in == []
    assert {reply.code for reply in replies} <= {"sql_refused", "bad_argument"}
    assert retried(echo, "SELECT count(*) FROM events").json["data"]["rows"] == [[18]]


@pytest.mark.parametrize(
    ("sql", "token"), list(zip(BOMBS, BOMBERS, strict=False)), ids=lambda value: value[:50]
)
def test_bombs_are_bounded_and_the_store_is_back_in_seconds(
    echo: RunningEcho, sql: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "SECONDS", 1.5)
    reply = echo.sql(sql, token)
    assert (reply.status, reply.code) in (
        (400, "out_of_memory"),
        (400, "bad_sql"),
        (504, "timeout"),
        (503, "store_restarting"),
    )
    again = retried(echo, "SELECT count(*), count(DISTINCT node_id) FROM events")
    assert again.json["data"]["rows"] == [[18, 9]], "nothing is lost"


def test_others_are_told_to_retry_while_the_store_is_replaced(echo: RunningEcho) -> None:
    retried(echo, "SELECT 1")
    statuses = set()
    with ThreadPoolExecutor(4) as pool:
        bomb = pool.submit(echo.sql, "SELECT printf('%1500000000d', 1)", BOMBERS[-1])
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and (not bomb.done() or 503 not in statuses):
            reply = echo.ask("summary", cluster_id="b")
            statuses.add(reply.status)
            if reply.status == 503:
                assert reply.code == "store_restarting"
                assert int(reply.headers["retry-after"]) >= 1
    assert statuses in ({503}, {200, 503}), "somebody asked while the store was replaced"
    assert bomb.result().code in ("out_of_memory", "store_restarting")
    assert retried(echo, "SELECT count(*) FROM events").json["data"]["rows"] == [[18]]


def test_a_caller_cannot_end_the_store_again_and_again(echo: RunningEcho) -> None:
    """Statements in a loop used to leave nine of ten questions of others without an answer."""
    token = BOMBERS[-2]
    retried(echo, "SELECT 1")
    ended = echo.sql("SELECT printf('%1500000000d', 1)", token)
    assert ended.code in ("out_of_memory", "store_restarting")
    refused = echo.sql("SELECT 1", token)
    assert (refused.status, refused.code) == (429, "too_many_queries")
    assert "ended the store process" in refused.json["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 6
    assert echo.ask("whoami", token).status != 429, "only statements wait"
    assert retried(echo, "SELECT count(*) FROM events").status == 200, "others do not"
    assert 'queries_refused_total{queue="paused"} 1' in echo.get("/metrics").body.decode()


def test_a_plan_is_for_tokens_without_a_scope(echo: RunningEcho) -> None:
    refused = retried(echo, "EXPLAIN SELECT 1", TEAM_A)
    assert (refused.code, refused.json["error"]["message"]) == (
        "sql_refused",
        "EXPLAIN shows statistics of all clusters; it needs a token without a cluster scope",
    )
    assert retried(echo, "EXPLAIN SELECT * FROM events").status == 200


def test_a_value_that_python_cannot_hold_is_an_error_in_the_statement(echo: RunningEcho) -> None:
    reply = retried(echo, "SELECT row(1, 2), {'a': 1, 'A': 2}, '-290000-01-01'::DATE")
    assert (reply.status, reply.code) == (400, "bad_sql")


SCOPED = [
    ("SELECT DISTINCT cluster_id FROM events ORDER BY 1", [["a's"], ["a2"]]),
    ("SELECT count(*) FROM events", [[12]]),
    ("SELECT count(*) FROM events WHERE cluster_id = 'b'", [[0]]),
    ("SELECT count(*) FROM events e JOIN events f ON true WHERE f.cluster_id = 'b'", [[0]]),
    ("SELECT count(*) FROM (SELECT * FROM events UNION ALL SELECT * FROM events)", [[24]]),
    ("WITH x AS (SELECT * FROM events) SELECT count(*) FROM x WHERE node_id LIKE 'b%'", [[0]]),
    ("SELECT (SELECT max(node_id) FROM events)", [["a2-2"]]),
    ("SELECT count(*) FROM node_metrics WHERE cluster_id = 'b'", [[0]]),
    ("SELECT count(*) FROM counter_steps WHERE cluster_id = 'b'", [[0]]),
    ("SELECT count(*) FROM verdicts", [[0]]),
    ("SELECT count(*) FROM collective_lateness", [[0]]),
]


@pytest.mark.parametrize(("sql", "rows"), SCOPED, ids=lambda value: str(value)[:40])
def test_f094_a_scoped_bearer_sees_its_clusters_only(
    echo: RunningEcho, sql: str, rows: list[object]
) -> None:
    reply = retried(echo, sql, TEAM_A)
    assert reply.status == 200, reply.body
    assert reply.json["data"]["rows"] == rows


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM main.events",
        "SELECT * FROM echo.main.events",
        'SELECT * FROM "echo"."events"',
        "SELECT * FROM temp.events",
        "SELECT * FROM node_metric_parts",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM query_table('echo.main.events')",
        "SELECT sql FROM duckdb_views()",
        "SELECT bin FROM histogram('echo.main.events', concat_ws('|', cluster_id, node_id, attrs), "
        "bin_count := 1000, technique := 'sample')",
        "EXPLAIN ANALYZE SELECT count(*) FROM events",
        "EXPLAIN SELECT min(node_id) FROM events",
        "/* plan */ explain SELECT 1",
        "CREATE OR REPLACE TEMP VIEW events AS SELECT 1",
        "DROP VIEW events",
    ],
)
def test_a_scoped_bearer_cannot_reach_around_its_views(echo: RunningEcho, sql: str) -> None:
    reply = retried(echo, sql, TEAM_A)
    assert (reply.status, reply.code) == (400, "sql_refused")


def test_scoped_statistics_do_not_leak(echo: RunningEcho) -> None:
    for sql in (
        "SUMMARIZE events",
        "DESCRIBE events",
        "SELECT * FROM events",
    ):
        reply = retried(echo, sql, TEAM_A)
        assert reply.status == 200, reply.body
        assert b'"b-0"' not in reply.body
        assert b'"b"' not in reply.body
    assert retried(echo, "SELECT count(*) FROM events").json["data"]["rows"] == [[18]], (
        "views of a scope stay with it"
    )


def test_long_queries_of_one_bearer_do_not_delay_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve cross joins used to hold every reader, and a count waited until they timed out."""
    monkeypatch.setattr(analysis, "SECONDS", 4.0)
    endless = (
        "SELECT count(*) FROM range(100000) a, range(100000000) b WHERE hash(a.range, b.range) = 7"
    )
    with scoped_echo(tmp_path) as echo, ThreadPoolExecutor(12) as pool:
        long = [pool.submit(echo.sql, endless) for _ in range(12)]
        until(lambda: "ingero_echo_queries_waiting 8" in echo.get("/metrics").body.decode())
        began_s = time.monotonic()
        counted = echo.sql("SELECT count(*) FROM events", TEAM_A)
        took_s = time.monotonic() - began_s
        assert counted.json["data"]["rows"] == [[12]]
        assert took_s < 2, took_s
        assert not any(query.done() for query in long), "the long ones are still under way"
        assert "ingero_echo_queries_running 4" in echo.get("/metrics").body.decode()
        assert {query.result().status for query in long} == {504}


def test_v23_tools_and_senders_are_scoped_alike(tmp_path: Path) -> None:
    with scoped_echo(tmp_path) as echo:
        check_scopes(echo)


def check_scopes(echo: RunningEcho) -> None:
    refused = echo.ask("summary", TEAM_A, cluster_id="b")
    assert (refused.status, refused.code) == (403, "tenant_scoped_bearer_refused")
    assert echo.ask("summary", TEAM_A, cluster_id="a2").json["data"]["nodes"] == 3
    assert echo.ask("summary", cluster_id="b").status == 200
    listed = echo.ask("summary", TEAM_A)
    assert (listed.code, "b" in listed.json["error"]["message"].split()) == (
        "cluster_required",
        False,
    )
    sent = echo.send(score("b", "intruder", [0.1]), token=TEAM_A)
    assert (sent.status, sent.body[:2]) == (
        403,
        b"\x08\x07",
    )  # a google.rpc.Status with PERMISSION_DENIED
    assert echo.send(score("a2", "a2-0", [0.7]), token=TEAM_A).status == 200
    assert echo.sql("SELECT count(*) FROM events WHERE node_id = 'intruder'").json["data"][
        "rows"
    ] == [[0]]
    who = echo.get("/api/v2/whoami", TEAM_A)
    assert who.json["data"]["allowed_clusters"] == ["a's", "a2"]
    assert b"team-a" not in who.body
    assert echo.get("/metrics", TEAM_A).status == 403
