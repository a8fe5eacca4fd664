"""What the agent reports on its node: lines on the remediation socket and entries in the log."""

import logging
import time
from collections.abc import Sequence

import msgspec

from ingero.agent.push.counters import LoopCounters
from ingero.contract.straggler import SocketLine, Straggle, encode_line, verdict_line
from ingero.contract.timestamps import rfc3339_ns
from ingero.contract.types import DetectionMode
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.health.messages import StragglerMessage
from ingero.core.health.monitor import Evaluation, NodeMonitor
from ingero.core.health.observation import Observation
from ingero.transport.uds import LineServer

log = logging.getLogger(__name__)

WARN_EVERY_S = 300.0  # per reason
MAX_VERDICTS = 64
WITHOUT_PEERS = (
    "there is no Fleet to compare with: a node is a straggler only if it does less work than its "
    "own baseline, not because its host is busy"
)


class Reporter:
    """Owner of the verdicts received from Fleet, and of the socket and log of one node."""

    def __init__(
        self, monitor: NodeMonitor, counters: LoopCounters, socket: LineServer | None
    ) -> None:
        self._monitor = monitor
        self._counters = counters
        self._socket = socket
        # the latest verdict of each episode, resolved ones included
        self._received: dict[str, Verdict] = {}
        self._mode: DetectionMode | None = None
        self._warned_s: dict[str, float] = {}

    @property
    def has_socket(self) -> bool:
        """Whether a remediation socket is open."""
        return self._socket is not None

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Open verdicts by episode."""
        return {
            episode: verdict
            for episode, verdict in self._received.items()
            if verdict.state is not VerdictState.RESOLVED
        }

    def send_line(self, line: SocketLine) -> None:
        """Send one line to every reader of the socket."""
        if self._socket is not None:
            self._socket.send(encode_line(line))

    def snapshot(self) -> list[bytes]:
        """Return the lines a new reader of the socket needs: the open episode and open verdicts."""
        message, cluster = self._monitor.open_message, self._monitor.identity.cluster
        lines: list[SocketLine] = [message.line] if message else []
        lines += [
            verdict_line(verdict, cluster, time.time_ns()) for verdict in self.verdicts.values()
        ]
        return [encode_line(line) for line in lines]

    def receive(self, verdicts: Sequence[Verdict]) -> None:
        """Take in Fleet's verdicts about this node and its ranks.

        Every change is sent to the socket; the log gets only a new verdict, state or cause.
        """
        for verdict in verdicts:
            before = self._received.pop(verdict.episode, None)
            self._received[verdict.episode] = verdict
            if before == verdict:
                continue
            self.send_line(verdict_line(verdict, self._monitor.identity.cluster, time.time_ns()))
            if before is None or _shown(before) != _shown(verdict):
                self._counters.verdicts[verdict.state.value] += 1
                is_straggler = verdict.state is VerdictState.STRAGGLER
                level = logging.WARNING if is_straggler else logging.INFO
                log.log(level, "verdict", extra=_verdict_fields(verdict))
        while len(self._received) > MAX_VERDICTS:
            del self._received[next(iter(self._received))]

    def report_straggles(self, found: Sequence[Straggle]) -> None:
        """Send a line for each process that lost its CPU."""
        identity = self._monitor.identity
        ranks = {"rank": identity.rank, "world_size": identity.world_size}
        for line in found:
            self._counters.straggles += 1
            self.send_line(msgspec.structs.replace(line, **ranks))

    def log_episode(self, evaluation: Evaluation, message: StragglerMessage) -> None:
        """Log the beginning and the end of an episode."""
        event = message.event
        fields = {
            "score": event.score,
            "threshold": event.threshold,
            "mode": event.mode.value,
            "episode": event.event_id,
        }
        if evaluation.raised:
            self._counters.episodes += 1
            log.info("straggler_raised", extra=fields | {"dominant": event.dominant_signal})
        elif evaluation.closing is not None:
            log.info("straggler_resolved", extra=fields | {"reason": evaluation.closing.value})

    def log_observation(self, evaluation: Evaluation, seen: Observation, now_s: float) -> None:
        """Log what is wrong with the signals, then the evaluation."""
        if seen.problem:
            self.warn("look_failed", now_s, problem=seen.problem)
        for signal, kind in evaluation.score.anomalies if evaluation.score else ():
            self.warn(f"signal_{kind}_{signal}", now_s)
        self.log_evaluation(evaluation)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Log a change of detection mode, and a low score that cannot be judged without peers."""
        mode = evaluation.decision.mode
        if mode is not self._mode:
            why = {"why": WITHOUT_PEERS} if mode is DetectionMode.LOCAL_BASELINE else {}
            was = self._mode and self._mode.value
            log.info("mode_changed", extra={"mode": mode.value, "was": was, **why})
            self._mode = mode
        if evaluation.is_host_load_only and evaluation.score is not None:
            self.warn(
                "not_named",
                time.monotonic(),
                score=evaluation.score.value,
                threshold=evaluation.decision.threshold,
                low=evaluation.dominant,
                why=WITHOUT_PEERS,
            )

    def warn(self, name: str, now_s: float, **fields: object) -> None:
        """Log a warning, at most one per name every five minutes."""
        if now_s - self._warned_s.get(name, -WARN_EVERY_S) >= WARN_EVERY_S:
            self._warned_s[name] = now_s
            log.warning(name, extra=fields)


def _shown(verdict: Verdict) -> tuple[str, str, str]:
    """Return what is logged again when it changes: state, class and cause."""
    return verdict.state.value, verdict.cause_class.value, verdict.cause


def _verdict_fields(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as fields of a log entry, without those that are not known."""
    fields = {
        "state": verdict.state.value,
        "node": verdict.node,
        "rank": verdict.rank,
        "class": verdict.cause_class.value,
        "cause": verdict.cause,
        "loss": verdict.loss,
        "loss_error": verdict.loss_error,
        "at_most": verdict.at_most or None,
        "collective": verdict.collective,
        "link": verdict.link,
        "shared": verdict.shared,
        "excess": verdict.excess,
        "error": verdict.error,
        "since": rfc3339_ns(round(verdict.since * 1e3) * 10**6),
        "episode": verdict.episode,
        "evidence": verdict.evidence,
        "next": verdict.next_step,
    }
    return {key: value for key, value in fields.items() if value not in (None, "")}
