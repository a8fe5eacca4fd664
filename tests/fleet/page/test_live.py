"""The live stream: a snapshot, then changes; limits, scopes, and clients that fall behind."""

import asyncio
import itertools
import json
import time
from pathlib import Path

import aiohttp
from tests.support.live_page import ALL, advance, put, running, slow_rank, watching
from tests.support.pushes import health
from tests.support.tokens import private
from tests.support.verdict_pushes import own_time_push
from tests.support.waiting import until_async

from ingero.contract.live import (
    LiveDelta,
    LiveSnapshot,
    LiveTick,
    apply_delta,
)
from ingero.contract.push.encode import HealthReport, encode_health
from ingero.contract.types import DetectionMode, Identity, NodeState
from ingero.contract.verdict import VerdictState
from ingero.fleet.page.cluster_view import Moment
from ingero.fleet.page.hub import MAX_STREAMS, MAX_WAITING, LiveHub


async def test_agents_say_their_version_and_what_they_lost() -> None:
    report = HealthReport(
        at_ns=time.time_ns(), state=NodeState.ACTIVE, score=0.9, signals={}, is_degraded=False,
        mode=DetectionMode.FLEET, fleet_reachable=True, version="1.2.3", lost_records=7,
    )  # fmt: skip
    async with running() as fleet:
        body = encode_health(Identity(node="n1", cluster="train"), report)
        fleet.processor.take(body, "train", time.monotonic(), time.time_ns())
        advance(fleet, 0)
        async with watching(fleet) as reader:
            view, _ = await reader.tick()
            assert isinstance(view, LiveSnapshot)
            assert [(n.version, n.lost_records) for n in view.nodes] == [("1.2.3", 7)]


async def test_deltas_lead_from_one_snapshot_to_the_next() -> None:
    """Whoever applies deltas has what a new client gets."""
    async with running() as fleet:
        for number in range(5):
            put(fleet, f"n{number}", 0.9)
        advance(fleet, 0)
        async with watching(fleet) as reader:
            view, first = await reader.tick()
            assert isinstance(view, LiveSnapshot)
            assert isinstance(first, LiveTick)
            assert first.clusters == ["train"]
            assert [node.node_id for node in view.nodes] == ["n0", "n1", "n2", "n3", "n4"]
            put(fleet, "n3", 0.2)
            put(fleet, "n9", 0.8)
            advance(fleet, 1)
            delta, _ = await reader.tick()
            assert isinstance(delta, LiveDelta)
            assert [node.node_id for node in delta.nodes or ()] == ["n3", "n9"]
            view = apply_delta(view, delta)
            far = 10_000.0
            fleet.processor.take(health("n1", 0.9), "train", time.monotonic() + far, 0)
            advance(fleet, far)
            delta, _ = await reader.tick()
            assert isinstance(delta, LiveDelta)
            assert delta.gone == ["n0", "n2", "n3", "n4", "n9"]
            view = apply_delta(view, delta)
            async with watching(fleet) as late:
                other, _ = await late.tick()
                assert isinstance(other, LiveSnapshot)
                assert other.nodes == view.nodes
                assert other.summary == view.summary
        await until_async(lambda: not fleet.live.streams, "closed streams stay counted")


async def test_a_tick_comes_even_where_nothing_changed() -> None:
    async with running() as fleet, watching(fleet) as reader:
        assert [type(each) for each in await reader.tick()] == [LiveTick]
        advance(fleet)
        (only,) = await reader.tick()
        assert isinstance(only, LiveTick)


async def test_a_slow_rank_is_in_the_sentence_and_in_the_episodes() -> None:
    async with running() as fleet:
        put(fleet, "n5", 0.9, "c")
        fleet.processor.take(health("n5", 0.9), "c", time.monotonic(), 0)
        advance(fleet, 0)
        async with watching(fleet, "?cluster_id=c&job_id=j") as reader:
            await reader.tick()
            seen = await slow_rank(fleet, reader)
    headline = seen["summary"].headline
    assert headline.kind == "slow"
    assert headline.text.startswith("Rank 5 on n5 is slow; job j loses ")
    (verdict,) = [each for each in seen["verdicts"] if each.state is VerdictState.STRAGGLER]
    assert headline.episode == verdict.episode
    assert [job.ranks for job in seen["jobs"]] == [8]
    states = [change.state for change in seen["episodes"][verdict.episode].changes]
    assert states[-1] == "straggler"
    ranks = {rank.rank: rank for rank in seen["ranks"]}
    assert ranks[5].state == "straggler"
    assert ranks[5].node_id == "n5"
    assert ranks[5].own_ms is not None
    assert ranks[5].own_ms > 1.2 * (ranks[4].own_ms or 0.0)


async def test_nobody_is_called_fast_while_no_rank_is_judged() -> None:
    start_s = time.monotonic()
    async with running() as fleet:
        for second, rank in itertools.product(range(8), range(8)):
            put(fleet, f"n{rank}", 0.9, "c")
            push = own_time_push(f"n{rank}", rank, second, 500.0)
            fleet.processor.take(push, "c", start_s + second, 0)
        advance(fleet, 8.0)
        async with watching(fleet, "?cluster_id=c") as reader:
            view, _ = await reader.tick()
            assert isinstance(view, LiveSnapshot)
    learned = "what is normal for 8 ranks is still being learned"
    assert view.summary.headline.text == f"No node is slow; {learned}."


async def test_a_token_streams_its_own_clusters_only(tmp_path: Path) -> None:
    tokens = "".join(
        f"- {{key_name: {name}, token: token-of-{name}-0123456789, scopes: [{scope}]{more}}}\n"
        for name, scope, more in (
            ("east", "read", ", allowed_clusters: [east]"), ("push", "push", ""),
        )
    )  # fmt: skip
    own = {"token_file": str(private(tmp_path / "tokens", tokens))}
    async with running(extensions={"ingero_threshold": own}) as fleet:
        for cluster in ("east", "west"):
            put(fleet, "a", 0.9, cluster)
        url = f"http://{fleet.addresses['threshold']}/api/v1/live"
        refused = {("", "push"): 403, ("?cluster_id=west", "east"): 403, ("", "nobody"): 401}
        async with aiohttp.ClientSession() as session:
            for (query, name), status in refused.items():
                headers = {"Authorization": f"Bearer token-of-{name}-0123456789"}
                async with session.get(url + query, headers=headers) as reply:
                    assert reply.status == status
        async with watching(fleet, token="token-of-east-0123456789") as reader:
            snapshot, tick = await reader.tick()
            assert isinstance(snapshot, LiveSnapshot)
            assert isinstance(tick, LiveTick)
            assert (snapshot.cluster_id, tick.clusters) == ("east", ["east"])
            put(fleet, "b", 0.9, "west")
            advance(fleet)
            assert all(
                getattr(each, "cluster_id", "east") == "east" for each in await reader.tick()
            )


async def test_a_reload_and_the_end_of_fleet_end_streams() -> None:
    """Tokens are checked again when clients connect again, and a stop does not wait for pages."""
    async with running() as fleet:
        async with watching(fleet) as reader:
            await reader.tick()
            fleet.reload()
            async with asyncio.timeout(20):
                assert await reader._lines.readline() == b""
        async with watching(fleet) as reader:
            await reader.tick()
            began_s = time.monotonic()
            await fleet.stop()
            assert time.monotonic() - began_s < 3


async def test_one_stream_too_many_is_refused_with_a_sentence() -> None:
    async with running() as fleet:
        now, here = Moment(0, 0), "127.0.0.1"
        streams = [fleet.live.open(ALL, None, None, now, here) for _ in range(MAX_STREAMS)]
        assert None not in streams
        url = f"http://{fleet.addresses['threshold']}/api/v1/live"
        async with aiohttp.ClientSession() as session, session.get(url) as reply:
            assert reply.status == 503
            assert "100 pages and terminals" in (await reply.json())["error"]
        text = (await fleet._render_own()).decode()
        assert "ingero_fleet_live_streams 100" in text
        assert "ingero_fleet_live_refused_total 1" in text


async def test_a_stream_that_falls_behind_starts_over() -> None:
    async with running() as fleet:
        put(fleet, "a", 0.9)
        hub: LiveHub = fleet.live
        stream = hub.open(ALL, None, None, Moment(0, 0))
        assert stream is not None
        lines = hub.lines(stream)
        first = (await anext(lines)).splitlines()
        assert [json.loads(line)["type"] for line in first] == ["snapshot", "tick"]
        for second in range(MAX_WAITING + 3):
            put(fleet, "a", 0.5)
            advance(fleet, second)
        again = (await anext(lines)).splitlines()
        assert [json.loads(line)["type"] for line in again] == ["snapshot", "tick"]
        assert json.loads(again[0])["nodes"][0][1] == 0.5
        assert hub.restarted == 1
        await lines.aclose()


async def test_every_client_gets_the_same_bytes() -> None:
    async with running() as fleet:
        put(fleet, "a", 0.9)
        streams = [fleet.live.open(ALL, None, None, Moment(0, 0)) for _ in range(3)]
        readers = [fleet.live.lines(stream) for stream in streams if stream]
        for reader in readers:
            await anext(reader)
        put(fleet, "a", 0.7)
        advance(fleet)
        assert len({await anext(reader) for reader in readers}) == 1


async def test_nothing_is_encoded_while_nobody_watches() -> None:
    async with running() as fleet:
        put(fleet, "a", 0.9)
        advance(fleet)
        assert not fleet.live._views


async def test_the_clock_of_a_node_is_compared_when_its_health_arrives() -> None:
    """A push of measurements in between says nothing about the clock."""
    async with running() as fleet:
        put(fleet, "a", 0.9)
        advance(fleet, 0)
        async with watching(fleet) as reader:
            snapshot, _ = await reader.tick()
            assert isinstance(snapshot, LiveSnapshot)
            assert snapshot.nodes[0].clock_offset_s is None
            now_s = time.monotonic()
            sent_ns = time.time_ns() + 30 * 10**9
            fleet.processor.take(health("a", 0.8, sent_ns=sent_ns), "train", now_s, 0)
            advance(fleet, 1)
            delta = (await reader.tick())[0]
            assert isinstance(delta, LiveDelta)
            assert [round(node.clock_offset_s or 0) for node in delta.nodes or ()] == [30]
            fleet.processor.take(own_time_push("a", 0, 1, 500.0), "train", now_s + 9, 0)
            advance(fleet, 9)
            later = (await reader.tick())[0]
            assert isinstance(later, LiveDelta)
            assert all(round(node.clock_offset_s or 0) == 30 for node in later.nodes or ())
