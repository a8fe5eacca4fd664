"""Own times and collectives pushed to Fleet become verdicts in replies, log records and metrics."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.verdict_pushes import (
    RATES,
    START_S,
    collectives,
    collectives_cache,
    own_time_push,
    verdicts_of_a_job,
)

from ingero.config.rates import parse_rates
from ingero.contract import names
from ingero.contract.exposition import render
from ingero.contract.fleet_api import RankCounts
from ingero.contract.measurements.collectives import encode_collectives
from ingero.contract.measurements.ranks import decode_ranks
from ingero.contract.otlp.values import (
    Gauge,
    Metric,
    MetricsRequest,
    NumberPoint,
    Resource,
    ResourceMetrics,
    ScopeMetrics,
    attributes,
)
from ingero.contract.verdict import CauseClass, VerdictState, decode_verdicts
from ingero.contract.verdict_otlp import encode_verdict_logs
from ingero.core.verdict.policy import VerdictPolicy
from ingero.fleet.verdict_metrics import verdict_families
from ingero.fleet.verdicts import VerdictService


def test_own_times_pushed_step_by_step_name_the_slow_rank_in_its_own_reply() -> None:
    service = VerdictService(parse_rates(RATES, "rates"))
    found = verdicts_of_a_job(service, seconds=180)
    raised = [v for _, v in found if v.state is VerdictState.STRAGGLER]
    assert [(v.node, v.rank) for v in raised] == [("n5", 5)]
    assert decode_verdicts(service.texts["c", "n5"])[0].episode == raised[0].episode
    assert ("c", "n4") not in service.texts
    assert raised[0].usd_per_hour == pytest.approx(8 * 2.0 * 0.1 / 1.1, rel=0.15)
    page = render(verdict_families(service)).decode()
    assert 'ingero_fleet_verdict{class="unknown",cluster_id="c"' in page
    record = encode_verdict_logs(found, 1).resource_logs[-1].scope_logs[0].log_records[0]
    assert record.event_name == names.VERDICT_EVENT
    assert record.body is not None
    assert json.loads(record.body.string_value or "")["node"] == "n5"


@pytest.mark.parametrize(
    ("is_host", "cause"), [(False, CauseClass.COMPUTE), (True, CauseClass.HOST)]
)
def test_gpu_timed_collectives_name_the_rank_and_class_but_not_its_partner(
    is_host: bool, cause: CauseClass
) -> None:
    service = VerdictService()
    rng = np.random.default_rng(2)
    found = []
    for second in range(150):
        slow = 3 if second >= 110 else None
        for request_node in range(4):
            mine = collectives_cache(second, slow, rng, is_host, request_node)
            service.take(encode_collectives(mine, "c", f"n{request_node}"), "c", START_S + second)
        found += service.tick(START_S + second)
    raised = [v for _, v in found if v.state is VerdictState.STRAGGLER]
    assert {(v.node, v.rank) for v in raised} == {("n1", 3)}
    assert raised[0].cause_class is cause
    assert "peers wait" in raised[0].evidence
    page = render(verdict_families(service)).decode()
    assert 'ingero_collective_lateness_ms{cluster_id="c",node_id="n1",rank="3"}' in page
    service.tick(START_S + 200)
    # not measured any more
    assert "ingero_collective_lateness_ms{" not in render(verdict_families(service)).decode()


def test_collectives_survive_the_wire() -> None:
    sent = collectives(1, None, np.random.default_rng(3), False)
    received = [r for m in decode_ranks(encode_collectives(sent, "c", "n")) for r in m.collectives]
    assert sorted(received, key=repr) == sorted(sent, key=repr)


def test_points_that_cannot_be_read_are_counted_and_the_rest_is_used() -> None:
    request = own_time_push("n0", 0, 1, 5.0)
    bad = Metric(
        name=names.COLLECTIVE_DURATION_MS, gauge=Gauge(data_points=(NumberPoint(as_double=1.0),))
    )
    resource = request.resource_metrics[0]
    scopes = (*resource.scope_metrics, ScopeMetrics(metrics=(bad,)))
    both = MetricsRequest((ResourceMetrics(resource=resource.resource, scope_metrics=scopes),))
    service = VerdictService(max_clusters=1)
    service.take(both, "c", START_S)
    service.take(both, "another", START_S)
    assert (
        service.counters.malformed,
        service.counters.own_times,
        service.counters.refused_clusters,
    ) == (
        1,
        1,
        1,
    )


def test_clusters_that_fell_silent_are_forgotten() -> None:
    service = VerdictService(max_clusters=1)
    service.take(own_time_push("n1", 0, 1, 500.0), "old", START_S)
    service.take(own_time_push("n1", 0, 1, 500.0), "new", START_S)
    assert (list(service.clusters), service.counters.refused_clusters) == (["old"], 1)
    service.tick(START_S + 3600)
    assert list(service.clusters) == ["old"]
    service.tick(START_S + 3601)
    service.take(own_time_push("n1", 0, 1, 500.0), "new", START_S + 3601)
    assert list(service.clusters) == ["new"]


def test_the_service_keeps_nothing_of_a_job_long_over() -> None:
    service = VerdictService()
    records = collectives(1, None, np.random.default_rng(4), False)
    service.take(encode_collectives(records, "c", "n0"), "c", START_S)
    service.tick(START_S)
    kept = service.clusters["c"]
    assert (len(kept.members), len(kept.sources), len(kept.lateness_s), len(kept.live_steps)) == (
        8,
        8,
        8,
        8,
    )
    for step in range(0, 3700, 60):  # another job goes on
        service.take(own_time_push("n9", 0, step, 500.0), "c", START_S + step)
        service.tick(START_S + step)
    assert list(kept.members) == list(kept.sources) == [("n9", "j", 0)]
    assert (kept.lateness_s, kept.peer_lag_ms, kept.live_steps, len(kept.keys)) == ({}, {}, {}, 1)
    page = render(verdict_families(service)).decode()
    assert 'ingero_fleet_verdict_freed_total{cluster_id="c",kind="rank"} 8' in page
    assert "ingero_collective_lateness_ms{" not in page
    assert service.rank_counts("c") == RankCounts(judged=1)


def test_members_that_are_refused_leave_nothing_behind() -> None:
    service = VerdictService(policy=VerdictPolicy(max_members=1))
    for rank in range(100):
        service.take(own_time_push(f"n{rank}", rank, 1, 500.0), "c", START_S)
    assert (len(service.clusters["c"].members), len(service.clusters["c"].sources)) == (1, 1)


whole = st.sampled_from([0, 1, 2, 7, -1, -4, 2**20, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63)])
odd = whole | st.sampled_from(
    [math.nan, math.inf, -1.0, 1e308, "", "7", "1e3", "0123456789abcdef", "x" * 300, True]
)
NCCL = (
    names.NCCL_RANK,
    names.NCCL_NRANKS,
    names.NCCL_SEQ,
    names.NCCL_PEER,
    names.NCCL_BYTES,
    names.NCCL_STREAM,
)
points = st.builds(
    lambda given, value, start, end: NumberPoint(
        attributes=attributes(
            {names.NCCL_OP: "ncclAllReduce", names.NCCL_COMM: "0123456789abcdef", **given}
        ),
        as_double=value,
        start_time_unix_nano=start,
        time_unix_nano=end,
    ),
    st.dictionaries(
        st.sampled_from(
            (
                *NCCL,
                names.NCCL_GPU_DURATION_NS,
                names.STEP,
                names.STEP_IDLE_MS,
                names.STEP_SPAN_MS,
                names.NCCL_COMM,
            )
        ),
        odd,
    ),
    st.sampled_from([0.0, 5.0, -1.0, 1e308, math.nan, math.inf]),
    *[st.sampled_from([0, 1, 1_794_709_947_235_694_698, 2**63, 2**64 - 1])] * 2,
)
pushes = st.builds(
    lambda name, found, rank: MetricsRequest(
        (
            ResourceMetrics(
                resource=Resource(attributes=attributes({names.NODE_ID: "n", names.RANK: rank})),
                scope_metrics=(
                    ScopeMetrics(
                        metrics=(Metric(name=name, gauge=Gauge(data_points=tuple(found))),)
                    ),
                ),
            ),
        )
    ),
    st.sampled_from([names.COLLECTIVE_DURATION_MS, names.STEP_OWN_TIME_MS]),
    st.lists(points, min_size=1, max_size=3),
    whole,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(pushes, min_size=1, max_size=4))
def test_whatever_is_pushed_the_service_goes_on(hostile: list[MetricsRequest]) -> None:
    """A number out of range once stopped all later ticks; 2^31 ranks once took 16 GB."""
    service = VerdictService()
    for second, push in enumerate(hostile):
        service.take(push, "c", START_S + second)
        service.tick(START_S + second)
    for second in range(10, 14):
        service.take(own_time_push("later", 0, second, 500.0), "c", START_S + second)
        service.tick(START_S + second)
    engine = service.clusters["c"].engine
    assert engine.registry.find_named("j", "later", 0) is not None
