"""Collectives of one rank, and a Fleet that keeps what is pushed to it."""

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.measurements.ranks import Measured, decode_ranks
from ingero.contract.otlp.values import MetricsRequest
from ingero.core.health.modes import PushOutcome
from ingero.transport.otlp.client import PushReply

MS = 1_000_000


def record(
    seq: int, rank: int = 2, source: CollectiveSource = CollectiveSource.PLUGIN, step_ms: int = 250
) -> CollectiveRecord:
    """All-reduces of two sizes in turn: a step is one of each, 250 ms long, 240 of them own."""
    at = 10**18 + (seq // 2) * step_ms * MS + (seq % 2) * 5 * MS
    return CollectiveRecord(
        job="j", node="n", global_rank=rank, comm=7, seq=seq, op="AllReduce", rank=rank, nranks=8,
        peer=None,
        datatype="bfloat16", reduce_op=None, size_bytes=(seq % 2 + 1) << 20, start_ns=at - 2 * MS,
        end_ns=at + 5 * MS,
        gpu_duration_ns=5 * MS, stream=None, source=source,
    )  # fmt: skip


class FleetStub:
    """Accepts every request, or sends the replies it was given."""

    def __init__(self) -> None:
        self.requests: list[MetricsRequest] = []
        self.answers: list[PushReply] = []

    async def push(self, request: MetricsRequest) -> PushReply:
        self.requests.append(request)
        return self.answers.pop(0) if self.answers else PushReply(outcome=PushOutcome.OK)

    def measured(self) -> list[Measured]:
        return [each for request in self.requests for each in decode_ranks(request)]
