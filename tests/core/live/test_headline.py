"""The sentence at the top of a cluster."""

import pytest

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.live.headline import ClusterFacts, make_headline

CALM = ClusterFacts(slow_nodes=(), silenced_nodes=(), threshold=0.8, doubt="")


def verdict(state: str = "straggler", **more: object) -> Verdict:
    values: dict[str, object] = {"episode": "e1", "node": "gpu-07", "since": 100.0} | more
    return Verdict(state=VerdictState(state), **values)  # type: ignore[arg-type]


SLOW = verdict(rank=11, job="llama", loss=0.12, loss_error=0.004, usd_per_hour=96.0)


@pytest.mark.parametrize(
    ("verdicts", "facts", "kind", "text"),
    [
        ((), {}, "calm", "Nobody is slow."),
        (
            (), {"unjudged_ranks": 64}, "calm",
            "No node is slow; what is normal for 64 ranks is still being learned.",
        ),
        (
            (SLOW,), {}, "slow",
            "Rank 11 on gpu-07 is slow; job llama loses 12.0% ±0.4%, $96.00 an hour.",
        ),
        (
            (verdict(cause_class=CauseClass.HOST), verdict(episode="e2", node="a", loss=0.5)), {},
            "slow", "a is slow; its job loses 50.0%. 1 more is slow, too.",
        ),
        (
            (verdict(loss=0.08, at_most=True, cause="clock 900 MHz, peers 1980 MHz"),), {}, "slow",
            "gpu-07 is slow; its job loses at most 8.0%; clock 900 MHz, peers 1980 MHz.",
        ),
        (
            (
                verdict(
                    job="m", engine="vllm on port 1, pid 2", cause_class=CauseClass.HANG,
                    evidence="no step", cause="a worker is stopped",
                ),
            ), {}, "slow",
            "m on gpu-07 (vllm on port 1, pid 2) is stalled: no step; a worker is stopped.",
        ),
        (
            (verdict(job="m", engine="vllm on port 1, pid 2", loss=0.5, usd_per_hour=2.0),), {},
            "slow", "m on gpu-07 (vllm on port 1, pid 2) is slow; it loses 50.0%, $2.00 an hour.",
        ),
        (
            (verdict("fleet_event", node="", job="j", evidence="all ranks by 9%"),), {},
            "fleet_event", "Nobody alone is to blame in job j: all ranks by 9%.",
        ),
        (
            (), {"slow_nodes": [("n1", 0.41)]}, "slow",
            "n1 is slow: its health score is 0.41, below the threshold of 0.80.",
        ),
        (
            (), {"slow_nodes": [(f"n{i}", 0.4) for i in range(5)]}, "slow",
            "n0, n1, n2 and 2 more are slow.",
        ),
        (
            (verdict("not_sure", evidence="two groups"),), {}, "not_sure",
            "Not sure about gpu-07: two groups.",
        ),
        (
            (), {"doubt": "no node pushes"}, "not_sure",
            "Not sure who is slow, because no node pushes.",
        ),
        (
            (verdict(silenced="until tomorrow"),), {"silenced_nodes": ["n2"]}, "silenced",
            "Nobody else is slow; silenced: gpu-07, n2.",
        ),
        ((verdict("suspect"),), {}, "suspect", "Nobody is slow; suspected: gpu-07."),
        ((verdict("resolved"), verdict("late")), {}, "calm", "Nobody is slow."),
    ],
)  # fmt: skip
def test_one_sentence_says_who_is_slow(
    verdicts: tuple[Verdict, ...], facts: dict[str, object], kind: str, text: str
) -> None:
    values = {"slow_nodes": (), "silenced_nodes": (), "threshold": 0.8, "doubt": ""} | facts
    found = make_headline(verdicts, ClusterFacts(**values))  # type: ignore[arg-type]
    assert (found.kind, found.text) == (kind, text)


def test_the_sentence_names_its_episode_and_next_step() -> None:
    found = make_headline((verdict(next_step="swap the node"),), CALM)
    assert (found.episode, found.since, found.next_step) == ("e1", 100.0, "swap the node")
