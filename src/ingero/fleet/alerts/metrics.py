"""Prometheus metrics of alerts, by target."""

from collections.abc import ItemsView
from typing import TYPE_CHECKING

from ingero.contract.exposition import Family, counter, gauge
from ingero.core.alerts.queue import AlertQueue

if TYPE_CHECKING:
    from ingero.fleet.alerts.service import AlertService


def alert_families(alerts: "AlertService | None") -> list[Family]:
    """Return the messages sent, waiting, failed and held back; none without targets."""
    if alerts is None:
        return []
    return [
        gauge(
            "ingero_fleet_alerts_open",
            "Alerts that have begun",
            [((), float(len(alerts.decisions.open)))],
        ),
        counter(
            "ingero_fleet_alerts_held_back_total",
            "Episodes that caused no alert, by reason",
            [
                ((("reason", reason),), alerts.decisions.held_back[reason])
                for reason in ("fleet_event", "silence")
            ],
        ),
        *_target_families(alerts.queues.items()),
    ]


def _target_families(queues: ItemsView[str, AlertQueue]) -> list[Family]:
    return [
        counter(
            "ingero_fleet_alert_messages_total",
            "Messages that a target has accepted",
            [((("target", name),), queue.counters.sent) for name, queue in queues],
        ),
        counter(
            "ingero_fleet_alert_failures_total",
            "Failed tries to send a message",
            [((("target", name),), queue.counters.failed) for name, queue in queues],
        ),
        counter(
            "ingero_fleet_alert_dropped_total",
            "Messages that were given up, by reason",
            [
                ((("reason", reason), ("target", name)), value)
                for name, queue in queues
                for reason, value in (
                    ("full", queue.counters.dropped_full),
                    ("old", queue.counters.dropped_old),
                    ("refused", queue.counters.dropped_refused),
                )
            ],
        ),
        gauge(
            "ingero_fleet_alert_waiting",
            "Messages that wait for a target",
            [((("target", name),), float(len(queue))) for name, queue in queues],
        ),
        gauge(
            "ingero_fleet_alert_target_up",
            "1 if the last try arrived",
            [
                ((("target", name),), float(queue.last_ok))
                for name, queue in queues
                if queue.last_ok is not None
            ],
        ),
    ]
