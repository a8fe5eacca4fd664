"""An alert: one episode as it is told to people, with the names that the Prometheus rules use."""

from enum import StrEnum
from typing import Final

import msgspec

from ingero.contract.verdict import CauseClass, Verdict, VerdictState

RANK_STRAGGLER: Final = "IngeroRankStraggler"
NODE_STRAGGLER: Final = "IngeroNodeStraggler"
FLEET_EVENT: Final = "IngeroFleetEvent"
STOPPED: Final = "IngeroStopped"
SEVERITY: Final = "warning"
RUNBOOKS: Final = "docs/runbooks.md"  # in this repository; there is no public copy
EPISODE_PAGE: Final = "/episode/{episode}"


class MessageKind(StrEnum):
    """What is told about an alert: each kind at most once to each target."""

    BEGIN = "begin"
    ACKNOWLEDGE = "acknowledge"  # an operator has silenced it
    END = "end"


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One episode that somebody should know about; times are in Unix seconds."""

    name: str
    cluster: str
    verdict: Verdict
    ended: float | None = None
    why_ended: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """What tells this alert from others; the Prometheus rules make the same labels."""
        verdict = self.verdict
        labels = {
            "alertname": self.name,
            "cluster_id": self.cluster,
            "episode": verdict.episode,
            "ingero_job": verdict.job or "",
            "node_id": verdict.node,
            "rank": "" if verdict.rank is None else str(verdict.rank),
            "severity": SEVERITY,
        }
        return {name: value for name, value in labels.items() if value}

    @property
    def summary(self) -> str:
        """One sentence with a name in it."""
        if self.ended is not None:
            return f"{self._who} is over: {self.why_ended or 'back among its peers'}"
        cause = self.verdict.cause_class
        if self.name == FLEET_EVENT:
            return f"{self._who}: many members are slow at once ({cause}), nobody is to blame"
        if self.name == STOPPED:
            return f"{self._who}: no rank finishes a step any more; it hangs or has ended"
        loss = self.loss
        return f"{self._who} holds the others up ({cause}{f', the job loses {loss}' * bool(loss)})"

    @property
    def _who(self) -> str:
        verdict = self.verdict
        rank = "" if verdict.rank is None else f"rank {verdict.rank}"
        job = f"job {verdict.job}" if verdict.job else ""
        parts = [part for part in (verdict.node, rank, job) if part]
        return " ".join(parts) or f"cluster {self.cluster}"

    @property
    def loss(self) -> str:
        """What the job loses, `9.1%` or `at most 9.1%`; empty where it is unknown."""
        if self.verdict.loss is None:
            return ""
        return f"{'at most ' * self.verdict.at_most}{self.verdict.loss:.1%}"

    @property
    def price(self) -> str:
        """What that costs; empty where no price is known."""
        usd = self.verdict.usd_per_hour
        return "" if usd is None else f"{'at most ' * self.verdict.at_most}{usd:,.2f} USD per hour"

    def annotations(self, public_url: str) -> dict[str, str]:
        """Everything else that is worth knowing; what is not known is left out."""
        verdict = self.verdict
        found = {
            "summary": self.summary,
            "description": verdict.evidence,
            "class": str(verdict.cause_class),
            "loss": self.loss,
            "price": self.price,
            "cause": verdict.cause,
            "collective": verdict.collective,
            "next": verdict.next_step or f"ingero replay {verdict.episode}",
            "link": self.link(public_url),
            "runbook_url": f"{RUNBOOKS}#{self.name.lower()}",
        }
        return {name: text for name, text in found.items() if text}

    def link(self, public_url: str) -> str:
        """The page of the episode; empty where Fleet's public address is not configured."""
        path = EPISODE_PAGE.format(episode=self.verdict.episode)
        return f"{public_url.rstrip('/')}{path}" if public_url else ""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a target is told; `others` counts the open alerts of the same node beside this one."""

    kind: MessageKind
    alert: Alert
    others: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """What makes a message the same as another."""
        return self.alert.verdict.episode, str(self.kind)


def alert_of(cluster: str, verdict: Verdict) -> Alert | None:
    """Return the alert that a verdict calls for, or None where nobody needs to be told."""
    if verdict.state is VerdictState.STRAGGLER and verdict.node:
        name = NODE_STRAGGLER if verdict.rank is None else RANK_STRAGGLER
    elif verdict.state is VerdictState.FLEET_EVENT:
        name = FLEET_EVENT
    elif verdict.state is VerdictState.NOT_SURE and verdict.cause_class is CauseClass.HANG:
        name = STOPPED
    else:
        return None
    return Alert(name=name, cluster=cluster, verdict=verdict)
