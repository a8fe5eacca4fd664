"""F037: the series that a Prometheus server scrapes on :9090."""

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.pushes import health, request

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.fleet.processor import Taken
from ingero.fleet.scrape.room import LINE_CHARACTERS
from ingero.fleet.series import ReceivedSeries

Sample = tuple[str, dict[str, str], float]


def kept(*bodies: otlp.MetricsRequest, encoding: Encoding = Encoding.PROTOBUF) -> ReceivedSeries:
    found = ReceivedSeries("prometheus", 60.0, 1000)
    encode = encode_json if encoding is Encoding.JSON else encode_protobuf
    for number, body in enumerate(bodies):
        found.offer(otlp.MetricsRequest, encode(body), encoding, Taken("c", f"n{number}"))
    return found


async def samples(found: ReceivedSeries) -> list[Sample]:
    """Parse the page with Prometheus' own library."""
    families = text_string_to_metric_families((await found.render()).decode())
    return [
        (sample.name, sample.labels, sample.value)
        for family in families
        for sample in family.samples
    ]


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_exponential_histograms_become_buckets(encoding: Encoding) -> None:
    point = otlp.ExponentialHistogramPoint(
        attributes=otlp.attributes({"op": "allreduce"}),
        count=7,
        sum=12.5,
        zero_count=1,
        positive=otlp.Buckets(offset=0, bucket_counts=(2, 4)),
    )
    metric = otlp.Metric(
        name="step.ms", exponential_histogram=otlp.ExponentialHistogram(data_points=(point,))
    )
    own = {"cluster_id": "c", "node_id": "a", "op": "allreduce"}
    assert await samples(kept(request({names.NODE_ID: "a"}, metric), encoding=encoding)) == [
        ("step_ms_bucket", {**own, "le": "0"}, 1.0),
        ("step_ms_bucket", {**own, "le": "2"}, 3.0),
        ("step_ms_bucket", {**own, "le": "4"}, 7.0),
        ("step_ms_bucket", {**own, "le": "+Inf"}, 7.0),
        ("step_ms_sum", own, 12.5),
        ("step_ms_count", own, 7.0),
    ]


async def test_a_point_cannot_rename_its_node_and_quotes_stay_inside() -> None:
    """The same attributes with resources that name a node and one that does not."""
    point = otlp.NumberPoint(
        attributes=otlp.attributes({"node_id": "x", "why": 'a "b"\\\n'}), as_double=1.0
    )
    metric = otlp.Metric(name="m", gauge=otlp.Gauge(data_points=(point,)))
    named, nameless = request({names.NODE_ID: "a"}, metric), request({}, metric)
    assert await samples(kept(named, nameless, named)) == [
        ("m", {"cluster_id": "c", "node_id": "a", "why": 'a "b"\\\n'}, 1.0),
        ("m", {"cluster_id": "c", "node_id": "x", "why": 'a "b"\\\n'}, 1.0),
    ]


async def test_one_cluster_can_be_scraped_alone() -> None:
    found = ReceivedSeries("prometheus", 60.0, 1000)
    for cluster in ("a", "b"):
        body = encode_protobuf(health("n", 0.9, cluster=cluster))
        taken = Taken(cluster, "n", names.HEALTH_SCORE)
        found.offer(otlp.MetricsRequest, body, Encoding.PROTOBUF, taken)
    page = await found.render("b")
    assert b'cluster_id="b"' in page and b'cluster_id="a"' not in page
    assert b'cluster_id="a"' in await found.render()
    assert await found.render("other") == b""


async def test_a_scrape_lets_other_tasks_run_in_between() -> None:
    """Pushes are answered while a large cluster is scraped."""
    found = kept(*(health(f"n{number}", 0.9) for number in range(50)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(count())
    page = await found.render(slice_s=0.0)
    others.cancel()
    assert page.count(b"ingero_node_health_score{") == 50
    assert turns >= 50


def _values() -> Iterator[tuple[otlp.NumberPoint, str]]:
    yield otlp.NumberPoint(as_double=float("nan")), "nan"
    yield otlp.NumberPoint(as_double=float("-inf")), "-inf"
    yield otlp.NumberPoint(as_int=2**53 + 1), "9007199254740993"
    yield otlp.NumberPoint(as_double=0.0), "0"


@pytest.mark.parametrize(("point", "value"), list(_values()))
async def test_values_of_every_kind(point: otlp.NumberPoint, value: str) -> None:
    metric = otlp.Metric(name="m", gauge=otlp.Gauge(data_points=(point,)))
    ((_, _, found),) = await samples(kept(request({}, metric)))
    assert str(found) == value


def wide(node: str, buckets: int) -> otlp.MetricsRequest:
    """A push of which each bucket, nine bytes, becomes a line of ten kilobytes."""
    labels = otlp.attributes({f"k{number}" + "K" * 180: "v" * 199 for number in range(24)})
    bounds = tuple(float(number) for number in range(buckets - 1))
    point = otlp.HistogramPoint(
        attributes=labels, count=1, bucket_counts=(0,) * buckets, explicit_bounds=bounds
    )
    histogram = otlp.Histogram(data_points=(point,))
    return request({names.NODE_ID: node}, otlp.Metric(name="h", histogram=histogram))


async def test_a_scrape_is_limited_in_characters() -> None:
    """40 pushes of 219 KB made a scrape of 2.1 GB, which held the event loop for 5 s."""
    usual = kept(health("n", 0.9))
    lines = (await usual.render()).decode().splitlines()
    found = kept(wide("a", 900), wide("b", 900))
    page = await found.render()
    assert 1 < found.series < 40
    assert len(page) < 1000 * LINE_CHARACTERS
    assert found.dropped_series > 1700
    assert max(map(len, lines)) < LINE_CHARACTERS, "usual lines fit"


async def test_what_is_learned_about_bodies_is_limited_in_characters() -> None:
    """A body of 8 KB has hundreds of points, each with all labels of its resource."""
    attributes = {names.NODE_ID: "n", names.JOB_ID: "j" * 199, "host.name": "h" * 199}
    numbers = otlp.Gauge(
        data_points=tuple(
            otlp.NumberPoint(as_double=1.0, time_unix_nano=1, attributes=otlp.attributes({"a": i}))
            for i in range(100)
        )
    )
    body = request(attributes, otlp.Metric(name="m", gauge=numbers))
    found = kept(*[body] * 20)
    await found.render()
    learned = [places for _, places in filter(None, found._layouts.values())]
    assert 1 < len(learned) < 20
    assert sum(len(tail) for places in learned for *_, tail in places) <= 1000 * LINE_CHARACTERS
