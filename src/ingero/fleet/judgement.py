"""Measurements in, verdicts out, and what follows a verdict: records, episodes, alerts."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ingero.config.fleet import FleetConfig
from ingero.config.rates import RateTable
from ingero.contract.episodes.episode import Episode
from ingero.contract.measurements.engines import is_of_engines
from ingero.contract.measurements.own_time_columns import OwnTimeColumns
from ingero.contract.otlp.codec import decode_protobuf, encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import Verdict, encode_one
from ingero.core.verdict.policy import VerdictPolicy
from ingero.fleet.episodes.book import EpisodeBook
from ingero.fleet.episodes.engine_states import EngineStates
from ingero.fleet.episodes.files import EpisodeFiles
from ingero.fleet.episodes.preamble import encode_preamble
from ingero.fleet.episodes.state_codec import made_by
from ingero.fleet.intake.known_ranks import KnownRanks
from ingero.fleet.silences.book import Silences
from ingero.fleet.verdicts import VerdictService
from ingero.storage.input_log import PUSH, TICK, VERDICT, InputLog

if TYPE_CHECKING:
    from ingero.fleet.alerts.service import AlertService

log = logging.getLogger(__name__)


class Judgement:
    """The verdict engines with what is kept and sent of their verdicts; times are Unix seconds."""

    def __init__(self, config: FleetConfig, rates: RateTable) -> None:
        settings = config.processors.ingero
        verdict = settings.verdict
        policy = VerdictPolicy(warmup_samples=verdict.warmup_samples)
        self.verdicts = VerdictService(
            rates,
            policy,
            max_clusters=settings.max_clusters,
            silences=Silences(verdict.silences_file),
        )
        preamble = encode_preamble(rates, policy)
        self.episodes = EpisodeBook(preamble)
        self._is_shared = config.cluster_log.url is not None
        kept_in = None if verdict.state_dir is None else verdict.state_dir / "episodes"
        self.episode_files = EpisodeFiles(self.episodes, kept_in)
        engines_in = None if verdict.state_dir is None else verdict.state_dir / "engines"
        self.engine_states = EngineStates(self.verdicts, engines_in)
        self._known = KnownRanks()
        self.alerts = _build_alerts(config, verdict.state_dir)
        if self.alerts is not None:
            self.alerts.on_outcome = self.episodes.note_alert
        self.inputs: InputLog | None = None
        if verdict.record_inputs is not None:
            self.inputs = InputLog(verdict.record_inputs, preamble, verdict.record_max_bytes)

    def take(self, request: MetricsRequest, cluster: str, at_s: float) -> None:
        """Take the measurements of one push."""
        self._record(PUSH, at_s, cluster, lambda: encode_protobuf(request))
        if not is_of_engines(request):
            is_first = cluster not in self.verdicts.clusters
            self.episodes.inputs.push(request, cluster, at_s, is_first=is_first)
        self.verdicts.take(request, cluster, at_s)
        self.verdicts.causes.take(request, cluster, at_s)

    def take_own_times(
        self, columns: OwnTimeColumns, body: bytes, cluster: str, at_s: float
    ) -> None:
        """Take a push of own times, `body`; those of new or changed ranks are decoded in full."""
        if not self._known.take(self.verdicts, columns, cluster, at_s):
            self.take(decode_protobuf(MetricsRequest, body), cluster, at_s)
            self._known.learn(self.verdicts, columns, cluster)
            return
        self._record(PUSH, at_s, cluster, lambda: body)
        self.episodes.inputs.push_encoded(body, cluster, at_s)

    def tick(self, now_s: float) -> list[tuple[str, Verdict]]:
        """Run one tick of the engines; record, keep and return the verdicts that changed."""
        self._record(TICK, now_s)
        changed = self.verdicts.tick(now_s)
        encoded = [encode_one(verdict) for _, verdict in changed]
        for (cluster, _), body in zip(changed, encoded, strict=True):
            self._record(VERDICT, now_s, cluster, lambda body=body: body)  # type: ignore[misc]  # a default argument binds the loop's value
        self.episodes.tick(self.verdicts, changed, encoded, now_s)
        changed = self.verdicts.with_causes(changed, now_s)
        self.episodes.note(changed, now_s)
        if self.alerts is not None:
            self.alerts.step(self.verdicts.open_verdicts(), now_s)
        for cluster, verdict in changed:
            log.info(
                "verdict",
                extra={"cluster": cluster, "node": verdict.node, "state": str(verdict.state)},
            )
        return changed

    def _record(
        self, kind: str, at_s: float, cluster: str = "", body: Callable[[], bytes] = bytes
    ) -> None:
        if self.inputs is None:
            return
        try:
            self.inputs.write(kind, at_s, cluster, body())
        except OSError as error:
            self.inputs = None
            log.error("recording_stopped", extra={"why": str(error)})

    def look_up(self, name: str, now_s: float) -> Episode | None:
        """Return an episode with what is known about its peers and alerts now."""
        found = self.episodes.find(name)
        if found is None:
            return None
        self.episodes.explain(found, self.verdicts)
        if self.alerts is None:
            return found
        return msgspec.structs.replace(
            found,
            alerts=found.alerts + self.alerts.pending(name, now_s),
            alert_targets=self.alerts.targets,
        )

    def load(self) -> None:
        """Take over what an earlier process kept; raises StoreError."""
        made_by()  # reads sources, which an upgrade may replace or remove while this build runs
        self.episode_files.load()
        if not self._is_shared:  # else from the log
            self.engine_states.load(time.time())

    async def settle(self) -> None:
        """Write what has changed."""
        await self.episode_files.settle()
        await self.engine_states.settle(time.time())

    def start(self) -> None:
        """Begin to deliver alerts."""
        if self.alerts is not None:
            self.alerts.start()

    async def stop(self) -> None:
        """Deliver what can be delivered, and write what is kept."""
        if self.alerts is not None:
            await self.alerts.stop()
        self.episodes.inputs.end()
        await self.episode_files.settle()
        await self.engine_states.settle(time.time(), is_last=True)
        if self.inputs is not None:
            self.inputs.close()


def _build_alerts(config: FleetConfig, state_dir: Path | None) -> "AlertService | None":
    if not config.alerts.targets:
        return None
    # HTTP clients, which only a Fleet with targets needs
    from ingero.fleet.alerts.service import AlertService  # noqa: PLC0415 - see above

    return AlertService(config.alerts, state_dir, time.time())
