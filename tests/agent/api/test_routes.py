"""The node API: equal to the published one for the same databases, and closed to others."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.support.hostile_sql import ENDLESS
from tests.support.shared_data import shared
from tests.support.tokens import access_of
from tests.support.trace_databases import database
from tests.support.waiting import PATIENCE_S, until_async

from ingero.agent.api.routes import NodeApi, NodeGuard
from ingero.sim.samples import write_samples
from ingero.storage.trace.database import TraceDb
from ingero.storage.trace.node_view import NodeView
from ingero.transport.http import HttpListener
from ingero.transport.listen import bind

LATER_NS = 2**62
DATABASES = [
    "sample-gpu-node-01",
    "sample-gpu-node-02",
    "sample-gpu-node-03",
    "vllm-37343-logprobs-amplification",
]
OPS_SQL = (
    "SELECT source, op, count(*) AS n, avg(duration) AS avg_ns FROM events GROUP BY source, op"
)


def client(
    path: Path, now_ns: int = LATER_NS, address: str = "localhost", **guard: object
) -> TestClient:
    app = NodeApi(view=NodeView(path), now_ns=lambda: now_ns).app()
    options = {"node": "n1", "access": access_of(None), "hosts": None, **guard}
    return TestClient(NodeGuard(app, **options), base_url=f"http://{address}")


@pytest.mark.parametrize("database_name", DATABASES)
@pytest.mark.parametrize(
    "endpoint",
    ["overview", "ops", "chains", "snapshots?since=9999999h", "graph-metrics", "graph-events"],
)
def test_answers_equal_the_recorded_ones(database_name: str, endpoint: str) -> None:
    recorded = shared(
        f"data/ingero-wire/api/{database_name}/{endpoint.split('?', maxsplit=1)[0]}.json"
    )
    reply = client(shared(f"data/ingero/{database_name}.db"), now_ns=1_790_000_000_000_000_000).get(
        f"/api/v1/{endpoint}"
    )
    assert reply.json() == json.loads(recorded.read_text())
    assert reply.headers["x-ingero-node"] == "n1"


@pytest.mark.parametrize("database_name", DATABASES)
def test_sql_answers_equal_the_recorded_ones(database_name: str) -> None:
    recorded = json.loads(
        shared(f"data/ingero-wire/api/{database_name}/query-ops.json").read_text()
    )
    reply = (
        client(shared(f"data/ingero/{database_name}.db"))
        .post("/api/v1/query", json={"sql": OPS_SQL})
        .json()
    )
    assert reply["columns"] == recorded["columns"]
    assert sorted(reply["rows"]) == sorted(recorded["rows"])


def test_the_end_of_a_recording_that_stopped_is_reported(tmp_path: Path) -> None:
    """A tracer that died leaves a database that looks like an idle node."""
    beat_ns = 1_700_000_000_000_000_000
    with TraceDb(tmp_path / "t.db", "n") as db:
        db.execute("INSERT INTO losses VALUES (1, 'calls', 0, ?)", (beat_ns,))
    answers = [
        client(tmp_path / "t.db", now_ns=beat_ns + age_s * 10**9).get("/api/v1/overview").json()
        for age_s in (5, 3600)
    ]
    assert [answer.get("recorded_until") for answer in answers] == [None, "2023-11-14T22:13:20Z"]


def test_time_needs_no_database(tmp_path: Path) -> None:
    assert client(tmp_path / "none.db", now_ns=42).get("/api/v1/time").json() == {
        "timestamp_ns": 42
    }


def test_no_trace_yet_is_empty_shapes_and_503_for_sql(tmp_path: Path) -> None:
    node = client(tmp_path / "none.db")
    assert node.get("/api/v1/overview").json() == {
        "event_count": 0,
        "chain_count": 0,
        "session_count": 0,
    }
    assert node.get("/api/v1/ops").json() == {"mode": "empty", "ops": []}
    assert node.get("/api/v1/chains").json() == {"chains": []}
    reply = node.post("/api/v1/query", json={"sql": "SELECT 1"})
    assert reply.status_code == 503
    assert "ingero trace" in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"sql": ""}, 400),
        ({"sql": "DELETE FROM events"}, 400),
        ({"sql": "SELECT 1; SELECT 2"}, 400),
        ({"sql": "WITH x AS (SELECT 1) DELETE\tFROM events"}, 400),
        ({"sql": "SELECT zeroblob(1073741824)"}, 400),
        ({"sql": "ATTACH 'x' AS y"}, 400),
        ({"sql": "SELECT load_extension('x')"}, 400),
        ({"sql": "PRAGMA user_version = 7"}, 400),
        ({"sql": "SELECT readfile('/etc/passwd')"}, 400),
        ({"sql": "SELECT nope FROM events"}, 400),
    ],
)
def test_sql_that_is_refused(tmp_path: Path, body: dict[str, str], status: int) -> None:
    reply = client(database(tmp_path / "a.db")).post("/api/v1/query", json=body)
    assert (reply.status_code, set(reply.json())) == (status, {"error"})


def test_bad_requests_say_what_is_wrong(tmp_path: Path) -> None:
    node = client(database(tmp_path / "a.db"))
    assert node.post("/api/v1/query", content=b"{").status_code == 400
    assert node.post("/api/v1/query", content=b"x" * ((1 << 20) + 1)).status_code == 413
    assert node.get("/api/v1/query").status_code == 405
    assert (
        node.get("/api/v1/ops?since=soon")
        .json()["error"]
        .startswith("since: 'soon' is not a duration")
    )
    assert node.get("/api/v1/ops?pid=x").status_code == 400


def test_every_error_is_json(tmp_path: Path) -> None:
    node = client(database(tmp_path / "a.db"))
    for reply, status in (
        (node.get("/api/v1/nothing"), 404),
        (node.get("/api/v1/query"), 405),
        (node.get("/api/v1/ops", params={"pid": "9" * 30}), 400),
        (node.get("/api/v1/graph-events", params={"pid": "9" * 30}), 400),
        (node.get("/api/v1/ops", params={"pid": "4294967295"}), 200),
    ):
        assert reply.status_code == status
        assert status == 200 or set(reply.json()) == {"error"}


def test_v10c_rows_over_the_limit_are_cut_and_marked_as_truncated(tmp_path: Path) -> None:
    node = client(database(tmp_path / "a.db", events=1001))
    many = node.post("/api/v1/query", json={"sql": "SELECT id FROM events", "limit": 1000}).json()
    assert (len(many["rows"]), many["truncated"]) == (1000, True)
    exact = node.post(
        "/api/v1/query", json={"sql": "SELECT id FROM events LIMIT 1000", "limit": 1000}
    ).json()
    assert (len(exact["rows"]), "truncated" in exact) == (1000, False)


def test_operations_of_one_process_and_of_many_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database(tmp_path / "a.db")
    assert client(path).get("/api/v1/ops?pid=7").json()["ops"][0]["count"] == 3
    assert client(path).get("/api/v1/ops?pid=8").json()["mode"] == "empty"
    monkeypatch.setattr("ingero.storage.trace.node_view.AGGREGATE_ABOVE_EVENTS", 2)
    answer = client(path).get("/api/v1/ops").json()
    assert answer["mode"] == "aggregate"
    assert answer["ops"][0] | {"avg_us": 0} == {
        "operation": "cudaLaunchKernel", "source": "cuda", "count": 10, "avg_us": 0, "min_us": 0,
        "max_us": 0
    }  # fmt: skip


def test_token_is_wanted_for_the_api_and_not_for_the_page(tmp_path: Path) -> None:
    node = client(database(tmp_path / "a.db"), access=access_of("s3cret"))
    assert node.get("/").status_code == 200
    answers = [
        node.get("/api/v1/overview", headers=h)
        for h in ({}, {"Authorization": "Bearer no"}, {"Authorization": "x"})
    ]
    assert {reply.status_code for reply in answers} == {401}
    assert len({reply.text for reply in answers}) == 1
    assert (
        node.get("/api/v1/overview", headers={"Authorization": "bearer s3cret"}).status_code == 200
    )


def test_a_host_name_we_do_not_have_is_refused(tmp_path: Path) -> None:
    """Guards against DNS rebinding: configured names, addresses and certificate names pass."""
    node = client(
        database(tmp_path / "a.db"), hosts=["localhost", "127.0.0.1", "::1", "GPU-node-01"]
    )
    for host in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "gpu-node-01:8080"):
        assert node.get("/api/v1/time", headers={"Host": host}).status_code == 200, host
    refused = node.get("/api/v1/time", headers={"Host": "evil.example:8080"})
    assert refused.status_code == 403
    assert "--host-name evil.example" in refused.json()["error"]


def test_the_address_a_connection_came_in_on_and_wildcards_of_the_certificate_are_ours(
    tmp_path: Path,
) -> None:
    """A wildcard bind answers on addresses that nobody can list beforehand."""
    node = client(tmp_path / "none.db", address="192.0.2.7", hosts=["localhost", "*.train.example"])
    hosts = (
        "192.0.2.7:8080",
        "gpu-1.train.example",
        "192.0.2.8",
        "a.b.train.example",
        "train.example",
        "",
    )
    states = [node.get("/api/v1/time", headers={"Host": host}).status_code for host in hosts]
    assert states == [200, 200, 403, 403, 403, 403]


def test_a_file_that_is_no_trace_is_not_the_callers_fault(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("not a database, but long enough to be looked at as one" * 100)
    damaged = database(tmp_path / "b.db")
    with contextlib.closing(sqlite3.connect(damaged)) as connection, connection:
        connection.execute(
            "INSERT INTO causal_chains (id, detected_at, severity, summary, root_cause, "
            "explanation, tail_ratio) "
            "VALUES ('c', 1, 'HIGH', 's', 'r', 'e', 'much')"
        )
    for path in (tmp_path / "a.db", damaged):
        reply = client(path).get("/api/v1/chains")
        assert (reply.status_code, set(reply.json())) == (503, {"error"})
    assert (
        client(tmp_path / "a.db").post("/api/v1/query", json={"sql": "SELECT 1"}).status_code == 503
    )


def test_files_of_older_recorders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What older recorders did not keep is missing, not zero.

    Totals come from the events where there are no minute buckets.
    """
    path = tmp_path / "old.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE events (id, timestamp, pid, tid, source, op, duration)")
        connection.executemany(
            "INSERT INTO events VALUES (?, ?, 7, 7, 8, 1, 3000)",
            [(i, 10**18 + i) for i in range(3)],
        )
    (newest, *_) = client(path).get("/api/v1/graph-events").json()
    assert newest == {
        "timestamp": "2001-09-09T01:46:40Z", "pid": 7, "op": "graphBeginCapture", "duration_us": 3,
        "ret_code": None
    }  # fmt: skip
    monkeypatch.setattr("ingero.storage.trace.node_view.AGGREGATE_ABOVE_EVENTS", 2)
    assert client(path).get("/api/v1/ops").json() == {
        "mode": "aggregate",
        "ops": [
            {
                "operation": "graphBeginCapture",
                "source": "cuda_graph",
                "count": 3,
                "avg_us": 3,
                "min_us": 3,
                "max_us": 3,
            }
        ],
    }


def test_the_newest_snapshots_are_kept_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database(tmp_path / "a.db")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        rows = [(second * 10**9, second) for second in range(5)]
        connection.executemany(
            "INSERT INTO system_snapshots (timestamp, cpu_pct, mem_pct, mem_avail, swap_mb, "
            "load_avg) "
            "VALUES (?, ?, 0, 0, 0, 0)", rows
        )  # fmt: skip
    monkeypatch.setattr("ingero.storage.trace.node_view.MAX_SNAPSHOTS", 2)
    shown = client(path, now_ns=10 * 10**9).get("/api/v1/snapshots").json()["snapshots"]
    assert [row["cpu_percent"] for row in shown] == [3, 4]


def test_chains_that_are_left_out_are_reported_as_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_samples(tmp_path)[-1]  # the merged one has the chains of all nodes
    assert set(client(path).get("/api/v1/chains").json()) == {"chains"}
    monkeypatch.setattr("ingero.storage.trace.node_view.MAX_CHAINS", 1)
    answer = client(path).get("/api/v1/chains").json()
    assert (len(answer["chains"]), answer["truncated"]) == (1, True)


async def test_a_question_ends_when_whoever_asked_it_leaves(tmp_path: Path) -> None:
    """Ctrl-C of a fan-out must not leave its nodes computing beside the training job."""
    api = NodeApi(
        view=NodeView(database(tmp_path / "a.db")),
        sql_slots=asyncio.Semaphore(1),
        query_timeout_s=10 * PATIENCE_S,
    )
    listener = HttpListener(NodeGuard(api.app(), "n1", access_of(None), None), bind("127.0.0.1:0"))
    await listener.start()
    try:
        host, port = listener.address.rsplit(":", 1)
        _, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"sql": ENDLESS}).encode()
        writer.write(
            b"POST /api/v1/query HTTP/1.1\r\nhost: n1\r\ncontent-length: %d\r\n\r\n" % len(body)
            + body
        )
        await until_async(api.sql_slots.locked, "the question did not begin")
        writer.transport.abort()
        await until_async(lambda: not api.sql_slots.locked(), "the question goes on")
    finally:
        await listener.stop()


def test_capabilities_name_what_is_missing_and_why(tmp_path: Path) -> None:
    listed = client(tmp_path / "none.db").get("/api/v1/capabilities").json()
    assert sum(row["available"] for row in listed) == 13
    assert all(row["required_tool"] for row in listed if not row["available"])
    assert len(listed) == 26
