"""Where nothing could be compiled, Fleet does the same, only slower."""

import subprocess
import sys

SCRIPT = """
import sys
if {blocked}:
    sys.modules["ingero.contract._native"] = None
from ingero.contract.push_request import read_request
from ingero.core.threshold import ThresholdPolicy
from ingero.contract.otlp_body import Encoding
from ingero.fleet.processor import FleetProcessor
from tests.fleet.pushes import as_json, protobuf
fleet = FleetProcessor(ThresholdPolicy())
for i in range(6):
    fleet.push(protobuf(f"p{{i}}", 0.9 + i / 100), Encoding.PROTOBUF, None, 0.0, 0)
    fleet.push(as_json(f"j{{i}}", 0.9 + i / 100), Encoding.JSON, "train", 0.0, 0)
fleet.push(protobuf("bad", 7.0), Encoding.PROTOBUF, None, 0.0, 0)
fleet.tick(1.0)
head = b"POST /v1/metrics HTTP/1.1\\r\\nContent-Type: application/json\\r\\nContent-Length: 2\\r\\n\\r\\n{{}}"
print(fleet.served("train"), fleet.counters, tuple(read_request(head)))
print([fleet.clusters["train"].roster.row(node, 1.0) for node in sorted(fleet.clusters["train"].roster.rows)])
"""


def outcome(blocked: bool) -> str:
    command = [sys.executable, "-c", SCRIPT.format(blocked=blocked)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_pure_and_compiled_service_agree() -> None:
    pure, compiled = outcome(blocked=True), outcome(blocked=False)
    assert "quorum_met=True" in pure
    assert pure == compiled
