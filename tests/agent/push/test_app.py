"""A whole agent and a real Fleet: protocols, TLS, tokens, outages, and what is never done."""

import ast
import asyncio
import contextlib
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.support.pushes import running
from tests.support.scripted_fleet import Answer, scripted_fleet
from tests.support.waiting import PATIENCE_S, until_async
from yarl import URL

from ingero.agent.push.app import Agent, AgentOptions, default_baseline
from ingero.cli.commands.node.fleet_push import command
from ingero.config.ingero import IngeroConfig
from ingero.config.merge import merged
from ingero.contract.exposition import metric_name
from ingero.contract.otlp.codec import decode_json, decode_protobuf
from ingero.contract.otlp.values import MetricsRequest, TracesRequest
from ingero.contract.types import DetectionMode, NodeState
from ingero.core.health.classifier import ClassifierPolicy
from ingero.errors import AuthError, ConfigError

SOURCE = Path(__file__).parents[3] / "src" / "ingero"
QUICK = {
    "fleet_push_interval": 1.0,
    "fleet_timeout": 0.9,
    "warmup_samples": 2,
    "fleet_cluster_id": "train",
}


def agent(
    endpoint: str, node: str = "n1", *, options: AgentOptions | None = None, **flags: Any
) -> Agent:
    nothing = {parameter.name: None for parameter in command.params if parameter.name}
    config = merged(
        IngeroConfig,
        None,
        {},
        nothing | QUICK | {"fleet_endpoint": endpoint, "fleet_node_id": node} | flags,
    )
    return Agent(config, options or AgentOptions(stub=True, persist=False))


@contextlib.asynccontextmanager
async def living(*agents: Agent) -> AsyncIterator[None]:
    stop = asyncio.Event()
    tasks = [asyncio.create_task(one.run(stop)) for one in agents]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)


def mode(one: Agent) -> DetectionMode | None:
    return one.monitor.last.decision.mode if one.monitor.last else None


QUORUM = {"processors": {"ingero": {"quorum": {"statistical_min": 3}, "push_interval": "1s"}}}


async def test_three_agents_over_three_protocols_reach_quorum_f033_f041() -> None:
    async with running(**QUORUM) as fleet:
        http = f"http://{fleet.addresses['http']}"
        agents = [
            agent(http, "n1"),
            agent(http, "n2", fleet_protocol="http/protobuf"),
            agent(f"http://{fleet.addresses['grpc']}", "n3", fleet_protocol="grpc"),
        ]
        async with living(*agents):
            await until_async(lambda: all(mode(one) is DetectionMode.FLEET for one in agents))
        assert {one.monitor.lifecycle.state for one in agents} == {NodeState.ACTIVE}
        assert all(one.loop and one.loop.counters.pushes["ok"] for one in agents)
        assert sorted(fleet.processor.clusters) == ["train"]


async def test_tls_and_token_over_http_and_grpc(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("agent")
    paths = {
        name: tmp_path / name for name in ("ca", "crt", "key", "agent.crt", "agent.key", "token")
    }
    authority.cert_pem.write_to_path(paths["ca"])
    server.cert_chain_pems[0].write_to_path(paths["crt"])
    server.private_key_pem.write_to_path(paths["key"])
    client.cert_chain_pems[0].write_to_path(paths["agent.crt"])
    client.private_key_pem.write_to_path(paths["agent.key"])
    paths["token"].write_text("a-secret-token-0123")
    for name in ("key", "agent.key", "token"):
        paths[name].chmod(0o600)
    listener = {
        "tls": {
            "cert_file": str(paths["crt"]),
            "key_file": str(paths["key"]),
            "client_ca_file": str(paths["ca"]),
        },
        "token_file": str(paths["token"]),
    }
    changes = {"receivers": {"otlp": {"protocols": {"http": listener, "grpc": listener}}}}
    flags = {
        "fleet_tls_ca": paths["ca"],
        "fleet_tls_cert": paths["agent.crt"],
        "fleet_tls_key": paths["agent.key"],
        "fleet_token_file": paths["token"],
    }
    async with running(**changes) as fleet:
        good = agent(f"https://{fleet.addresses['http']}", "http", **flags)
        grpc = agent(f"https://{fleet.addresses['grpc']}", "grpc", fleet_protocol="grpc", **flags)
        nameless = agent(
            f"https://{fleet.addresses['http']}", "nobody", **(flags | {"fleet_token_file": None})
        )
        async with living(good, grpc, nameless):
            for one, outcome in ((good, "ok"), (grpc, "ok"), (nameless, "auth")):
                await until_async(
                    lambda one=one, outcome=outcome: bool(
                        one.loop and one.loop.counters.pushes[outcome]
                    )
                )
        assert sorted(row for row in fleet.processor.clusters["train"].roster.rows) == [
            "grpc",
            "http",
        ]


def listening_inodes() -> set[str]:
    """Inodes of this process's listening TCP sockets."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(descriptor.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[9])
    return found


async def test_no_listening_port_and_no_socket_unless_asked_f062_f066(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with scripted_fleet() as fleet:
        before = listening_inodes()
        one = agent(fleet.url)
        async with living(one):
            await until_async(lambda: bool(fleet.requests))
            assert listening_inodes() == before
            assert one.socket is None
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signals_end_an_agent_in_order(number: signal.Signals) -> None:
    async with scripted_fleet() as fleet:
        one = agent(fleet.url)
        running = asyncio.create_task(one.run())
        await until_async(lambda: bool(fleet.requests))
        os.kill(os.getpid(), number)
        await asyncio.wait_for(running, PATIENCE_S)
        asyncio.get_running_loop().remove_signal_handler(number)


async def test_limits_change_while_a_job_runs_without_forgetting_the_baseline() -> None:
    """SIGHUP reads them again; what cannot be read changes nothing."""
    async with scripted_fleet() as fleet:
        one = agent(fleet.url)
        health = replace(one.config.health, classifier=ClassifierPolicy(confirmations=7))
        answers = [replace(one.config, health=health)]
        one.options = replace(one.options, reread=lambda: answers.pop() if answers else refuse())
        running = asyncio.create_task(one.run())
        await until_async(lambda: one.monitor.baseline.sample_count >= 1)
        learned = one.monitor.baseline.sample_count
        os.kill(os.getpid(), signal.SIGHUP)
        await until_async(lambda: one.monitor.policy.classifier.confirmations == 7)
        os.kill(os.getpid(), signal.SIGHUP)
        await until_async(lambda: bool(fleet.requests))
        assert one.monitor.policy.classifier.confirmations == 7
        assert one.monitor.baseline.sample_count >= learned
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, PATIENCE_S)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)


def refuse() -> IngeroConfig:
    raise ConfigError("health.classifier.confirmations: 0 is out of range")


async def test_metrics_and_socket_on_request_f063(tmp_path: Path) -> None:
    path = tmp_path / "run" / "s.sock"
    async with scripted_fleet() as fleet:
        options = AgentOptions(stub=True, persist=False, metrics_listen="127.0.0.1:0")
        one = agent(
            fleet.url, options=options, remediate=True, remediate_socket=path, remediate_gid=-1
        )
        async with living(one):
            await until_async(
                lambda: any(b"ingero.node.health_score" in body for _, body in fleet.requests)
            )
            assert path.is_socket()
            bodies = [body for _, body in fleet.requests]
            page = await asyncio.to_thread(_get, f"http://{one.metrics_address}/metrics")
        assert not path.exists()
    for name in (
        "ingero_agent_health_score",
        "ingero_agent_detection_mode",
        "ingero_agent_fleet_reachable",
    ):
        assert f"\n{name}{{" in page
    assert "ingero_agent_socket_consumers 0" in page
    pushed = {
        metric_name(metric.name)
        for body in bodies
        for resource in decode_json(MetricsRequest, body).resource_metrics
        for metric in resource.scope_metrics[0].metrics
    }
    assert {name for name in pushed if f"# TYPE {name} " not in page} == set(), (
        "must 46: both carry the same set"
    )


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        return response.read().decode()


async def test_a_restart_takes_up_the_saved_baseline(tmp_path: Path) -> None:
    path = str(tmp_path / "b.json")
    async with scripted_fleet() as fleet:
        first = agent(
            fleet.url, fleet_persist_path=path, options=AgentOptions(stub=True, max_ticks=3)
        )
        await first.run(asyncio.Event())
        second = agent(
            fleet.url, fleet_persist_path=path, options=AgentOptions(stub=True, max_ticks=1)
        )
        await second.run(asyncio.Event())
    assert second.monitor.lifecycle.state is NodeState.ACTIVE
    assert second.monitor.baseline.sample_count == first.monitor.baseline.sample_count + 1


async def test_a_span_per_episode_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingero.agent.push.app._gpu_model", lambda: "NVIDIA H200")
    recording = tmp_path / "r.jsonl"
    healthy, slow = (
        '{"launches":9,"throughput":100,"compute":0.9,"memory":0.9,"cpu":0.9}',
        '{"launches":9,"throughput":9}',
    )
    recording.write_text("\n".join([healthy] * 3 + [slow] * 2))
    headers = {"X-Ingero-Threshold": "0.8", "X-Ingero-Quorum-Met": "true"}
    async with scripted_fleet() as fleet:
        fleet.answer = lambda _: Answer(headers=headers)
        one = agent(
            fleet.url,
            options=AgentOptions(replay=recording, persist=False),
            otlp_enabled=True,
            otlp_endpoint=fleet.url,
            confirmations=1,
        )
        await one.run(asyncio.Event())
        # shutdown ended it
        (body,) = (body for request, body in fleet.requests if request.path == "/v1/traces")
    (resource,) = decode_protobuf(TracesRequest, body).resource_spans
    (span,) = resource.scope_spans[0].spans
    said = {attribute.key: attribute.value.string_value for attribute in span.attributes}
    assert (span.name, said["ingero.gpu_model"]) == ("ingero.detection.straggler", "NVIDIA H200")
    assert [event.name for event in span.events] == ["outcome"]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"fleet_endpoint": None}, "--fleet-endpoint"),
        ({"fleet_endpoint": "ftp://x"}, "http"),
        ({"otlp_endpoint": "://x"}, "endpoint"),
        ({"fleet_node_id": "a\nb"}, "--fleet-node-id"),
    ],
)
def test_wrong_settings_stop_the_start(flags: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        agent(**({"endpoint": "x:4318"} | flags)) if "fleet_endpoint" not in flags else agent(
            "x:4318", **flags
        )


@pytest.mark.parametrize(
    ("endpoint", "flags", "override"),
    [
        ("http://fleet:4318", {}, "--fleet-insecure"),
        ("http://fleet:4317", {}, "--fleet-insecure"),
        ("fleet:4318", {"fleet_threshold_url": "http://fleet:8080"}, "--fleet-insecure"),
        ("127.0.0.1:4318", {"otlp_endpoint": "http://10.0.0.5:4318"}, "--otlp-insecure"),
    ],
)
def test_plaintext_to_another_machine_is_refused_unless_allowed_must_47(
    endpoint: str, flags: dict[str, Any], override: str
) -> None:
    with pytest.raises(ConfigError, match=f"would travel in plain text; .* {override}"):
        agent(endpoint, **flags)
    agent(endpoint, **flags, fleet_insecure=True, otlp_insecure=True)


def test_spans_are_plain_on_this_machine_and_encrypted_elsewhere_must_47() -> None:
    ways = [
        agent("x:4318", otlp_enabled=True, otlp_endpoint=to)._spans
        for to in ("127.0.0.1:4318", "tempo:4318")
    ]
    assert [way._traces_url.origin() for way in ways if way] == [
        URL("http://127.0.0.1:4318"),
        URL("https://tempo:4318"),
    ]


async def test_metrics_that_others_can_read_are_warned_of_must_47(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted_fleet() as fleet:
        for listen, warnings in (("127.0.0.1:0", 0), ("0.0.0.0:0", 1)):
            caplog.clear()
            one = agent(
                fleet.url, options=AgentOptions(stub=True, persist=False, metrics_listen=listen)
            )
            async with living(one):
                await until_async(lambda one=one: one.metrics_address is not None)
            assert [record.message for record in caplog.records].count("metrics_open") == warnings


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="together"):
        agent("https://x:4318", fleet_tls_cert=tmp_path / "c")


def test_the_baseline_has_a_place_of_our_own() -> None:
    assert default_baseline().name == "health-baseline.json"


FORBIDDEN = {
    "kill",
    "killpg",
    "send_signal",
    "terminate",
    "pidfd_send_signal",
    "sched_setaffinity",
    "setpriority",
    "nice",
}


def test_no_code_path_signals_or_reschedules_a_workload_f013() -> None:
    """The push loop only observes; its only child process is a query of nvidia-smi."""
    modules = [
        *(SOURCE / "core").rglob("*.py"),
        *(SOURCE / "agent" / "push").glob("*.py"),
        *(SOURCE / "agent" / "host").glob("*.py"),
        SOURCE / "transport" / "uds.py",
        SOURCE / "sink.py",
        SOURCE / "cli" / "commands" / "node" / "fleet_push.py",
        SOURCE / "cli" / "commands" / "services" / "straggler_sink.py",
    ]
    for folder in ("core", "push", "host"):
        assert sum(folder in module.parts for module in modules) > 5
    found = [
        f"{module}:{node.lineno}"
        for module in modules
        for node in ast.walk(ast.parse(module.read_text()))
        if not FORBIDDEN.isdisjoint(used_names(node))
    ]
    assert found == []


def used_names(node: ast.AST) -> set[str]:
    """Return the names that an expression uses or that an import brings in."""
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.ImportFrom):
        return {alias.name for alias in node.names}
    return set()


@pytest.mark.parametrize("text", ["os.kill(1, 9)", "from os import kill as end", "stop = os.nice"])
def test_a_signal_is_recognised_however_it_is_written(text: str) -> None:
    used = set().union(*(used_names(node) for node in ast.walk(ast.parse(text))))
    assert not FORBIDDEN.isdisjoint(used)
