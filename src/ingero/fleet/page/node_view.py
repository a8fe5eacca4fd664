"""One node beside its median peer: health signals of pushes, and signals of its ranks."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from ingero.contract import names
from ingero.contract.live import Compared
from ingero.contract.otlp.body import Encoding, decode
from ingero.contract.otlp.values import MetricsRequest
from ingero.core.robust import median_and_mad
from ingero.errors import MalformedPush, TooLarge
from ingero.fleet.kept import KeptBody, Key
from ingero.fleet.verdicts import VerdictService

Bodies = Mapping[Key, KeptBody]  # the last push of each node and kind
Push = tuple[bytes, Encoding]
HealthBodies = tuple[Push | None, list[Push]]
MAX_PEERS: Final = 50  # whose last push is decoded
MAX_BODY_BYTES: Final = 1 << 14  # of such a push; agents send a tenth
MAX_JOBS: Final = 16  # of a node
MAD_TO_SPREAD: Final = 1.4826
SIGNALS: Final = {
    names.HEALTH_SCORE: "health score",
    names.THROUGHPUT_RATIO: "throughput",
    names.COMPUTE_EFFICIENCY: "compute efficiency",
    names.MEMORY_HEADROOM: "memory headroom",
    names.CPU_AVAILABILITY: "CPU availability",
}


def own_signals(cluster: str, node: str, verdicts: VerdictService, now_s: float) -> list[Compared]:
    """Return the signals of a node's ranks that their peers have, too."""
    found = [
        _compared(signal, rank, own, peers.median, peers.spread, peers.count)
        for rank, signal, own, peers in verdicts.causes.beside_peers(cluster, node, now_s)
    ]
    return found + _own_times(cluster, node, verdicts)


def beside_peers(found: list[Compared], health: Iterable[HealthBodies]) -> list[Compared]:
    """Add what pushes say, and sort by the largest difference; it decodes up to 51 pushes."""
    for own, peers in health:
        found += _health(own, peers)
    return sorted(found, key=lambda each: -math.inf if each.distance is None else -each.distance)


def _own_times(cluster: str, node: str, verdicts: VerdictService) -> list[Compared]:
    """Compare the own time and lateness of each rank of a node with the other ranks of its job."""
    measured = verdicts.clusters.get(cluster)
    if measured is None:
        return []
    from ingero.fleet.page.job_view import list_ranks, members_by_job  # noqa: PLC0415 - loads the verdict engine

    found, members = [], members_by_job(measured)
    jobs = {job for name, job, _ in measured.members if name == node and job}
    for job in sorted(jobs)[:MAX_JOBS]:
        ranks = list_ranks(measured, members[job])
        for signal, values in (
            ("own time per step, ms", [rank.own_ms for rank in ranks]),
            ("lateness at collectives, ms", [rank.lateness_ms for rank in ranks]),
        ):
            known = [
                (r, value) for r, value in zip(ranks, values, strict=True) if value is not None
            ]
            others = [value for rank, value in known if rank.node_id != node]
            if not others:
                continue
            centre, mad = median_and_mad(others)
            found += [
                _compared(signal, rank.rank, value, centre, MAD_TO_SPREAD * mad, len(others))
                for rank, value in known
                if rank.node_id == node
            ]
    return found


def health_bodies(cluster: str, node: str, kept: Bodies) -> HealthBodies:
    """Return the last health push of a node, and those of some of its peers; large ones are not."""
    own = kept.get((cluster, node, names.HEALTH_SCORE))
    if own is None or len(own.body) > MAX_BODY_BYTES:
        return None, []
    peers = [
        body
        for (in_cluster, name, lead), body in kept.items()
        if in_cluster == cluster
        and name != node
        and lead == names.HEALTH_SCORE
        and len(body.body) <= MAX_BODY_BYTES
    ]
    some = peers[:: max(1, len(peers) // MAX_PEERS)][:MAX_PEERS]
    return (own.body, own.encoding), [(each.body, each.encoding) for each in some]


def _health(own_body: Push | None, peers: list[Push]) -> list[Compared]:
    if own_body is None:
        return []
    own, others = _signals(*own_body), dict[str, list[float]]()
    for body in peers:
        for signal, value in _signals(*body).items():
            others.setdefault(signal, []).append(value)
    found = []
    for signal, value in own.items():
        if signal in others:
            centre, mad = median_and_mad(others[signal])
            spread = MAD_TO_SPREAD * mad
            found.append(_compared(signal, None, value, centre, spread, len(others[signal])))
    return found


def _signals(body: bytes, encoding: Encoding) -> dict[str, float]:
    try:
        request = decode(MetricsRequest, body, encoding)
    except (MalformedPush, TooLarge):  # the fast path accepts some that decoding rejects
        return {}
    return {
        SIGNALS[metric.name]: point.as_double
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name in SIGNALS and metric.gauge is not None
        for point in metric.gauge.data_points[:1]
        if point.as_double is not None and math.isfinite(point.as_double)
    }


def _compared(
    signal: str, rank: int | None, own: float, centre: float, spread: float, peers: int
) -> Compared:
    away = abs(own - centre)
    distance = away / spread if spread > 0 else (0.0 if not away else None)
    return Compared(
        signal=signal,
        rank=rank,
        own=own,
        median=centre,
        peers=peers,
        distance=None if distance is None else round(distance, 2),
    )
