"""`echo-stress`: many producers, with every acknowledged request checked in the store."""

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc

from ingero.contract import names
from ingero.contract.api_paths import ECHO_SQL, OTLP_METRICS
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.errors import AuthError, Unavailable
from ingero.transport.bearer import authorization
from ingero.transport.bounded import read_reply_beginning
from ingero.transport.connect import NO_TLS, is_plaintext
from ingero.transport.otlp.client import reason_of
from ingero.transport.otlp.server_grpc import PATHS
from ingero.transport.tls import ClientTls, client_context

LOW_SCORE: Final = 0.31  # score of a planted straggler; healthy nodes are above 0.8
METRIC: Final = names.HEALTH_SCORE
MAX_ATTEMPTS: Final = 8
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StressPlan:
    """What to send: `events` in total, shared by the nodes.

    `rate` is events per second in total; 0 means as fast as possible.
    """

    node_ids: tuple[str, ...]
    events: int
    chains: int
    batch: int
    rate: float
    cluster: str
    planted: tuple[str, ...] = ()
    run: str = ""

    def share(self, producer: int) -> int:
        """Return the number of events of one producer."""
        whole, rest = divmod(self.events, len(self.node_ids))
        return whole + (producer < rest)


@dataclass(slots=True)
class StressResult:
    """The result of a run."""

    sent: int = 0
    acknowledged: int = 0
    retries: int = 0
    failures: list[str] = field(default_factory=list)
    ack_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    last_seq: int = 0

    def percentile_ms(self, share: float) -> float:
        """Return the acknowledgement time that `share` of the requests did not exceed."""
        ordered = sorted(self.ack_ms)
        return (
            ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
        )


def _chain_id(plan: StressPlan, position: int) -> str:
    return f"{plan.run}chain-{position % plan.chains:04d}"


def batch_body(
    plan: StressPlan, node: str, producer: int, first: int, count: int, now_ns: int
) -> bytes:
    """Encode one request with `count` health scores of `node`; chain ids repeat over the run."""
    low = first == 0 and node in plan.planted
    position = producer + first * len(plan.node_ids)
    points = tuple(
        otlp.NumberPoint(
            time_unix_nano=now_ns + i,
            as_double=LOW_SCORE if low and i == 0 else 0.8 + 0.2 * ((position + i) % 997) / 997,
            attributes=otlp.attributes(
                {
                    names.CAUSAL_CHAIN_ID: _chain_id(plan, position + i * len(plan.node_ids)),
                    "stress.run": plan.run,
                    "stress.index": first + i,
                }
                if plan.chains
                else {"stress.run": plan.run, "stress.index": first + i}
            ),
        )
        for i in range(count)
    )
    identity: dict[str, otlp.Plain] = {
        names.CLUSTER_ID: plan.cluster,
        names.NODE_ID: node,
        names.RANK: producer,
        names.WORLD_SIZE: len(plan.node_ids),
    }
    metric = otlp.Metric(name=METRIC, gauge=otlp.Gauge(data_points=points))
    resource = otlp.ResourceMetrics(
        resource=otlp.Resource(attributes=otlp.attributes(identity)),
        scope_metrics=(otlp.ScopeMetrics(scope=otlp.Scope(name="echo-stress"), metrics=(metric,)),),
    )
    return encode_protobuf(otlp.MetricsRequest(resource_metrics=(resource,)))


Send = Callable[[bytes], Any]  # awaitable: returns the sequence or raises Unavailable


async def run_stress(
    plan: StressPlan, send: Send, on_progress: Callable[[StressResult], None]
) -> StressResult:
    """Send all requests, each until it is acknowledged or has finally failed."""
    result = StressResult()
    began = time.monotonic()
    producers = [
        _produce(plan, number, node, send, result, began)
        for number, node in enumerate(plan.node_ids)
    ]
    work = asyncio.gather(*producers)
    try:
        while not work.done():
            await asyncio.wait([work], timeout=1.0)
            on_progress(result)
    except asyncio.CancelledError:  # Ctrl-C
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        raise
    await work
    result.seconds = time.monotonic() - began
    return result


async def _produce(
    plan: StressPlan, number: int, node: str, send: Send, result: StressResult, began: float
) -> None:
    events = plan.share(number)
    per_producer = plan.rate / len(plan.node_ids)
    for first in range(0, events, plan.batch):
        if plan.rate:
            await asyncio.sleep(max(0.0, began + first / per_producer - time.monotonic()))
        count = min(plan.batch, events - first)
        body = batch_body(plan, node, number, first, count, time.time_ns())
        result.sent += count
        await _deliver(body, count, send, result)


async def _deliver(body: bytes, count: int, send: Send, result: StressResult) -> None:
    pause_s = 0.1
    for attempt in range(MAX_ATTEMPTS):
        started = time.perf_counter()
        try:
            seq = await send(body)
        except Unavailable as error:
            if attempt == MAX_ATTEMPTS - 1:
                if not result.acknowledged:
                    raise Unavailable(
                        f"no request was acknowledged: {error}; is that Echo's port for this "
                        "protocol? See --protocol"
                    ) from None
                result.failures.append(str(error))
                return
            result.retries += 1
            jitter = random.uniform(0.5, 1.5)  # noqa: S311 - jitter, not a secret
            await asyncio.sleep(pause_s * jitter)
            pause_s = min(pause_s * 2, 5.0)
        else:
            result.ack_ms.append((time.perf_counter() - started) * 1e3)
            result.acknowledged += count
            result.last_seq = max(result.last_seq, seq)
            return


class GrpcSender:
    """Sends OTLP over gRPC; `ca` is PEM, None means plaintext."""

    def __init__(self, endpoint: str, token: str | None, ca: bytes | None) -> None:
        if ca is None:
            self._channel = grpc.aio.insecure_channel(endpoint)
        else:
            self._channel = grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(ca))
        self._metadata = tuple((k.lower(), v) for k, v in authorization(token).items())
        self._export = self._channel.unary_unary(PATHS[otlp.MetricsRequest])

    async def __call__(self, body: bytes) -> int:
        call = self._export(body, metadata=self._metadata, timeout=_TIMEOUT_S)
        try:
            await call
            metadata = dict(await call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT):
                raise AuthError(f"Echo refused: {error.details()}") from None
            raise Unavailable(f"{error.code().name}: {error.details()}") from None
        return int(metadata.get(names.SEQUENCE_METADATA, 0))

    async def close(self) -> None:
        await self._channel.close()


class HttpSender:
    """Sends OTLP over HTTP."""

    def __init__(self, url: str, token: str | None, context: ssl.SSLContext | None) -> None:
        self._url = url.rstrip("/") + OTLP_METRICS
        headers = {"Content-Type": names.PROTOBUF_TYPE} | authorization(token)
        connector = aiohttp.TCPConnector(limit=0, ssl=context if context is not None else True)
        self._session = aiohttp.ClientSession(
            headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(_TIMEOUT_S)
        )

    async def __call__(self, body: bytes) -> int:
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as reply:
                text = (await read_reply_beginning(reply, 512)).decode(errors="replace")
                if reply.status in (400, 401, 403, 413):
                    raise AuthError(f"Echo refused with {reply.status}: {text}")
                if reply.status != 200:
                    raise Unavailable(f"HTTP {reply.status}: {text}")
                return int(reply.headers.get(names.SEQUENCE_HEADER, 0))
        except (aiohttp.ClientError, TimeoutError) as error:
            if is_plaintext(error):
                raise Unavailable(NO_TLS) from None
            raise Unavailable(reason_of(self._url.partition(":")[0], error)) from None

    async def close(self) -> None:
        await self._session.close()


async def count_found(
    url: str, token: str | None, authority: str | None, run: str, least: int
) -> int:
    """Return the events of `run` in the store.

    The HTTP API is polled until all are loaded or time is up.
    """
    sql = f"SELECT count(*) FROM events WHERE attrs->>'$.\"stress.run\"' = '{run}'"
    headers = authorization(token)
    context = client_context(ClientTls(ca=Path(authority))) if authority else True
    until = time.monotonic() + _TIMEOUT_S
    found = 0
    async with aiohttp.ClientSession(
        headers=headers, connector=aiohttp.TCPConnector(ssl=context)
    ) as session:
        while True:
            async with session.post(url.rstrip("/") + ECHO_SQL, json={"sql": sql}) as reply:
                if reply.status != 200:
                    raise Unavailable(
                        f"{url} cannot count: HTTP {reply.status} {(await reply.text())[:300]}"
                    )
                found = int((await reply.json())["data"]["rows"][0][0])
            if found >= least or time.monotonic() > until:
                return found
            await asyncio.sleep(0.2)
