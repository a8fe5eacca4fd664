"""Collectives of the trace database on their way to Fleet."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ingero.agent import collective_export
from ingero.agent.collective_export import CollectiveExporter
from ingero.contract import names
from ingero.contract.collective import CollectiveRecord
from ingero.contract.otlp import MetricsRequest
from ingero.contract.types import Identity
from ingero.core.modes import PushOutcome
from ingero.storage.collective_table import add_collectives
from ingero.storage.samples import make_traces
from ingero.storage.trace_db import TraceDb
from ingero.transport.otlp_client import PushReply

RECORDS = make_traces()[0].collectives


class FleetStub:
    """Takes every request, or answers as told."""

    def __init__(self) -> None:
        self.requests: list[MetricsRequest] = []
        self.answers: list[PushReply] = []

    async def push(self, request: MetricsRequest) -> PushReply:
        self.requests.append(request)
        return self.answers.pop(0) if self.answers else PushReply(outcome=PushOutcome.OK)

    def points(self) -> list[tuple[int, int]]:
        return [
            (point.start_time_unix_nano, point.time_unix_nano)
            for request in self.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == names.COLLECTIVE_DURATION_MS and metric.gauge
            for point in metric.gauge.data_points
        ]


def add(path: Path, records: list[CollectiveRecord], shift_ns: int = 0) -> None:
    add_collectives(
        path, "n", [replace(r, start_ns=r.start_ns + shift_ns, end_ns=r.end_ns + shift_ns) for r in records]
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    TraceDb(tmp_path / "t.db", "n").close()
    return tmp_path / "t.db"


def exporter(path: Path, fleet: FleetStub) -> CollectiveExporter:
    return CollectiveExporter(path, fleet, Identity(node="n", cluster="c"), 1.0)


def test_new_records_are_sent_once_with_entry_and_exit(path: Path) -> None:
    """F067: what was recorded before the agent started is history, not news."""
    fleet = FleetStub()
    one = exporter(path, fleet)
    add(path, RECORDS[:5])
    assert asyncio.run(one.round()) == 0
    add(path, RECORDS[5:40])
    assert asyncio.run(one.round()) == 35
    assert asyncio.run(one.round()) == 0
    assert fleet.points() == [(record.start_ns, record.end_ns) for record in RECORDS[5:40]]
    assert one.counters.sent == 35


def test_a_refused_request_is_tried_again_after_the_asked_pause(path: Path) -> None:
    fleet = FleetStub()
    one = exporter(path, fleet)
    asyncio.run(one.round())
    add(path, RECORDS[:10])
    fleet.answers = [PushReply(outcome=PushOutcome.SHED, retry_after_s=900.0)]
    assert asyncio.run(one.round()) == 0
    assert one._not_before_s > 0
    assert asyncio.run(one.round()) == 10
    assert (one.counters.sent, one.counters.skipped) == (10, 0)


def test_points_that_fleet_rejects_are_counted_not_sent_again(path: Path) -> None:
    fleet = FleetStub()
    one = exporter(path, fleet)
    asyncio.run(one.round())
    add(path, RECORDS[:10])
    fleet.answers = [PushReply(outcome=PushOutcome.OK, rejected_points=3)]
    assert asyncio.run(one.round()) == 10
    assert (one.counters.sent, one.counters.rejected) == (7, 3)
    assert asyncio.run(one.round()) == 0


def test_an_agent_far_behind_skips_to_the_present(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_export, "MAX_BEHIND", 20)
    fleet = FleetStub()
    one = exporter(path, fleet)
    asyncio.run(one.round())
    add(path, RECORDS[:100])
    assert asyncio.run(one.round()) == 20
    assert one.counters.skipped == 80


def test_a_database_that_is_not_there_or_began_anew_is_a_state(tmp_path: Path) -> None:
    path = tmp_path / "later.db"
    fleet = FleetStub()
    one = exporter(path, fleet)
    assert asyncio.run(one.round()) == 0
    assert one.counters.failed_rounds == {"database": 1}
    add(path, RECORDS[:10])
    asyncio.run(one.round())
    path.unlink()
    add(path, RECORDS[10:13])
    asyncio.run(one.round())
    assert asyncio.run(one.round()) == 3


def test_it_ends_when_told(path: Path) -> None:
    async def scene() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(exporter(path, FleetStub()).run(stop))
        await asyncio.sleep(0)
        stop.set()
        await asyncio.wait_for(task, 5)

    asyncio.run(scene())
