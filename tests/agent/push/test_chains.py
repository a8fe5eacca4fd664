"""Chains that an agent sends: over both protocols, once, and without a hurry where it fails."""

import sqlite3
import time
from pathlib import Path

from tests.support.recorded_chain import CHAIN, record
from tests.support.scripted_fleet import Answer, ScriptedFleet, scripted_fleet

from ingero.agent.push.chains import REFUSED_PAUSE_S, ChainReports
from ingero.agent.push.connect import Connections
from ingero.config.ingero import IngeroConfig
from ingero.config.ingero_fleet import FleetBlockConfig
from ingero.contract.otlp.body import Encoding, decode
from ingero.contract.otlp.values import LogsRequest
from ingero.contract.types import Identity

WHO = Identity(node="gpu-3", cluster="prod")


def reports(fleet: ScriptedFleet, database: Path) -> ChainReports:
    config = IngeroConfig(fleet=FleetBlockConfig(endpoint=fleet.url, cluster_id="prod"))
    return ChainReports(database, Connections(config, fleet.url, WHO).fleet(), WHO)


def bodies(fleet: ScriptedFleet) -> list[LogsRequest]:
    return [
        decode(LogsRequest, body, Encoding.PROTOBUF)
        for request, body in fleet.requests
        if request.path == "/v1/logs"
    ]


async def test_a_chain_is_sent_once_and_again_after_a_failure(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    record(tmp_path / "t.db", "gpu-3", now_ns - 10**9)
    async with scripted_fleet() as fleet:
        sending = reports(fleet, tmp_path / "t.db")
        fleet.answer = lambda count: Answer(500 if count == 1 else 200)
        for seconds in (0.0, 10.0, 20.0):
            await sending.send(now_ns, seconds)
        await sending._client.close()
        first, second = bodies(fleet)
        assert fleet.requests[0][0].query["cluster_id"] == "prod"
    assert first == second
    (resource,) = first.resource_logs
    (entry,) = resource.scope_logs[0].log_records
    assert entry.body is not None and CHAIN.root_cause in str(entry.body.string_value)
    assert dict(sending.counters.pushes) == {"server_error": 1, "ok": 1}
    assert sending.counters.sent == 1


async def test_a_fleet_that_takes_no_logs_is_left_alone_for_an_hour(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    record(tmp_path / "t.db", "gpu-3", now_ns - 10**9)
    async with scripted_fleet() as fleet:
        sending = reports(fleet, tmp_path / "t.db")
        fleet.answer = lambda _: Answer(404)
        for seconds in (0.0, 10.0, REFUSED_PAUSE_S - 1):
            await sending.send(now_ns, seconds)
        assert len(fleet.requests) == 1
        await sending.send(now_ns, REFUSED_PAUSE_S)
        await sending._client.close()
        assert len(fleet.requests) == 2


async def test_nothing_is_sent_without_a_database_or_from_a_damaged_one(tmp_path: Path) -> None:
    damaged = tmp_path / "t.db"
    async with scripted_fleet() as fleet:
        sending = reports(fleet, damaged)
        await sending.send(time.time_ns(), 0.0)
        assert sending.counters.failed_reads == 0
        with sqlite3.connect(damaged) as connection:
            connection.execute("CREATE TABLE other (x)")
        connection.close()
        await sending.send(time.time_ns(), 10.0)
        await sending._client.close()
    assert (sending.counters.failed_reads, fleet.requests) == (1, [])
