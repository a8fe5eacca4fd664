"""A scrape that reads numbers at known places shows what a scrape that decodes everything shows."""

import struct

from hypothesis import given
from hypothesis import strategies as st
from tests.support.pushes import health, request

from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import decode_protobuf, encode_protobuf
from ingero.contract.otlp.values import (
    Gauge,
    Histogram,
    HistogramPoint,
    Metric,
    MetricsRequest,
    NumberPoint,
    Sum,
    attributes,
)
from ingero.fleet.processor import Taken
from ingero.fleet.scrape.layout import layout_of
from ingero.fleet.series import ReceivedSeries

NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1))
NAMES = st.sampled_from(["a", "b.c", "x" * 300])


def push(values: list[tuple[str, float]], at_ns: int, label: str = "k") -> MetricsRequest:
    metrics = []
    for number, (name, value) in enumerate(values):
        is_int = isinstance(value, int)
        point = NumberPoint(
            attributes=attributes({label: number}),
            as_int=value if is_int else None,
            as_double=None if is_int else value,
            time_unix_nano=at_ns,
        )
        if is_int:
            metrics.append(Metric(name=name, sum=Sum(data_points=(point,), is_monotonic=True)))
        else:
            metrics.append(Metric(name=name, gauge=Gauge(data_points=(point,))))
    return request({"ingero.node.id": "n"}, *metrics)


async def shown(series: ReceivedSeries, *requests: MetricsRequest) -> bytes:
    for one in requests:
        taken = Taken("c", "n", "lead")
        series.offer(MetricsRequest, encode_protobuf(one), Encoding.PROTOBUF, taken)
    return await series.render()


@given(
    first=st.lists(st.tuples(NAMES, NUMBERS), min_size=1, max_size=5),
    second=st.lists(NUMBERS, min_size=5, max_size=5),
    label=st.sampled_from(["k", "other"]),
    at_ns=st.integers(1, 2**63),
)
async def test_a_second_scrape_shows_what_a_first_one_would(
    first: list[tuple[str, float]], second: list[float], label: str, at_ns: int
) -> None:
    later = push([(n, v) for (n, _), v in zip(first, second, strict=False)], at_ns, label)
    known, fresh = ReceivedSeries("p", 60.0, 1000), ReceivedSeries("p", 60.0, 1000)
    await shown(known, push(first, 1))
    assert await shown(known, later) == await shown(fresh, later)


def test_numbers_are_read_where_they_are_and_nowhere_else() -> None:
    body = encode_protobuf(health("n1", 0.5, sent_ns=17))
    layout = layout_of(body, decode_protobuf(MetricsRequest, body))
    assert layout is not None
    assert layout.read(encode_protobuf(health("n1", 0.25, sent_ns=18))) == (18, 0.25)
    assert layout.read(encode_protobuf(health("n2", 0.25, sent_ns=18))) is None
    assert layout.read(body + b"\x00") is None


def test_other_kinds_of_points_have_no_layout() -> None:
    point = HistogramPoint(count=1, bucket_counts=(1,), explicit_bounds=(), time_unix_nano=1)
    histogram = Metric(name="h", histogram=Histogram(data_points=(point,)))
    body = encode_protobuf(request({"ingero.node.id": "n"}, histogram))
    assert layout_of(body, decode_protobuf(MetricsRequest, body)) is None
    for damaged in (b"\x0a\xff", struct.pack("<B", 9), b"\xff" * 12):
        assert layout_of(damaged, MetricsRequest(())) is None


async def test_no_series_is_added_beyond_the_limit_by_known_places() -> None:
    series = ReceivedSeries("p", 60.0, 1)
    values: list[tuple[str, float]] = [("a", 1.0), ("b.c", 2.0)]
    await shown(series, push(values, 1))
    before = series.dropped_series
    assert b"b_c{" not in await shown(series, push(values, 2))
    assert series.dropped_series == before + 1
