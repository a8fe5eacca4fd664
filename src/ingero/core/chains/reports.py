"""Which causal chains a node reports now: new ones at once, known ones again from time to time."""

from collections.abc import Sequence
from dataclasses import dataclass

from ingero.contract.chain import Severity, severity_order


@dataclass(frozen=True, slots=True)
class ReportPolicy:
    """Limits of what one node reports."""

    again_s: float = 300.0  # a chain that is found again and again is reported this often
    at_once: int = 32
    remembered: int = 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """What decides about a report of one chain."""

    id: str
    detected_at_ns: int
    severity: Severity


class ReportBook:
    """What was reported, by chain; the oldest reports are forgotten first."""

    def __init__(self, policy: ReportPolicy | None = None) -> None:
        self.policy = policy or ReportPolicy()
        self._sent: dict[str, tuple[float, Finding]] = {}

    def due(self, findings: Sequence[Finding], now_s: float) -> list[Finding]:
        """Return what to report now, the worst and then the latest first."""
        found = [finding for finding in findings if self._is_due(finding, now_s)]
        found.sort(key=lambda finding: (severity_order(finding.severity), -finding.detected_at_ns))
        return found[: self.policy.at_once]

    def sent(self, findings: Sequence[Finding], now_s: float) -> None:
        """Note that these were accepted."""
        for finding in findings:
            self._sent.pop(finding.id, None)
            self._sent[finding.id] = (now_s, finding)
        while len(self._sent) > self.policy.remembered:
            del self._sent[next(iter(self._sent))]

    def _is_due(self, finding: Finding, now_s: float) -> bool:
        if finding.id not in self._sent:
            return True
        at_s, before = self._sent[finding.id]
        if finding.detected_at_ns <= before.detected_at_ns:
            return False
        worse = severity_order(finding.severity) < severity_order(before.severity)
        return worse or now_s - at_s >= self.policy.again_s
