"""`ingero report` writes one file that needs nothing else, with or without names."""

import asyncio
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.support.episode_world import EpisodeWorld
from tests.support.pushes import NEVER_S, running

from ingero.cli.commands.report import command
from ingero.cli.show.report import redacted, report_page
from ingero.contract.episodes.episode import AlertTold, Episode, Moment, Peer, check_episode_id
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.errors import ConfigError

SLOW = Verdict(
    episode="e1", state=VerdictState.STRAGGLER, node="n1", rank=1, job="llm", since=1.7e9,
    cause_class=CauseClass.HOST, loss=0.09, usd_per_hour=12.5, peers=7,
    evidence="n1 is slower than n12 of llm", next_step="look at n1", collective="AllReduce 7",
)  # fmt: skip
EPISODE = Episode(
    episode="e1", cluster="east", began=1.7e9, ended=1.7e9 + 90, cost_usd=0.31, inputs_bytes=1,
    latest=msgspec.structs.replace(SLOW, state=VerdictState.RESOLVED),
    verdicts=[Moment(at=1.7e9 + 5, verdict=SLOW)],
    peers=[Peer(node="n12", rank=12, excess=0.001, bars=0.2, reason="below its limit")],
    alerts=[AlertTold(target="pagerduty", message="begin", outcome="delivered", at=1.7e9 + 6)],
)  # fmt: skip


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.values: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.values += [value or "" for _, value in attrs]


def test_a_report_says_everything_and_loads_nothing() -> None:
    page = report_page(EPISODE)
    for text in ("n1 rank 1 of job llm: straggler (host); the job lost 9.0%", "0.31 USD",
                 "12.50 USD an hour", "look at n1", "below its limit", "ingero replay e1",
                 "Waited for at</td><td>AllReduce 7", "pagerduty</td><td>begin</td><td>delivered",
                 "2023-11-14 22:13:25"):  # fmt: skip
        assert text in page
    found = Tags(page)
    assert not found.tags & {"script", "link", "img", "iframe", "object"}
    assert not any("://" in value for value in found.values)


def test_redacted_names_are_the_same_everywhere_and_gone() -> None:
    page = report_page(redacted(EPISODE))
    for name in ("n1", "n12", "llm", "east"):
        assert f" {name} " not in page and f">{name}<" not in page
    assert "node-1 is slower than node-2 of job-1" in page
    assert "look at node-1" in page and "cluster-1" in page


def test_markup_in_names_stays_text() -> None:
    hostile = msgspec.structs.replace(SLOW, node="<script>alert(1)</script>", evidence="\x1b[31m")
    episode = Episode(**{f: getattr(EPISODE, f) for f in EPISODE.__struct_fields__})
    episode.verdicts = [Moment(at=1.7e9, verdict=hostile)]
    page = report_page(episode)
    assert "script" not in Tags(page).tags and "\x1b" not in page


def test_an_id_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="not the id of an episode"):
        check_episode_id("../status")


async def test_the_command_asks_fleet_and_writes_the_file(tmp_path: Path) -> None:
    async with running(tick_s=NEVER_S) as fleet:
        EpisodeWorld(fleet).run(150)
        (name,) = fleet.episodes.episodes
        file = tmp_path / "x.html"
        url = f"http://{fleet.addresses['threshold']}"
        arguments = [name, "-o", str(file), "--fleet", url, "--redact"]
        result = await asyncio.to_thread(
            CliRunner().invoke, command, arguments, standalone_mode=False
        )
        assert result.return_value == 0, result.exception
        assert "node-1 rank 5 of job job-1: straggler" in file.read_text()
