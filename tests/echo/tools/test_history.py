"""Events and anomalies in their order, page by page, while more arrive."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.echo_service import RunningEcho
from tests.support.questions_data import (
    SECOND,
    START_NS,
    collective_bodies,
    collectives,
    log,
    logs,
    score,
    verdict,
)

from ingero.contract import names

STALLS = {step: {5: 290.0} for step in range(3, 100, 14)}


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEcho]:
    folder = tmp_path_factory.mktemp("echo")
    with RunningEcho(folder, bearer_rate=10_000, bearer_burst=100_000) as running:
        scores = score("prod", "gpu-5", [0.93, 0.41, 0.40])
        for body in (scores, *collective_bodies("barrier", collectives(100, 8, STALLS))):
            assert running.send(body).status == 200
        for body in logs():
            assert running.send(body, "logs").status == 200
        yield running


def read_on(echo: RunningEcho, tool: str, rows: str, **arguments: Any) -> tuple[list[Any], str]:
    """Return all pages available now, and the cursor after them."""
    found: list[Any] = []
    for _ in range(1000):
        page = echo.answer(tool, **arguments)
        found += page[rows]
        arguments["cursor"] = page["next_cursor"]
        if not page["more"]:
            return found, page["next_cursor"]
    raise AssertionError("the pages never end")


def test_event_history_pages_without_gap_while_events_arrive(echo: RunningEcho) -> None:
    """F109: stalls in the history are 14 steps apart. Late arrivals come in the next generation."""
    asked = {
        "cluster_id": "barrier",
        "metric_name": names.COLLECTIVE_DURATION_MS,
        "rank": 5,
        "limit": 7,
    }
    first = echo.answer("event_history", **asked)
    assert (first["total"], first["more"], len(first["events"])) == (100, True, 7)
    # older than most pages still to come
    echo.send(collective_bodies("barrier", collectives(3, 8, {}))[0])
    found, cursor = read_on(echo, "event_history", "events", **asked)
    times = [event["ts"] for event in found]
    assert len(times) == 103, "the first page was asked again, after the arrival"
    assert times == sorted(times)
    rest, after = read_on(
        echo, "event_history", "events", **{**asked, "cursor": first["next_cursor"]}
    )
    assert len(rest) == 93, "its own generation"
    later, after = read_on(echo, "event_history", "events", **{**asked, "cursor": after})
    assert len(later) == 3, "then what came meanwhile"
    assert echo.answer("event_history", **{**asked, "cursor": cursor})["events"] == []
    echo.send(collective_bodies("barrier", collectives(2, 8, {}, transfer_ms=11.0))[0])
    assert len(echo.answer("event_history", **{**asked, "cursor": after})["events"]) == 2
    waits, _ = read_on(echo, "event_history", "events", **{**asked, "rank": 0, "limit": 50})
    stalls = [int(event["attrs"]["nccl.seq"]) for event in waits if event["value"] > 100]
    assert stalls == sorted(STALLS), "rank 0 waits where rank 5 is late, and nowhere else"


def test_event_history_filters_by_time(echo: RunningEcho) -> None:
    base = {"cluster_id": "prod", "node_id": "gpu-5", "metric_name": names.HEALTH_SCORE}
    second = START_NS // SECOND + 1
    found = echo.answer("event_history", **base, **{"from": second, "to": "2025-11-15T01:00:02Z"})
    assert [event["value"] for event in found["events"]] == [0.41]
    refused = echo.ask("event_history", cluster_id="prod", **{"from": "yesterday"})
    assert (refused.status, refused.code) == (400, "bad_argument")
    assert echo.ask("event_history", cluster_id="prod", cursor="AAAA").code == "bad_cursor"


def test_f088_anomalies_are_ordered_and_resume(echo: RunningEcho) -> None:
    found, cursor = read_on(
        echo, "anomalies", "anomalies", cluster_id="prod", limit=1, window="all"
    )
    assert [(a["kind"], a.get("severity")) for a in found] == [
        ("verdict", "suspect"),
        ("verdict", "straggler"),
        ("verdict", "resolved"),
        ("causal_chain", "HIGH"),
    ]
    echo.send(
        log(
            "prod",
            None,
            names.VERDICT_EVENT,
            verdict("gpu-6", "not_sure", "e3", evidence="two peers"),
            9,
        ),
        "logs",
    )
    (later,) = echo.answer("anomalies", cluster_id="prod", cursor=cursor)["anomalies"]
    assert (later["node_id"], later["severity"], later["summary"]) == (
        "gpu-6",
        "not_sure",
        "two peers",
    )
