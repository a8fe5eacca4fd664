"""Reports of resources that were decoded before, by the octets that arrived.

The identity of a rank is the same in every push. Reading it again costs more than its own times.
"""

from typing import Final

from ingero.contract.push.decode import NodeReport, Push

RANKS_PER_NODE: Final = 16
MAX_RESOURCE_BYTES: Final = 1024  # the sender decides how long a resource is


class KnownReports:
    """What the processor needs of resources that it accepted; at most `RANKS_PER_NODE` per node."""

    def __init__(self, max_nodes: int) -> None:
        self._limit = RANKS_PER_NODE * max_nodes
        self._reports: dict[bytes, NodeReport] = {}

    def find(self, resources: list[bytes]) -> tuple[NodeReport, ...] | None:
        """Return the reports of all resources, or None when one of them is not known."""
        try:
            return tuple([self._reports[resource] for resource in resources])
        except KeyError:
            return None

    def learn(self, resources: list[bytes], push: Push) -> None:
        """Remember the reports of a decoded request; a resource that was refused stays unknown."""
        if len(push.reports) != len(resources) or push.rejected:
            return
        if len(self._reports) + len(resources) > self._limit:
            self._reports.clear()
        for resource, report in zip(resources, push.reports, strict=True):
            if len(resource) <= MAX_RESOURCE_BYTES:
                self._reports[resource] = report
