"""Causal chains, derived again from the events of a trace database."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from ingero.contract.chain import chain_id, severity_order
from ingero.core.chains.neighbours import Host
from ingero.core.chains.replay import Progress, replay
from ingero.storage.trace.chains import RecordedChain
from ingero.storage.trace.rows import read_events, read_samples
from ingero.storage.trace.schema import MAX_TIME_NS

MARGIN_NS = 2_000_000_000  # a system sample describes the second before it


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a trace; `last` keeps only the newest events."""

    from_ns: int = 0
    to_ns: int = MAX_TIME_NS
    last: int = 0


def derive_chains(
    connection: sqlite3.Connection,
    nodes: Sequence[str],
    span: Span,
    pids: Sequence[int],
    read: Progress = lambda done, total: None,
    replayed: Progress = lambda done, total: None,
) -> list[RecordedChain]:
    """Return the chains of each of the file's nodes, worst first.

    Events of one host never explain those of another.

    System samples of a merged file do not name their node and are left out.
    """
    names = dict(connection.execute("SELECT pid, name FROM process_names").fetchall())
    cpus = connection.execute("SELECT max(cpu_cores) FROM sessions").fetchone()[0] or 0
    found = []
    for node in nodes:
        events = read_events(connection, span.from_ns, span.to_ns, span.last, node, read)
        if not len(events):
            continue
        first, final = int(events.timestamp.min()), int(events.timestamp.max())
        samples = (
            read_samples(connection, first - MARGIN_NS, min(final + MARGIN_NS, MAX_TIME_NS))
            if len(nodes) == 1
            else []
        )
        for pid in pids or (0,):
            for at_ns, chain in replay(
                events, samples, Host(cpus, names), pid=pid, progress=replayed
            ):
                found.append(RecordedChain(chain_id(node, chain.name), node, at_ns, chain))
    return sorted(found, key=lambda item: severity_order(item.chain.severity))
