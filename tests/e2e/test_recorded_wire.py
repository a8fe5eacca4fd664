"""Recorded requests of the reference agent: sent to Fleet, and compared with our agent's pushes."""

import itertools
import json
import statistics
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_process import agent
from tests.support.recorded_wire import is_event, recorded, shape
from tests.support.scripted_fleet import Answer, scripted_fleet
from tests.support.shared_data import shared
from tests.support.waiting import PATIENCE_S, until_async

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
    lines = [
        json.loads(line)
        for line in shared("data/ingero-wire/requests.jsonl").read_text().splitlines()
    ]
    assert len(lines) == 46
    with DemoCluster([], push_interval_s=60, quorum=1) as fleet:
        slow = False
        for line in lines:
            body = (
                bytes.fromhex(line["hex"]) if "hex" in line else json.dumps(line["body"]).encode()
            )
            headers = {key: value for key, value in line["headers"].items() if key in KEPT_HEADERS}
            request = urllib.request.Request(
                f"http://{fleet.addresses['http']}{line['path']}", body, headers
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                assert reply.status == 200
                assert reply.read() in (
                    b"{}",
                    b'{"partialSuccess":{}}',
                    b"",
                )  # nothing of it was refused
                assert reply.headers[names.QUORUM_HEADER] in ("true", "false")
            if "body" not in line:
                continue
            told = points(line["body"])
            seen = fleet.wait_for(lambda status: bool(status.nodes), PATIENCE_S, "train-a")
            (node,) = seen.nodes.values()
            if names.STRAGGLER_EVENT in told:
                slow = told[names.STRAGGLER_EVENT]["asInt"] == 1
            else:
                score = told[names.HEALTH_SCORE]
                assert (node.score, node.state) == (
                    score["asDouble"],
                    attribute(score, names.NODE_STATE),
                )
                assert node.mode == attribute(
                    told[names.AGENT_DETECTION_MODE], names.DETECTION_MODE
                )
            assert (node.name, node.is_straggler) == ("gpu-node-01", slow)
        assert not slow


def without_ours(body: Any) -> Any:
    """Return a push without what is ours: version, lost records and countdown of the agent."""
    (resource,) = body["resourceMetrics"]
    (scope,) = resource["scopeMetrics"]
    ours = (names.AGENT_LOST_RECORDS, names.AGENT_READY_S)
    kept = [metric for metric in scope["metrics"] if metric["name"] not in ours]
    assert len(kept) < len(scope["metrics"])
    return {"resourceMetrics": [resource | {"scopeMetrics": [scope | {"metrics": kept}]}]}


async def test_f001_our_pushes_look_like_the_recorded_ones(tmp_path: Path) -> None:
    """As in the recording, the threshold exceeds the score from the 13th reply on, then drops."""

    def answer(number: int) -> Answer:
        line = "0.985" if 13 <= number < 19 else "0.70"
        return Answer(headers={names.THRESHOLD_HEADER: line, names.QUORUM_HEADER: "true"})

    async with scripted_fleet() as fleet:
        fleet.answer = answer
        with agent(tmp_path, fleet.url, "gpu-node-01", cluster="train-a") as ours:
            await until_async(
                lambda: len(fleet.requests) >= 20 and "straggler_resolved" in ours.said
            )
    bodies = [
        json.loads(body) for body in dict.fromkeys(body for _, body in fleet.requests)
    ]  # without repeats
    pushes, events = [b for b in bodies if not is_event(b)], [b for b in bodies if is_event(b)]
    push_shapes, event_shapes = (
        {str(shape(b)) for b in recorded() if is_event(b) is kind} for kind in (False, True)
    )
    assert {str(shape(without_ours(body))) for body in pushes} <= push_shapes
    assert {str(shape(body)) for body in events} <= event_shapes
    assert {request.path for request, _ in fleet.requests} == {"/v1/metrics"}
    assert {request.query["cluster_id"] for request, _ in fleet.requests} == {"train-a"}
    states = [attribute(points(body)[names.HEALTH_SCORE], names.NODE_STATE) for body in pushes]
    warming_up = states.count("calibrating")
    assert states == ["calibrating"] * warming_up + ["active"] * (len(states) - warming_up)
    assert 1 <= warming_up <= 2  # one of them may have been skipped while the first was on its way
    assert [points(body)[names.STRAGGLER_EVENT]["asInt"] for body in events][-1] == 0
    assert {points(body)[names.STRAGGLER_EVENT]["asInt"] for body in events[:-1]} == {1}
    check_cadence([points(body)[names.HEALTH_SCORE] for body in pushes[:12]])


def check_cadence(scores: list[Any]) -> None:
    """F001: twelve pushes, one per interval, with every value between 0 and 1."""
    assert len(scores) == 12
    assert all(0.0 <= score["asDouble"] <= 1.0 for score in scores)
    sent_s = [int(score["timeUnixNano"]) / 1e9 for score in scores]
    gaps = [later - earlier for earlier, later in itertools.pairwise(sent_s)]
    # half a second and a tenth of jitter, the rest is a busy machine
    assert 0.4 <= statistics.median(gaps) <= 2.0
