"""Received metrics for a Prometheus server: the last body per node and kind is kept, and read when somebody scrapes.

Keeping bodies instead of series makes the push path pay one dictionary entry; the scrape pays for decoding, in slices
that leave room for pushes in between.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from ingero.contract import names
from ingero.contract.exposition import Family, Labels, counter, gauge, metric_name, render_labels, render_value
from ingero.contract.otlp import (
    HistogramPoint,
    KeyValue,
    Kind,
    Metric,
    MetricsRequest,
    NumberPoint,
    Plain,
    SummaryPoint,
    plain_attributes,
)
from ingero.contract.otlp_body import Encoding, decode
from ingero.errors import MalformedPush
from ingero.fleet.processor import Taken

MAX_KEPT_BYTES: Final = 64 << 20
MAX_KEPT_BODIES: Final = 1 << 17  # small bodies cost more than their bytes
MAX_BODY_BYTES: Final = 256 << 10  # a larger body holds events (collectives), which are not for scraping
_SLICE: Final = 50  # bodies decoded between two looks at the sockets
_RESOURCE_LABELS: Final = {
    names.NODE_ID: "node_id",
    names.CLUSTER_ID: "cluster_id",
    names.JOB_ID: "job_id",
    names.RANK: "rank",
    names.NODE_RANK: "node_rank",
    names.LOCAL_RANK: "local_rank",
    names.ROLE: "role",
    names.PROVIDER: "provider",
    "service.name": "service_name",
    "service.instance.id": "service_instance_id",
    "host.name": "host_name",
}
# Values of these are new with every event: as labels they would make a series per push
_UNBOUNDED: Final = frozenset(
    {names.EVENT_ID, names.EPISODE_ID, names.CAUSAL_CHAIN_ID, names.STEP, names.NCCL_SEQ, names.NCCL_GPU_DURATION_NS}
)
_MAX_LABEL_CHARACTERS: Final = 200
_MAX_LABELS: Final = 24
Sample = tuple[int, str]  # (time in ns, rendered value)


class ReceivedSeries:
    """A sink that remembers what to show."""

    def __init__(self, ttl_s: float, max_series: int) -> None:
        self.ttl_s = ttl_s
        self.max_series = max_series
        self._kept: dict[tuple[str, str, str], tuple[float, bytes, Encoding]] = {}
        self._kept_bytes = 0
        self.dropped_bodies = 0
        self.dropped_series = 0
        self.series = 0

    def offer(self, kind: Kind, body: bytes, encoding: Encoding, taken: Taken) -> None:
        """Keep a body in place of the one that said the same things about the same node."""
        if len(body) > MAX_BODY_BYTES:
            self.dropped_bodies += 1
            return
        key = (taken.cluster, taken.node, taken.lead)
        before = self._kept.get(key)
        self._kept_bytes += len(body) if before is None else len(body) - len(before[1])
        self._kept[key] = (time.monotonic(), body, encoding)
        if self._kept_bytes > MAX_KEPT_BYTES or len(self._kept) > MAX_KEPT_BODIES:
            self._make_room()

    def _make_room(self) -> None:
        """Drop the quarter that is oldest; rare, so that keeping order need not be paid for with every push."""
        for key in sorted(self._kept, key=lambda key: self._kept[key][0])[: 1 + len(self._kept) // 4]:
            self._kept_bytes -= len(self._kept.pop(key)[1])
            self.dropped_bodies += 1

    def _expire(self) -> None:
        horizon = time.monotonic() - self.ttl_s
        for key in [key for key, (at_s, _, _) in self._kept.items() if at_s < horizon]:
            self._kept_bytes -= len(self._kept.pop(key)[1])

    async def render(self) -> bytes:
        """Everything alive as Prometheus text."""
        self._expire()
        families: dict[str, tuple[str, str, dict[str, Sample]]] = {}
        total = 0
        for number, ((cluster, _, _), (_, body, encoding)) in enumerate(list(self._kept.items())):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            try:
                request = decode(MetricsRequest, body, encoding)
            except MalformedPush:  # the short cut took it; nobody else must
                self.dropped_bodies += 1
                continue
            total = self._add(request, cluster, families, total)
        self.series = total
        pieces: list[bytes] = []
        for name, (kind, help, samples) in sorted(families.items()):
            if not samples:
                continue
            lines = [f"# HELP {name} {help}\n# TYPE {name} {kind}\n"]
            lines += [f"{name}{tail} {samples[tail][1]}\n" for tail in sorted(samples)]
            pieces.append("".join(lines).encode())
            await asyncio.sleep(0)
        return b"".join(pieces)

    def _add(
        self,
        request: MetricsRequest,
        cluster: str,
        families: dict[str, tuple[str, str, dict[str, Sample]]],
        total: int,
    ) -> int:
        for resource in request.resource_metrics:
            own = _resource_labels(resource.resource.attributes if resource.resource else (), cluster)
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                name, kind = _name_and_kind(metric)
                help = (metric.description or metric.name).replace("\\", "\\\\").replace("\n", "\\n")
                samples = families.setdefault(name, (kind, help, {}))[2]
                for at_ns, tail, value in _samples(metric, own):
                    known = samples.get(tail)
                    if known is None:
                        if total >= self.max_series:
                            self.dropped_series += 1
                            continue
                        total += 1
                    elif known[0] > at_ns:
                        continue
                    samples[tail] = (at_ns, value)
        return total

    def families(self) -> list[Family]:
        """How this exporter is doing."""
        return [
            gauge("ingero_fleet_prometheus_series", "Series in the last scrape", [((), self.series)]),
            counter("ingero_fleet_prometheus_dropped_series_total", "Beyond max_series", [((), self.dropped_series)]),
            counter("ingero_fleet_prometheus_dropped_bodies_total", "Not kept", [((), self.dropped_bodies)]),
        ]


def _name_and_kind(metric: Metric) -> tuple[str, str]:
    name = metric_name(metric.name)
    if metric.sum is not None and metric.sum.is_monotonic:
        return (name if name.endswith("_total") else f"{name}_total"), "counter"
    if metric.histogram is not None:
        return name, "histogram"
    if metric.summary is not None:
        return name, "summary"
    return name, "gauge"


def _samples(metric: Metric, own: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """(time, rest of the line before the value, value); exponential histograms have no text form and are left out."""
    for point in metric.numbers:
        value = point.as_double if point.as_double is not None else point.as_int
        if value is not None:
            yield point.time_unix_nano, render_labels(_labels(point, own)), render_value(value)
    for bucketed in metric.histogram.data_points if metric.histogram else ():
        yield from _histogram(bucketed, _labels(bucketed, own))
    for summary in metric.summary.data_points if metric.summary else ():
        pairs = _labels(summary, own)
        for quantile in summary.quantile_values:
            at = (*pairs, ("quantile", render_value(quantile.quantile)))
            yield summary.time_unix_nano, render_labels(at), render_value(quantile.value)
        yield summary.time_unix_nano, f"_sum{render_labels(pairs)}", render_value(summary.sum)
        yield summary.time_unix_nano, f"_count{render_labels(pairs)}", str(summary.count)


def _histogram(point: HistogramPoint, pairs: Labels) -> Iterator[tuple[int, str, str]]:
    running = 0
    bounds = [render_value(bound) for bound in point.explicit_bounds]
    for bound, count in zip((*bounds, "+Inf"), point.bucket_counts, strict=False):
        running += count
        yield point.time_unix_nano, f"_bucket{render_labels((*pairs, ('le', bound)))}", str(running)
    if point.sum is not None:
        yield point.time_unix_nano, f"_sum{render_labels(pairs)}", render_value(point.sum)
    yield point.time_unix_nano, f"_count{render_labels(pairs)}", str(point.count)


def _resource_labels(attributes: tuple[KeyValue, ...], cluster: str) -> dict[str, str]:
    found = plain_attributes(attributes)
    own = {label: _label(found[key]) for key, label in _RESOURCE_LABELS.items() if key in found}
    if cluster:
        own["cluster_id"] = cluster  # where Fleet put it, which the query may have decided
    return own


def _labels(point: NumberPoint | HistogramPoint | SummaryPoint, own: dict[str, str]) -> Labels:
    pairs = dict(own)
    for attribute in point.attributes[:_MAX_LABELS]:
        value = attribute.value
        if value is None or value.double_value is not None or attribute.key in _UNBOUNDED:
            continue  # a measured number is not a label
        plain = plain_attributes((attribute,))[attribute.key]
        if isinstance(plain, str | bool | int):
            pairs.setdefault(metric_name(attribute.key), _label(plain))
    return tuple(sorted(pairs.items()))


def _label(value: Plain) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text[:_MAX_LABEL_CHARACTERS]
