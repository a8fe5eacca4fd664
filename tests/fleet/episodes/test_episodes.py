"""Fleet keeps the last episodes with their inputs, and `ingero replay` asks it for them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
from click.testing import CliRunner
from tests.support.episode_world import EpisodeWorld
from tests.support.pushes import NEVER_S, running
from tests.support.tokens import private

from ingero.cli.commands.replay import command
from ingero.contract.exposition import render
from ingero.fleet.app import FleetService
from ingero.fleet.episodes.metrics import episode_families
from ingero.fleet.replay import replay
from ingero.storage.input_log import write_recording


def only_episode(service: FleetService) -> str:
    (name,) = service.episodes.episodes
    return name


async def test_an_episode_is_replayed_byte_for_byte_from_what_fleet_kept(tmp_path: Path) -> None:
    """The inputs begin in the middle of the job: those of the calm minutes are gone."""
    async with running(tick_s=NEVER_S) as fleet:
        world = EpisodeWorld(fleet).run(280)
        name = only_episode(fleet)
        assert list(world.states()) == ["suspect", "straggler", "recovering", "resolved"]
        result = await asyncio.to_thread(
            CliRunner().invoke,
            command,
            [name, "--fleet", f"http://{fleet.addresses['threshold']}", "--json"],
            standalone_mode=False,
        )
        assert result.exception is None, result.exception
        shown = json.loads(result.output)
        states = [each["verdict"]["state"] for each in shown["verdicts"]]
        assert (states, shown["same"]) == (list(world.states()), True)
        assert {peer["reason"] for peer in shown["verdicts"][0]["peers"]} == {
            "below its limit: as fast as its peers"
        }
        assert shown["ticks"] < 280, "the calm minutes before it were not kept"
        episode = fleet.episodes.find(name)
        assert episode is not None and episode.ended is not None
        assert len(episode.peers) == 7
        segments = fleet.episodes.inputs.segments_of(name)
        write_recording(tmp_path, fleet.episodes.inputs.join(segments))
        assert replay(tmp_path).is_same


async def test_the_api_lists_and_shows_episodes_to_tokens_of_their_cluster(tmp_path: Path) -> None:
    tokens = """
- {key_name: all, token: all-0123456789-0123456789, scopes: [read]}
- {key_name: c, token: ccc-0123456789-0123456789, scopes: [read], allowed_clusters: [c]}
- {key_name: d, token: ddd-0123456789-0123456789, scopes: [read], allowed_clusters: [d]}
- {key_name: push, token: push-0123456789-0123456789, scopes: [push]}
"""
    own = {"token_file": str(private(tmp_path / "tokens", tokens))}
    async with (
        running(tick_s=NEVER_S, extensions={"ingero_threshold": own}) as fleet,
        aiohttp.ClientSession(f"http://{fleet.addresses['threshold']}") as session,
    ):
        EpisodeWorld(fleet).run(150)
        name = only_episode(fleet)

        async def get(path: str, who: str) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {who}-0123456789-0123456789"}
            async with session.get(f"/api/v1/episodes{path}", headers=headers) as reply:
                is_json = reply.content_type == "application/json"
                return reply.status, await (reply.json() if is_json else reply.read())

        for who in ("all", "ccc"):
            [found] = (await get("", who))[1]["episodes"]
            assert (found["episode"], found["latest"]["node"], found["ended"]) == (name, "n5", None)
            whole = (await get(f"/{name}", who))[1]
            assert [m["verdict"]["state"] for m in whole["verdicts"]] == ["suspect", "straggler"]
            assert whole["cost_usd"] is None, "without a GPU model there is no price"
            assert (await get(f"/{name}/inputs", who))[0] == 200
        assert (await get("", "ddd"))[1] == {"episodes": []}
        for path in (f"/{name}", f"/{name}/inputs"):
            assert (await get(path, "ddd"))[0] == 404
            assert (await get(path, "push"))[0] == 403
        assert (await get("/0000000000000000", "all"))[0] == 404


async def test_episodes_and_inputs_survive_a_restart_with_a_state_dir(tmp_path: Path) -> None:
    state = {"processors": {"ingero": {"verdict": {"state_dir": str(tmp_path)}}}}
    async with running(tick_s=NEVER_S, **state) as first:
        EpisodeWorld(first).run(150)
        name = only_episode(first)
    [file] = (tmp_path / "episodes").iterdir()
    (tmp_path / "episodes" / "bad.episode").write_bytes(b"\xc1")
    async with running(tick_s=NEVER_S, **state) as second:
        kept = second.episodes.find(name)
        assert kept is not None and kept.latest.node == "n5" and kept.inputs_bytes > 1000
        folder = tmp_path / "out"
        folder.mkdir()
        write_recording(
            folder, second.episodes.inputs.join(second.episodes.inputs.segments_of(name))
        )
        assert replay(folder).is_same
    assert file.stat().st_mode & 0o777 == 0o600


async def test_inputs_stay_within_their_limit_and_what_is_dropped_is_counted() -> None:
    async with running(tick_s=NEVER_S) as fleet:
        fleet.episodes.inputs.max_bytes = 400_000
        world = EpisodeWorld(fleet)
        for _ in range(26):
            world.run(10)
            assert fleet.episodes.inputs.size_bytes <= 400_000
        counters = fleet.episodes.inputs.counters
        assert counters.dropped_no_room > 0
        page = render(episode_families(fleet.episodes, fleet.judgement.episode_files)).decode()
        assert "ingero_fleet_episodes 1" in page
        dropped = "ingero_fleet_episode_inputs_dropped_total"
        assert f'{dropped}{{reason="no_room"}} {counters.dropped_no_room}' in page


async def test_a_suspicion_that_is_not_confirmed_leaves_nothing() -> None:
    async with running(tick_s=NEVER_S) as fleet:
        EpisodeWorld(fleet, slow="nobody").run(200)
        assert fleet.episodes.episodes == {}
        assert fleet.episodes.inputs.segments_of("x") == []
