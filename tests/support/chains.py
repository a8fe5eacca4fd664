"""Find causal chains in a few events."""

from collections.abc import Iterable

from tests.support.trace_events import MS, T0

from ingero.contract.chain import Chain
from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.finder import ChainFinder
from ingero.core.chains.neighbours import Host
from ingero.core.recording.event_columns import EventColumns, columns_from_rows
from ingero.core.recording.latency import OpSummary

EMPTY = columns_from_rows([])
SECOND = 1000 * MS


def find(
    evidence: EventColumns = EMPTY, ops: Iterable[OpSummary] = (),
    system: SystemSample | None = None, pid: int = 0,
    cgroup: int = 0, now: int = T0 + SECOND,
) -> list[Chain]:  # fmt: skip
    """Return the chains that a finder reports for these events and operations."""
    finder = ChainFinder(0, Host(8))
    finder.add(evidence)
    if system:
        finder.add_sample(system)
    return finder.find(now, list(ops), pid, cgroup)


def names(chains: Iterable[Chain]) -> list[str]:
    """Return the name of each chain."""
    return [chain.name for chain in chains]
