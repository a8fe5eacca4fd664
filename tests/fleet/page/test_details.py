"""Answers about one node and one episode."""

import json
import time

import aiohttp
from tests.support.live_page import ALL, running, seconds_with_a_slow_rank
from tests.support.pushes import health

from ingero.contract.verdict import VerdictState
from ingero.fleet.app import FleetService
from ingero.fleet.page.cluster_view import Moment
from ingero.fleet.page.node_view import _compared


async def answer(fleet: FleetService, path: str) -> tuple[int, dict[str, object]]:
    url = f"http://{fleet.addresses['threshold']}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return reply.status, await reply.json()


def slow_rank(fleet: FleetService) -> str:
    """Let rank 5 of eight be named, and return its episode."""
    fleet.processor.take(health("n5", 0.9), "c", time.monotonic(), 0)
    for _ in seconds_with_a_slow_rank(fleet):
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
        path = f"/api/v1/episodes/{episode}"
        status, found = await answer(fleet, path)
        assert (status, found["peers_of"]) == (200, 7)
        peers = found["peers"]
        assert isinstance(peers, list)
        assert {peer["rank"] for peer in peers} == {0, 1, 2, 3, 4, 6, 7}
        assert all(peer["reason"] for peer in peers)
        bars = [peer["bars"] for peer in peers]
        assert bars == sorted(bars, reverse=True), "those closest to their limit come first"
        fleet.verdicts.clusters.clear()  # the answer outlives the engine
        assert (await answer(fleet, path))[1]["peers"] == peers
        status, found = await answer(fleet, "/api/v1/episodes/none")
        assert status == 404
        assert "no episode 'none'" in str(found["error"])


async def test_only_ranks_of_the_node_are_compared_and_by_their_spread() -> None:
    async with running() as fleet:
        slow_rank(fleet)
        _, found = await answer(fleet, "/api/v1/node?cluster_id=c&node_id=n5")
        compared = found["compared"]
        assert isinstance(compared, list)
        assert {each["rank"] for each in compared} <= {5, None}
        _, healthy = await answer(fleet, "/api/v1/node?cluster_id=c&node_id=n4")
        others = healthy["compared"]
        assert isinstance(others, list)
        own = {each["rank"]: each for each in others if each["signal"].startswith("own time")}
        assert set(own) == {4}
        assert own[4]["distance"] < 4, "a healthy rank is near the median"
        assert own[4]["peers"] == 7


def test_a_distance_is_counted_in_spreads_of_the_peers() -> None:
    assert _compared("x", 1, 1.0, 2.0, 0.5, 7).distance == 2.0
    assert _compared("x", 1, 3.0, 2.0, 0.5, 7).distance == 2.0
    assert _compared("x", 1, 2.0, 2.0, 0.0, 7).distance == 0.0
    assert _compared("x", 1, 2.1, 2.0, 0.0, 7).distance is None


async def test_what_is_sent_is_counted_and_a_new_watcher_gets_what_is_true_now() -> None:
    async with running() as fleet:
        fleet.processor.take(health("a", 0.9), "train", time.monotonic(), time.time_ns())
        hub, sizes = fleet.live, []
        for score in (0.9, 0.4):
            fleet.processor.take(health("a", score), "train", time.monotonic(), time.time_ns())
            stream = hub.open(ALL, None, None, Moment(time.time(), time.monotonic()))
            assert stream is not None
            lines = hub.lines(stream)
            first = await anext(lines)
            sizes.append(len(first))
            assert json.loads(first.splitlines()[0])["nodes"][0][1] == score
            await lines.aclose()
            hub.leave(stream)
        assert hub.sent_bytes == sum(sizes)
        assert hub.streams == []
