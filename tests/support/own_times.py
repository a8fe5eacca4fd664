"""Own times for tests: pushes, and columns as the full decoder returns them."""

from collections.abc import Sequence

import numpy as np

from ingero.contract.collective import CollectiveSource
from ingero.contract.measurements.fields import source_or_none
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.measurements.own_time_columns import OwnTimeColumns
from ingero.contract.measurements.ranks import Measured, RankReport, encode_rank
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.types import Identity

T0_NS = 1_800_000_000 * 10**9


def as_measured(columns: OwnTimeColumns) -> list[Measured]:
    """Return columns as `decode_ranks` returns the same push."""
    ends = np.cumsum(columns.counts).tolist()
    rows = list(
        zip(
            *columns.numbers.tolist(),
            *columns.times_ms.tolist(),
            columns_sources(columns),
            strict=True,
        )
    )
    return [
        Measured(
            columns.attributes(place),
            tuple(
                OwnTime(
                    step=None if step < 0 else step,
                    count=count,
                    own_ms=own_ms,
                    idle_ms=idle_ms,
                    span_ms=span_ms,
                    end_ns=end_ns % 2**64,
                    source=source_or_none(source),
                )
                for step, count, end_ns, own_ms, idle_ms, span_ms, source in rows[
                    end - columns.counts[place] : end
                ]
            ),
            (),
            0,
        )
        for place, end in enumerate(ends)
    ]


def columns_sources(columns: OwnTimeColumns) -> list[str]:
    """Return the source of each own time."""
    pairs = zip(columns.sources, columns.counts, strict=True)
    return [source.decode() for source, count in pairs for _ in range(count)]


def rank_push(
    node: int, first_step: int, *, ranks: int = 8, steps: int = 10, nodes: int = 64, slow: float = 0
) -> bytes:
    """Return a push of the ranks of one node as its agent sends it every second."""
    chance = np.random.default_rng((node, first_step))
    reports = [
        RankReport(
            Identity(
                node=f"gpu-node-{node:05d}",
                cluster="bench",
                job="job-1",
                rank=node * ranks + rank,
                local_rank=rank,
                world_size=nodes * ranks,
                provider="lambda",
                gpu_model="NVIDIA H100 80GB HBM3",
            ),
            tuple(
                OwnTime(
                    step=first_step + step,
                    own_ms=(100.0 + float(chance.normal(0, 0.3))) * (1 + slow * (rank == 0)),
                    idle_ms=3.25 + rank * 0.01,
                    span_ms=130.5 + step * 0.07,
                    end_ns=T0_NS + (first_step + step) * 10**8,
                    source=CollectiveSource.PLUGIN,
                )
                for step in range(steps)
            ),
            (),
        )
        for rank in range(ranks)
    ]
    return encode_reports(reports)


def encode_reports(reports: Sequence[RankReport]) -> bytes:
    """Return the body of a push with one resource per report."""
    return encode_protobuf(MetricsRequest(tuple(encode_rank(report) for report in reports)))
