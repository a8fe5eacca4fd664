"""Texts of any length in any field of a push: what Fleet keeps of them has a limit."""

import pytest
from tests.support.pushes import health

from ingero.contract import names
from ingero.contract.measurements.collectives import decode_collective
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.contract.push.decode import MAX_ID_BYTES, MAX_LABEL_CHARACTERS, problem_with_id
from ingero.core.health.threshold import ThresholdPolicy
from ingero.fleet import processor as processor_module
from ingero.fleet import verdicts as verdicts_module
from ingero.fleet.processor import FleetProcessor, Taken
from ingero.fleet.series import ReceivedSeries
from ingero.fleet.verdicts import VerdictService

LONG = "x" * 20_000
ENCODERS = ((encode_protobuf, Encoding.PROTOBUF), (encode_json, Encoding.JSON))


def pushed(processor: FleetProcessor, request: otlp.MetricsRequest, encoding: Encoding) -> Taken:
    encode = encode_json if encoding is Encoding.JSON else encode_protobuf
    return processor.push(encode(request), encoding, None, 1.0, 1)


def with_labels(text: str) -> otlp.MetricsRequest:
    """A push whose every label is `text`."""
    labels = otlp.attributes(
        {
            names.NODE_STATE: "active",
            names.WORKLOAD_TYPE: text,
            names.DETECTION_MODE: text,
            names.GPU_MODEL: text,
        }
    )
    point = otlp.NumberPoint(attributes=labels, as_double=0.9, time_unix_nano=1)
    metrics = tuple(
        otlp.Metric(name=name, gauge=otlp.Gauge(data_points=(point,)))
        for name in (names.HEALTH_SCORE, names.AGENT_DETECTION_MODE, names.NODE_INFO)
    )
    who = {names.NODE_ID: "a", names.CLUSTER_ID: "train", names.PROVIDER: text}
    resource = otlp.Resource(attributes=otlp.attributes(dict(who)))
    scope = otlp.ScopeMetrics(metrics=metrics)
    return otlp.MetricsRequest((otlp.ResourceMetrics(resource=resource, scope_metrics=(scope,)),))


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("size", [MAX_LABEL_CHARACTERS, MAX_LABEL_CHARACTERS + 1, 50_000])
def test_labels_are_cut_visibly(encoding: Encoding, size: int) -> None:
    processor = FleetProcessor(ThresholdPolicy())
    for _ in range(2):  # the first push of a node takes another way than later ones
        pushed(processor, with_labels("x" * size), encoding)
    report = processor.clusters["train"].roster.row("a", 1.0).report
    for label in (report.gpu_model, report.workload, report.provider, report.mode):
        assert label is not None
        assert len(label) == MAX_LABEL_CHARACTERS
        assert label.endswith("…") == (size > MAX_LABEL_CHARACTERS)


@pytest.mark.parametrize("encoding", Encoding)
def test_long_identities_are_refused(encoding: Encoding) -> None:
    """Cutting them would make one node of two. The limit is in bytes."""
    processor = FleetProcessor(ThresholdPolicy())
    for node in ("x" * (MAX_ID_BYTES + 1), "é" * 127, LONG):
        taken = pushed(processor, health(node, 0.9), encoding)
        assert taken.partial is not None
        assert "too long" in taken.partial.message
    assert pushed(processor, health("é" * 126, 0.9), encoding).partial is None
    assert list(processor.clusters["train"].roster.rows) == ["é" * 126]


def test_all_clusters_together_have_a_limited_number_of_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor_module, "MAX_NODES", 6)
    processor = FleetProcessor(ThresholdPolicy(), max_nodes=4)
    for number in range(9):
        request = health(f"n{number}", 0.9, cluster=f"c{number % 3}")
        taken = pushed(processor, request, Encoding.PROTOBUF)
        assert (taken.partial is None) == (number < 6)
    assert processor.counters.rejected[processor_module.Reject.TOO_MANY_NODES] == 3
    processor.tick(1e9)  # everybody is silent for long
    assert processor.nodes == 0


def measured(text: str, field: str) -> otlp.MetricsRequest:
    who: dict[str, otlp.Plain] = {names.NODE_ID: "a", names.RANK: 0, names.JOB_ID: "j"}
    point = otlp.NumberPoint(attributes=otlp.attributes({names.STEP: 1}), as_double=9.0)
    metric = otlp.Metric(name=names.STEP_OWN_TIME_MS, gauge=otlp.Gauge(data_points=(point,)))
    resource = otlp.Resource(attributes=otlp.attributes({**who, field: text}))
    scope = otlp.ScopeMetrics(metrics=(metric,))
    return otlp.MetricsRequest((otlp.ResourceMetrics(resource=resource, scope_metrics=(scope,)),))


@pytest.mark.parametrize("field", [names.NODE_ID, names.JOB_ID, names.ROLE])
def test_members_with_long_identities_are_refused(field: str) -> None:
    verdicts = VerdictService()
    verdicts.take(measured(LONG, field), "train", 1.0)
    assert (verdicts.counters.malformed, verdicts.counters.own_times) == (1, 0)
    verdicts.take(measured("fine", field), "train", 1.0)
    assert verdicts.counters.own_times == 1


def test_gpu_models_of_members_are_cut() -> None:
    verdicts = VerdictService()
    verdicts.take(measured(LONG, names.GPU_MODEL), "train", 1.0)
    (member,) = [each for each in verdicts.clusters["train"].engine.registry.members if each]
    assert len(member.gpu_model) == MAX_LABEL_CHARACTERS


def test_collectives_of_all_clusters_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts_module, "MAX_PENDING_COLLECTIVES", 5)
    verdicts = VerdictService()
    for cluster in ("a", "b"):
        verdicts.take(collectives(4), cluster, 1.0)
    assert (verdicts.counters.collectives, verdicts.counters.overflow) == (5, 3)
    verdicts.tick(2.0)
    verdicts.take(collectives(4), "b", 3.0)
    assert verdicts.counters.collectives == 9


def collectives(count: int, op: str = "AllReduce") -> otlp.MetricsRequest:
    values: dict[str, otlp.Plain] = {
        names.NCCL_OP: op, names.NCCL_COMM: "ab", names.NCCL_RANK: 0, names.NCCL_NRANKS: 2,
    }  # fmt: skip
    points = tuple(
        otlp.NumberPoint(
            attributes=otlp.attributes({**values, names.NCCL_SEQ: number}),
            start_time_unix_nano=10,
            time_unix_nano=20,
            as_double=1.0,
        )
        for number in range(count)
    )
    metric = otlp.Metric(name=names.COLLECTIVE_DURATION_MS, gauge=otlp.Gauge(data_points=points))
    who = otlp.attributes({names.NODE_ID: "a", names.RANK: 0, names.JOB_ID: "j"})
    scope = otlp.ScopeMetrics(metrics=(metric,))
    resource = otlp.Resource(attributes=who)
    return otlp.MetricsRequest((otlp.ResourceMetrics(resource=resource, scope_metrics=(scope,)),))


def test_collectives_with_long_names_are_malformed() -> None:
    verdicts = VerdictService()
    verdicts.take(collectives(3, op=LONG), "a", 1.0)
    assert (verdicts.counters.malformed, verdicts.counters.collectives) == (3, 0)
    point = collectives(1).resource_metrics[0].scope_metrics[0].metrics[0].numbers[0]
    assert decode_collective(point, {}).op == "AllReduce"


async def test_series_keep_no_long_texts() -> None:
    """Names of metrics and labels that are too long are left out; values of labels are cut."""
    series = ReceivedSeries("prometheus", 1e9, 1000)
    point = otlp.NumberPoint(
        attributes=otlp.attributes({LONG: "a", "value": LONG, "short": "b"}), as_double=1.0
    )
    metrics = tuple(
        otlp.Metric(name=name, description=LONG, gauge=otlp.Gauge(data_points=(point, point)))
        for name in ("m", LONG)
    )
    resource = otlp.Resource(attributes=otlp.attributes({names.NODE_ID: "a"}))
    scope = otlp.ScopeMetrics(metrics=metrics)
    request = otlp.MetricsRequest(
        (otlp.ResourceMetrics(resource=resource, scope_metrics=(scope,)),)
    )
    for number, (encode, encoding) in enumerate(ENCODERS):
        taken = Taken("train", f"n{number}", "m")
        series.offer(otlp.MetricsRequest, encode(request), encoding, taken)
    page = (await series.render()).decode()
    assert max(len(line) for line in page.splitlines()) < 1000
    assert 'short="b"' in page
    assert "…" in page
    assert series.dropped_series == 2
    assert not series._texts


def test_ids_are_measured_in_bytes() -> None:
    assert problem_with_id("é" * 127)
    assert not problem_with_id("é" * 126)
