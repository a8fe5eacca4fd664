"""F078: what agents push to Fleet arrives in Echo, with the same content in all encodings."""

import gzip
import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from tests.support.echo_process import BIN, TOKEN, EchoProcess
from tests.support.echo_samples import START_NS, metrics_body
from tests.support.waiting import PATIENCE_S

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_json, encode_protobuf

pytestmark = pytest.mark.e2e


def post(url: str, body: bytes, **headers: str) -> int:
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {TOKEN}", **headers})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return int(reply.status)


def health(node: str, number: int) -> bytes:
    point = otlp.NumberPoint(
        time_unix_nano=time.time_ns() + number,
        as_double=0.9,
        attributes=otlp.attributes({names.NODE_STATE: "active"}),
    )
    metric = otlp.Metric(name=names.HEALTH_SCORE, gauge=otlp.Gauge(data_points=(point,)))
    who = otlp.Resource(
        attributes=otlp.attributes({names.NODE_ID: node, names.CLUSTER_ID: "train"})
    )
    resource = otlp.ResourceMetrics(
        resource=who, scope_metrics=(otlp.ScopeMetrics(metrics=(metric,)),)
    )
    return encode_json(otlp.MetricsRequest(resource_metrics=(resource,)))


def test_fleet_forwards_every_push_to_echo(tmp_path: Path) -> None:
    with EchoProcess(tmp_path) as echo:
        config = tmp_path / "fleet.yaml"
        exporter = {
            "endpoint": f"http://{echo.addresses['http']}",
            "token_file": str(tmp_path / "token"),
        }
        pipeline = {"receivers": ["otlp"], "processors": ["ingero"], "exporters": ["otlphttp"]}
        document = {
            "exporters": {"otlphttp": exporter},
            "service": {"pipelines": {"metrics": pipeline}},
        }
        config.write_text(json.dumps(document))
        flags = [
            f"--{name}=127.0.0.1:0"
            for name in ("http", "grpc", "agent", "admin", "health", "metrics")
        ]
        fleet = subprocess.Popen(
            [
                str(BIN / "ingero-fleet"),
                "--json",
                "--config",
                str(config),
                "--log-level",
                "warning",
                *flags,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert fleet.stdout is not None
        try:
            address = json.loads(fleet.stdout.readline())["addresses"]["http"]
            for number in range(60):
                body = health(f"gpu-{number % 6}", number)
                url = f"http://{address}/v1/metrics?cluster_id=train"
                assert post(url, body, **{"Content-Type": names.JSON_TYPE}) == 200
        finally:
            fleet.terminate()  # draining sends what is queued
            assert fleet.wait(PATIENCE_S) == 0
            fleet.stdout.close()
    sql = (
        f"SELECT node_id, count(*) FROM events WHERE metric_name = '{names.HEALTH_SCORE}' "
        "GROUP BY 1 ORDER BY 1"
    )
    assert echo.query(sql) == [(f"gpu-{i}", 10) for i in range(6)]


def test_json_gzip_logs_and_traces_land_in_their_tables(tmp_path: Path) -> None:
    record = otlp.LogRecord(
        time_unix_nano=START_NS,
        event_name=names.VERDICT_EVENT,
        body=otlp.any_value(
            {"episode": "e1", "state": "straggler", "node": "gpu-5", "since": 1763168400.0}
        ),
    )
    logs = otlp.LogsRequest(
        resource_logs=(otlp.ResourceLogs(scope_logs=(otlp.ScopeLogs(log_records=(record,)),)),)
    )
    span = otlp.Span(
        name="ingero.detection.straggler",
        trace_id="ab" * 16,
        span_id="cd" * 8,
        start_time_unix_nano=START_NS,
        end_time_unix_nano=START_NS + 5_000_000,
    )
    spans = otlp.TracesRequest(
        resource_spans=(otlp.ResourceSpans(scope_spans=(otlp.ScopeSpans(spans=(span,)),)),)
    )
    with EchoProcess(tmp_path) as echo:
        base = f"http://{echo.addresses['http']}"
        as_json = {"Content-Type": names.JSON_TYPE}
        assert post(f"{base}/v1/logs", encode_json(logs), **as_json) == 200
        assert post(f"{base}/v1/traces", encode_json(spans), **as_json) == 200
        packed = gzip.compress(metrics_body(points=4))
        protobuf = {"Content-Type": names.PROTOBUF_TYPE}
        assert post(f"{base}/v1/metrics", packed, **protobuf, **{"Content-Encoding": "gzip"}) == 200
        assert post(f"{base}/v1/logs", encode_protobuf(logs), **protobuf) == 200, (
            "the same request in the other encoding"
        )
    kinds = echo.query("SELECT kind, count(*) FROM events GROUP BY 1 ORDER BY 1")
    assert kinds == [("gauge", 4), ("log", 1), ("span", 1)]
    assert echo.query("SELECT episode, state, node_id FROM verdicts") == [
        ("e1", "straggler", "gpu-5")
    ]
    assert echo.query(
        "SELECT value_double, detail->>'trace_id' FROM events WHERE kind = 'span'"
    ) == [(5.0, "ab" * 16)]


def test_a_damaged_journal_is_named_and_repaired(tmp_path: Path) -> None:
    with EchoProcess(tmp_path) as echo:
        # so that the journal holds requests that the database does not
        os.kill(echo.store_pid(), signal.SIGSTOP)
        for number in range(5):
            body = metrics_body(points=2, first=number * 2, name=f"metric-{number}")
            post(
                f"http://{echo.addresses['http']}/v1/metrics",
                body,
                **{"Content-Type": names.PROTOBUF_TYPE},
            )
        os.kill(echo.store_pid(), signal.SIGKILL)
        echo.kill()
    (segment,) = (tmp_path / "echo.db.journal").glob("journal-*")
    segment.write_bytes(segment.read_bytes().replace(b"metric-2", b"metric-X"))
    command = [str(BIN / "ingero-echo"), "verify", "--db-path", str(echo.database)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "request 3 cannot be read" in found.stdout
    with pytest.raises(
        AssertionError, match=r"request 3 cannot be read.*ingero-echo verify --repair"
    ):
        EchoProcess(tmp_path).start()
    repaired = subprocess.run([*command, "--repair"], capture_output=True, text=True, check=False)
    assert repaired.returncode == 0, repaired.stdout
    assert "4 requests saved, 1 lost" in repaired.stdout
    with EchoProcess(tmp_path) as again:
        pass
    assert again.query("SELECT count(*) FROM events") == [(8,)]
