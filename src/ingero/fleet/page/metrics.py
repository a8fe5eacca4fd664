"""Prometheus metrics of the live streams: how many are open, and what they send."""

from ingero.contract.exposition import Family, gauge, total
from ingero.fleet.page.hub import LiveHub


def live_families(hub: LiveHub) -> list[Family]:
    """Return the open streams, and what was sent, refused and started over."""
    return [
        gauge(
            "ingero_fleet_live_streams", "Pages and terminals that watch", [((), len(hub.streams))]
        ),
        total("ingero_fleet_live_streams_opened_total", "Live streams opened", hub.opened),
        total(
            "ingero_fleet_live_refused_total",
            "Live streams refused or closed: too many",
            hub.refused,
        ),
        total(
            "ingero_fleet_live_restarted_total",
            "New snapshots for streams that fell behind",
            hub.restarted,
        ),
        total("ingero_fleet_live_bytes_total", "Bytes sent to live streams", hub.sent_bytes),
    ]
