"""Which alerts begin and end: one message at each end of an episode, and no more."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from ingero.contract.verdict import Verdict
from ingero.core.alerts.alert import FLEET_EVENT, Alert, Message, MessageKind, alert_of

GRACE_S = 600.0  # an alert of an earlier process that is not seen again for so long has ended


class OpenAlert(msgspec.Struct, kw_only=True):
    """An alert whose beginning was told; `unseen_since` is set after a restart."""

    alert: Alert
    is_acknowledged: bool = False
    unseen_since: float | None = None


class AlertDecisions:
    """Fed with every open verdict once a second; `open` are the alerts that have begun, by episode.

    Fleet events hold back the alerts of members of the same job, and silences hold back all; what
    is still open when the event or the silence ends begins then.
    """

    def __init__(self, restored: Sequence[OpenAlert] = ()) -> None:
        self.open = {each.alert.verdict.episode: each for each in restored}
        self.held_back: Counter[str] = Counter()  # episodes, by reason
        self._held: set[tuple[str, str]] = set()  # episode and reason, to count each once

    def held(self, episode: str) -> list[str]:
        """Return why an open episode causes no alert; empty where it does."""
        return sorted(reason for name, reason in self._held if name == episode)

    def step(self, verdicts: Sequence[tuple[str, Verdict]], now_s: float) -> list[Message]:
        """Return what is to be told now."""
        current = {verdict.episode for _, verdict in verdicts}
        self._held = {each for each in self._held if each[0] in current}
        events = {
            (cluster, verdict.job)
            for cluster, verdict in verdicts
            if getattr(alert_of(cluster, verdict), "name", "") == FLEET_EVENT
        }
        messages = [
            message
            for cluster, verdict in verdicts
            if (message := self._follow(cluster, verdict, events)) is not None
        ]
        return messages + self._end_missing(current, now_s)

    def _follow(
        self, cluster: str, verdict: Verdict, events: set[tuple[str, str | None]]
    ) -> Message | None:
        known = self.open.get(verdict.episode)
        alert = alert_of(cluster, verdict)
        if known is not None:
            known.unseen_since = None
            if alert is not None:
                known.alert = msgspec.structs.replace(known.alert, verdict=verdict)
            if verdict.silenced and not known.is_acknowledged:
                known.is_acknowledged = True
                return Message(kind=MessageKind.ACKNOWLEDGE, alert=known.alert)
            return None
        if alert is None:
            return None
        is_explained = alert.name != FLEET_EVENT and bool(
            {(cluster, verdict.job), (cluster, None)} & events
        )
        reason = "silence" if verdict.silenced else "fleet_event" if is_explained else ""
        if reason:
            self.held_back[reason] += (verdict.episode, reason) not in self._held
            self._held.add((verdict.episode, reason))
            return None
        self.open[verdict.episode] = OpenAlert(alert=alert)
        return Message(kind=MessageKind.BEGIN, alert=alert)

    def _end_missing(self, current: set[str], now_s: float) -> list[Message]:
        messages = []
        for episode in [episode for episode in self.open if episode not in current]:
            known = self.open[episode]
            if known.unseen_since is not None and now_s - known.unseen_since < GRACE_S:
                continue
            why = "" if known.unseen_since is None else "not seen again since Fleet was restarted"
            del self.open[episode]
            alert = msgspec.structs.replace(known.alert, ended=now_s, why_ended=why)
            messages.append(
                Message(kind=MessageKind.END, alert=alert, others=self._others_of(alert))
            )
        return messages

    def _others_of(self, alert: Alert) -> int:
        mine = (alert.cluster, alert.verdict.node)
        alerts = (each.alert for each in self.open.values())
        return sum((each.cluster, each.verdict.node) == mine for each in alerts)
