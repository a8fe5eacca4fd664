"""Messages of the live stream, as a terminal gets them: a cluster with one slow rank."""

from ingero.contract.fleet_api import RankCounts
from ingero.contract.live import (
    Headline,
    LiveEpisode,
    LiveJob,
    LiveMessage,
    LiveNode,
    LiveRank,
    LiveRanks,
    LiveSnapshot,
    LiveSummary,
    LiveTick,
    StateChange,
)
from ingero.contract.verdict import CauseClass, Verdict, VerdictState

AT_S = 1_790_000_000.0
SLOW = Verdict(
    episode="a22dc2a5864bbdc9", state=VerdictState.STRAGGLER, node="gpu-02", rank=19,
    job="llama-70b", cause_class=CauseClass.COMPUTE, loss=0.094, loss_error=0.002,
    cause="SM clock 1.2 GHz, its peers 1.8 GHz", collective="AllReduce of 26 MB over 64 ranks",
    since=AT_S - 95, usd_per_hour=15.07, peers=63,
    evidence="own time +34.1% ±0.5% against the median of 63 peers",
    next_step="read the clocks: `nvidia-smi -q -d CLOCK,PERFORMANCE`",
)  # fmt: skip


def node(number: int, **changes: object) -> LiveNode:
    given: dict[str, object] = {
        "node_id": f"gpu-{number:02d}", "score": 0.95 - number / 1000, "state": "active",
        "straggler": False, "seen": AT_S - 2, "ranks": 8, "mode": "fleet", "version": "0.9.0",
    }  # fmt: skip
    return LiveNode(**(given | changes))  # type: ignore[arg-type]  # each value has its field's type


def snapshot(name: str = "train-a", verdicts: tuple[Verdict, ...] = (SLOW,)) -> LiveSnapshot:
    slow = bool(verdicts)
    text = "Rank 19 on gpu-02 is slow; job llama-70b loses 9.4% ±0.2%, $15.07 an hour."
    line = (
        Headline(kind="slow", text=text, episode=SLOW.episode, since=SLOW.since)
        if slow
        else Headline(kind="calm", text="Nobody is slow.")
    )
    return LiveSnapshot(
        cluster_id=name, at=AT_S, verdicts=list(verdicts), silences=[],
        nodes=[node(number) for number in range(8)],
        jobs=[LiveJob(job_id="llama-70b", ranks=64, nodes=8, world_size=64, slow=int(slow))],
        episodes=[
            LiveEpisode(
                verdict=verdict, until=None, cost_usd=0.42,
                changes=[
                    StateChange(AT_S - 97, "suspect", "own time +26.2%"),
                    StateChange(AT_S - 95, "straggler", verdict.evidence),
                ],
            )
            for verdict in verdicts
        ],
        summary=LiveSummary(
            cluster_id=name, threshold=0.8, quorum_met=True, raw_threshold=0.8, ema=0.8,
            median=0.95, mad=0.01, nodes_by_state={"active": 8}, coverage=None,
            coverage_low=False, panic=None, below_threshold=0, headline=line, quorum_reason=None,
            ranks=RankCounts(judged=64) if slow else RankCounts(judged=40, learning=24, ready_s=12),
        ),
    )  # fmt: skip


def ranks(name: str = "train-a") -> LiveRanks:
    return LiveRanks(
        cluster_id=name, job_id="llama-70b", at=AT_S,
        ranks=[
            LiveRank(
                rank=rank, node_id=f"gpu-{rank // 8:02d}", role=f"dp{rank % 8}",
                state="straggler" if rank == 19 else "healthy",
                own_ms=669.8 if rank == 19 else 500.0 + rank / 100,
                excess=0.341 if rank == 19 else 0.001, lateness_ms=160.2 if rank == 19 else 0.1,
            )
            for rank in range(64)
        ],
    )  # fmt: skip


def tick(*clusters: str) -> LiveTick:
    return LiveTick(at=AT_S, version="0.9.0", clusters=list(clusters))


def beginning() -> list[LiveMessage]:
    """Return the first second of a stream of two clusters."""
    calm = snapshot("train-b", ())
    return [calm, snapshot(), tick("train-a", "train-b")]
