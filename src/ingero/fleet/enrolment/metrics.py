"""Metrics of enrolment."""

from typing import TYPE_CHECKING

from ingero.contract.exposition import Family, by_label, gauge, total

if TYPE_CHECKING:
    from ingero.fleet.enrolment.service import EnrolmentService


def enrolment_families(service: "EnrolmentService | None") -> list[Family]:
    """Return how many nodes are enrolled, and what happened to those that asked."""
    if service is None:
        return []
    return [
        gauge("ingero_fleet_enrolled_nodes", "Nodes that are enrolled", [((), len(service.keys))]),
        by_label(
            "ingero_fleet_enrolments_total",
            "Requests to join, renew or leave, by outcome",
            "outcome",
            service.outcomes,
        ),
        total(
            "ingero_fleet_enrolment_audit_failures_total",
            "Entries that could not be written to the audit file",
            service.audit.failed,
        ),
    ]
