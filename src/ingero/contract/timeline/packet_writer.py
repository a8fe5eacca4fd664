"""A timeline written chunk by chunk as native Perfetto packets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ingero.contract.events import Source, op_name
from ingero.contract.timeline.model import (
    SliceChunk,
    TimelineChain,
    TimelineCounter,
    TimelineNode,
    TimelineProcess,
    category_of,
    kinds_of,
)
from ingero.contract.timeline.perfetto import (
    Columns,
    as_columns,
    counter_packet,
    counter_track,
    flow_slice_packets,
    groups,
    instant_packet,
    interned_packet,
    named_track,
    overlaps,
    packet_slices,
    process_track,
)


@dataclass(slots=True)
class _Track:
    """A track on which no slices overlap, and the end of its last slice."""

    uuid: int
    ends_ns: int


# The stored time of these events is their end; the stored time of calls is their beginning.
_ENDS_AT_ITS_TIME: Final = as_columns([Source.HOST, Source.IO, Source.TCP, Source.NET])


@dataclass(slots=True)
class PacketTimeline:
    """Native packets: node, process and thread tracks, arrows along causal chains, counters.

    Slices of one track must nest, so slices that overlap go to further tracks of the same thread.
    """

    nodes: Sequence[TimelineNode]
    # By node and pid.
    processes: Mapping[tuple[int, int], TimelineProcess] = field(default_factory=dict)
    # By row of an event, the ids of the arrows through it.
    chain_rows: dict[int, list[int]] = field(default_factory=dict)
    events: int = 0
    markers: int = 0
    _uuids: dict[tuple[object, ...], int] = field(default_factory=dict)
    _tracks: dict[tuple[int, ...], list[_Track]] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _categories: dict[str, int] = field(default_factory=dict)

    def begin(self) -> bytes:
        out = [interned_packet({}, {}, first=True)]
        for index, node in enumerate(self.nodes):
            ranks = {
                process.rank for (of_node, _), process in self.processes.items() if of_node == index
            } - {None}
            # With several ranks on a node, each process shows its own.
            rank = node.rank if not ranks else ranks.pop() if len(ranks) == 1 else None
            out.append(
                process_track(
                    self._uuid("node", index)[0], TimelineNode(node.name, rank).label, index + 1
                )
            )
        return b"".join(out)

    def slices(self, chunk: SliceChunk) -> bytes:
        if not len(chunk.ts_ns):
            return b""
        before_ns = np.where(
            np.isin(chunk.source, _ENDS_AT_ITS_TIME), np.maximum(chunk.dur_ns, 0), 0
        )
        chunk = replace(chunk, ts_ns=chunk.ts_ns - before_ns)
        kinds, which = kinds_of(chunk)
        out = [self._intern(kinds)]
        names = as_columns([self._names[op_name(source, op)] for source, op in kinds])[which]
        categories = as_columns([self._categories[category_of(source)] for source, _ in kinds])[
            which
        ]
        tracks = np.zeros(len(chunk.ts_ns), np.int64)
        out += self._place(chunk, tracks)
        plain = np.ones(len(tracks), bool)
        for index in (
            np.flatnonzero(np.isin(chunk.row, list(self.chain_rows))).tolist()
            if self.chain_rows
            else []
        ):
            plain[index] = False
            out.append(
                flow_slice_packets(
                    int(chunk.ts_ns[index]),
                    int(chunk.dur_ns[index]),
                    int(tracks[index]),
                    int(names[index]),
                    int(categories[index]),
                    self.chain_rows[int(chunk.row[index])],
                )
            )
        columns = (chunk.ts_ns, chunk.dur_ns, names, categories, tracks)
        out.append(packet_slices(*(as_columns(column[plain]) for column in columns)))
        self.events += len(tracks)
        return b"".join(out)

    def chains(self, chains: Sequence[TimelineChain]) -> bytes:
        out = []
        self.markers += len(chains)
        for number, chain in enumerate(chains, 1):
            uuid, is_new = self._uuid("chains", chain.node)
            if is_new:
                out.append(named_track(uuid, self._uuid("node", chain.node)[0], "causal chains"))
            notes = {
                "severity": chain.severity,
                "root cause": chain.root_cause,
                "recommendations": "; ".join(chain.recommendations),
            }
            flows = [
                flow
                for row in chain.rows
                for flow in self.chain_rows.get(row, ())
                if flow // 16 == number
            ]
            out.append(
                instant_packet(
                    chain.at_ns, uuid, f"{chain.severity}: {chain.summary}", flows, notes
                )
            )
        return b"".join(out)

    def counters(self, counters: Sequence[TimelineCounter]) -> bytes:
        out = []
        for counter in counters:
            uuid, is_new = self._uuid("counter", counter.node, counter.name)
            if is_new:
                out.append(
                    counter_track(
                        uuid, self._uuid("node", counter.node)[0], counter.name, counter.unit
                    )
                )
            out += [
                counter_packet(ts, uuid, v)
                for ts, v in zip(counter.ts_ns.tolist(), counter.values, strict=True)
            ]
        return b"".join(out)

    def end(self) -> bytes:
        return b""

    def expect_chains(self, chains: Sequence[TimelineChain]) -> None:
        """Register the chains before the slices: one arrow per event of a chain, at most 16."""
        for number, chain in enumerate(chains, 1):
            for position, row in enumerate(chain.rows[:16]):
                self.chain_rows.setdefault(row, []).append(number * 16 + position)

    def _uuid(self, *key: object) -> tuple[int, bool]:
        known = self._uuids.get(key)
        if known is not None:
            return known, False
        self._uuids[key] = len(self._uuids) + 1
        return self._uuids[key], True

    def _intern(self, kinds: list[tuple[int, int]]) -> bytes:
        names, categories = {}, {}
        for source, op in kinds:
            name, category = op_name(source, op), category_of(source)
            if name not in self._names:
                names[name] = self._names[name] = len(self._names) + 1
            if category not in self._categories:
                categories[category] = self._categories[category] = len(self._categories) + 1
        return interned_packet(names, categories, first=False) if names or categories else b""

    def _place(self, chunk: SliceChunk, tracks: Columns) -> Iterator[bytes]:
        """Fill in the track of every slice; yield the descriptors of new tracks."""
        code = np.zeros(len(tracks), np.int64)
        firsts = groups(chunk.node, chunk.pid, chunk.tid, chunk.source, code)
        keys = [
            tuple(int(c[i]) for c in (chunk.node, chunk.pid, chunk.tid, chunk.source))
            for i in firsts
        ]
        for key in keys:
            if key not in self._tracks:
                self._tracks[key] = []
                yield from self._new_track(key)
        ends = as_columns([self._tracks[key][0].ends_ns for key in keys])
        overlapping = np.zeros(len(keys), np.uint8)
        overlaps(code, chunk.ts_ns, chunk.dur_ns, ends, overlapping)
        tracks[:] = as_columns([self._tracks[key][0].uuid for key in keys])[code]
        for number, key in enumerate(keys):
            if overlapping[number] or len(self._tracks[key]) > 1:
                yield from self._spread(key, chunk, np.flatnonzero(code == number), tracks)
            else:
                self._tracks[key][0].ends_ns = int(ends[number])

    def _spread(
        self, key: tuple[int, ...], chunk: SliceChunk, members: Columns, tracks: Columns
    ) -> Iterator[bytes]:
        """Put each slice of one thread on the first free track."""
        own = self._tracks[key]
        begins, ends = chunk.ts_ns[members], chunk.ts_ns[members] + chunk.dur_ns[members]
        for member, begin, end in zip(
            members.tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            track = next((free for free in own if free.ends_ns <= begin), None)
            if track is None:
                yield from self._new_track(key)
                track = own[-1]
            track.ends_ns = end
            tracks[member] = track.uuid

    def _new_track(self, key: tuple[int, ...]) -> Iterator[bytes]:
        node, pid, tid, source = key
        own = self._tracks[key]
        process, is_new = self._uuid("process", node, pid)
        if is_new:
            known = self.processes.get((node, pid), TimelineProcess(pid))
            yield named_track(process, self._uuid("node", node)[0], known.label)
        uuid, _ = self._uuid("thread", *key, len(own))
        number = f" ({len(own) + 1})" if own else ""
        yield named_track(uuid, process, f"thread {tid} {category_of(source)}{number}")
        own.append(_Track(uuid, -(1 << 63)))
