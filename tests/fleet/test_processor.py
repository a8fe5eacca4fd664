import math
import time

import pytest
from tests.support.pushes import health, request, running
from tests.support.waiting import until_async

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.contract.push.decode import Reject
from ingero.contract.threshold import COLD_START, QuorumReason
from ingero.core.health.threshold import PanicReason, ThresholdPolicy
from ingero.errors import MalformedPush
from ingero.fleet.processor import Cluster, FleetProcessor, Taken
from ingero.fleet.roster import Put

POLICY = ThresholdPolicy()
WALL = 1_800_000_000 * 10**9


def processor(**settings: object) -> FleetProcessor:
    policy = settings.pop("policy", POLICY)
    return FleetProcessor(policy, **settings)


def feed(
    fleet: FleetProcessor,
    scores: dict[str, float],
    now_s: float,
    cluster: str = "train",
    state: str = "active",
) -> None:
    for node, score in scores.items():
        sent_ns = WALL + int(now_s * 1e9)
        fleet.take(health(node, score, state, cluster, sent_ns), None, now_s, sent_ns)


def test_threshold_is_the_published_formula() -> None:
    """F002, F048: V2b for five nodes, and the gauges' inputs equal recomputed values."""
    fleet = processor()
    feed(fleet, dict(zip("abcde", (0.92, 0.91, 0.58, 0.93, 0.94), strict=True)), 0.0)
    fleet.tick(1.0)
    stats = fleet.clusters["train"].threshold.stats
    assert stats is not None
    assert (stats.median, round(stats.mad, 9), round(stats.value, 6)) == (0.92, 0.01, 0.890348)
    assert round(fleet.served("train").value, 6) == 0.890348


def test_quorum_needs_statistical_min() -> None:
    """F015, F045."""
    fleet = processor(policy=ThresholdPolicy(statistical_min=3))
    feed(fleet, {"a": 0.9, "b": 0.9}, 0.0)
    fleet.tick(1.0)
    assert not fleet.served("train").quorum_met
    feed(fleet, {"c": 0.9}, 1.0)
    fleet.tick(2.0)
    assert fleet.served("train").quorum_met


def test_f016_without_quorum_the_reason_is_few_nodes_or_panic() -> None:
    fleet = processor()
    feed(fleet, {f"n{i}": 0.9 for i in range(4)}, 0.0)
    fleet.tick(1.0)
    assert fleet.served("train").reason is QuorumReason.FEW_NODES
    feed(fleet, {f"n{i}": 0.9 for i in range(5)}, 2.0)
    fleet.tick(3.0)
    assert fleet.served("train").reason is None
    feed(fleet, {f"n{i}": 0.05 for i in range(5)}, 4.0)
    fleet.tick(5.0)
    assert fleet.served("train").reason is QuorumReason.PANIC


def test_three_healthy_nodes_are_served_about_0_88() -> None:
    """F024."""
    fleet = processor(policy=ThresholdPolicy(statistical_min=3))
    feed(fleet, {"a": 0.989, "b": 0.98904, "c": 0.98896}, 0.0)
    fleet.tick(1.0)
    assert 0.85 <= fleet.served("train").value <= 0.90


def test_idle_nodes_are_counted_but_not_compared() -> None:
    """F039."""
    fleet = processor()
    feed(fleet, {f"n{i}": 0.9 for i in range(5)}, 0.0)
    feed(fleet, {"sleeper": 0.1}, 0.0, state="idle")
    fleet.tick(1.0)
    cluster = fleet.clusters["train"]
    assert cluster.threshold.stats is not None and cluster.threshold.stats.nodes == 5
    assert cluster.counts == {"active": 5, "calibrating": 0, "idle": 1, "unscored": 0, "silent": 0}


def test_clusters_do_not_mix() -> None:
    """F042: the same node id in two clusters is two nodes."""
    fleet = processor()
    feed(fleet, {f"n{i}": 0.9 for i in range(5)}, 0.0, cluster="a")
    feed(fleet, {f"n{i}": 0.5 for i in range(5)}, 0.0, cluster="b")
    fleet.tick(1.0)
    assert fleet.served("a").value > 0.85 > 0.5 > fleet.served("b").value


def test_node_without_pushes_is_not_compared_after_the_ttl_and_is_shown_as_silent() -> None:
    """F044: 50 s at defaults, by the receiver's clock."""
    fleet = processor()
    feed(fleet, {"quiet": 0.7}, 0.0)
    feed(fleet, {"loud": 0.9}, 40.0)

    def compared() -> tuple[int, float]:
        stats = fleet.clusters["train"].threshold.stats
        assert stats is not None
        return stats.nodes, stats.median

    fleet.tick(50.0)
    assert fleet.clusters["train"].counts["active"] == 2
    assert compared() == (2, pytest.approx(0.8))
    fleet.tick(50.1)
    assert compared() == (1, 0.9)
    assert fleet.clusters["train"].counts == {
        "active": 1,
        "calibrating": 0,
        "idle": 0,
        "unscored": 0,
        "silent": 1,
    }
    fleet.tick(700.0)
    assert fleet.clusters == {}
    assert fleet.counters.forgotten == 2


def test_coverage_counts_expected_nodes_and_still_serves() -> None:
    """F046: seven of ten nodes are active."""
    fleet = processor(expected_nodes=10)
    feed(fleet, {f"n{i}": 0.9 for i in range(7)}, 0.0)
    fleet.tick(1.0)
    state = fleet.clusters["train"].threshold
    assert (state.coverage, state.coverage_low) == (0.7, True)
    assert fleet.served("train").quorum_met


def test_mass_drop_is_panic_and_flags_nobody() -> None:
    """F047."""
    fleet = processor()
    feed(fleet, {f"n{i}": 0.95 for i in range(6)}, 0.0)
    fleet.tick(1.0)
    before = fleet.clusters["train"].threshold.ema
    feed(fleet, {f"n{i}": 0.40 for i in range(6)}, 2.0)
    fleet.tick(3.0)
    state = fleet.clusters["train"].threshold
    assert state.panic is PanicReason.MEDIAN_FELL
    assert state.ema == before
    assert state.below == 0


def test_smoothing_advances_once_per_push_interval() -> None:
    """F043."""
    fleet = processor()
    feed(fleet, {f"n{i}": 0.8 for i in range(5)}, 0.0)
    fleet.tick(1.0)
    assert fleet.counters.recomputes == 1
    for second in range(2, 11):
        fleet.tick(float(second))
    assert fleet.counters.recomputes == 1
    fleet.tick(11.0)
    assert fleet.counters.recomputes == 2


def test_restart_is_over_when_the_nodes_pushed_once() -> None:
    """F019, F106: in memory only, valid again within two push intervals."""
    fleet = processor()
    assert fleet.served("train") is COLD_START
    for i in range(5):
        feed(fleet, {f"n{i}": 0.9}, 2.0 * i)
        fleet.tick(2.0 * i + 1)
    assert fleet.served("train").quorum_met


def test_first_score_of_a_cluster_is_answered_at_once() -> None:
    fleet = processor()
    feed(fleet, {"a": 0.9}, 0.0)
    assert 0.1 <= fleet.served("train").value < 0.9


@pytest.mark.parametrize("encode", [encode_json, encode_protobuf])
def test_encoded_pushes_give_the_same_state_as_decoded_ones(encode: object) -> None:
    encoding = Encoding.JSON if encode is encode_json else Encoding.PROTOBUF
    fleet = processor()
    taken = fleet.push(encode(health("a", 0.9, sent_ns=WALL)), encoding, None, 0.0, WALL)
    assert taken == Taken("train", "a", names.HEALTH_SCORE)
    assert fleet.clusters["train"].roster.row("a", 1.0).score == 0.9


def test_missing_cluster_lands_in_default_and_is_counted() -> None:
    """F038."""
    fleet = processor()
    assert fleet.take(health("a", 0.9, cluster=None), None, 0.0, 0).cluster == "default"
    assert fleet.counters.defaulted == 1


def test_cluster_of_the_request_wins_and_a_mismatch_is_counted() -> None:
    """F040."""
    fleet = processor()
    assert fleet.take(health("a", 0.9, cluster="body"), "query", 0.0, 0).cluster == "query"
    assert (fleet.counters.mismatched, list(fleet.clusters)) == (1, ["query"])


def test_cluster_of_the_request_must_be_an_id() -> None:
    fleet = processor()
    taken = fleet.take(health("a", 0.9, cluster="body"), "a\r\nb", 0.0, 0)
    assert (taken.cluster, list(fleet.clusters)) == ("body", ["body"])
    assert fleet.counters.rejected == {Reject.IDENTITY_INVALID: 1}


def test_the_same_push_twice_counts_once() -> None:
    fleet = processor()
    push = health("a", 0.9, sent_ns=WALL)
    fleet.take(push, None, 0.0, WALL)
    fleet.take(push, None, 0.3, WALL)
    assert (fleet.counters.puts[Put.STORED], fleet.counters.puts[Put.DUPLICATE]) == (1, 1)
    assert len(fleet.clusters["train"].roster.rows) == 1


def test_a_late_retry_does_not_overwrite_a_newer_report() -> None:
    fleet = processor()
    fleet.take(health("a", 0.5, sent_ns=WALL + 10**9), None, 0.0, WALL)
    fleet.take(health("a", 0.9, sent_ns=WALL), None, 0.1, WALL)
    assert fleet.clusters["train"].roster.row("a", 1.0).score == 0.5
    fleet.take(health("a", 0.7, sent_ns=WALL - 3600 * 10**9), None, 0.2, WALL)
    assert fleet.clusters["train"].roster.row("a", 1.0).score == 0.7, (
        "a clock that was set back is not late"
    )


def test_a_node_with_a_wrong_clock_counts_when_its_push_arrives() -> None:
    fleet = processor()
    feed(fleet, {f"n{i}": 0.9 for i in range(4)}, 0.0)
    fleet.take(health("future", 0.9, sent_ns=2**64 - 1), None, 0.0, WALL)
    fleet.tick(1.0)
    assert fleet.counters.skewed == 1
    assert fleet.served("train").quorum_met
    fleet.tick(51.0)
    assert fleet.clusters["train"].counts["silent"] == 5


@pytest.mark.parametrize(
    ("push", "reason"),
    [
        (health("a", math.nan), Reject.SCORE_NOT_FINITE),
        (health("a", 1.5), Reject.SCORE_OUT_OF_RANGE),
        (health("a\r\nb", 0.5), Reject.IDENTITY_INVALID),
        (health(None, 0.5), Reject.NODE_ID_MISSING),
    ],
)
def test_rejected_points_are_counted_and_explained(
    push: otlp.MetricsRequest, reason: Reject
) -> None:
    fleet = processor()
    taken = fleet.take(push, "train", 0.0, 0)
    assert taken.partial is not None and taken.partial.rejected == 1 and taken.partial.message
    assert fleet.counters.rejected == {reason: 1}
    assert all(cluster.threshold.stats is None for cluster in fleet.clusters.values())


def test_full_cluster_and_too_many_clusters_are_refused() -> None:
    fleet = processor(max_nodes=2, max_clusters=1)
    feed(fleet, {"a": 0.9, "b": 0.9}, 0.0)
    full = fleet.take(health("c", 0.9), None, 0.0, 0)
    other = fleet.take(health("a", 0.9, cluster="other"), None, 0.0, 0)
    assert full.partial is not None and "max_expected_nodes" in full.partial.message
    assert other.partial is not None
    assert fleet.counters.rejected == {Reject.TOO_MANY_NODES: 1, Reject.TOO_MANY_CLUSTERS: 1}
    assert fleet.take(health("a", 0.8, sent_ns=1), None, 1.0, 0).partial is None, (
        "known nodes go on"
    )


def test_malformed_body_changes_nothing() -> None:
    fleet = processor()
    with pytest.raises(MalformedPush):
        fleet.push(b"\xff\xff", Encoding.PROTOBUF, "train", 0.0, 0)
    assert fleet.clusters == {}


def test_measurements_are_passed_on() -> None:
    seen: list[tuple[str, float]] = []
    fleet = processor(
        on_measurements=lambda _, cluster, now_s, address: seen.append((cluster, now_s))
    )
    point = otlp.NumberPoint(as_double=1.5)
    metric = otlp.Metric(name=names.COLLECTIVE_DURATION_MS, gauge=otlp.Gauge(data_points=(point,)))
    body = encode_protobuf(request({names.NODE_ID: "a", names.CLUSTER_ID: "train"}, metric))
    fleet.push(body, Encoding.PROTOBUF, None, 7.0, 0)
    feed(fleet, {"a": 0.9}, 8.0)
    assert seen == [("train", 7.0)]


def test_a_node_with_several_ranks_counts_once() -> None:
    fleet = processor()
    node = health("a", 0.9).resource_metrics
    ranks = tuple(
        request({names.NODE_ID: "a", names.CLUSTER_ID: "train", names.RANK: rank}).resource_metrics[
            0
        ]
        for rank in range(2)
    )
    fleet.take(otlp.MetricsRequest(resource_metrics=node + ranks), None, 0.0, 0)
    fleet.tick(1.0)
    assert fleet.clusters["train"].counts["active"] == 1


async def test_a_thousand_clusters_do_not_hold_the_loop() -> None:
    """One request can make them; every tick then took a third of a second without a pause."""
    async with running(tick_s=0.01) as fleet:
        for number in range(30):
            feed(fleet.processor, {"a": 0.9}, time.monotonic(), f"c{number}")
        seen: list[int] = []
        recompute = fleet.processor._advance

        def slowly(cluster: Cluster, now_s: float) -> None:
            recompute(cluster, now_s)
            seen.append(0)
            time.sleep(0.002)  # longer than a slice after a few clusters

        fleet.processor._advance = slowly  # type: ignore[method-assign]  # a slow machine
        await until_async(lambda: len(seen) % 30 > 0)
