"""What Fleet keeps of an episode: its changes, cost and alerts, as the page is told them."""

import json
import math
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from tests.support.alert_sink import alert_sink
from tests.support.episode_world import EpisodeWorld
from tests.support.pushes import NEVER_S, running
from tests.support.verdict_pushes import START_S

from ingero.contract.episodes.episode import AlertTold
from ingero.contract.live import StateChange
from ingero.contract.silence import SilenceRequest
from ingero.contract.verdict import Verdict, VerdictState
from ingero.fleet.app import FleetService
from ingero.fleet.episodes import book as books
from ingero.fleet.episodes import trace as traces
from ingero.fleet.episodes.book import MAX_TOLD, EpisodeBook, live_episode
from ingero.fleet.verdicts import VerdictService

SLOW = Verdict(episode="e", state=VerdictState.STRAGGLER, node="n", since=0.0, usd_per_hour=36.0)
OVER = Verdict(episode="e", state=VerdictState.RESOLVED, node="n", since=0.0)
DAY_S = 24 * 3600.0


class Engines(VerdictService):
    """Verdicts as a test wants them."""

    open: list[tuple[str, Verdict]]

    def __init__(self, *opened: Verdict) -> None:
        super().__init__()
        self.open = [("c", verdict) for verdict in opened]

    def current(self) -> list[tuple[str, Verdict]]:
        return self.open


def tick(book: EpisodeBook, engines: Engines, now_s: float, *changed: Verdict) -> None:
    found = [("c", verdict) for verdict in changed]
    book.tick(engines, found, [b""] * len(found), now_s)
    book.note(found, now_s)


def test_an_episode_has_its_changes_and_its_cost() -> None:
    book, engines = EpisodeBook(), Engines(SLOW)
    suspect = Verdict(episode="e", state=VerdictState.SUSPECT, node="n", since=0.0, evidence="why")
    tick(book, engines, 1.0, suspect)
    tick(book, engines, 2.0, SLOW)
    for second in range(3, 102):
        tick(book, engines, float(second), *([SLOW] if second == 50 else []))
    live = live_episode(book.episodes["e"])
    assert (live.cost_usd, live.until) == (1.0, None), "36 USD an hour for 100 s"
    assert live.changes == [StateChange(1.0, "suspect", "why"), StateChange(2.0, "straggler", "")]
    tick(book, Engines(), 200.0, OVER)
    live = live_episode(book.episodes["e"])
    assert (live.until, live.changes[-1].state) == (200.0, "resolved")


def test_the_page_is_told_what_changed_and_of_open_costs_every_ten_seconds() -> None:
    book, engines = EpisodeBook(), Engines(SLOW)
    tick(book, engines, 1.0, SLOW)
    ids = book.live_ids("c", 1.0)
    assert ids == {"e"}
    assert book.live_ids("other", 1.0) == set()
    assert len(book.live_since(ids, -math.inf)) == 1
    tick(book, engines, 5.0)
    assert book.live_since(ids, 1.0) == []
    tick(book, engines, 11.0)
    assert len(book.live_since(ids, 5.0)) == 1
    tick(book, Engines(), 20.0, OVER)
    assert book.live_ids("c", 20.0 + DAY_S) == {"e"}
    assert book.live_ids("c", 21.0 + DAY_S) == set()
    assert book.find("e") is not None, "its own page outlives the list"


def test_an_episode_nobody_decides_about_any_more_ends() -> None:
    """After a restart without its job, or when the job is gone."""
    book = EpisodeBook()
    tick(book, Engines(SLOW), 1.0, SLOW)
    tick(book, Engines(), 500.0)
    assert book.episodes["e"].ended is None
    tick(book, Engines(), 700.0)
    assert book.episodes["e"].ended == 1.0


def test_a_cluster_with_many_episodes_drops_its_own(monkeypatch: Any) -> None:
    monkeypatch.setattr(books, "MAX_EPISODES", 3)
    book = EpisodeBook()
    slow = [msgspec.structs.replace(SLOW, episode=f"e{n}") for n in range(6)]
    book.tick(Engines(), [("quiet", slow[0])], [b""], 1.0)
    for verdict in slow[1:]:
        book.tick(Engines(), [("noisy", verdict)], [b""], 2.0)
    assert list(book.episodes) == ["e0", "e4", "e5"]
    assert book.removed == {"e1", "e2", "e3"}


def test_what_was_told_about_an_episode_is_bounded() -> None:
    book = EpisodeBook()
    tick(book, Engines(), 1.0, SLOW)
    one = AlertTold(target="t", message="begin", outcome="delivered", at=1.0)
    book.note_alert("unknown", one)
    for _ in range(MAX_TOLD + 5):
        book.note_alert("e", one)
    assert len(book.episodes["e"].alerts) == MAX_TOLD


async def ask(fleet: FleetService, path: str) -> tuple[int, Any]:
    url = f"http://{fleet.addresses['threshold']}/api/v1/episodes/{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return reply.status, await reply.json()


async def test_an_episode_says_where_its_alert_went(tmp_path: Path) -> None:
    """Delivered to one target, refused by another, waiting for the third; also after a restart."""
    async with alert_sink() as good, alert_sink() as bad, alert_sink() as away:
        bad.status, away.status = 400, 503
        sinks = {"good": good, "bad": bad, "away": away}
        targets = {f"webhook/{name}": {"url": sink.url} for name, sink in sinks.items()}
        own: dict[str, Any] = {
            "alerts": {"targets": targets},
            "processors": {"ingero": {"verdict": {"state_dir": str(tmp_path)}}},
        }
        async with running(tick_s=NEVER_S, **own) as fleet:
            world = EpisodeWorld(fleet).run(150)
            alerts = fleet.judgement.alerts
            assert alerts is not None
            await alerts.deliver(world.at_s)
            (name,) = fleet.episodes.episodes
            _, found = await ask(fleet, name)
            outcomes = {
                a["target"]: (a["message"], a["outcome"], a["why"]) for a in found["alerts"]
            }
            assert outcomes["webhook/good"] == ("begin", "delivered", "")
            assert outcomes["webhook/bad"][:2] == ("begin", "refused")
            assert outcomes["webhook/away"][:2] == ("begin", "waiting")
            assert "400" in outcomes["webhook/bad"][2]
            assert "503" in outcomes["webhook/away"][2]
            assert found["alert_targets"] == list(targets)
        async with running(tick_s=NEVER_S, **own) as again:
            kept = again.judgement.look_up(name, START_S + 151)
            assert kept is not None
            assert {a.target: a.outcome for a in kept.alerts} == {
                "webhook/good": "delivered", "webhook/bad": "refused", "webhook/away": "waiting",
            }  # fmt: skip


async def test_a_silenced_episode_says_why_nobody_is_told() -> None:
    async with alert_sink() as sink:
        own = {"alerts": {"targets": {"webhook": {"url": sink.url}}}}
        async with running(tick_s=NEVER_S, **own) as fleet:
            world = EpisodeWorld(fleet).run(100)
            silence = SilenceRequest(target="n5", for_s=3600.0, why="swapped soon", cluster="c")
            fleet.verdicts.silences.put(silence, world.at_s)
            world.run(50)
            (name,) = fleet.episodes.episodes
            _, found = await ask(fleet, name)
            assert [(a["target"], a["outcome"], a["why"]) for a in found["alerts"]] == [
                ("all", "held back", "it is silenced")
            ]
            assert sink.requests == []


async def test_the_trace_of_an_episode_holds_its_states_and_the_steps_of_all_ranks(
    monkeypatch: Any,
) -> None:
    async with running(tick_s=NEVER_S) as fleet:
        EpisodeWorld(fleet).run(150)
        (name,) = fleet.episodes.episodes
        status, found = await ask(fleet, f"{name}/trace")
        assert status == 200
        events = found["traceEvents"]
        processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
        assert processes.keys() == {f"episode {name}", *(f"n{rank}" for rank in range(8))}
        states = [e["name"] for e in events if e["ph"] == "X" and e["pid"] == 1]
        assert states == ["rank 5 on n5: suspect", "rank 5 on n5: straggler"]
        own: dict[int, list[float]] = {}
        for each in events:
            if each["name"] == "own time":
                own.setdefault(each["tid"], []).append(each["dur"])
        assert own.keys() == set(range(8))
        assert max(own[5]) > 1.05 * max(own[4]), "the slow rank is slow in the picture"
        begun = [e["ts"] for e in events if e["ph"] == "X"]
        assert max(begun) - min(begun) < 300e6, "one time scale, in microseconds"
        monkeypatch.setattr(traces, "MAX_SLICES", 50)
        _, cut = await ask(fleet, f"{name}/trace")
        assert len(cut["traceEvents"]) < 100
        assert "only the first 50 slices" in json.dumps(cut)
        assert (await ask(fleet, "none/trace"))[0] == 404
