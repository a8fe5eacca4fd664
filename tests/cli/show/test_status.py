"""What `ingero status` concludes about clusters, in words and as exit status."""

import pytest
from msgspec.structs import replace

from ingero.cli.show.status import exit_status, status_text
from ingero.contract.fleet_api import ClusterStatus, IdleGpus, NodeStatus, RankCounts
from ingero.contract.verdict import Verdict, VerdictState

NODE = NodeStatus(
    node_id="gpu07",
    score=0.95,
    state="active",
    below_threshold=False,
    straggler=False,
    straggler_for_s=None,
    mode="fleet",
    workload_type="training",
    last_push_s_ago=1.0,
    known_for_s=60.0,
    pushes=9,
    sent_unix_ns=0,
    degraded=False,
    job_id=None,
    rank=None,
    world_size=None,
    provider=None,
    gpu_model=None,
    gpu_count=None,
)
CALM = ClusterStatus(
    cluster_id="train",
    threshold=0.9,
    quorum_met=True,
    raw_threshold=0.9,
    ema=0.9,
    median=0.95,
    mad=0.01,
    nodes_by_state={"active": 1},
    coverage=1.0,
    coverage_low=False,
    panic=None,
    below_threshold=0,
    nodes=[NODE],
)
SLOW_RANK = Verdict(episode="e", state=VerdictState.STRAGGLER, node="gpu07", rank=3, since=0.0)
ALONE = replace(NODE, mode="local-baseline")
STEPLESS = "no repeating step is recognised in job llm, its 8 ranks cannot be judged"


@pytest.mark.parametrize(
    ("clusters", "status", "words"),
    [
        pytest.param([CALM], 0, "nobody is slow", id="calm"),
        pytest.param([replace(CALM, verdicts=[SLOW_RANK])], 1, "SLOW", id="slow-rank"),
        pytest.param(
            [replace(CALM, nodes=[replace(NODE, straggler=True)])], 1, "SLOW", id="slow-node"
        ),
        pytest.param(
            [
                replace(
                    CALM,
                    verdicts=[
                        replace(
                            SLOW_RANK,
                            state=VerdictState.NOT_SURE,
                            node="",
                            rank=None,
                            job="llm",
                            evidence=STEPLESS,
                        )
                    ],
                )
            ],
            3,
            STEPLESS,
            id="stepless",
        ),
        pytest.param(
            [replace(CALM, verdicts=[replace(SLOW_RANK, state=VerdictState.LATE)])],
            0,
            "nobody is slow",
            id="late-costs-nothing",
        ),
        pytest.param(
            [replace(CALM, verdicts=[replace(SLOW_RANK, silenced="until 9: ticket 7")])],
            0,
            "nobody else is slow; silenced: 1",
            id="silenced",
        ),
        pytest.param(
            [replace(CALM, idle_gpus=IdleGpus(gpus=16, usd_per_hour=6.8, unpriced=8))],
            0,
            "16 GPUs are held and idle: $6.80 an hour; 8 of them without a known price",
            id="idle",
        ),
        pytest.param([], 3, "", id="no-cluster"),
        pytest.param(
            [replace(CALM, nodes=[replace(NODE, state="silent")])],
            3,
            "not sure: no node pushes",
            id="all-silent",
        ),
        pytest.param(
            [replace(CALM, quorum_met=False)], 3, "not sure: nothing to compare yet", id="no-quorum"
        ),
        pytest.param(
            [replace(CALM, quorum_met=False, nodes=[replace(NODE, state="calibrating")])],
            3,
            "while a recorder (`ingero trace`",
            id="no-recorder",
        ),
        pytest.param(
            [replace(CALM, quorum_met=False, nodes=[ALONE])], 0, "nobody is slow", id="judges-alone"
        ),
        pytest.param(
            [replace(CALM, quorum_met=False, ranks=RankCounts(judged=8))],
            0,
            "nobody is slow",
            id="ranks-judged",
        ),
        pytest.param(
            [replace(CALM, ranks=RankCounts(learning=8))],
            0,
            "no node is slow; what is normal for 8 ranks is still being learned",
            id="ranks-learning",
        ),
        pytest.param(
            [replace(CALM, verdicts=[replace(SLOW_RANK, state=VerdictState.NOT_SURE)])],
            3,
            "not sure: the verdict above says why",
            id="not-sure",
        ),
        pytest.param(
            [replace(CALM, quorum_met=False), replace(CALM, verdicts=[SLOW_RANK])],
            1,
            "SLOW",
            id="one-is-slow",
        ),
    ],
)
def test_exit_status_and_words_agree(
    clusters: list[ClusterStatus[NodeStatus]],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    print(status_text(clusters, show_all=False))
    assert words in capsys.readouterr().out
    assert exit_status(clusters) == status
