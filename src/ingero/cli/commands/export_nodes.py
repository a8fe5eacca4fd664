"""`ingero export --nodes`: a timeline of the newest events, chains and clock offsets of nodes."""

import datetime
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

import msgspec

from ingero.cli.fanout.ask import ask_nodes
from ingero.cli.fanout.options import FanoutOptions
from ingero.cli.fanout.report import report_problems, require_an_answer, some_of
from ingero.contract.api_paths import NODE_CHAINS, NODE_QUERY
from ingero.contract.events import find_op
from ingero.contract.node_api import ChainRow, Chains
from ingero.contract.timeline.model import (
    SliceChunk,
    TimelineChain,
    TimelineCounter,
    TimelineNode,
    TimelineProcess,
    TimelineWriter,
)
from ingero.contract.timeline.packet_writer import PacketTimeline
from ingero.contract.timeline.perfetto import as_columns
from ingero.core.chains.links import link_events
from ingero.core.rowmerge import RowMerge
from ingero.errors import Unavailable
from ingero.transport.fanout.ask import decode_reply
from ingero.transport.fanout.client import NodeReply, Question

# Nodes report the second in which a chain was found; its events are before the end of that second.
REPORTED_TO_NS = 999_999_999
_COLUMNS = (
    "timestamp",
    "duration",
    "source",
    "op",
    "pid",
    "tid",
    "gpu_id",
    "ret_code",
    "node",
    "rank",
)
_SQL = (
    "SELECT timestamp, duration, source, op, pid, tid, gpu_id, ret_code, node, rank FROM events "
    "WHERE timestamp >= {since} ORDER BY timestamp DESC"
)
_Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Row: TypeAlias = tuple[_Int, _Int, _Int, _Int, _Int, _Int, _Int, _Int, str | None, _Int | None]


class _Events(msgspec.Struct):
    """Rows with the columns of a timeline; a node with other columns is left out with a warning."""

    columns: list[str]
    rows: list[_Row]
    truncated: bool = False


class NodesTimeline:
    """The answers of several nodes as a timeline."""

    def __init__(self, options: FanoutOptions, since_s: float, limit: int) -> None:
        self.options = options
        self.merge = RowMerge()
        self.merge.expect(_COLUMNS)
        self._rows: list[list[Any]] = []
        self._cut: list[str] = []
        self._chains: list[tuple[ChainRow, int]] = []
        since_ns = time.time_ns() - int(since_s * 1e9)
        events = Question(NODE_QUERY, {"sql": _SQL.format(since=max(0, since_ns)), "limit": limit})
        chains = Question(f"{NODE_CHAINS}?since={since_s:.3f}s")
        self.result = ask_nodes(options, (events, self._take_rows), (chains, self._take_chains))
        require_an_answer(self.merge, self.result)
        if self.result.interrupted and not self.merge.answered:
            raise Unavailable("interrupted before a node had answered; nothing was written")
        if self._cut:
            kept = f"only the newest {limit} events of {some_of(self._cut)} are in it"
            self.merge.warnings.append(f"{kept}; raise --limit or shorten --since")
        self._rows.sort(key=lambda row: int(row[0]))
        self.nodes = self._read_nodes()
        self._index = {node.name: position for position, node in enumerate(self.nodes)}

    def _take_rows(self, reply: NodeReply) -> None:
        decoded = decode_reply(reply, msgspec.json.Decoder(_Events).decode, self.merge)
        if decoded is not None:
            if decoded.truncated:
                self._cut.append(reply.name)
            for row in self.merge.add(reply.name, decoded.columns, decoded.rows):
                row[8] = row[8] or reply.name
                self._rows.append(row)

    def _take_chains(self, reply: NodeReply) -> None:
        """Add the chains of a node; without them, its events are still shown."""
        noted = RowMerge()
        decoded = decode_reply(reply, msgspec.json.Decoder(Chains).decode, noted)
        self.merge.warnings += [
            warning for warning in noted.warnings if warning not in self.merge.warnings
        ]
        for chain in decoded.chains if decoded else ():
            chain.node = chain.node or reply.name
            try:
                moment = datetime.datetime.fromisoformat(chain.detected_at)
            except ValueError:
                self.merge.warnings.append(
                    f"node {reply.name}: a chain without a time was left out"
                )
                continue
            self._chains.append((chain, int(moment.timestamp()) * 1_000_000_000))

    def _read_nodes(self) -> list[TimelineNode]:
        ranks: dict[str, int | None] = {}
        for row in self._rows:
            ranks.setdefault(row[8], row[9])
        for chain, _ in self._chains:
            ranks.setdefault(chain.node, None)
        return [TimelineNode(name, ranks[name]) for name in sorted(ranks)]

    def processes(self) -> dict[tuple[int, int], TimelineProcess]:
        """Return processes by node and pid, each with the rank of its first event that has one."""
        found: dict[tuple[int, int], TimelineProcess] = {}
        for row in self._rows:
            key = self._index[row[8]], row[4]
            if key not in found or found[key].rank is None:
                found[key] = TimelineProcess(row[4], rank=row[9])
        return found

    def parts(self, writer: TimelineWriter) -> Iterator[bytes]:
        """Yield the encoded timeline."""
        columns = [[row[i] for row in self._rows] for i in range(8)]
        columns += [[self._index[row[8]] for row in self._rows], list(range(len(self._rows)))]
        events = SliceChunk(*(as_columns(column) for column in columns))
        chains = [_chain(chain, self._index[chain.node], at_ns) for chain, at_ns in self._chains]
        if isinstance(writer, PacketTimeline):
            chains = link_events(
                [replace(chain, at_ns=chain.at_ns + REPORTED_TO_NS) for chain in chains], [events]
            )
            writer.expect_chains(chains)
        yield writer.begin()
        yield writer.slices(events)
        yield writer.chains(chains)
        yield writer.counters(list(self._clocks()))
        yield writer.end()

    def _clocks(self) -> Iterator[TimelineCounter]:
        at = as_columns([self._rows[-1][0] if self._rows else 0])
        for name, offset in self.result.offsets.items():
            if name in self._index:
                yield TimelineCounter(
                    self._index[name], "clock offset", "ms", at, [offset.offset_ms]
                )

    def close(self) -> int:
        """Print warnings and return the exit status."""
        return report_problems(self.options, self.merge, self.result)


def _chain(chain: ChainRow, node: int, at_ns: int) -> TimelineChain:
    return TimelineChain(
        node=node,
        at_ns=at_ns,
        severity=chain.severity,
        summary=chain.summary,
        root_cause=chain.root_cause,
        recommendations=chain.recommendations,
        layers=[line.layer for line in chain.timeline],
        op=find_op(chain.cuda_op),
    )
