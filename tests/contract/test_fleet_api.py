"""Fleet's answers on the wire: published keys in a published order, the same back."""

import json

import msgspec

from ingero.contract.fleet_api import ClusterStatus, NodeStatus, RankCounts, Status
from ingero.contract.verdict import Verdict, VerdictState

NODE = NodeStatus(
    node_id="n1",
    score=0.5,
    state="active",
    below_threshold=True,
    straggler=True,
    straggler_for_s=12.0,
    mode="fleet",
    workload_type="training",
    last_push_s_ago=1.5,
    known_for_s=60.0,
    pushes=6,
    sent_unix_ns=10**18,
    degraded=None,
    job_id="j",
    rank=0,
    world_size=8,
    provider=None,
    gpu_model="H100",
    gpu_count=8,
    silenced="",
)
CLUSTER = ClusterStatus(
    cluster_id="train",
    threshold=0.89,
    quorum_met=True,
    raw_threshold=0.89,
    ema=0.89,
    median=0.92,
    mad=0.01,
    nodes_by_state={"active": 1},
    coverage=1.0,
    coverage_low=False,
    panic=None,
    below_threshold=1,
    nodes=[NODE],
    ranks=RankCounts(judged=8),
    verdicts=[Verdict(episode="e", state=VerdictState.STRAGGLER, node="n1", since=1.0)],
)


def test_status_survives_the_wire() -> None:
    encoded = msgspec.json.encode(Status([CLUSTER]))
    assert msgspec.json.decode(encoded, type=Status[NodeStatus]) == Status([CLUSTER])


def test_keys_are_the_published_ones() -> None:
    (cluster,) = json.loads(msgspec.json.encode(Status([CLUSTER])))["clusters"]
    assert list(cluster) == [
        "cluster_id", "threshold", "quorum_met", "raw_threshold", "ema", "median", "mad",
        "nodes_by_state", "coverage", "coverage_low", "panic", "below_threshold", "idle_gpus",
        "nodes", "ranks", "verdicts",
    ]  # fmt: skip
    assert list(cluster["nodes"][0]) == [
        "node_id", "score", "state", "below_threshold", "straggler", "straggler_for_s", "mode",
        "workload_type", "last_push_s_ago", "known_for_s", "pushes", "sent_unix_ns", "degraded",
        "job_id", "rank", "world_size", "provider", "gpu_model", "gpu_count", "silenced",
    ]  # fmt: skip


def test_diagnostics_do_not_mention_silences() -> None:
    row = msgspec.structs.replace(NODE, silenced=msgspec.UNSET)
    assert "silenced" not in json.loads(msgspec.json.encode(row))
