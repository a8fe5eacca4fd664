"""GPUs of each cluster by model and provider: how many, what an hour costs, and how many are idle.

Idle GPUs are those of nodes whose agent reports that nothing runs on them. What they cost is not
the price of a loss, which belongs to a slow rank, nor that of waiting at collectives.
"""

import logging
import math
from collections import Counter
from collections.abc import Generator
from typing import Final

from ingero.config.rates import RateTable
from ingero.contract import names
from ingero.contract.exposition import Family, Labels, gauge
from ingero.contract.fleet_api import IdleGpus
from ingero.contract.push.decode import STATES
from ingero.fleet.processor import FleetProcessor
from ingero.transport.otlp.decoding import finish

MAX_HINTS: Final = 32
_IDLE: Final = STATES.index("idle")
_SLICE: Final = 5000  # nodes that are counted without a pause
Kind = tuple[str, str, str]  # cluster, model, provider
log = logging.getLogger(__name__)


class GpuPrices:
    """Prices of the GPUs that nodes report; each model without a price is a hint in the log."""

    def __init__(self, rates: RateTable) -> None:
        self._rates = rates
        self._hinted: set[tuple[str, str]] = set()

    def families(self, processor: FleetProcessor) -> list[Family]:
        """Return the metrics; those about money only where a price is known."""
        gpus, idle = finish(_count(processor))
        price = {kind: self.price(kind[2], kind[1]) for kind in gpus}
        known = {kind: rate for kind, rate in price.items() if not math.isnan(rate)}
        return [
            gauge("ingero_fleet_gpus", "GPUs of nodes that push", _samples(gpus)),
            gauge(
                "ingero_fleet_gpu_usd_per_hour",
                "Price of one GPU for an hour, where it is known",
                _samples(known),
            ),
            gauge("ingero_fleet_idle_gpus", "GPUs of nodes on which nothing runs", _samples(idle)),
            gauge(
                names.FLEET_IDLE_GPU_COST,
                "What GPUs of nodes on which nothing runs cost",
                _samples({kind: idle[kind] * rate for kind, rate in known.items()}),
            ),
        ]

    def update(self, processor: FleetProcessor) -> Generator[None, None, None]:
        """Set what is idle in every cluster, and what that costs, with pauses."""
        idle: dict[str, list[tuple[int, float]]] = {}
        _, idle_gpus = yield from _count(processor)
        for (where, model, provider), gpus in idle_gpus.items():
            if gpus:
                idle.setdefault(where, []).append((gpus, self.price(provider, model)))
        for name, cluster in processor.clusters.items():
            found = idle.get(name, [])
            cluster.idle_gpus = IdleGpus(
                gpus=sum(gpus for gpus, _ in found),
                usd_per_hour=sum(gpus * rate for gpus, rate in found if not math.isnan(rate)),
                unpriced=sum(gpus for gpus, rate in found if math.isnan(rate)),
            )

    def price(self, provider: str, model: str) -> float:
        """Return the price of a GPU hour, NaN if it is unknown, with one hint per model."""
        rate = self._rates.find(provider, model)
        if rate is not None:
            return rate
        if (provider, model) not in self._hinted and len(self._hinted) < MAX_HINTS:
            self._hinted.add((provider, model))
            hint = self._rates.hint(provider, model, "processors.ingero.verdict.rates_file")
            log.warning("no_price", extra={"gpu_model": model, "next": hint})
        return math.nan


def _count(
    processor: FleetProcessor,
) -> Generator[None, None, tuple[Counter[Kind], Counter[Kind]]]:
    """Count GPUs of nodes that are not silent, and of them those of idle nodes, with pauses."""
    gpus: Counter[Kind] = Counter()
    idle: Counter[Kind] = Counter()
    for name, cluster in sorted(processor.clusters.items()):
        roster = cluster.roster
        newest_s = float(roster.seen_s.max(initial=-math.inf))
        for number, row in enumerate(list(roster.rows.values())):
            if number % _SLICE == 0:
                yield
            report = roster.reports[row]
            if report is None or not report.gpu_count or not report.gpu_model:
                continue
            if newest_s - float(roster.seen_s[row]) > processor.policy.ttl_s:
                continue
            kind = (name, report.gpu_model, report.provider or "")
            gpus[kind] += report.gpu_count
            idle[kind] += report.gpu_count * (int(roster.state[row]) == _IDLE)
    return gpus, idle


def _samples(values: "Counter[Kind] | dict[Kind, float]") -> list[tuple[Labels, float]]:
    return [
        ((("cluster_id", kind[0]), ("gpu_model", kind[1]), ("ingero_provider", kind[2])), value)
        for kind, value in sorted(values.items())
    ]
