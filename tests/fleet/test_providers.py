"""The provider of a node by the address that it pushes from, over every transport (F073)."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.pushes import PB, post, running
from tests.support.verdict_pushes import own_time_push

from ingero.config.providers import ProviderLookup, ProviderRules
from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.body import Encoding, decode
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.contract.push.encode import HealthReport, encode_health
from ingero.contract.types import DetectionMode, Identity, NodeState
from ingero.fleet.providers import with_provider
from ingero.transport.otlp.server_grpc import PATHS, peer_address

HEALTHY = HealthReport(
    at_ns=1,
    state=NodeState.ACTIVE,
    score=0.9,
    signals={},
    is_degraded=False,
    mode=DetectionMode.FLEET,
    fleet_reachable=True,
)
RULES = "addresses: {127.0.0.0/8: lambda}\n"


def by_rules(folder: Path, verdict: dict[str, str]) -> dict[str, Any]:
    """Return the sections of a configuration whose pipeline looks providers up."""
    lookup = {"file": str(folder / "node_providers.yaml")}
    metrics = {"processors": ["providerlookup", "ingero", "batch"], "exporters": ["prometheus"]}
    return {
        "processors": {"ingero": {"verdict": verdict}, "providerlookup": lookup},
        "service": {"pipelines": {"metrics": metrics}},
    }


@pytest.mark.parametrize("way", ["short cut", "ordinary", "grpc"])
async def test_f073_the_address_of_the_connection_decides_the_provider(
    way: str, tmp_path: Path
) -> None:
    (tmp_path / "node_providers.yaml").write_text(RULES)
    verdict = {"record_inputs": str(tmp_path / "inputs")}
    async with running(**by_rules(tmp_path, verdict)) as fleet:
        request = own_time_push("n1", 0, 1, 500.0)
        if way == "grpc":
            async with grpc.aio.insecure_channel(fleet.addresses["grpc"]) as channel:
                await channel.unary_unary(PATHS[otlp.MetricsRequest])(encode_protobuf(request))
        else:
            url = f"http://{fleet.addresses['http']}/v1/metrics"
            headers = (
                PB if way == "short cut" else {"Content-Type": "application/json", "X-Long": "way"}
            )
            body = encode_protobuf(request) if way == "short cut" else encode_json(request)
            await post(url, body, headers)
        await asyncio.sleep(0)
    recorded = b"".join(path.read_bytes() for path in (tmp_path / "inputs").iterdir())
    assert b"lambda" in recorded  # so that a replay gives the same price


@pytest.mark.parametrize("encoding", [Encoding.PROTOBUF, Encoding.JSON])
async def test_f073_every_metric_that_leaves_fleet_carries_the_provider(
    encoding: Encoding, tmp_path: Path
) -> None:
    """By the rules of the operator: in scraped series, in forwarded bodies, and at verdicts."""
    (tmp_path / "node_providers.yaml").write_text(RULES)
    async with running(**by_rules(tmp_path, {})) as fleet:
        forwarded: list[bytes] = []
        sinks = fleet.receiver.sinks
        sinks[otlp.MetricsRequest] = (*sinks[otlp.MetricsRequest], Collected(forwarded))
        identity = Identity(node="n1", cluster="c", provider="aws")
        request = encode_health(identity, HEALTHY)
        is_json = encoding is Encoding.JSON
        body = encode_json(request) if is_json else encode_protobuf(request)
        headers = {"Content-Type": "application/json"} if is_json else PB
        await post(f"http://{fleet.addresses['http']}/v1/metrics", body, headers)
        (page,) = [await series.render() for series in fleet.exporters.series.values()]
        assert fleet.processor.provider_of("c", "n1") == "lambda"
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    assert lines and all('ingero_provider="lambda"' in line for line in lines)
    (sent,) = forwarded
    (resource,) = decode(otlp.MetricsRequest, sent, encoding).resource_metrics
    assert resource.resource is not None
    values = otlp.plain_attributes(resource.resource.attributes)
    assert values[names.PROVIDER] == "lambda"


class Collected:
    """A sink that keeps bodies."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = bodies

    def offer(self, _kind: object, body: bytes, _encoding: object, _taken: object) -> None:
        self.bodies.append(body)


def test_addresses_win_over_labels_and_both_over_what_an_agent_reports() -> None:
    rules = ProviderLookup(
        ProviderRules(addresses={"10.0.0.0/8": "aws"}, labels={"ingero.node.id=n1": "lambda"})
    )

    def provider(address: str | None, lookup: ProviderLookup = rules) -> object:
        resource = (
            with_provider(own_time_push("n1", 0, 1, 1.0), lookup, address)
            .resource_metrics[0]
            .resource
        )
        return otlp.plain_attributes(resource.attributes).get(names.PROVIDER) if resource else None

    assert provider("10.1.2.3") == "ec2"  # as the rate table names it
    assert provider("192.168.0.1") == "lambda"
    assert provider(None, ProviderLookup()) is None


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:[::1]:5000", "::1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("unix:/run/x", None),
    ],
)
def test_the_address_in_a_grpc_peer(peer: str, address: str | None) -> None:
    assert peer_address(peer) == address
