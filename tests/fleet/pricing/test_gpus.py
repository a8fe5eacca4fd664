"""GPUs and their price: idle ones are priced, unknown models have no price and one hint."""

import logging

import pytest
from tests.support.pushes import running

from ingero.config.rates import load_rates
from ingero.contract.exposition import render
from ingero.contract.fleet_api import IdleGpus
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.push.encode import HealthReport, encode_health
from ingero.contract.types import DetectionMode, Identity, NodeState
from ingero.core.health.threshold import ThresholdPolicy
from ingero.fleet.page.cluster_view import summary_fields
from ingero.fleet.pricing.gpus import GpuPrices
from ingero.fleet.processor import FleetProcessor
from ingero.transport.otlp.decoding import finish

L4, H200 = "NVIDIA L4", "NVIDIA H200"


def push(processor: FleetProcessor, node: str, model: str, state: NodeState, now_s: float) -> None:
    report = HealthReport(
        at_ns=int(now_s * 1e9),
        state=state,
        score=0.9,
        signals={},
        is_degraded=False,
        mode=DetectionMode.FLEET,
        fleet_reachable=True,
        gpu_model=model,
        gpu_count=8,
    )
    body = encode_protobuf(encode_health(Identity(node=node, cluster="c", provider="aws"), report))
    processor.push(body, Encoding.PROTOBUF, "c", now_s, int(now_s * 1e9))


def test_idle_gpus_are_priced_beside_stragglers_and_unknown_models_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processor, prices = FleetProcessor(ThresholdPolicy()), GpuPrices(load_rates())
    push(processor, "a", L4, NodeState.ACTIVE, 100.0)
    push(processor, "b", L4, NodeState.IDLE, 100.0)
    push(processor, "d", H200, NodeState.IDLE, 100.0)
    push(processor, "gone", L4, NodeState.IDLE, 10.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            page = render(prices.families(processor)).decode()
    l4 = 'cluster_id="c",gpu_model="NVIDIA L4",ingero_provider="aws"'
    h200 = 'cluster_id="c",gpu_model="NVIDIA H200",ingero_provider="aws"'
    for line in (
        f"ingero_fleet_gpus{{{l4}}} 16",
        f"ingero_fleet_idle_gpus{{{l4}}} 8",
        f"ingero_fleet_idle_gpus{{{h200}}} 8",
        f"ingero_fleet_gpu_usd_per_hour{{{l4}}} 0.85",
        f"ingero_fleet_idle_gpu_cost_usd_per_hour{{{l4}}} 6.8",
    ):
        assert line in page.splitlines()
    assert f"usd_per_hour{{{h200}}}" not in page
    finish(prices.update(processor))
    idle = processor.clusters["c"].idle_gpus
    assert idle == IdleGpus(gpus=16, usd_per_hour=6.8, unpriced=8)
    assert summary_fields(processor.clusters["c"])["idle_gpus"] == idle, "in status and on the page"
    (hint,) = [record for record in caplog.records if record.message == "no_price"]
    assert "NVIDIA H200 at ec2" in hint.__dict__["next"]


async def test_a_running_fleet_serves_them() -> None:
    async with running() as fleet:
        push(fleet.processor, "a", L4, NodeState.IDLE, 100.0)
        assert b"# TYPE ingero_fleet_idle_gpus gauge" in await fleet._render_own()
