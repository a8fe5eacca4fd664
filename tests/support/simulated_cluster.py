"""A cluster of real node monitors and a real Fleet processor on a clock driven by hand."""

import heapq
import random
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.scripted_node import Change, Oscillation, Script, ScriptedSource

from ingero.contract.push.encode import HealthReport, encode_health
from ingero.contract.threshold import decode_headers, encode_quorum, encode_threshold
from ingero.contract.types import Identity
from ingero.core.health.baseline import BaselinePolicy
from ingero.core.health.classifier import ClassifierPolicy
from ingero.core.health.modes import ModePolicy, PushOutcome
from ingero.core.health.monitor import MonitorPolicy, NodeMonitor
from ingero.core.health.threshold import ThresholdPolicy
from ingero.errors import ConfigError
from ingero.fleet.processor import FleetProcessor

CLUSTER = "sim"
START_NS = 1_800_000_000 * 10**9
JITTER = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens to which node, and when. Node numbers count from 0."""

    nodes: int
    duration_s: float
    push_interval_s: float = 5.0
    warmup_samples: int = 5
    confirmations: int = 3
    scripts: dict[int, Script] = field(default_factory=dict)
    joins_s: dict[int, float] = field(default_factory=dict)
    leaves_s: dict[int, float] = field(default_factory=dict)
    outages_s: tuple[tuple[float, float], ...] = ()
    threshold: ThresholdPolicy = field(default_factory=ThresholdPolicy)


@dataclass(frozen=True, slots=True)
class Episode:
    """One node that was named and, perhaps, recovered."""

    node: int
    raised_s: float
    mode: str
    closed_s: float | None = None
    reason: str = ""


@dataclass(slots=True)
class Outcome:
    """The episodes and detection modes of a run."""

    episodes: list[Episode] = field(default_factory=list)
    modes: dict[int, list[str]] = field(default_factory=dict)  # changes, in order
    panicked: bool = False
    pushes: int = 0

    @property
    def named(self) -> set[int]:
        """Every node that was ever named."""
        return {episode.node for episode in self.episodes}


class ClusterRun:
    """Owns the clock: the earliest event that is due happens next."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.now_s = 0.0
        self.outcome = Outcome()
        self._chance = random.Random(seed)
        self._fleet = FleetProcessor(scenario.threshold)
        self._agents = {number: self._agent(number) for number in range(scenario.nodes)}
        self._due: list[tuple[float, int]] = [(1.0, -1)]  # (when, node or -1 for Fleet's tick)
        for number in self._agents:
            first_s = scenario.joins_s.get(number, 0.0) + self._chance.uniform(
                0.0, scenario.push_interval_s
            )
            heapq.heappush(self._due, (first_s, number))

    def run(self) -> Outcome:
        """Play the whole scenario."""
        while self._due and self._due[0][0] <= self.scenario.duration_s:
            self.now_s, number = heapq.heappop(self._due)
            if number < 0:
                self._fleet.tick(self.now_s)
                cluster = self._fleet.clusters.get(CLUSTER)
                self.outcome.panicked |= cluster is not None and cluster.threshold.panic is not None
                heapq.heappush(self._due, (self.now_s + 1.0, -1))
            elif self.now_s < self.scenario.leaves_s.get(number, float("inf")):
                self._tick(number)
                pause_s = self.scenario.push_interval_s * self._chance.uniform(
                    1 - JITTER, 1 + JITTER
                )
                heapq.heappush(self._due, (self.now_s + pause_s, number))
        return self.outcome

    def _agent(self, number: int) -> tuple[NodeMonitor, ScriptedSource]:
        scenario = self.scenario
        policy = MonitorPolicy(
            baseline=BaselinePolicy(warmup_samples=scenario.warmup_samples),
            modes=ModePolicy(push_interval_s=scenario.push_interval_s),
            classifier=ClassifierPolicy(confirmations=scenario.confirmations),
        )
        monitor = NodeMonitor(Identity(node=f"n{number:03d}", cluster=CLUSTER), policy)
        script = scenario.scripts.get(number, Script())
        return monitor, ScriptedSource(script, self._chance, lambda: self.now_s)

    def _tick(self, number: int) -> None:
        monitor, source = self._agents[number]
        now_ns = START_NS + int(self.now_s * 1e9)
        evaluation = monitor.observe(source.read(now_ns), self.now_s, now_ns)
        if evaluation.report is not None:
            self.outcome.pushes += 1
            self._push(monitor, evaluation.report, now_ns)
        monitor.classify(self.now_s, now_ns)
        self._note(number, monitor)

    def _push(self, monitor: NodeMonitor, report: HealthReport, now_ns: int) -> None:
        if any(start <= self.now_s < end for start, end in self.scenario.outages_s):
            monitor.push_finished(PushOutcome.TRANSPORT, None)
            return
        self._fleet.take(encode_health(monitor.identity, report), CLUSTER, self.now_s, now_ns)
        served = self._fleet.served(CLUSTER)
        monitor.push_finished(PushOutcome.OK, None)
        monitor.threshold_received(
            *decode_headers(encode_threshold(served.value), encode_quorum(served.quorum_met)),
            self.now_s,
        )

    def _note(self, number: int, monitor: NodeMonitor) -> None:
        evaluation = monitor.last
        assert evaluation is not None
        modes = self.outcome.modes.setdefault(number, [])
        if not modes or modes[-1] != evaluation.decision.mode.value:
            modes.append(evaluation.decision.mode.value)
        if evaluation.raised:
            self.outcome.episodes.append(
                Episode(number, self.now_s, evaluation.decision.mode.value)
            )
        elif evaluation.closing is not None:
            place = max(
                i for i, episode in enumerate(self.outcome.episodes) if episode.node == number
            )
            opened = self.outcome.episodes[place]
            self.outcome.episodes[place] = Episode(
                number, opened.raised_s, opened.mode, self.now_s, evaluation.closing.value
            )


def load_scenario(path: Path, nodes: int) -> Scenario:
    """Load a scenario for a cluster of `nodes`; raises ConfigError.

    Negative node numbers count from the end.
    """
    try:
        document = tomllib.loads(path.read_text())
        known = {"duration_s", "push_interval_s", "warmup_samples", "confirmations"}
        return Scenario(
            nodes=nodes,
            **{key: document[key] for key in known & set(document)},
            scripts=_scripts(document, nodes),
            joins_s=_moments(document.get("join", ()), nodes),
            leaves_s=_moments(document.get("leave", ()), nodes),
            outages_s=tuple(
                (entry["from_s"], entry["until_s"]) for entry in document.get("outage", ())
            ),
            threshold=ThresholdPolicy(**document.get("threshold", {})),
        )
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a scenario: {error}") from None


def _scripts(document: dict[str, Any], nodes: int) -> dict[int, Script]:
    changes: dict[int, list[Change]] = {}
    oscillations: dict[int, list[Oscillation]] = {}
    for entry in document.get("change", ()):
        for number in _numbers(entry.pop("nodes"), nodes):
            changes.setdefault(number, []).append(Change(**_tupled(entry)))
    for entry in document.get("oscillation", ()):
        for number in _numbers(entry.pop("nodes"), nodes):
            oscillations.setdefault(number, []).append(Oscillation(**_tupled(entry)))
    noise = document.get("noise", 0.01)
    return {
        number: Script(
            changes=tuple(changes.get(number, ())),
            oscillations=tuple(oscillations.get(number, ())),
            noise=noise,
        )
        for number in range(nodes)
    }


def _tupled(entry: dict[str, Any]) -> dict[str, Any]:
    return entry | ({"signals": tuple(entry["signals"])} if "signals" in entry else {})


def _moments(entries: Iterable[dict[str, Any]], nodes: int) -> dict[int, float]:
    return {
        number: entry["at_s"] for entry in entries for number in _numbers(entry["nodes"], nodes)
    }


def _numbers(wanted: str | list[int], nodes: int) -> list[int]:
    """Return the node numbers of `all`, `half` or a list."""
    if wanted == "all":
        return list(range(nodes))
    if wanted == "half":
        return list(range(nodes // 2))
    return [number % nodes for number in wanted if isinstance(number, int)]
