import asyncio
import json
import time
from collections.abc import Generator
from functools import partial

import pytest
from tests.support.pushes import NEVER_S, PB, get, health, loopback_config, post, protobuf, request
from tests.support.pushes import running as running_fleet
from tests.support.waiting import PATIENCE_S, until_async

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.threshold import QuorumReason
from ingero.errors import Unavailable
from ingero.fleet import api
from ingero.fleet.app import FleetService
from ingero.transport.otlp.client import ClientOptions
from ingero.transport.threshold_poll import ThresholdPoll

running = partial(running_fleet, tick_s=NEVER_S)  # no tick comes between two pushes


async def fill(fleet: FleetService, scores: dict[str, float]) -> None:
    for node, score in scores.items():
        await post(f"http://{fleet.addresses['http']}/v1/metrics", protobuf(node, score), PB)
    fleet.processor.tick(time.monotonic())


FIVE = {"a": 0.92, "b": 0.91, "c": 0.58, "d": 0.93, "e": 0.94}


async def test_threshold_by_get() -> None:
    """F007: the answer has exactly two keys, also before the first threshold."""
    async with running() as fleet:
        url = f"http://{fleet.addresses['threshold']}/api/v1/threshold?cluster_id="
        assert await get(f"{url}train") == (200, '{"threshold":0,"quorum_met":false}')
        await fill(fleet, FIVE)
        assert await get(f"{url}train") == (200, '{"threshold":0.890348,"quorum_met":true}')
        assert await get(f"{url}other") == (200, '{"threshold":0,"quorum_met":false}')


async def test_why_there_is_no_quorum_is_a_header_and_reaches_the_poll() -> None:
    """F007, F016: the body keeps its two keys."""
    async with running() as fleet:
        await fill(fleet, {"a": 0.92, "b": 0.91})
        url = f"http://{fleet.addresses['threshold']}/api/v1/threshold?cluster_id=train"
        assert list(json.loads((await get(url))[1])) == ["threshold", "quorum_met"]
        poll = ThresholdPoll(url, ClientOptions(timeout_s=PATIENCE_S), 10.0)
        try:
            threshold = (await poll.ask()).threshold
        finally:
            await poll.close()
        assert threshold is not None
        assert (threshold.quorum_met, threshold.reason) == (False, QuorumReason.FEW_NODES)


async def test_diagnostics_show_every_node() -> None:
    """F034."""
    async with running() as fleet:
        await fill(fleet, FIVE)
        base = f"http://{fleet.addresses['admin']}/debug"
        clusters = json.loads((await get(f"{base}/clusters"))[1])["clusters"]
        scores = json.loads((await get(f"{base}/scores?cluster_id=train"))[1])
        assert [(c["cluster_id"], c["median"], c["quorum_met"]) for c in clusters] == [
            ("train", 0.92, True)
        ]
        assert {node["node_id"]: node["below_threshold"] for node in scores["nodes"]} == {
            node: node == "c" for node in FIVE
        }
        assert {node["state"] for node in scores["nodes"]} == {"active"}
        assert (await get(f"{base}/scores?cluster_id=nope"))[0] == 404
        for page in (f"{base}/nope", f"http://{fleet.addresses['threshold']}/nope"):
            assert await get(page) == (404, '{"error":"Not Found"}')


async def test_health_is_200_while_running_and_503_while_draining() -> None:
    """F035."""
    async with running() as fleet:
        base = f"http://{fleet.addresses['health']}"
        assert [(await get(base + path))[0] for path in ("/healthz", "/readyz", "/")] == [
            200,
            200,
            200,
        ]
        fleet.receiver.refuses = "shutting down"
        assert [(await get(base + path))[0] for path in ("/healthz", "/readyz")] == [503, 503]


async def test_status_page_escapes_what_agents_sent() -> None:
    async with running() as fleet:
        await post(
            f"http://{fleet.addresses['http']}/v1/metrics?cluster_id=%3Cb%3E",
            protobuf("a", 0.9),
            PB,
        )
        _, page = await get(f"http://{fleet.addresses['health']}/")
        assert "&lt;b&gt;" in page and "<b>" not in page


async def test_own_metrics_list_the_seven_gauges() -> None:
    """F036, F048."""
    async with running() as fleet:
        await fill(fleet, FIVE)
        _, text = await get(f"http://{fleet.addresses['metrics']}/metrics")
        samples = dict(
            line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
        )
        found = {
            name: float(samples[f'ingero_fleet_{name}{{cluster_id="train"}}'])
            for name in (
                "threshold",
                "active_nodes",
                "idle_nodes",
                "coverage_low",
                "panic_mode",
                "median",
                "mad",
            )
        }
        assert {name: round(value, 6) for name, value in found.items()} == {
            "threshold": 0.890348,
            "active_nodes": 5,
            "idle_nodes": 0,
            "coverage_low": 0,
            "panic_mode": 0,
            "median": 0.92,
            "mad": 0.01,
        }
        assert samples['ingero_fleet_replies_total{status="200",transport="http"}'] == "5"
        assert samples["ingero_fleet_plaintext_listeners"] == "0"


def counted(value: int, **attributes: otlp.Plain) -> tuple[otlp.NumberPoint]:
    named = {getattr(names, name): given for name, given in attributes.items()}
    return (otlp.NumberPoint(as_int=value, attributes=otlp.attributes(named)),)


async def test_received_metrics_for_prometheus() -> None:
    """F037: scores with node and cluster labels, counters, histograms; labels stay bounded."""
    launches = otlp.Sum(
        data_points=counted(15, CGROUP_HASH="ab"), aggregation_temporality=2, is_monotonic=True
    )
    copies = otlp.HistogramPoint(count=3, sum=4.5, bucket_counts=(1, 2), explicit_bounds=(0.5,))
    event = counted(1, EVENT_ID="uuid", SCORE_ATTR=0.5, DETECTION_MODE="fleet")
    pushes = [
        [
            otlp.Metric(name=names.KERNEL_LAUNCH_TOTAL, sum=launches),
            otlp.Metric(name="gpu.memcpy.duration_ms", histogram=otlp.Histogram((copies,))),
        ],
        [otlp.Metric(name=names.STRAGGLER_EVENT, gauge=otlp.Gauge(event))],
    ]
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        await fill(fleet, {"a": 0.9})
        for pushed in pushes:
            sender = {names.NODE_ID: "a", names.CLUSTER_ID: "train"}
            await post(url, encode_protobuf(request(sender, *pushed)), PB)
        _, text = await get(f"http://{fleet.addresses['prometheus']}/metrics")
        _, other = await get(f"http://{fleet.addresses['prometheus']}/metrics?cluster_id=other")
        assert (text != "", other) == (True, "")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        own = 'cluster_id="train",node_id="a"'
        assert lines == [
            f'gpu_memcpy_duration_ms_bucket{{{own},le="0.5"}} 1',
            f'gpu_memcpy_duration_ms_bucket{{{own},le="+Inf"}} 3',
            f"gpu_memcpy_duration_ms_sum{{{own}}} 4.5",
            f"gpu_memcpy_duration_ms_count{{{own}}} 3",
            f'ingero_node_cuda_kernel_launch_total{{{own},ingero_cgroup_path_hash="ab"}} 15',
            f'ingero_node_health_score{{{own},ingero_node_state="active",'
            'ingero_workload_type="training"} 0.9',
            f'ingero_node_straggler_event{{{own},ingero_detection_mode="fleet"}} 1',
        ]


async def test_port_in_use_names_its_owner() -> None:
    async with running() as fleet:
        for receiver in ("http", "grpc"):
            other = FleetService(
                loopback_config(
                    receivers={
                        "otlp": {"protocols": {receiver: {"endpoint": fleet.addresses[receiver]}}}
                    }
                )
            )
            with pytest.raises(Unavailable, match=r"already in use by .+ \(process \d+\)"):
                await other.start()


async def test_service_stops_cleanly_and_can_start_again() -> None:
    for _ in range(2):
        async with running() as fleet:
            await fill(fleet, FIVE)
    assert len(asyncio.all_tasks()) == 1


async def test_fleet_ticks_by_itself() -> None:
    async with running(tick_s=0.1) as fleet:
        fleet.processor.take(health("a", 0.9), None, time.monotonic(), 0)
        await until_async(lambda: fleet.processor.counters.ticks >= 2)


async def test_a_failed_tick_is_counted_and_the_next_one_runs() -> None:
    async with running(tick_s=0.01) as fleet:
        errors = [RuntimeError("defect")]
        tick = fleet.processor.tick_in_steps

        def failing_once(now_s: float) -> Generator[None, None, None]:
            if errors:
                raise errors.pop()
            yield from tick(now_s)

        fleet.processor.tick_in_steps = failing_once  # type: ignore[method-assign] # on purpose
        before = fleet.processor.counters.ticks
        await until_async(lambda: not errors and fleet.processor.counters.ticks >= before + 3)
        assert fleet.failed_ticks == 1
        assert b"ingero_fleet_failed_ticks_total 1" in await fleet._render_own()


async def test_listing_a_large_cluster_leaves_time_for_pushes() -> None:
    async with running() as fleet:
        for number in range(1000):
            fleet.processor.take(health(f"n{number}", 0.9), "train", time.monotonic(), 0)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        rows = await api._nodes(fleet.processor.clusters["train"], time.monotonic(), 50.0)
        counting.cancel()
        assert len(rows) == 1000
        assert turns >= 4
