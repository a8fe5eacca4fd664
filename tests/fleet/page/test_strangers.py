"""The live stream and the answers about nodes against callers that want too much."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest
from tests.support.live_page import ALL, advance, put, running
from tests.support.pushes import health
from tests.support.verdict_pushes import own_time_push
from tests.support.waiting import PATIENCE_S

from ingero.contract.otlp.codec import encode_protobuf
from ingero.fleet.app import FleetService
from ingero.fleet.causes.book import MAX_SHOWN
from ingero.fleet.page import job_view
from ingero.fleet.page.cluster_view import Moment
from ingero.fleet.page.hub import MAX_STREAMS, MAX_WAITING, PIECE
from ingero.fleet.page.routes import _LiveResponse

NOW = Moment(0, 0)


async def test_one_watcher_cannot_keep_others_out() -> None:
    async with running() as fleet:
        greedy = [fleet.live.open(ALL, None, None, NOW, "greedy") for _ in range(MAX_STREAMS)]
        for number in range(3):
            assert fleet.live.open(ALL, None, None, NOW, "modest") is not None
            assert [stream.is_over for stream in greedy if stream] == (
                [True] * (number + 1) + [False] * (MAX_STREAMS - number - 1)
            ), "who has most loses the oldest"
        assert fleet.live.open(ALL, None, None, NOW, "greedy") is None
        assert len(fleet.live.streams) == MAX_STREAMS
        assert fleet.live.refused == 4


async def test_a_stream_whose_client_left_before_it_began_is_not_counted() -> None:
    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.Event().wait()  # the client reads nothing

    async with running() as fleet:
        stream = fleet.live.open(ALL, None, None, NOW)
        assert stream is not None
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        async with asyncio.timeout(PATIENCE_S):
            await _LiveResponse(fleet.live, stream)(scope, left, send)
        assert fleet.live.streams == []


async def test_a_client_that_reads_nothing_holds_no_copy() -> None:
    async with running() as fleet:
        for number in range(2000):
            put(fleet, f"node-{number}", 0.9)
        streams = [fleet.live.open(ALL, None, None, NOW) for _ in range(3)]
        readers = [fleet.live.lines(stream) for stream in streams if stream]
        assert {len(await anext(reader)) for reader in readers} == {PIECE}
        for second in range(2 * MAX_WAITING):
            for number in range(2000):
                put(fleet, f"node-{number}", 0.5 + second / 100)
            advance(fleet, second)
        waiting = [stream.waiting for stream in streams if stream]
        assert all(len(ticks) <= MAX_WAITING for ticks in waiting)
        for ticks in zip(*waiting, strict=True):
            assert len({id(lines[0]) for lines in ticks}) == 1, "lines are encoded once for all"
        for reader in readers:
            await reader.aclose()


async def test_watched_jobs_do_not_each_search_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of jobs come from anybody who may read, and most of them need not exist."""
    async with running() as fleet:
        put(fleet, "n0", 0.9, "c")
        for rank in range(8):
            push = own_time_push(f"n{rank}", rank, 1, 500.0)
            fleet.processor.take(push, "c", time.monotonic(), 0)
        advance(fleet, 0)
        streams = [fleet.live.open(ALL, None, f"job-{n}", NOW) for n in range(MAX_STREAMS)]
        readers = [fleet.live.lines(stream) for stream in streams if stream]
        for reader in readers:
            await anext(reader)
        calls = []

        def counted(cluster: Any) -> Any:
            calls.append(cluster)
            return found(cluster)

        found = job_view.members_by_job
        monkeypatch.setattr(job_view, "members_by_job", counted)
        advance(fleet, 1)
        assert len(calls) == 1


async def test_a_node_with_very_many_ranks_is_compared_in_part() -> None:
    async with running() as fleet:
        for rank in range(3000):
            kept = fleet.verdicts.causes._rank(("c", "n", "j", rank))
            kept.at_s, kept.values[:] = 1.0, float(rank % 7)
        found = fleet.verdicts.causes.beside_peers("c", "n", 2.0)
        assert len({rank for rank, *_ in found}) == MAX_SHOWN
        assert {peers.count for *_, peers in found} == {512}


async def test_huge_pushes_are_not_decoded_to_compare_a_node() -> None:
    async with running() as fleet:
        url = f"http://{fleet.addresses['http']}/v1/metrics"
        small = encode_protobuf(health("a", 0.9))
        large = encode_protobuf(health("b", 0.1)) + b"\x0a\x00" * 50_000
        async with aiohttp.ClientSession() as session:
            for body in (small, large, encode_protobuf(health("c", 0.8))):
                headers = {"Content-Type": "application/x-protobuf"}
                async with session.post(url, data=body, headers=headers) as reply:
                    assert reply.status == 200
            assert await _peers(fleet, session, "a") == [1]
            assert await _peers(fleet, session, "b") == []


async def _peers(fleet: FleetService, session: aiohttp.ClientSession, node: str) -> list[int]:
    url = f"http://{fleet.addresses['threshold']}/api/v1/node?cluster_id=train&node_id={node}"
    async with session.get(url) as reply:
        return [each["peers"] for each in (await reply.json())["compared"]]
