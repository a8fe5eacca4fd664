"""Answers about one node and one episode."""

import time

import aiohttp
from tests.fleet.page.test_live import running
from tests.support.pushes import health
from tests.support.verdict_pushes import own_time_push

from ingero.contract.verdict import VerdictState
from ingero.fleet.app import FleetService


async def answer(fleet: FleetService, path: str) -> tuple[int, dict[str, object]]:
    url = f"http://{fleet.addresses['threshold']}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return reply.status, await reply.json()


def slow_rank(fleet: FleetService) -> str:
    """Let rank 5 of eight be named, and return its episode."""
    start_s = time.monotonic()
    fleet.processor.take(health("n5", 0.9), "c", start_s, 0)
    for second in range(160):
        for rank in range(8):
            own_ms = 500 * (1.3 if rank == 5 and second >= 120 else 1.0) + (rank * second) % 7
            push = own_time_push(f"n{rank}", rank, second, own_ms)
            fleet.processor.take(push, "c", start_s + second, 0)
        fleet.tick(start_s + second)
        for _, verdict in fleet.verdicts.open_verdicts():
            if verdict.state is VerdictState.STRAGGLER:
                return verdict.episode
    raise AssertionError("rank 5 was not named")


async def test_a_node_differs_most_in_what_is_wrong_with_it() -> None:
    async with running() as fleet:
        slow_rank(fleet)
        status, found = await answer(fleet, "/api/v1/node?cluster_id=c&node_id=n5")
        assert status == 200
        first = found["compared"][0]  # type: ignore[index]  # an answer as JSON
        assert (first["signal"], first["rank"], first["peers"]) == ("own time per step, ms", 5, 7)
        assert first["own"] > 1.2 * first["median"]
        assert first["distance"] > 4
        status, found = await answer(fleet, "/api/v1/node?cluster_id=c&node_id=unknown")
        assert (status, found["compared"]) == (200, [])


async def test_an_episode_knows_why_its_peers_were_not_blamed() -> None:
    async with running() as fleet:
        episode = slow_rank(fleet)
        path = f"/api/v1/episodes/{episode}/peers?cluster_id=c"
        status, found = await answer(fleet, path)
        assert (status, found["of"]) == (200, 7)
        peers = found["peers"]
        assert isinstance(peers, list)
        assert {peer["rank"] for peer in peers} == {0, 1, 2, 3, 4, 6, 7}
        assert all(peer["reason"] for peer in peers)
        fleet.verdicts.clusters.clear()  # the answer outlives the engine
        assert (await answer(fleet, path))[1]["peers"] == peers
        status, found = await answer(fleet, "/api/v1/episodes/none/peers?cluster_id=c")
        assert status == 404
        assert "no episode 'none'" in str(found["error"])
