"""Scopes and clusters of tokens on every listener of Fleet."""

from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.pushes import NEVER_S, PB, post, protobuf
from tests.support.pushes import running as running_fleet
from tests.support.tokens import private

from ingero.contract.names import QUORUM_HEADER, THRESHOLD_HEADER
from ingero.contract.otlp.body import Encoding
from ingero.transport.certificates import kept_certificate
from ingero.transport.listen import parse_address
from ingero.transport.tls import ClientTls, client_context

running = partial(running_fleet, tick_s=NEVER_S)
PUSH, READ, OPERATE, EAST = (f"token-to-{name}-0123456789" for name in ("push", "read", "op", "e"))
TOKENS = f"""
- {{key_name: push, token: {PUSH}, scopes: [push]}}
- {{key_name: read, token: {READ}, scopes: [read]}}
- {{key_name: operate, token: {OPERATE}, scopes: [operate]}}
- {{key_name: east, token: {EAST}, allowed_clusters: [east], scopes: [push, read, operate]}}
"""


@pytest.fixture
def scoped(tmp_path: Path) -> dict[str, Any]:
    own = {"token_file": str(private(tmp_path / "tokens", TOKENS))}
    return {
        "receivers": {"otlp": {"protocols": {"grpc": own, "http": own}}},
        "extensions": {"ingero_threshold": own, "zpages": own},
        "service": {"telemetry": {"metrics": own}},
    }


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_each_scope_opens_its_own_answers(scoped: dict[str, Any]) -> None:
    silence = {"target": "a", "for_s": 60, "why": "x", "force": True}
    rows = [
        ("threshold", "GET", "/api/v1/threshold?cluster_id=west",
         {PUSH: 200, READ: 200, OPERATE: 403, EAST: 403}),
        ("threshold", "GET", "/api/v1/threshold?cluster_id=east", {EAST: 200}),
        ("threshold", "GET", "/api/v1/status", {PUSH: 403, READ: 200, OPERATE: 403, EAST: 200}),
        ("threshold", "POST", "/api/v1/silences", {PUSH: 403, READ: 403, OPERATE: 200, EAST: 403}),
        ("threshold", "GET", "/api/v1/silences", {PUSH: 403, READ: 200, OPERATE: 200, EAST: 200}),
        ("admin", "GET", "/debug/clusters", {PUSH: 403, READ: 200, EAST: 403}),
        ("metrics", "GET", "/metrics", {PUSH: 403, READ: 200, EAST: 403}),
        ("health", "GET", "/", {PUSH: 403, READ: 200, EAST: 403}),
    ]  # fmt: skip
    async with running(**scoped) as fleet, aiohttp.ClientSession() as session:
        for listener, method, path, expected in rows:
            url, found = f"http://{fleet.addresses[listener]}{path}", {}
            for token in expected:
                body = {"json": silence} if method == "POST" else {}
                async with session.request(method, url, headers=bearer(token), **body) as reply:
                    found[token] = reply.status
            assert found == expected, path


async def test_a_token_pushes_to_its_clusters_only(scoped: dict[str, Any]) -> None:
    async with running(**scoped) as fleet, aiohttp.ClientSession() as session:
        url = f"http://{fleet.addresses['http']}/v1/metrics"

        async def pushed(token: str, cluster: str | None, query: str = "") -> int:
            body = protobuf("a", 0.9, cluster=cluster)
            return (await post(url + query, body, {**PB, **bearer(token)}))[0]

        assert await pushed(PUSH, "west") == 200
        assert await pushed(READ, "west") == 403
        assert await pushed(EAST, "east") == 200
        assert await pushed(EAST, "east") == 200
        assert await pushed(EAST, "west") == 403
        assert await pushed(EAST, None) == 403, "no cluster means the default one"
        assert await pushed(EAST, None, "?cluster_id=east") == 200
        assert await pushed(EAST, "west", "?cluster_id=east") == 403, "exporters pass the body on"
        assert await pushed(EAST, "east", "?cluster_id=west") == 403
        assert sorted(fleet.processor.clusters) == ["east", "west"]
        status = f"http://{fleet.addresses['threshold']}/api/v1/status"
        async with session.get(status, headers=bearer(EAST)) as reply:
            listed = [cluster["cluster_id"] for cluster in (await reply.json())["clusters"]]
        assert listed == ["east"]


async def test_refusals_tell_the_threshold_only_to_who_may_know_it(scoped: dict[str, Any]) -> None:
    """A refused push names a cluster, too, which may be that of somebody else."""
    async with running(**scoped) as fleet, aiohttp.ClientSession() as session:
        for number in range(8):
            for cluster in ("east", "west"):
                fleet.processor.push(
                    protobuf(f"n{number}", 0.9, cluster=cluster), Encoding.PROTOBUF, None, 0.0, 0
                )
        fleet.processor.tick(1.0)
        url = f"http://{fleet.addresses['http']}/v1/metrics?cluster_id="
        found = {}
        for cluster in ("east", "west"):
            for token in (PUSH, READ, EAST, "nobody-knows-0123456789"):
                for kind, body in (("x-protobuf", b"\xff"), ("x-protobuf", b"\xff" * 99_999),
                                   ("xml", b"")):  # fmt: skip
                    headers = {**bearer(token), "Content-Type": f"application/{kind}"}
                    async with session.post(url + cluster, data=body, headers=headers) as reply:
                        assert reply.status >= 400
                        found.setdefault((cluster, token), set()).add(
                            THRESHOLD_HEADER in reply.headers or QUORUM_HEADER in reply.headers
                        )
        may_know = {key for key, told in found.items() if told == {True}}
        assert may_know == {("east", PUSH), ("west", PUSH), ("east", EAST)}
        assert all(told == {False} for key, told in found.items() if key not in may_know)


async def test_a_wrong_token_file_does_not_keep_an_old_certificate(tmp_path: Path) -> None:
    token = private(tmp_path / "token", PUSH)
    first = kept_certificate(tmp_path / "first", ["localhost"])
    second = kept_certificate(tmp_path / "second", ["localhost"])
    tls = {"cert_file": str(first.cert), "key_file": str(first.key)}
    http = {"tls": tls, "token_file": str(token)}
    async with running(receivers={"otlp": {"protocols": {"http": http}}}) as fleet:
        token.write_text("x")
        for old, new in ((first.cert, second.cert), (first.key, second.key)):
            old.write_bytes(new.read_bytes())
        fleet.reload()
        trusted = client_context(ClientTls(ca=second.cert))
        url = f"https://localhost:{parse_address(fleet.addresses['http'])[1]}/v1/metrics"
        connector = aiohttp.TCPConnector(ssl=trusted)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(url, data=protobuf("a", 0.9), headers={**PB, **bearer(PUSH)}) as reply,
        ):
            assert reply.status == 200, "and the token of before is still valid"
