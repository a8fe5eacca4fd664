"""A restart of Fleet in the middle of an episode, with and without a folder for its state."""

import logging
import time
import zlib
from pathlib import Path

import msgspec
import pytest
from tests.support.episode_world import EpisodeWorld
from tests.support.pushes import loopback_config

from ingero.contract.verdict import Verdict, VerdictState
from ingero.fleet.app import FleetService
from ingero.fleet.episodes import state_codec

IN_EPISODE = 160


def service(state_dir: Path | None) -> FleetService:
    verdict = {} if state_dir is None else {"state_dir": str(state_dir)}
    made = FleetService(loopback_config(processors={"ingero": {"verdict": verdict}}))
    made.judgement.load()
    return made


def named(world: EpisodeWorld) -> list[Verdict]:
    return [
        verdict
        for _, verdict in world.service.verdicts.open_verdicts()
        if verdict.state is VerdictState.STRAGGLER
    ]


def restarted(first: EpisodeWorld, state_dir: Path | None, start_s: float) -> EpisodeWorld:
    """The same job, seen by another process a few seconds later."""
    second = EpisodeWorld(service(state_dir), start_s=start_s)
    second.second, second._rng = first.second + 5, first._rng
    return second


async def test_an_open_episode_keeps_its_id_over_a_restart(tmp_path: Path) -> None:
    start_s = time.time() - IN_EPISODE
    first = EpisodeWorld(service(tmp_path), start_s=start_s).run(IN_EPISODE)
    (before,) = named(first)
    await first.service.judgement.stop()
    second = restarted(first, tmp_path, start_s).run(10)
    (after,) = named(second)
    assert (after.episode, after.node) == (before.episode, "n5")
    second.run(120)
    assert named(second) == []
    episode = second.service.episodes.episodes[before.episode]
    assert episode.ended is not None
    assert list(second.service.episodes.episodes) == [before.episode]


async def test_a_process_that_is_killed_loses_at_most_half_a_minute(tmp_path: Path) -> None:
    start_s = time.time() - IN_EPISODE
    first = EpisodeWorld(service(tmp_path), start_s=start_s).run(IN_EPISODE)
    (before,) = named(first)
    await first.service.judgement.settle()  # as every tick does, and then it is killed
    (after,) = named(restarted(first, tmp_path, start_s).run(10))
    assert after.episode == before.episode


async def test_without_a_folder_it_says_so_and_names_nobody_falsely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start_s = time.time() - IN_EPISODE
    first = EpisodeWorld(service(None), start_s=start_s).run(IN_EPISODE)
    assert [verdict.node for verdict in named(first)] == ["n5"]
    with caplog.at_level(logging.INFO):
        second = restarted(first, None, start_s)
    assert "relearning" in caplog.text
    for _ in range(12):
        assert {verdict.node for verdict in named(second.run(10))} <= {"n5"}


async def test_an_old_or_damaged_state_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start_s = time.time() - IN_EPISODE
    first = EpisodeWorld(service(tmp_path), start_s=start_s).run(IN_EPISODE)
    await first.service.judgement.stop()
    (file,) = (tmp_path / "engines").glob("*.state")
    good = file.read_bytes()
    for data in (b"", b"\xff" * 100, good[: len(good) // 2]):
        file.write_bytes(data)
        caplog.clear()
        assert service(tmp_path).verdicts.clusters == {}
        assert "relearning" in caplog.text
    file.write_bytes(good)
    old = FleetService(
        loopback_config(processors={"ingero": {"verdict": {"state_dir": str(tmp_path)}}})
    )
    old.judgement.engine_states.load(time.time() + 3600)
    assert old.verdicts.clusters == {}
    old.judgement.engine_states.load(time.time())
    assert set(old.verdicts.clusters) == {"c"}


async def test_a_state_of_another_version_is_relearned_and_names_nobody_falsely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start_s = time.time() - IN_EPISODE
    first = EpisodeWorld(service(tmp_path), start_s=start_s).run(IN_EPISODE)
    (before,) = named(first)
    await first.service.judgement.stop()
    (file,) = (tmp_path / "engines").glob("*.state")
    stored = msgspec.msgpack.decode(file.read_bytes())
    other = zlib.compress(msgspec.msgpack.encode(["0.0.1", None]))
    assert stored["state"] != other
    file.write_bytes(msgspec.msgpack.encode(stored | {"state": other}))
    with caplog.at_level(logging.INFO):
        second = restarted(first, tmp_path, start_s)
    said = [record for record in caplog.records if record.message == "relearning"]
    assert any("0.0.1" in str(vars(record)) for record in said), caplog.text
    for _ in range(12):
        assert {verdict.node for verdict in named(second.run(10))} <= {"n5"}
    others = [
        each for key, each in second.service.episodes.episodes.items() if key != before.episode
    ]
    assert {each.verdict.node for each in others} <= {"n5"}


async def test_a_state_names_the_build_that_runs_also_where_an_upgrade_removed_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = state_codec.made_by()
    state_codec.made_by.cache_clear()  # as in a process that has just started
    start_s = time.time() - 10
    world = EpisodeWorld(service(tmp_path / "kept"), start_s=start_s)
    monkeypatch.setattr(state_codec, "__file__", str(tmp_path / "ingero/fleet/episodes/codec.py"))
    await world.run(10).service.judgement.stop()
    (kept,) = (tmp_path / "kept" / "engines").glob("*.state")
    state = msgspec.msgpack.decode(kept.read_bytes())["state"]
    assert msgspec.msgpack.decode(zlib.decompress(state))[0] == build
