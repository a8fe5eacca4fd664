"""Numbers that make no sense, in any field of a push, disturb nothing that Fleet does with it."""

import asyncio
import json
import math

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingero.contract import names
from ingero.contract.exposition import render
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.contract.verdict_otlp import encode_verdict_logs
from ingero.core.health.threshold import ThresholdPolicy
from ingero.fleet.metrics import cluster_families, own_series
from ingero.fleet.processor import FleetProcessor
from ingero.fleet.series import ReceivedSeries
from ingero.fleet.verdict_metrics import verdict_families
from ingero.fleet.verdicts import VerdictService

NOW_S = 1.7e9
ABSURD_INTS = (0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
ABSURD_FLOATS = (0.0, 0.5, -1.0, 5e-324, 1e300, -1e300, math.inf, -math.inf, math.nan)
times = st.sampled_from((0, 1, int(NOW_S * 1e9), 2**63 - 1, 2**63, 2**64 - 1))
ints, floats = st.sampled_from(ABSURD_INTS), st.sampled_from(ABSURD_FLOATS)
anything = ints | floats | st.sampled_from(("1", "-1", "nan", "1e300", "0x10", "", "9" * 30, True))
RESOURCE_NUMBERS = (names.RANK, names.NODE_RANK, names.WORLD_SIZE, names.GPU_COUNT)
POINT_NUMBERS = (
    names.GPU_COUNT, names.STEP, names.STEP_COUNT, names.STEP_IDLE_MS, names.STEP_SPAN_MS,
    names.NCCL_COMM, names.NCCL_SEQ, names.NCCL_RANK, names.NCCL_NRANKS, names.NCCL_PEER,
    names.NCCL_BYTES, names.NCCL_STREAM, names.NCCL_GPU_DURATION_NS,
)  # fmt: skip
METRICS = (
    names.HEALTH_SCORE,
    names.DEGRADATION_WARNING,
    names.STRAGGLER_EVENT,
    names.NODE_INFO,
    names.AGENT_LOST_RECORDS,
    names.AGENT_READY_S,
    names.THROUGHPUT_RATIO,
    names.STEP_OWN_TIME_MS,
    names.COLLECTIVE_DURATION_MS,
)


@st.composite
def points(draw: st.DrawFn) -> otlp.NumberPoint:
    found = draw(st.dictionaries(st.sampled_from(POINT_NUMBERS), anything))
    usual = {names.NCCL_OP: "AllReduce", names.NCCL_COMM: "ab", names.NCCL_RANK: 0}
    value = draw(ints | floats)
    return otlp.NumberPoint(
        attributes=otlp.attributes({**usual, names.NCCL_NRANKS: 2, **found}),
        start_time_unix_nano=draw(times),
        time_unix_nano=draw(times),
        as_int=value if isinstance(value, int) else None,
        as_double=value if isinstance(value, float) else None,
    )


@st.composite
def histograms(draw: st.DrawFn) -> otlp.Metric:
    bounds = tuple(draw(st.lists(floats, max_size=3)))
    counts = tuple(draw(st.lists(times, max_size=4)))
    scale = draw(st.sampled_from((0, 20, -20, 2**31 - 1, -(2**31))))
    buckets = otlp.Buckets(offset=scale, bucket_counts=counts)
    kind = draw(st.sampled_from(("histogram", "exponential_histogram", "summary")))
    if kind == "histogram":
        point = otlp.HistogramPoint(
            count=draw(times), sum=draw(floats), explicit_bounds=bounds, bucket_counts=counts
        )
        return otlp.Metric(name="h", histogram=otlp.Histogram(data_points=(point,)))
    if kind == "summary":
        quantile = otlp.Quantile(quantile=draw(floats), value=draw(floats))
        summary = otlp.SummaryPoint(
            count=draw(times), sum=draw(floats), quantile_values=(quantile,)
        )
        return otlp.Metric(name="s", summary=otlp.Summary(data_points=(summary,)))
    fine = otlp.ExponentialHistogramPoint(
        count=draw(times),
        sum=draw(floats),
        scale=scale,
        zero_count=draw(times),
        positive=buckets,
        negative=buckets,
        zero_threshold=draw(floats),
    )
    exponential = otlp.ExponentialHistogram(data_points=(fine,))
    return otlp.Metric(name="e", exponential_histogram=exponential)


@st.composite
def requests(draw: st.DrawFn) -> otlp.MetricsRequest:
    numbers = draw(st.dictionaries(st.sampled_from(RESOURCE_NUMBERS), anything))
    metrics = tuple(
        otlp.Metric(name=name, gauge=otlp.Gauge(data_points=tuple(draw(st.lists(points())))))
        for name in draw(st.lists(st.sampled_from(METRICS), unique=True))
    )
    node = draw(st.sampled_from("abc"))
    who: dict[str, otlp.Plain] = {names.NODE_ID: node, names.CLUSTER_ID: "c", names.JOB_ID: "j"}
    resource = otlp.Resource(attributes=otlp.attributes({**who, **numbers}))
    more = tuple(draw(st.lists(histograms(), max_size=1)))
    scope = otlp.ScopeMetrics(metrics=(*metrics, *more))
    return otlp.MetricsRequest((otlp.ResourceMetrics(resource=resource, scope_metrics=(scope,)),))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(st.lists(requests(), min_size=1, max_size=5))
def test_absurd_numbers_disturb_nothing(pushed: list[otlp.MetricsRequest]) -> None:
    processor, verdicts = FleetProcessor(ThresholdPolicy()), VerdictService()
    processor.on_measurements = lambda request, cluster, now_s, _: verdicts.take(
        request, cluster, now_s
    )
    series = ReceivedSeries("prometheus", 1e9, 1000)
    for number, request in enumerate(pushed):
        for encode, encoding in (
            (encode_protobuf, Encoding.PROTOBUF),
            (encode_json, Encoding.JSON),
        ):
            body = encode(request)
            taken = processor.push(body, encoding, None, NOW_S + number, int(NOW_S * 1e9))
            series.offer(otlp.MetricsRequest, body, encoding, taken)
        processor.tick(NOW_S + number)
        changed = verdicts.tick(NOW_S + number)
        encode_protobuf(encode_verdict_logs(changed, int(NOW_S * 1e9)))
    encode_protobuf(own_series(processor, int(NOW_S * 1e9)))
    page = render([*cluster_families(processor), *verdict_families(verdicts)])
    assert page.isascii()
    asyncio.run(series.render())
    for cluster in processor.clusters.values():
        assert 0.0 <= cluster.served.value <= 1.0
        for node in cluster.roster.rows:
            json.loads(msgspec.json.encode(cluster.roster.row(node, NOW_S).report))
    json.loads(msgspec.json.encode(verdicts.recent_verdicts("c")))
