"""Echo's question listener as a whole: access, common behaviour and the audit trail."""

import json
import logging
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest
from tests.support.echo_service import TOKEN, Reply, RunningEcho
from tests.support.questions_data import score
from tests.support.stores import only_files
from tests.support.tls_files import Authority
from tests.support.waiting import PATIENCE_S, until

from ingero.cli.show.logs import FieldFormatter
from ingero.echo import api
from ingero.files import replace_file
from ingero.transport.listen import parse_address

OTHER = "another-token-0123456789abcdef"
CLOSED = (
    "/",
    "/mcp",
    "/metrics",
    "/api/v2/health",
    "/api/v2/whoami",
    "/api/v2/tools/list",
    "/api/v2/openapi.json",
)


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[RunningEcho]:
    write_acl(tmp_path, OTHER)
    with RunningEcho(tmp_path, bearer_acl_file=tmp_path / "acl.yaml", bearer_rate=1) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEcho]:
    folder = tmp_path_factory.mktemp("api")
    with RunningEcho(folder, bearer_rate=10_000, bearer_burst=100_000) as running:
        for number in range(6):
            running.send(score("prod", f"gpu-{number}", [0.9 if number != 4 else 0.3]))
        yield running


def write_acl(folder: Path, *tokens: str) -> None:
    path = folder / "acl.yaml"
    path.write_text(
        json.dumps([{"key_name": f"key-{i}", "token": token} for i, token in enumerate(tokens)])
    )
    path.chmod(0o600)


def test_f080_everything_but_health_and_versions_is_closed(shared: RunningEcho) -> None:
    for path in CLOSED:
        for token in (None, "wrong"):
            reply = shared.get(path, token)
            assert (path, reply.status, reply.code) == (path, 401, "unauthorized")
            assert reply.headers["www-authenticate"].startswith("Bearer")
    assert shared.ask("summary", None).status == shared.sql("SELECT 1", None).status == 401
    assert shared.call(shared.url("/healthz", "health"), None).status == 200
    assert (
        shared.get("/metrics").status
        == shared.call(shared.url("/metrics", "health"), None, TOKEN).status
        == 200
    )
    assert shared.call(shared.url("/metrics", "health"), None).status == 401


def test_v24_versions_and_the_tombstone_of_version_one(shared: RunningEcho) -> None:
    versions = shared.get("/api/versions", None)
    keys = {"supported", "deprecated", "preferred", "binary", "capabilities", "removal_schedule"}
    assert (versions.status, set(versions.json)) == (200, keys)
    assert versions.json["binary"]["component"] == "ingero-echo"
    assert versions.json["binary"]["version"].count(".") == 1
    assert shared.get("/api/v1/anything", None).status == 410
    assert shared.get("/api/v2/health").json["data"]["version"].count(".") == 2


def test_every_refusal_has_the_envelope_and_the_request_id(shared: RunningEcho) -> None:
    for reply in (
        shared.get("/nowhere"),
        shared.get("/api/v2/tools/fleet.cluster.summary"),
        shared.ask("nothing"),
        shared.ask("summary", nonsense=1),
        shared.sql("DROP TABLE events"),
        shared.call(shared.url("/api/v2/sql"), b"{", TOKEN),
    ):
        assert set(reply.json["error"]) == {"code", "message", "request_id"}
        assert reply.json["error"]["request_id"] == reply.headers["x-request-id"]
    named = shared.get("/api/v2/whoami", headers={"X-Request-Id": "mine-1"})
    assert named.headers["x-request-id"] == named.json["meta"]["request_id"] == "mine-1"


def test_large_answers_are_compressed_when_accepted(shared: RunningEcho) -> None:
    plain = shared.get("/api/v2/openapi.json")
    small = shared.get("/api/v2/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert (plain.headers.get("content-encoding"), small.headers["content-encoding"]) == (
        None,
        "gzip",
    )
    assert small.json == plain.json
    assert int(small.headers["content-length"]) < len(plain.body) / 4


def until_refused(ask: Callable[[int], Reply]) -> list[Reply]:
    """Return the replies up to the first 429; all others succeed."""
    replies = [ask(0)]
    while replies[-1].status == 200 and len(replies) < 1000:
        replies.append(ask(len(replies)))
    assert replies[-1].status == 429
    return replies


def test_f099_burst_plus_one_is_told_when_to_come_back(echo: RunningEcho) -> None:
    *answered, refused = until_refused(lambda _: echo.get("/api/v2/whoami"))
    assert len(answered) >= 40
    assert (refused.code, int(refused.headers["retry-after"])) == ("rate_limited", 1)
    assert echo.get("/api/v2/whoami", OTHER).status == 200, "another bearer is not affected"


@pytest.fixture
def rare_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow one request a second, so that even a slow machine exceeds the limit."""
    monkeypatch.setattr(api, "VERSIONS_RATE", (1.0, 30))


@pytest.mark.usefixtures("rare_versions")
def test_versions_are_limited_by_address_which_nobody_can_forge(tmp_path: Path) -> None:
    """Without trust_proxy_headers X-Forwarded-For changes nothing."""
    with RunningEcho(tmp_path) as echo:
        until_refused(
            lambda i: echo.get(
                "/api/versions", None, {"X-Forwarded-For": f"10.0.{i // 250}.{i % 250}"}
            )
        )


@pytest.mark.usefixtures("rare_versions")
def test_behind_a_trusted_proxy_the_address_is_the_one_it_saw(tmp_path: Path) -> None:
    with RunningEcho(tmp_path, trust_proxy_headers=True) as echo:
        spread = [
            echo.get("/api/versions", None, {"X-Forwarded-For": f"1.1.1.1, 10.0.{i}.1"})
            for i in range(60)
        ]
        assert {reply.status for reply in spread} == {200}
        until_refused(
            lambda i: echo.get(
                "/api/versions", None, {"X-Forwarded-For": f"1.1.1.{i % 250}, 10.9.9.9"}
            )
        )


@pytest.mark.parametrize(
    ("grace_s", "status"), [(3600.0, 200), (0.0, 401)], ids=["inside the grace window", "after"]
)
def test_f097_rotation_without_restart(tmp_path: Path, grace_s: float, status: int) -> None:
    fresh = "a-fresh-token-0123456789abcdef"
    write_acl(tmp_path, OTHER)
    with RunningEcho(
        tmp_path, bearer_acl_file=tmp_path / "acl.yaml", rotation_grace=grace_s
    ) as echo:
        assert echo.get("/api/v2/whoami", OTHER).status == 200
        write_acl(tmp_path, fresh)
        echo.loop.call_soon_threadsafe(echo.service.reload)
        until(lambda: echo.get("/api/v2/whoami", fresh).status == 200)
        assert echo.get("/api/v2/whoami", OTHER).status == status
        assert echo.send(score("c", "n", [1.0]), token=OTHER).status == status, (
            "OTLP follows the same list"
        )
        (tmp_path / "acl.yaml").write_text("- nonsense")
        echo.loop.call_soon_threadsafe(echo.service.reload)
        assert echo.get("/api/v2/whoami", fresh).status == 200, "a bad file keeps the old set"


def test_certificates_are_renewed_without_restart(tmp_path: Path) -> None:
    """On every listener with TLS; a certificate and key that do not match change nothing."""
    authority = Authority.make(tmp_path / "ca")
    cert, key = tmp_path / "live.crt", tmp_path / "live.key"

    def put(days: int) -> str:
        issued = authority.issue("localhost", days=days)
        replace_file(key, issued.key.read_bytes())
        replace_file(cert, issued.cert.read_bytes())
        return cert.read_text()

    def shown(echo: RunningEcho) -> set[str]:
        addresses = [
            parse_address(echo.service.addresses[name]) for name in ("mcp", "http", "grpc")
        ]
        return {ssl.get_server_certificate(address, timeout=PATIENCE_S) for address in addresses}

    first = put(days=10)
    with RunningEcho(tmp_path, insecure_no_tls=False, tls_cert=cert, tls_key=key) as echo:
        assert shown(echo) == {first}
        second = put(days=20)
        echo.loop.call_soon_threadsafe(echo.service.reload)
        until(lambda: shown(echo) == {second})
        replace_file(cert, first.encode())
        echo.run(in_loop(echo.service.reload))
        assert shown(echo) == {second}


async def in_loop(call: Callable[[], None]) -> None:
    call()


@only_files
def test_f098_the_audit_trail_has_digests_and_no_token_is_anywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_acl(tmp_path, OTHER)
    caplog.set_level(logging.DEBUG)
    with RunningEcho(tmp_path, bearer_acl_file=tmp_path / "acl.yaml") as echo:
        echo.send(score("prod", "gpu-0", [0.9]))
        echo.ask("summary", OTHER, cluster_id="prod")
        echo.sql("SELECT 1")
        wrong = "wrong-token-0123456789abcdef"
        bodies = [
            echo.get("/api/v2/whoami", wrong).body,
            echo.sql("nonsense").body,
            echo.get("/api/v2/whoami").body,
        ]
        bodies += [echo.ask("summary", OTHER, cluster_id="x").body, echo.get("/metrics").body]
        assert echo.sql("SELECT * FROM audit_log").code == "sql_refused", (
            "the trail is for the operator"
        )
    lines = [FieldFormatter().format(record) for record in caplog.records]
    audited = [line for line in lines if " audit " in line]
    assert any(
        "tool=fleet.cluster.summary" in line and "bearer_key_name=key-0" in line for line in audited
    )
    assert any("status=401" in line for line in audited)
    with duckdb.connect(str(tmp_path / "echo.db"), read_only=True) as connection:
        rows = connection.execute(
            "SELECT token_sha256_12, key_name, tool, cluster_ids, status, rows FROM audit_log "
            "ORDER BY ts"
        ).fetchall()
    assert ("key-0", "fleet.cluster.summary", ["prod"], 200) in [row[1:5] for row in rows]
    assert all(len(row[0]) in (0, 12) for row in rows)
    for secret in (TOKEN, OTHER, wrong):
        assert not any(secret in line for line in lines)
        assert not any(secret.encode() in body for body in bodies)
        held = [
            path
            for path in tmp_path.rglob("*")
            if path.is_file() and path.name not in ("token", "acl.yaml")
        ]
        assert [path.name for path in held if secret.encode() in path.read_bytes()] == []


def test_questions_are_counted(shared: RunningEcho) -> None:
    shared.get("/api/v2/whoami", "wrong")
    text = shared.get("/metrics").body.decode()
    assert re.search(r'ingero_echo_questions_total{status="401",transport="http"} [1-9]', text)
    assert "ingero_echo_audit_dropped_total 0\n" in text


def test_draining_says_when_to_come_back(shared: RunningEcho) -> None:
    shared.service.engine.ingest.draining = True
    try:
        reply = shared.get("/api/v2/whoami")
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "draining", "5")
    finally:
        shared.service.engine.ingest.draining = False


def test_a_slow_or_broken_client_disturbs_nobody(shared: RunningEcho) -> None:
    host, port = shared.service.addresses["mcp"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as half:
        half.sendall(b"POST /api/v2/sql HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert shared.get("/api/v2/whoami").status == 200
