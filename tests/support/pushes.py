"""Pushes as agents send them, and a Fleet to send them to."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from ingero.config.fleet import FleetConfig
from ingero.config.loader import load_text
from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.fleet.app import TICK_S, FleetService

ANY_PORT = "127.0.0.1:0"
NEVER_S = 3600.0  # longer than any test runs
PB = {"Content-Type": names.PROTOBUF_TYPE}
JSON = {"Content-Type": names.JSON_TYPE}


def health(
    node: str | None,
    score: float,
    state: str = "active",
    cluster: str | None = "train",
    sent_ns: int = 0,
) -> otlp.MetricsRequest:
    """The least a push says."""
    identity: dict[str, otlp.Plain] = {names.NODE_ID: node, names.CLUSTER_ID: cluster}
    point = otlp.NumberPoint(
        attributes=otlp.attributes({names.NODE_STATE: state, names.WORKLOAD_TYPE: "training"}),
        as_double=score,
        time_unix_nano=sent_ns,
    )
    return request(
        identity,
        otlp.Metric(name=names.HEALTH_SCORE, unit="1", gauge=otlp.Gauge(data_points=(point,))),
    )


def request(identity: dict[str, otlp.Plain], *metrics: otlp.Metric) -> otlp.MetricsRequest:
    attributes = otlp.attributes(
        {key: value for key, value in identity.items() if value is not None}
    )
    return otlp.MetricsRequest(
        resource_metrics=(
            otlp.ResourceMetrics(
                resource=otlp.Resource(attributes=attributes),
                scope_metrics=(otlp.ScopeMetrics(metrics=metrics),),
            ),
        )
    )


def protobuf(node: str, score: float, **more: Any) -> bytes:
    return encode_protobuf(health(node, score, **more))


def as_json(node: str, score: float, **more: Any) -> bytes:
    return encode_json(health(node, score, **more))


def loopback_config(**changes: Any) -> FleetConfig:
    """Every listener on a port the kernel chooses; `changes` are merged over it, None removes."""
    mapping: dict[str, Any] = {
        "receivers": {
            "otlp": {"protocols": {"grpc": {"endpoint": ANY_PORT}, "http": {"endpoint": ANY_PORT}}}
        },
        "extensions": {
            "ingero_threshold": {"agent_endpoint": ANY_PORT, "admin_endpoint": ANY_PORT},
            "zpages": {"endpoint": ANY_PORT},
        },
        "exporters": {"prometheus": {"endpoint": ANY_PORT}},
        "service": {"telemetry": {"metrics": {"address": ANY_PORT}}},
    }
    _merge(mapping, changes)
    return load_text(FleetConfig, json.dumps(mapping), "test")


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value


async def post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """Status, headers with lower-case names, and body of the reply."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=headers) as reply,
    ):
        return (
            reply.status,
            {name.lower(): value for name, value in reply.headers.items()},
            await reply.read(),
        )


def forwarding(kind: str, endpoint: str, **more: object) -> dict[str, Any]:
    """Settings of a Fleet that forwards every signal to `endpoint`."""
    settings = {"endpoint": endpoint, "tls": {"insecure": True}, **more}
    pipeline = {"exporters": [kind]}
    return {
        "exporters": {kind: settings, "prometheus": None},
        "service": {
            "pipelines": {
                "metrics": {"processors": ["ingero"], **pipeline},
                "traces": pipeline,
                "logs": pipeline,
            }
        },
    }


@contextlib.asynccontextmanager
async def running(*, tick_s: float = TICK_S, **changes: Any) -> AsyncIterator[FleetService]:
    """A Fleet on loopback; with `tick_s=NEVER_S` it recomputes only when a test calls `tick`."""
    service = FleetService(loopback_config(**changes), tick_s=tick_s)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


async def get(url: str, **options: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **options) as reply:
        return reply.status, await reply.text()
