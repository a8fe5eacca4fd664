"""The recorded wire of the reference agent against our processes, both ways: its pushes to our Fleet, our agent's
pushes beside its own."""

import asyncio
import itertools
import json
import statistics
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent_process import agent
from tests.recorded_wire import is_event, recorded, shape
from tests.shared_data import shared
from tests.transport.scripted import Answer, scripted_fleet

from ingero.contract import names
from ingero.sim.cluster import DemoCluster

pytestmark = pytest.mark.e2e
KEPT_HEADERS = ("Content-Type", "Content-Encoding", "User-Agent")


def points(body: Any) -> dict[str, Any]:
    """The first point of each metric by name."""
    metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    return {m["name"]: next(iter((m.get("gauge") or m.get("sum"))["dataPoints"])) for m in metrics}


def attribute(point: Any, key: str) -> Any:
    return next(iter(next(a["value"] for a in point["attributes"] if a["key"] == key).values()))


def test_fleet_takes_every_recorded_request_and_shows_the_same_states() -> None:
    lines = [json.loads(line) for line in shared("data/ingero-wire/requests.jsonl").read_text().splitlines()]
    assert len(lines) == 46
    with DemoCluster([], quorum=1) as fleet:
        slow = False
        for line in lines:
            body = bytes.fromhex(line["hex"]) if "hex" in line else json.dumps(line["body"]).encode()
            headers = {key: value for key, value in line["headers"].items() if key in KEPT_HEADERS}
            request = urllib.request.Request(f"http://{fleet.addresses['http']}{line['path']}", body, headers)
            with urllib.request.urlopen(request, timeout=5) as reply:
                assert reply.status == 200
                assert reply.read() in (b"{}", b'{"partialSuccess":{}}', b"")  # nothing of it was refused
                assert reply.headers[names.QUORUM_HEADER] in ("true", "false")
            if "body" not in line:
                continue
            told, seen = points(line["body"]), fleet.status("train-a")
            assert seen is not None
            (node,) = seen.nodes.values()
            if names.STRAGGLER_EVENT in told:
                slow = told[names.STRAGGLER_EVENT]["asInt"] == 1
            else:
                score = told[names.HEALTH_SCORE]
                assert (node.score, node.state) == (score["asDouble"], attribute(score, names.NODE_STATE))
                assert node.mode == attribute(told[names.AGENT_DETECTION_MODE], names.DETECTION_MODE)
            assert (node.name, node.is_straggler) == ("gpu-node-01", slow)
        assert not slow


async def test_f001_our_pushes_look_like_the_recorded_ones(tmp_path: Path) -> None:
    """The same story as in the recording: the line moves above the score from the 15th reply on, then back."""

    def answer(number: int) -> Answer:
        line = "0.985" if 15 <= number < 24 else "0.70"
        return Answer(headers={names.THRESHOLD_HEADER: line, names.QUORUM_HEADER: "true"})

    async with scripted_fleet() as fleet:
        fleet.answer = answer
        with agent(tmp_path, fleet.url, "gpu-node-01", "--interval", "0.25", cluster="train-a") as ours:
            async with asyncio.timeout(40):
                while len(fleet.requests) < 30 or "straggler_resolved" not in ours.said:
                    await asyncio.sleep(0.05)
    bodies = [json.loads(body) for _, body in fleet.requests]
    pushes, events = [b for b in bodies if not is_event(b)], [b for b in bodies if is_event(b)]
    push_shapes, event_shapes = ({str(shape(b)) for b in recorded() if is_event(b) is kind} for kind in (False, True))
    assert {str(shape(body)) for body in pushes} <= push_shapes
    assert {str(shape(body)) for body in events} <= event_shapes
    assert {request.path for request, _ in fleet.requests} == {"/v1/metrics"}
    assert {request.query["cluster_id"] for request, _ in fleet.requests} == {"train-a"}
    states = [attribute(points(body)[names.HEALTH_SCORE], names.NODE_STATE) for body in pushes]
    assert states == ["calibrating"] * 2 + ["active"] * (len(states) - 2)
    assert [points(body)[names.STRAGGLER_EVENT]["asInt"] for body in events][-1] == 0
    assert {points(body)[names.STRAGGLER_EVENT]["asInt"] for body in events[:-1]} == {1}
    check_cadence([points(body)[names.HEALTH_SCORE] for body in pushes[:12]])


def check_cadence(scores: list[Any]) -> None:
    """F001: twelve pushes, one per interval, every value a share."""
    assert len(scores) == 12
    assert all(0.0 <= score["asDouble"] <= 1.0 for score in scores)
    sent_s = [int(score["timeUnixNano"]) / 1e9 for score in scores]
    gaps = [later - earlier for earlier, later in itertools.pairwise(sent_s)]
    assert statistics.median(gaps) == pytest.approx(0.25, rel=0.3)  # jitter is a tenth, the rest is a busy machine
