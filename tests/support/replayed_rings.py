"""Recorded rings through agent and Fleet, second by second, by a hand-driven clock.

Everything between the ring files and the verdicts is the product's own code: the reader of rings,
`LiveCollectives` of one agent per node, the wire format, and Fleet's `VerdictService`. Only clock,
sockets and processes are replaced.

    python -m tests.support.replayed_rings ../shared/data/nccl-jobs/ddp …

prints what is said about each recording of the folders, and when.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from tests.support.ring_recordings import RankRecording, Recording, find_recordings

from ingero.agent.nccl.reader import RingReader
from ingero.agent.nccl.rings import RingBatch
from ingero.agent.push.collective_feed import RankBatch, rank_batch
from ingero.agent.push.collectives import LiveCollectives
from ingero.contract.nccl_ring import COMM, HEADER, RECORD
from ingero.contract.otlp.body import Encoding, decode
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.types import Identity
from ingero.contract.verdict import Verdict
from ingero.core.health.modes import PushOutcome
from ingero.core.verdict.policy import VerdictPolicy
from ingero.fleet.verdicts import VerdictService
from ingero.transport.otlp.client import PushReply

CLUSTER = "replayed"


class ReplayedRing:
    """A ring file that fills up as time passes, and the agent's reader of it."""

    def __init__(self, recording: RankRecording, folder: Path) -> None:
        self._records, self._gaps = recording.records, recording.gaps
        header = np.frombuffer(recording.header, HEADER).copy()
        header["head"] = 0
        self._header = header
        self._slots = int(header["slots"][0])
        self._at = HEADER.itemsize + int(header["comms"][0]) * COMM.itemsize
        # A record is published when the host noticed its end, in the order of the ring.
        stops = recording.records["host_stop_ns"].astype(np.int64)
        self._due_s = np.maximum.accumulate(stops) / 1e9
        path = folder / recording.name
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self._fd, self._at + self._slots * RECORD.itemsize)
        self._write_head(0)
        self._head = 0
        self.lost = 0
        self.reader = RingReader(path)

    def poll(self, now_s: float, node: str) -> RingBatch | None:
        """Publish what is due and return what the agent reads of it."""
        head = int(np.searchsorted(self._due_s, now_s, side="right"))
        self.lost += sum(self._head < gap <= head for gap in self._gaps)
        for first in range(self._head, head, self._slots):
            self._publish(first, min(first + self._slots, head))
        self._head = head
        records = self.reader.poll(now_s)
        if not len(records):
            return None
        rows = self.reader.collectives(records, node)
        return RingBatch(self.reader.header, None, records, rows, False)

    def close(self) -> None:
        self.reader.close()
        os.close(self._fd)

    def _publish(self, first: int, head: int) -> None:
        at = first % self._slots
        wrap = min(head - first, self._slots - at)
        for begin, end, slot in ((first, first + wrap, at), (first + wrap, head, 0)):
            data = self._records[begin:end].tobytes()
            os.pwrite(self._fd, data, self._at + slot * RECORD.itemsize)
        self._write_head(head)

    def _write_head(self, head: int) -> None:
        self._header["head"] = head
        os.pwrite(self._fd, self._header.tobytes(), 0)


class ReplayedFeed:
    """The rings of one node as a feed of `LiveCollectives`."""

    def __init__(self, node: str, rings: Sequence[ReplayedRing]) -> None:
        self.lost = 0
        self.problem = ""
        self.now_s = 0.0
        self._node, self._rings = node, rings

    def poll(self) -> list[RankBatch]:
        found = [ring.poll(self.now_s, self._node) for ring in self._rings]
        self.lost = sum(ring.lost + ring.reader.missed + ring.reader.torn for ring in self._rings)
        return [rank_batch(batch) for batch in found if batch is not None]

    def close(self) -> None:
        for ring in self._rings:
            ring.close()


class _Wire:
    """A client whose requests reach Fleet `behind_s` seconds late, as bytes if `is_encoded`."""

    def __init__(self, behind_s: float, is_encoded: bool) -> None:
        self.behind_s, self.now_s = behind_s, 0.0
        self.is_encoded, self.bytes_sent = is_encoded, 0
        self._under_way: list[tuple[float, MetricsRequest]] = []

    async def push(self, request: MetricsRequest) -> PushReply:
        if self.is_encoded:
            body = encode_protobuf(request)
            self.bytes_sent += len(body)
            request = decode(MetricsRequest, body, Encoding.PROTOBUF)
        self._under_way.append((self.now_s + self.behind_s, request))
        return PushReply(outcome=PushOutcome.OK)

    def arrived(self, now_s: float) -> list[MetricsRequest]:
        due = [request for at_s, request in self._under_way if at_s <= now_s]
        self._under_way = [each for each in self._under_way if each[0] > now_s]
        return due


@dataclass(frozen=True, slots=True)
class Said:
    """One verdict that was new or changed, with the second in which it was."""

    at_s: float
    verdict: Verdict


@dataclass(slots=True)
class Replayed:
    """What a replay said, and the services that said it."""

    recording: Recording
    begin_s: float
    end_s: float
    service: VerdictService
    agents: list[LiveCollectives]
    said: list[Said] = field(default_factory=list)
    bytes_sent: int = 0

    def named(self, rank: int) -> list[Said]:
        """Return what was said of a rank."""
        return [each for each in self.said if each.verdict.rank == rank]


def replay(
    recording: Recording,
    *,
    policy: VerdictPolicy | None = None,
    nodes: int = 1,
    behind_s: Mapping[str, float] | None = None,
    service: VerdictService | None = None,
    on_request: Callable[[float, MetricsRequest], None] | None = None,
    on_tick: Callable[[float, VerdictService], None] | None = None,
) -> Replayed:
    """Replay a recording with its ranks spread over `nodes` nodes, named `n0`, `n1`, …

    `behind_s` delays the pushes of nodes. `on_request` sees each request as Fleet receives it, and
    `on_tick` the service after each second.
    """
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(
            _replay(
                recording,
                Path(folder),
                service or VerdictService(policy=policy),
                nodes,
                behind_s or {},
                on_request,
                on_tick,
            )
        )


async def _replay(
    recording: Recording,
    folder: Path,
    service: VerdictService,
    nodes: int,
    behind_s: Mapping[str, float],
    on_request: Callable[[float, MetricsRequest], None] | None,
    on_tick: Callable[[float, VerdictService], None] | None,
) -> Replayed:
    stops = [rank.records["host_stop_ns"].astype(np.int64) for rank in recording.ranks]
    begin_s = min(int(each.min()) for each in stops) // 10**9
    end_s = max(int(each.max()) for each in stops) // 10**9 + 1
    per_node = -(-len(recording.ranks) // nodes)
    rings = [ReplayedRing(rank, folder) for rank in recording.ranks]
    feeds = {
        f"n{number}": ReplayedFeed(f"n{number}", rings[number * per_node : (number + 1) * per_node])
        for number in range(nodes)
    }
    result = Replayed(recording, float(begin_s), float(end_s), service, [])
    driven = await drive(feeds, service, (begin_s, end_s), behind_s, on_request, on_tick)
    result.agents, result.said, result.bytes_sent = driven
    for feed in feeds.values():
        feed.close()
    return result


class DrivenFeed(Protocol):
    """A feed whose clock is driven by hand."""

    lost: int
    problem: str
    now_s: float

    def poll(self) -> list[RankBatch]: ...

    def close(self) -> None: ...


async def drive(
    feeds: Mapping[str, DrivenFeed],
    service: VerdictService,
    seconds: tuple[int, int],
    behind_s: Mapping[str, float],
    on_request: Callable[[float, MetricsRequest], None] | None = None,
    on_tick: Callable[[float, VerdictService], None] | None = None,
    is_encoded: bool = True,
) -> tuple[list[LiveCollectives], list[Said], int]:
    """Run an agent per feed and Fleet, second by second; `seconds` are the first and the last.

    Returns the agents, what was said, and how many bytes were sent (without `is_encoded`, none).
    """
    wires = {name: _Wire(behind_s.get(name, 0.0), is_encoded) for name in feeds}
    agents = {
        name: LiveCollectives(
            [feed], wires[name], Identity(node=name, cluster=CLUSTER, job="job"), _ignore
        )
        for name, feed in feeds.items()
    }
    said: list[Said] = []
    begin_s, end_s = seconds
    for second in range(begin_s, end_s + 1 + int(max(behind_s.values(), default=0.0))):
        now_s = float(second)
        for name, agent in agents.items():
            feeds[name].now_s = wires[name].now_s = now_s
            agent.queue(agent.measure(now_s))
            await agent.send()
            for request in wires[name].arrived(now_s):
                if on_request is not None:
                    on_request(now_s, request)
                service.take(request, CLUSTER, now_s)
        said += [Said(now_s, verdict) for _, verdict in service.tick(now_s)]
        if on_tick is not None:
            on_tick(now_s, service)
    return list(agents.values()), said, sum(wire.bytes_sent for wire in wires.values())


def _ignore(verdicts: Sequence[Verdict]) -> None:
    """Do nothing with the verdicts in replies."""


def describe(result: Replayed) -> str:
    """Return what was said, by seconds since the recording began and since the fault."""
    recording, lines = result.recording, []
    fault_s = recording.fault_start_s
    truth = "healthy"
    if fault_s is not None:
        fault = recording.truth["fault"]
        truth = (
            f"rank {recording.culprit} {fault['class']} from +{fault_s - result.begin_s:.0f} s, "
            f"loss {recording.loss:.1%} of the slow step"
        )
    seconds = result.end_s - result.begin_s
    lines.append(
        f"{recording.name}: {truth}; {seconds:.0f} s, "
        f"{result.bytes_sent / seconds / len(recording.ranks) / 1e3:.1f} kB/s a rank"
    )
    for each in result.said:
        verdict, after = (
            each.verdict,
            "" if fault_s is None else f" fault {each.at_s - fault_s:+.0f} s",
        )
        loss = (
            ""
            if verdict.loss is None
            else (
                f" loss {'at most ' if verdict.at_most else ''}{verdict.loss:+.1%}"
                f" ±{verdict.loss_error or 0:.1%}"
            )
        )
        excess = "" if verdict.excess is None else f" own {verdict.excess:+.1%}"
        period = "" if verdict.period is None else f" every {verdict.period}"
        lines.append(
            f"  +{each.at_s - result.begin_s:3.0f} s{after} rank {verdict.rank} "
            f"{verdict.state.value} {verdict.cause_class.value}{loss}{excess}{period}"
            f" {verdict.link} {verdict.shared} | {verdict.evidence}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, help="job folders with a truth.json")
    parser.add_argument("--only", default="", help="recordings whose name contains this text")
    parser.add_argument("--nodes", type=int, default=1, help="nodes that the ranks are spread over")
    parser.add_argument("--warmup", type=int, help="warm-up samples of the engine")
    parser.add_argument(
        "--behind", type=float, default=0.0, help="seconds that the last node is late"
    )
    chosen = parser.parse_args()
    policy = (
        VerdictPolicy() if chosen.warmup is None else VerdictPolicy(warmup_samples=chosen.warmup)
    )
    for recording in find_recordings(chosen.folders):
        if chosen.only in recording.name:
            late = {f"n{chosen.nodes - 1}": chosen.behind}
            said = describe(replay(recording, policy=policy, nodes=chosen.nodes, behind_s=late))
            print(said, flush=True)


if __name__ == "__main__":
    main()
