"""Inference engines of all clusters: their reports in, verdicts about them out."""

from typing import TYPE_CHECKING, Any, Final

from ingero.config.rates import RateTable, canonical_provider
from ingero.contract import names
from ingero.contract.measurements.engines import MeasuredEngine, decode_engines
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import cut_label, problem_with_id
from ingero.contract.verdict import Verdict, VerdictState

if TYPE_CHECKING:
    from ingero.core.inference.judge import EngineJudge

RESOLVED_FOR_S: Final = 60.0  # resolved verdicts are served this long: an agent may push rarely
FORGET_S: Final = 3600.0  # a cluster without reports of engines


class EngineBook:
    """One judge per cluster. `now_s` is Unix time that never steps back."""

    def __init__(self, rates: RateTable | None = None, max_clusters: int = 1024) -> None:
        self.judges: dict[str, EngineJudge] = {}
        self.reports = 0
        self.refused = 0  # without a valid node, or beyond the limit of clusters
        self._rates, self._max_clusters = rates, max_clusters
        self._taken_s: dict[str, float] = {}
        self._resolved: dict[tuple[str, str], tuple[Verdict, float]] = {}  # cluster and episode

    def stored(self) -> list[dict[Any, Any]]:
        """Return what another replica needs to go on from here."""
        return [self.judges, self._taken_s, self._resolved]

    def restore(self, stored: list[dict[Any, Any]]) -> None:
        """Replace everything by what another replica stored."""
        judges, self._taken_s, self._resolved = stored
        self.judges.clear()
        self.judges.update(judges)

    def take(self, request: MetricsRequest, cluster: str, now_s: float) -> None:
        """Take the reports of one push."""
        for measured in decode_engines(request):
            node = measured.resource.get(names.NODE_ID)
            judge = self._judge(cluster)
            if judge is None or not isinstance(node, str) or problem_with_id(node):
                self.refused += 1
                continue
            self.reports += 1
            self._taken_s[cluster] = now_s
            judge.take(node, measured.engine, measured.report, now_s, self._price(measured))

    def tick(self, now_s: float) -> list[tuple[str, Verdict]]:
        """Return (cluster, verdict) for each verdict that is new, changed or resolved."""
        changed = []
        for cluster, judge in list(self.judges.items()):
            found = judge.tick(now_s)
            changed += [(cluster, verdict) for verdict in found]
            if now_s - self._taken_s.get(cluster, now_s) > FORGET_S:
                del self.judges[cluster]
                self._taken_s.pop(cluster, None)
        for cluster, verdict in changed:
            if verdict.state is VerdictState.RESOLVED:
                self._resolved[cluster, verdict.episode] = (verdict, now_s)
        self._resolved = {
            key: kept for key, kept in self._resolved.items() if now_s - kept[1] <= RESOLVED_FOR_S
        }
        return changed

    def open(self, cluster: str) -> list[Verdict]:
        """Return the open verdicts of a cluster."""
        judge = self.judges.get(cluster)
        return [] if judge is None else judge.current()

    def recent(self, cluster: str) -> list[Verdict]:
        """Return the open verdicts of a cluster, and those resolved within the last minute."""
        resolved = [
            verdict for (name, _), (verdict, _) in self._resolved.items() if name == cluster
        ]
        return [*self.open(cluster), *resolved]

    def _judge(self, cluster: str) -> "EngineJudge | None":
        found = self.judges.get(cluster)
        if found is None and len(self.judges) < self._max_clusters:
            # a Fleet without inference engines never loads what judges them
            from ingero.core.inference.judge import EngineJudge  # noqa: PLC0415 - see above

            found = self.judges[cluster] = EngineJudge()
        return found

    def _price(self, measured: MeasuredEngine) -> float | None:
        """Return what the replica costs per hour; None without a known GPU or price."""
        model = measured.resource.get(names.GPU_MODEL)
        provider = measured.resource.get(names.PROVIDER)
        if self._rates is None or not measured.engine.gpus or not isinstance(model, str):
            return None
        known = canonical_provider(provider) if isinstance(provider, str) else None
        rate = self._rates.find(known, cut_label(model))
        return None if rate is None else rate * measured.engine.gpus
