"""Backends of forwarding exporters: mutual TLS, and replies in any number of pieces."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.support.pieces import replying_in_pieces
from tests.support.pushes import ANY_PORT, PB, post, protobuf, running
from tests.support.tls_files import write_pair

from ingero.config.fleet_exporters import ClientTlsConfig, ForwardExporterConfig
from ingero.contract.otlp.body import Encoding, PartialSuccess, encode_response
from ingero.contract.otlp.values import MetricsRequest
from ingero.fleet.app import FleetService
from ingero.fleet.backends import MAX_REPLY_BYTES, HttpBackend


async def arrived(fleet: FleetService, node: str) -> None:
    async with asyncio.timeout(30):
        while (
            "train" not in fleet.processor.clusters
            or node not in fleet.processor.clusters["train"].roster.rows
        ):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("kind", "listener"), [("otlp", "grpc"), ("otlphttp", "http")])
async def test_exporter_uses_a_new_certificate_after_a_reload(
    kind: str, listener: str, tmp_path: Path
) -> None:
    authority, first, later = trustme.CA(), trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    first.cert_pem.write_to_path(tmp_path / "clients.pem")
    tls = {
        **write_pair(tmp_path, "server", authority.issue_cert("127.0.0.1")),
        "client_ca_file": str(tmp_path / "clients.pem"),
    }
    own = write_pair(tmp_path, "client", first.issue_cert("fleet@example.org"))
    receivers = {"otlp": {"protocols": {listener: {"endpoint": ANY_PORT, "tls": tls}}}}
    async with running(receivers=receivers) as behind:
        settings: dict[str, Any] = {
            "endpoint": behind.addresses[listener],
            "tls": {"ca_file": str(tmp_path / "authority.pem"), **own},
            "retry_on_failure": {"initial_interval": "10ms", "max_interval": "50ms"},
        }
        service = {"pipelines": {"metrics": {"processors": ["ingero"], "exporters": [kind]}}}
        async with running(exporters={kind: settings}, service=service) as front:
            url = f"http://{front.addresses['http']}/v1/metrics"
            await post(url, protobuf("before", 0.9), PB)
            await arrived(behind, "before")
            later.cert_pem.write_to_path(tmp_path / "clients.pem")
            behind.reload()
            write_pair(tmp_path, "client", later.issue_cert("fleet@example.org"))
            front.reload()
            await post(url, protobuf("after", 0.9), PB)
            await arrived(behind, "after")
            assert set(front.exporters.forwarders[0].counters.dropped.values()) == {0}


async def rejected_by_backend(*pieces: bytes) -> int:
    """Send one batch to a backend that replies in these pieces; return the rejected count."""
    async with replying_in_pieces(*pieces) as address:
        config = ForwardExporterConfig(endpoint=address, tls=ClientTlsConfig(insecure=True))
        backend = HttpBackend(config)
        try:
            return await backend.send(MetricsRequest, b"")
        finally:
            await backend.close()


@pytest.mark.parametrize("split", [1, 3, 20])
async def test_partial_success_that_arrives_in_pieces_is_counted(split: int) -> None:
    partial = PartialSuccess(rejected=7, message="seven points are older than an hour")
    body = encode_response(MetricsRequest, Encoding.PROTOBUF, partial)
    assert await rejected_by_backend(body[:split], body[split:]) == 7


async def test_reply_beyond_the_limit_is_not_read_to_its_end() -> None:
    assert await rejected_by_backend(b"x" * MAX_REPLY_BYTES, b"x" * (8 << 20)) == 0
