"""The provider of a node by the address that it pushes from, over every transport (F073)."""

import asyncio
from pathlib import Path

import grpc
import pytest
from tests.support.pushes import PB, post, running
from tests.support.verdict_pushes import own_time_push

from ingero.config.providers import ProviderLookup, ProviderRules
from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.fleet.providers import with_provider
from ingero.transport.otlp.server_grpc import PATHS, peer_address

RULES = "addresses: {127.0.0.0/8: lambda}\n"


@pytest.mark.parametrize("way", ["short cut", "ordinary", "grpc"])
async def test_f073_the_address_of_the_connection_decides_the_provider(
    way: str, tmp_path: Path
) -> None:
    (tmp_path / "node_providers.yaml").write_text(RULES)
    verdict = {
        "providers_file": str(tmp_path / "node_providers.yaml"),
        "record_inputs": str(tmp_path / "inputs"),
    }
    async with running(processors={"ingero": {"verdict": verdict}}) as fleet:
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
