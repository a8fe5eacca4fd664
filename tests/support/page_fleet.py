"""A Fleet with a simulated cluster, in a thread of its own, for browsers to look at."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from tests.support.pushes import NEVER_S, loopback_config, request
from tests.support.verdict_pushes import own_time_push

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_protobuf
from ingero.fleet.app import FleetService
from ingero.fleet.processor import Taken

CLUSTER = "train-a"
JOB = "llama-70b"
PRICED = {"gpu_model": "NVIDIA H100 80GB HBM3", "provider": "aws"}
LEARNED_S = 125  # of own times before anybody can be named
PUSH_EVERY = 10  # seconds between two pushes of a node


class PageFleet:
    """`nodes` nodes push scores, and the first `ranks` of them own times of one job.

    The past is simulated before the start, so that rank `slow` can be named at once.
    """

    def __init__(
        self, *, nodes: int = 64, ranks: int = 0, slow: int | None = None, prefix: str = "gpu-",
        gpus_per_node: int = 1, past_s: int = LEARNED_S, **changes: Any,
    ) -> None:  # fmt: skip
        self.names = [f"{prefix}{number:05d}" for number in range(nodes)]
        self.ranks, self.slow, self._gpus = ranks, slow, gpus_per_node
        self.slow_nodes: set[str] = set()
        self.silent: set[str] = set()
        self._changes, self._past_s = changes, past_s
        self._second = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.fleet: FleetService | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        assert self.fleet is not None
        return f"http://{self.fleet.addresses['threshold']}"

    def start(self, address: str = "127.0.0.1:0") -> None:
        """Start Fleet, let the past happen, and go on once a second."""
        changes = {"extensions": {"ingero_threshold": {"agent_endpoint": address}}}
        for key, value in self._changes.items():
            changes.setdefault(key, {}).update(value)

        async def begin() -> None:
            self.fleet = FleetService(loopback_config(**changes), tick_s=NEVER_S)
            await self.fleet.start()
            now_s = time.monotonic()
            for ago in range(self._past_s if self.ranks else 1, 0, -1):
                self._pass_second(now_s - ago)
            self._going = asyncio.create_task(self._go_on())

        self._run(begin)

    def stop(self) -> None:
        """Stop Fleet as an operator does."""

        async def end() -> None:
            assert self.fleet is not None
            self._going.cancel()
            await self.fleet.stop()

        self._run(end)

    def call(self, action: Callable[[], Any]) -> Any:
        """Do something in Fleet's thread and return its result."""

        async def act() -> Any:
            return action()

        return self._run(act)

    def name_slow(self, rank: int) -> None:
        """Make a rank slow, and let seconds pass until it is named."""
        self.slow = rank
        self.call(self.until_named)

    def until_named(self) -> None:
        """Let seconds pass until the slow rank is named; call it in Fleet's thread."""
        assert self.fleet is not None
        for _ in range(60):
            self._pass_second(time.monotonic())
            if any(v.state == "straggler" for _, v in self.fleet.verdicts.open_verdicts()):
                return
        raise AssertionError("the slow rank was not named")

    def _run(self, begin: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(begin(), self._loop).result(120)

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._pass_second(time.monotonic())

    def _pass_second(self, now_s: float) -> None:
        fleet, second = self.fleet, self._second
        assert fleet is not None
        self._second += 1
        first = second == 0
        for number, name in enumerate(self.names):
            if (first or number % PUSH_EVERY == second % PUSH_EVERY) and name not in self.silent:
                self.push(number, now_s)
        for rank in range(self.ranks):
            own_ms = 500 * (1.0 + 0.004 * math.sin(rank * 7.1 + second * (1.3 + rank % 5)))
            own_ms *= 1.34 if rank == self.slow else 1.0
            node = self.names[rank // self._gpus]
            push = own_time_push(node, rank, second, own_ms, JOB, **PRICED)
            fleet.processor.take(push, CLUSTER, now_s, time.time_ns())
        fleet.tick(now_s)

    def push(self, number: int, now_s: float | None = None) -> None:
        """Push the health of one node, as Fleet's receiver takes it."""
        fleet, name = self.fleet, self.names[number]
        assert fleet is not None
        push = self._health(number, name)
        at_s = time.monotonic() if now_s is None else now_s
        fleet.processor.take(push, CLUSTER, at_s, time.time_ns())
        taken, body = Taken(CLUSTER, name, names.HEALTH_SCORE), encode_protobuf(push)
        for sink in fleet.receiver.sinks.get(otlp.MetricsRequest, ()):
            sink.offer(otlp.MetricsRequest, body, Encoding.PROTOBUF, taken)

    def _health(self, number: int, name: str) -> otlp.MetricsRequest:
        is_slow = name in self.slow_nodes
        score = 0.35 if is_slow else 0.9 + 0.08 * math.sin(number * 12.9 + self._second)
        state = "idle" if number % 41 == 40 else "active"
        about = {names.NODE_STATE: state, names.WORKLOAD_TYPE: "training"}
        point = otlp.NumberPoint(
            attributes=otlp.attributes(about), as_double=score, time_unix_nano=time.time_ns()
        )
        gauges = {names.HEALTH_SCORE: point}
        ratios = (names.THROUGHPUT_RATIO, names.COMPUTE_EFFICIENCY, names.CPU_AVAILABILITY)
        for place, ratio in enumerate(ratios):
            value = 0.55 if is_slow and not place else 0.95 + 0.03 * math.sin(number + place)
            gauges[ratio] = otlp.NumberPoint(as_double=value)
        if is_slow:
            gauges[names.STRAGGLER_EVENT] = otlp.NumberPoint(as_int=1)
        identity: dict[str, otlp.Plain] = {
            names.NODE_ID: name, names.CLUSTER_ID: CLUSTER, names.JOB_ID: JOB,
            names.GPU_MODEL: "H100 SXM",
        }  # fmt: skip
        metrics = [
            otlp.Metric(name=key, gauge=otlp.Gauge(data_points=(value,)))
            for key, value in gauges.items()
        ]
        return request(identity, *metrics)
