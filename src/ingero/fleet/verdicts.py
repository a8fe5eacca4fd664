"""The verdict service: own times and collectives in, verdicts out, one engine per cluster."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingero.config.rates import RateTable, canonical_provider
from ingero.contract import names
from ingero.contract.fleet_api import RankCounts
from ingero.contract.measurements.engines import is_of_engines
from ingero.contract.measurements.ranks import Measured, decode_ranks
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import cut_label, problem_with_id
from ingero.contract.verdict import Verdict, encode_verdicts
from ingero.core.verdict.policy import VerdictPolicy
from ingero.fleet.causes.book import CauseBook
from ingero.fleet.engines.book import EngineBook
from ingero.fleet.silences.book import Silences

if TYPE_CHECKING:
    from ingero.core.verdict.members import Member
    from ingero.fleet.cluster_verdicts import ClusterVerdicts

MAX_PENDING_COLLECTIVES = 400_000  # of all clusters, between two ticks
FORGET_AFTER_S = 3600.0  # a cluster without measurements for this long is removed


@dataclass(slots=True)
class VerdictCounters:
    """Counts of what was received, dropped and decided."""

    own_times: int = 0
    collectives: int = 0
    malformed: int = 0
    overflow: int = 0
    verdicts: int = 0
    refused_clusters: int = 0


class VerdictService:
    """Fed by the processor, ticked by the service. `now_s` is Unix time that never steps back."""

    def __init__(
        self,
        rates: RateTable | None = None,
        policy: VerdictPolicy | None = None,
        max_clusters: int = 1024,
        silences: Silences | None = None,
    ) -> None:
        self.clusters: dict[str, ClusterVerdicts] = {}
        self.texts: dict[tuple[str, str], str] = {}  # by cluster and node: what push replies carry
        self.counters = VerdictCounters()
        self.silences = silences or Silences()
        self.causes = CauseBook()
        self.engines = EngineBook(rates, max_clusters)
        self._now_s = 0.0  # of the last tick
        self._pending = 0  # collectives of all clusters that wait for the next tick
        self.rates = rates
        self._policy, self._max_clusters = policy or VerdictPolicy(), max_clusters

    def take(self, request: MetricsRequest, cluster: str, now_s: float) -> None:
        """Take the measurements of one push."""
        self.engines.take(request, cluster, now_s)
        if is_of_engines(request):
            return  # as agents send them, in pushes of their own
        found = self.clusters.get(cluster)
        if found is None:
            if len(self.clusters) >= self._max_clusters:
                self.counters.refused_clusters += 1
                return
            found = self.clusters[cluster] = _new_cluster(self._policy)
        found.last_push_s = now_s
        for measured in decode_ranks(request):
            self.counters.malformed += measured.malformed
            self._take_measured(found, cluster, measured, now_s)

    def tick(self, now_s: float) -> list[tuple[str, Verdict]]:
        """Advance every cluster by one second.

        Returns (cluster, verdict) for each verdict that is new or changed, silenced or not.
        """
        changed = []
        self._now_s = now_s
        for name in [
            name
            for name, cluster in self.clusters.items()
            if now_s - cluster.last_push_s > FORGET_AFTER_S
        ]:
            del self.clusters[name]
        self._pending = 0
        texts: dict[tuple[str, str], str] = {}
        for name, cluster in self.clusters.items():
            changed += [(name, verdict) for verdict in cluster.tick(now_s, self._policy.stale_s)]
        changed += self.engines.tick(now_s)
        for name in self.clusters.keys() | self.engines.judges.keys():
            texts |= self._reply_texts(name)
        # The receiver holds a reference to this dictionary, so it is changed in place.
        self.texts.clear()
        self.texts |= texts
        self.counters.verdicts += len(changed)
        return changed

    def with_causes(
        self, changed: Sequence[tuple[str, Verdict]], now_s: float
    ) -> list[tuple[str, Verdict]]:
        """Return changed verdicts as they are shown, and those whose cause became known.

        Agents are asked about the slow ranks on their nodes with the next replies.
        """
        opened = [
            (name, cluster.mark(verdict))
            for name, cluster in self.clusters.items()
            for verdict in cluster.engine.current()
        ]
        links = {
            (name, episode): link
            for name, cluster in self.clusters.items()
            for episode, link in cluster.links.items()
        }
        caused = set(self.causes.tick(opened, now_s, links))
        caused -= {(name, verdict.episode) for name, verdict in changed}
        found = [(name, verdict) for name, verdict in opened if (name, verdict.episode) in caused]
        return [(name, self.mark(name, verdict)) for name, verdict in (*changed, *found)]

    def recent_verdicts(self, cluster: str) -> list[Verdict]:
        """Return a cluster's open verdicts and those resolved within the last minute."""
        found = self.clusters.get(cluster)
        verdicts = [] if found is None else found.recent()
        verdicts += self.engines.recent(cluster)
        return [self.mark(cluster, verdict) for verdict in verdicts]

    def open_verdicts(self) -> list[tuple[str, Verdict]]:
        """Return (cluster, verdict) for each open verdict, with its silence if it has one."""
        return [(name, self.mark(name, verdict)) for name, verdict in self.current()]

    def current(self) -> list[tuple[str, Verdict]]:
        """Return (cluster, verdict) for each open verdict, as it was decided."""
        return [
            (name, verdict)
            for name in sorted(self.clusters.keys() | self.engines.judges.keys())
            for verdict in (
                *(self.clusters[name].engine.current() if name in self.clusters else ()),
                *self.engines.open(name),
            )
        ]

    def mark(self, cluster: str, verdict: Verdict) -> Verdict:
        """Return a verdict as it is shown: with its collective, its cause and its silence."""
        found = self.clusters.get(cluster)
        marked = self.causes.mark(cluster, verdict if found is None else found.mark(verdict))
        return self.silences.mark(cluster, marked, self._now_s)

    def rank_counts(self, cluster: str) -> RankCounts:
        """Count the ranks of a cluster that have a baseline, learn one, or have no steps."""
        found = self.clusters.get(cluster)
        if found is None:
            return RankCounts()
        judged, unjudged = found.engine.learning()
        without = min(found.stepless.ranks, unjudged)
        ready_s = found.engine.ready_s() if unjudged > without else None
        return RankCounts(
            judged=judged, learning=unjudged - without, without_steps=without, ready_s=ready_s
        )

    def _take_measured(
        self, found: "ClusterVerdicts", cluster: str, measured: Measured, now_s: float
    ) -> None:
        member = self.member_of(found, cluster, measured)
        if member is None:
            self.counters.malformed += 1
            return
        index = found.register(member, now_s)
        if index is None:
            return
        world_size = measured.resource.get(names.WORLD_SIZE)
        if member.rank is not None and isinstance(world_size, int):
            found.note_world(member.job, world_size)
        if measured.own_times:
            self.counters.own_times += len(measured.own_times)
            found.add_own_times(index, measured.own_times, now_s)
        if measured.collectives:
            room = max(MAX_PENDING_COLLECTIVES - self._pending, 0)
            taken = found.add_collectives(index, measured.collectives[:room])
            self._pending += taken
            self.counters.collectives += taken
            self.counters.overflow += len(measured.collectives) - taken

    def member_of(
        self, found: "ClusterVerdicts", cluster: str, measured: Measured
    ) -> "Member | None":
        """Return the member that measured, or None without a valid node, job and role."""
        resource = measured.resource
        node, job = resource.get(names.NODE_ID), resource.get(names.JOB_ID)
        rank = resource.get(names.RANK, resource.get(names.NODE_RANK))
        role = resource.get(names.ROLE) or ""
        if not isinstance(node, str) or any(
            not isinstance(each, str | int) or problem_with_id(str(each))
            for each in (node, *(each for each in (job, role) if each not in (None, "")))
        ):
            return None
        key = (node, None if job is None else str(job), rank if isinstance(rank, int) else None)
        model, provider = _text(resource.get(names.GPU_MODEL)), resource.get(names.PROVIDER)
        known = canonical_provider(provider) if isinstance(provider, str) else None
        gpus = resource.get(names.GPU_COUNT)
        from ingero.core.verdict.members import Member  # noqa: PLC0415 - as in `_new_cluster`

        return Member(
            cluster=cluster,
            node=node,
            rank=key[2],
            job=key[1],
            gpu_model=model,
            role=str(role) or found.role_of(key),
            source=found.source_of(key, measured),
            gpus=gpus if key[2] is None and isinstance(gpus, int) and gpus > 0 else 1,
            usd_per_gpu_hour=self.rates.find(known, model) if self.rates is not None else None,
            gpu_uuid=_text(resource.get(names.GPU_UUID)),
            pod=_text(resource.get(names.POD)),
            labels=_labels(resource),
        )

    def _reply_texts(self, cluster: str) -> dict[tuple[str, str], str]:
        """Encode the recent verdicts of each node for the replies to its pushes.

        Nodes with the same verdicts about their jobs share one text, which is encoded once.
        """
        said: list[tuple[Verdict, Iterable[str]]] = [
            (each, (each.node,)) for each in self.recent_verdicts(cluster) if each.node
        ]
        found = self.clusters.get(cluster)
        for job in () if found is None else found.stepless.jobs.values():
            said.append((self.mark(cluster, job.verdict), job.nodes))
        by_node: dict[str, tuple[int, ...]] = {}  # places in `said`
        for place, (_, nodes) in enumerate(said):
            for node in nodes:
                by_node[node] = (*by_node.get(node, ()), place)
        texts = {
            places: encode_verdicts([said[place][0] for place in places])
            for places in set(by_node.values())
        }
        return {(cluster, node): texts[places] for node, places in by_node.items()}


def _text(value: object) -> str:
    return cut_label(value) if isinstance(value, str) else ""


def _labels(resource: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return the labels of a node that ranks may have in common, in order of their names."""
    found = (
        (key.removeprefix(names.LABEL_PREFIX), cut_label(value))
        for key, value in resource.items()
        if key.startswith(names.LABEL_PREFIX) and isinstance(value, str) and value
    )
    return tuple(sorted((cut_label(name), value) for name, value in found if name))[
        : names.MAX_LABELS
    ]


def _new_cluster(policy: VerdictPolicy) -> "ClusterVerdicts":
    """Return an engine; a Fleet without measurements of ranks never loads its modules."""
    from ingero.core.verdict.engine import VerdictEngine  # noqa: PLC0415 - see above
    from ingero.fleet.cluster_verdicts import ClusterVerdicts  # noqa: PLC0415 - see above

    return ClusterVerdicts(VerdictEngine(policy))
