"""Received metrics for a Prometheus server, decoded from the last body per node and kind.

Bodies are kept instead of series, so that a push costs one dictionary entry. A scrape decodes them,
in short slices that leave time for pushes in between. The labels of a node hardly change from push
to push, so their rendered text is cached.
"""

import asyncio
import time
from collections.abc import Generator, Iterable, Iterator
from itertools import accumulate, islice
from typing import Final

from ingero.contract import names
from ingero.contract.exposition import (
    Family,
    counter,
    gauge,
    metric_name,
    render_labels,
    render_value,
)
from ingero.contract.otlp.body import Encoding, decode
from ingero.contract.otlp.exponential import cumulative_buckets
from ingero.contract.otlp.values import (
    HistogramPoint,
    KeyValue,
    Kind,
    Metric,
    MetricsRequest,
    Plain,
    plain_attributes,
)
from ingero.errors import MalformedPush, TooLarge
from ingero.fleet.kept import KeptBodies, KeptBody, Key
from ingero.fleet.processor import Taken
from ingero.fleet.scrape.known import Families, Place, add_known, lines_of
from ingero.fleet.scrape.layout import Layout, layout_of
from ingero.fleet.scrape.room import Room
from ingero.transport.otlp.decoding import INLINE_BYTES, finish_in_slices, without_collector

MAX_KEPT_BYTES: Final = 64 << 20
MAX_KEPT_BODIES: Final = 1 << 17  # small bodies cost more than their bytes
MAX_BODY_BYTES: Final = 256 << 10  # larger bodies hold collectives, which are not scraped
SLICE_S: Final = 0.002  # of work before other tasks of the event loop run
_SLICE_LINES: Final = 500
_RESOURCE_LABELS: Final = {
    names.NODE_ID: "node_id",
    names.CLUSTER_ID: "cluster_id",
    names.JOB_ID: "job_id",
    names.RANK: "rank",
    names.NODE_RANK: "node_rank",
    names.LOCAL_RANK: "local_rank",
    names.ROLE: "role",
    names.PROVIDER: "ingero_provider",
    "service.name": "service_name",
    "service.instance.id": "service_instance_id",
    "host.name": "host_name",
}
_RESOURCE_NAMES: Final = frozenset(_RESOURCE_LABELS.values())
# Values that are new with every event: as labels they would create a series per push
_UNBOUNDED: Final = frozenset(
    {
        names.EVENT_ID,
        names.EPISODE_ID,
        names.CAUSAL_CHAIN_ID,
        names.CAUSE_TEXT,
        names.ASK_NUMBER,
        names.STEP,
        names.STEP_PLACE,
        names.STEP_AFTER_NS,
        names.SAMPLE_WEIGHT,
        names.NCCL_SEQ,
        names.NCCL_GPU_DURATION_NS,
    }
)
_MAX_LABEL_CHARACTERS: Final = 200
_MAX_NAME_CHARACTERS: Final = 200  # of a metric or a label; longer ones are left out
_MAX_HELP_CHARACTERS: Final = 500
_MAX_LABELS: Final = 24
_MAX_TEXTS: Final = 16384
_MAX_LAYOUT_BYTES: Final = 8192  # larger bodies hold steps, which differ from push to push


class ReceivedSeries:
    """A sink that keeps what the next scrape will show."""

    def __init__(
        self, name: str, ttl_s: float, max_series: int, max_bodies: int = MAX_KEPT_BODIES
    ) -> None:
        self.name = name
        self.ttl_s = ttl_s
        self.max_series = max_series
        self.kept = KeptBodies(MAX_BODY_BYTES, MAX_KEPT_BYTES, max_bodies)
        self.unreadable = 0
        self.dropped_series = 0
        self.series = 0
        self._texts: dict[tuple[KeyValue, ...], str] = {}
        # by body: where its numbers are, and the series they belong to; None where that is unknown
        self._layouts: dict[Key, tuple[Layout, list[Place]] | None] = {}
        self._layout_room = Room(max_series)

    def offer(self, kind: Kind, body: bytes, encoding: Encoding, taken: Taken) -> None:
        """Keep a body in place of the last one of the same node and kind."""
        self.kept.keep((taken.cluster, taken.node, taken.lead), body, encoding, time.monotonic())

    @property
    def dropped_bodies(self) -> int:
        """The number of bodies that were too large, too many or not decodable."""
        return self.kept.dropped + self.unreadable

    async def render(self, cluster: str | None = None, slice_s: float = SLICE_S) -> bytes:
        """Return the live series as Prometheus text, of one cluster or of all."""
        return b"".join(await self.render_pieces(cluster, slice_s))

    async def render_pieces(
        self, cluster: str | None = None, slice_s: float = SLICE_S
    ) -> list[bytes]:
        """Return the same text in pieces, because a large one takes long to join."""
        self.kept.expire(time.monotonic() - self.ttl_s)
        # It would look at every sample, again and again, and find no garbage.
        with without_collector():
            return await self._render(cluster, slice_s)

    async def _render(self, cluster: str | None, slice_s: float) -> list[bytes]:
        families: Families = {}
        room = Room(self.max_series)
        total, pause_s = 0, time.perf_counter() + slice_s
        if len(self._layouts) > 2 * len(self.kept.bodies) + _SLICE_LINES:
            self._layouts.clear()  # most of these nodes are gone
            self._layout_room = Room(self.max_series)
        bodies = [
            (key, kept)
            for key, kept in self.kept.bodies.items()
            if cluster is None or key[0] == cluster
        ]
        for key, kept in bodies:
            known = self._layouts.get(key)
            numbers = known[0].read(kept.body) if known is not None else None
            if known is not None and numbers is not None:
                total, dropped = add_known(known[1], numbers, families, total, self.max_series)
                self.dropped_series += dropped
            else:
                adding = self._add_decoded(key, kept, families, room, total, slice_s)
                total = await adding
            if time.perf_counter() > pause_s:
                await asyncio.sleep(0)
                pause_s = time.perf_counter() + slice_s
        self.series = total
        pieces: list[bytes] = []
        for name in sorted(families):
            kind, help, samples = families.pop(name)
            if not samples:
                continue
            pieces.append(f"# HELP {name} {help}\n# TYPE {name} {kind}\n".encode())
            items = iter(samples.items())
            while piece := lines_of(name, islice(items, _SLICE_LINES)):
                pieces.append(piece)
                await asyncio.sleep(0)
        return pieces

    async def _add_decoded(
        self,
        key: Key,
        kept: KeptBody,
        families: Families,
        room: Room,
        total: int,
        slice_s: float,
    ) -> int:
        """Add the series of a body that must be decoded, and learn where its numbers are."""
        body = kept.body
        try:
            request = await _decoded(body, kept.encoding)
        except (MalformedPush, TooLarge):  # the fast path accepts some that decoding rejects
            self.unreadable += 1
            return total
        is_small = kept.encoding is Encoding.PROTOBUF and len(body) <= _MAX_LAYOUT_BYTES
        layout = layout_of(body, request) if is_small else None
        places: list[Place] | None = None if layout is None else []
        adding = self._add(request, key[0], families, room, total, places)
        total = await finish_in_slices(adding, slice_s)
        self._learn(key, layout, places or [])
        return total

    def _learn(self, key: Key, layout: Layout | None, places: list[Place]) -> None:
        """Note which series the numbers of a body belong to, where there is room for that."""
        before = self._layouts.pop(key, None)
        self._layout_room.left += 0 if before is None else _characters(before[1])
        is_whole = layout is not None and layout.points == len(places)
        is_kept = is_whole and self._layout_room.take(_characters(places))
        self._layouts[key] = (layout, places) if layout is not None and is_kept else None

    def _add(
        self,
        request: MetricsRequest,
        cluster: str,
        families: Families,
        room: Room,
        total: int,
        places: list[Place] | None,
    ) -> Generator[None, None, int]:
        """Add the series of a request, with pauses, and return how many there are now."""
        for resource in request.resource_metrics:
            own = _resource_labels(
                resource.resource.attributes if resource.resource else (), cluster
            )
            head = render_labels(tuple(sorted(own.items())))[1:-1]
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                yield
                if len(metric.name) > _MAX_NAME_CHARACTERS:
                    self.dropped_series += 1
                    continue
                name, kind = _name_and_kind(metric)
                if name not in families:
                    families[name] = (kind, _help(metric), {})
                kind, help, samples = families[name]
                for number, sample in enumerate(self._samples(metric, head, own)):
                    if number % _SLICE_LINES == 0:
                        yield
                    at_ns, tail, value = sample
                    if places is not None:
                        places.append((name, kind, help, tail))
                    present = samples.get(tail)
                    if present is None:
                        if total >= self.max_series or not room.take(len(tail)):
                            self.dropped_series += 1
                            continue
                        total += 1
                    elif present[0] > at_ns:
                        continue
                    samples[tail] = (at_ns, value)
        return total

    def _labels(self, attributes: tuple[KeyValue, ...], head: str, own: dict[str, str]) -> str:
        """Return the labels of a point after those of its resource, which win."""
        text = self._texts.get(attributes)
        if text is None:
            pairs = _point_labels(attributes)
            text = render_labels(tuple(sorted(pairs.items())))[1:-1]
            if not pairs.keys().isdisjoint(_RESOURCE_NAMES):
                free = tuple(
                    sorted((name, value) for name, value in pairs.items() if name not in own)
                )
                text = render_labels(free)[1:-1]  # depends on the resource, so it is not cached
            elif len(self._texts) >= _MAX_TEXTS:
                self._texts.clear()
            elif _is_short(attributes):
                self._texts[attributes] = text
        return f"{head},{text}" if head and text else head or text

    def _samples(
        self, metric: Metric, head: str, own: dict[str, str]
    ) -> Iterator[tuple[int, str, str]]:
        """Yield time, the rest of the line before the value, and the value."""
        for point in metric.numbers:
            value = point.as_double if point.as_double is not None else point.as_int
            if value is not None:
                labels = self._labels(point.attributes, head, own)
                yield point.time_unix_nano, f"{{{labels}}}" if labels else "", render_value(value)
        for bucketed in metric.histogram.data_points if metric.histogram else ():
            labels = self._labels(bucketed.attributes, head, own)
            yield from _histogram(
                bucketed.time_unix_nano, labels, _cumulative(bucketed), bucketed.sum, bucketed.count
            )
        for fine in (
            metric.exponential_histogram.data_points if metric.exponential_histogram else ()
        ):
            labels = self._labels(fine.attributes, head, own)
            yield from _histogram(
                fine.time_unix_nano, labels, cumulative_buckets(fine), fine.sum, fine.count
            )
        for summary in metric.summary.data_points if metric.summary else ():
            labels = self._labels(summary.attributes, head, own)
            for quantile in summary.quantile_values:
                tail = _with(labels, "quantile", render_value(quantile.quantile))
                yield summary.time_unix_nano, tail, render_value(quantile.value)
            yield from _totals(summary.time_unix_nano, labels, summary.sum, summary.count)


def series_families(exporters: Iterable[ReceivedSeries]) -> list[Family]:
    """Return the metrics of every Prometheus exporter, labelled with its name."""
    by_name = [((("exporter", series.name),), series) for series in exporters]
    return [
        gauge(
            "ingero_fleet_prometheus_series",
            "Series in the last scrape",
            ((n, s.series) for n, s in by_name),
        ),
        counter(
            "ingero_fleet_prometheus_dropped_series_total",
            "Series left out beyond max_series",
            ((n, s.dropped_series) for n, s in by_name),
        ),
        counter(
            "ingero_fleet_prometheus_dropped_bodies_total",
            "Bodies dropped: too large, too many or not decodable",
            ((n, s.dropped_bodies) for n, s in by_name),
        ),
    ]


def _characters(places: list[Place]) -> int:
    return sum(len(tail) for _, _, _, tail in places)


def _help(metric: Metric) -> str:
    text = (metric.description or metric.name)[:_MAX_HELP_CHARACTERS]
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _name_and_kind(metric: Metric) -> tuple[str, str]:
    name = metric_name(metric.name)
    if metric.sum is not None and metric.sum.is_monotonic:
        return (name if name.endswith("_total") else f"{name}_total"), "counter"
    if metric.histogram is not None or metric.exponential_histogram is not None:
        return name, "histogram"
    if metric.summary is not None:
        return name, "summary"
    return name, "gauge"


def _cumulative(point: HistogramPoint) -> Iterator[tuple[float, int]]:
    return zip(point.explicit_bounds, accumulate(point.bucket_counts), strict=False)


def _histogram(
    at_ns: int, labels: str, buckets: Iterable[tuple[float, int]], total: float | None, count: int
) -> Iterator[tuple[int, str, str]]:
    for bound, up_to in buckets:
        yield at_ns, f"_bucket{_with(labels, 'le', render_value(bound))}", str(up_to)
    yield at_ns, f"_bucket{_with(labels, 'le', '+Inf')}", str(count)
    yield from _totals(at_ns, labels, total, count)


def _totals(
    at_ns: int, labels: str, total: float | None, count: int
) -> Iterator[tuple[int, str, str]]:
    tail = f"{{{labels}}}" if labels else ""
    if total is not None:
        yield at_ns, f"_sum{tail}", render_value(total)
    yield at_ns, f"_count{tail}", str(count)


def _with(labels: str, name: str, value: str) -> str:
    return f'{{{labels},{name}="{value}"}}' if labels else f'{{{name}="{value}"}}'


def _resource_labels(attributes: tuple[KeyValue, ...], cluster: str) -> dict[str, str]:
    found = plain_attributes(attributes)
    own = {label: _label(found[key]) for key, label in _RESOURCE_LABELS.items() if key in found}
    if cluster:
        own["cluster_id"] = cluster  # as Fleet assigned it, perhaps from the query
    return own


def _point_labels(attributes: tuple[KeyValue, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for attribute in attributes[:_MAX_LABELS]:
        value = attribute.value
        if value is None or value.double_value is not None or attribute.key in _UNBOUNDED:
            continue  # a measured number is not a label
        if len(attribute.key) > _MAX_NAME_CHARACTERS:
            continue
        plain = plain_attributes((attribute,))[attribute.key]
        if isinstance(plain, str | bool | int):
            pairs.setdefault(metric_name(attribute.key), _label(plain))
    return pairs


def _label(value: Plain) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) <= _MAX_LABEL_CHARACTERS:
        return text
    return f"{text[: _MAX_LABEL_CHARACTERS - 1]}…"


def _is_short(attributes: tuple[KeyValue, ...]) -> bool:
    """True for attributes that may be kept: the sender chooses how long they are."""
    return len(attributes) <= _MAX_LABELS and all(
        len(attribute.key) <= _MAX_NAME_CHARACTERS
        and attribute.value is not None
        and len(attribute.value.string_value or "") <= _MAX_LABEL_CHARACTERS
        and attribute.value.array_value is None
        and attribute.value.kvlist_value is None
        and attribute.value.bytes_value is None
        for attribute in attributes
    )


async def _decoded(body: bytes, encoding: Encoding) -> MetricsRequest:
    if len(body) <= INLINE_BYTES:
        return decode(MetricsRequest, body, encoding)
    return await asyncio.to_thread(decode, MetricsRequest, body, encoding)
