"""Episodes of engines: how long a finding must hold, when it is over, and what is news."""

from dataclasses import replace

import pytest
from tests.support.engine_reports import BUSY, engine

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.inference.episodes import CLEAR_S, HOLD_S, EngineEpisodes, Finding, FindingKind
from ingero.core.inference.judge import STALE_S, EngineJudge

KEY = ("n", 8000, None)
FOUND = Finding(
    kind=FindingKind.SLOW,
    node="n",
    engine="vllm on port 8000, pid 1",
    model="llama",
    rank=None,
    state=VerdictState.STRAGGLER,
    cause_class=CauseClass.UNKNOWN,
    evidence="slow",
    next_step="look",
    loss=0.123456,
    peers=3,
    usd_per_hour=1.23456,
)


def update(
    episodes: EngineEpisodes, kind: FindingKind, now_s: float, found: Finding | None = FOUND
) -> list[Verdict]:
    return episodes.update({} if found is None else {(KEY, kind): found}, {}, now_s)


def test_a_stall_is_told_at_once_and_pressure_outlives_a_pause() -> None:
    assert list(HOLD_S.values()) == [0.0, 5.0, 5.0, 0.0, 10.0]
    assert list(CLEAR_S.values()) == [0.0, 10.0, 30.0, 30.0, 30.0]
    assert list(HOLD_S) == list(CLEAR_S) == list(FindingKind)


@pytest.mark.parametrize("kind", list(FindingKind))
def test_a_finding_is_named_when_it_held_and_resolved_when_it_was_gone(kind: FindingKind) -> None:
    episodes, hold_s, clear_s = EngineEpisodes(), HOLD_S[kind], CLEAR_S[kind]
    if hold_s:
        assert update(episodes, kind, 10.0) == []
        assert update(episodes, kind, 10.0 + hold_s - 0.01) == []
        assert episodes.current() == []
    (named,) = update(episodes, kind, 10.0 + hold_s)
    assert (named.since, named.loss, named.usd_per_hour, named.peers) == (10.0, 0.1235, 1.2346, 3)
    assert episodes.current() == [named]
    gone_s = 10.0 + hold_s
    if clear_s:
        assert update(episodes, kind, gone_s + clear_s - 0.01, None) == []
        assert len(episodes) == 1
    (resolved,) = update(episodes, kind, gone_s + clear_s, None)
    assert (resolved.episode, resolved.state) == (named.episode, VerdictState.RESOLVED)
    assert len(episodes) == 0


def test_a_finding_that_was_never_named_ends_without_a_word() -> None:
    episodes = EngineEpisodes()
    update(episodes, FindingKind.SLOW, 0.0)
    assert update(episodes, FindingKind.SLOW, 10.0, None) == []
    assert len(episodes) == 0


def test_state_engine_and_a_first_cause_are_news_and_figures_are_not() -> None:
    episodes = EngineEpisodes()
    assert len(update(episodes, FindingKind.STALLED, 0.0)) == 1
    for changes, is_news in (
        ({"evidence": "slower", "loss": 0.5}, False),
        ({"state": VerdictState.NOT_SURE}, True),
        ({"state": VerdictState.NOT_SURE, "engine": "restarted"}, True),
        ({"state": VerdictState.NOT_SURE, "engine": "restarted", "cause": "x"}, True),
        ({"state": VerdictState.NOT_SURE, "engine": "restarted", "cause": "y"}, False),
    ):  # fmt: skip
        found = replace(FOUND, **changes)  # type: ignore[arg-type]  # its own fields
        assert bool(update(episodes, FindingKind.STALLED, 1.0, found)) is is_news


def test_the_id_of_an_episode_is_the_same_in_every_replay_and_differs_otherwise() -> None:
    def named(key: tuple[str, int, int | None], kind: FindingKind, since_s: float) -> str:
        findings = {(key, kind): FOUND}
        (verdict,) = EngineEpisodes().update(findings, {(key, kind): since_s}, 100.0)
        assert verdict.since == round(since_s, 3)
        return verdict.episode

    base = (KEY, FindingKind.SLOW, 50.0)
    assert named(*base) == named(*base)
    others = [
        (("m", 8000, None), FindingKind.SLOW, 50.0),
        (("n", 8001, None), FindingKind.SLOW, 50.0),
        (("n", 8000, 1), FindingKind.SLOW, 50.0),
        (KEY, FindingKind.STALLED, 50.0),
        (KEY, FindingKind.SLOW, 50.001),
    ]
    assert len({named(*base), *(named(*other) for other in others)}) == 6
    assert len(named(*base)) == 16


def test_a_replica_is_forgotten_after_fifteen_seconds_without_a_report() -> None:
    judge = EngineJudge()
    judge.take("n", engine(0), BUSY, 100.0)
    judge.tick(100.0 + STALE_S)
    assert len(judge) == 1
    judge.tick(100.0 + STALE_S + 0.1)
    assert len(judge) == 0


def test_an_engine_without_a_model_has_no_job() -> None:
    (verdict,) = update(EngineEpisodes(), FindingKind.STALLED, 0.0, replace(FOUND, model=""))
    assert verdict.job is None
    (bare,) = update(
        EngineEpisodes(), FindingKind.STALLED, 0.0, replace(FOUND, loss=None, usd_per_hour=None)
    )
    assert (bare.loss, bare.usd_per_hour, bare.job) == (None, None, "llama")
