"""Handling of an OTLP request in Echo: authentication, journal and reply."""

import time
from collections import Counter
from http import HTTPStatus
from typing import Final

from ingero.contract.names import SEQUENCE_HEADER, SEQUENCE_METADATA
from ingero.contract.otlp.body import Encoding, decode
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.rows import Signal, resource_context
from ingero.contract.otlp.values import Kind, LogsRequest, MetricsRequest, TracesRequest
from ingero.echo.engine import Engine
from ingero.echo.ingest import MAX_REQUEST_BYTES, request_too_large
from ingero.errors import MalformedPush, Overloaded, StoreError, TooLarge, Unavailable
from ingero.transport.access import Access, Denied
from ingero.transport.bearer import Key, TokenScope
from ingero.transport.otlp.decoding import INLINE_BYTES, DecodingThread
from ingero.transport.otlp.server_http import Inbound, OtlpService, Reply

SIGNALS: Final[dict[Kind, Signal]] = {
    MetricsRequest: Signal.METRICS,
    TracesRequest: Signal.TRACES,
    LogsRequest: Signal.LOGS,
}
WAIT_S: Final = 10.0
FULL_RETRY_S: Final = 10
ACK_BOUNDS_MS: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0)


class Receiver:
    """Receives the requests of both OTLP listeners."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self._engine = engine
        self._access = access
        self._decoding = DecodingThread()
        self.replies: Counter[tuple[str, int]] = Counter()  # (transport, status)
        self.ack_counts = [0] * (len(ACK_BOUNDS_MS) + 1)
        self.ack_sum_ms = 0.0

    def service(self, transport: str) -> OtlpService:
        """Return how requests over `http` or `grpc` are handled."""
        sequence_name = SEQUENCE_HEADER if transport == "http" else SEQUENCE_METADATA

        def admit(authorization: str | None, address: str | None) -> Key | Reply:
            admitted = self._access.check(authorization, address, TokenScope.PUSH)
            if not isinstance(admitted, Denied):
                return admitted
            return Reply(
                admitted.status, message=admitted.message, retry_after_s=admitted.retry_after_s
            )

        def count(status: int) -> None:
            self.replies[transport, status] += 1

        return OtlpService(
            admit, lambda inbound: self._receive(inbound, sequence_name), lambda *_: (), count
        )

    async def _receive(self, inbound: Inbound, sequence_name: str) -> Reply:
        sender, body = inbound.sender, inbound.body
        began = time.perf_counter()
        try:
            if len(body) <= INLINE_BYTES:
                foreign, body = _checked(inbound, sender)
            else:
                foreign, body = await self._decoding.run(_checked, inbound, sender)
            if foreign is not None:
                return Reply(
                    HTTPStatus.FORBIDDEN,
                    message=f"tenant_scoped_bearer_refused: cluster {foreign!r}",
                )
            accepted = await self._engine.submit(SIGNALS[inbound.kind], body)
            self._observe((time.perf_counter() - began) * 1e3)
            if inbound.wait:
                await self._engine.store.wait_applied(accepted.seq, WAIT_S)
        except MalformedPush as error:
            return Reply(HTTPStatus.BAD_REQUEST, message=str(error))
        except TooLarge as error:
            return Reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message=str(error))
        except Overloaded as error:
            status = (
                HTTPStatus.SERVICE_UNAVAILABLE
                if self._engine.ingest.draining
                else HTTPStatus.TOO_MANY_REQUESTS
            )
            return Reply(status, message=str(error), retry_after_s=error.retry_after_s)
        except StoreError as error:
            return Reply(
                HTTPStatus.SERVICE_UNAVAILABLE, message=str(error), retry_after_s=FULL_RETRY_S
            )
        except Unavailable as error:  # durable but not yet visible; sending it again is harmless
            return Reply(
                HTTPStatus.SERVICE_UNAVAILABLE, message=str(error), retry_after_s=int(WAIT_S)
            )
        return Reply(headers=((sequence_name, str(accepted.seq)),))

    def _observe(self, elapsed_ms: float) -> None:
        position = next(
            (i for i, bound in enumerate(ACK_BOUNDS_MS) if elapsed_ms <= bound), len(ACK_BOUNDS_MS)
        )
        self.ack_counts[position] += 1
        self.ack_sum_ms += elapsed_ms


def _checked(inbound: Inbound, sender: Key) -> tuple[str | None, bytes]:
    """Return a cluster that this sender may not write to, and the body as protobuf."""
    if len(inbound.body) > MAX_REQUEST_BYTES:
        raise request_too_large()
    foreign = _foreign_cluster(inbound, sender)
    if inbound.encoding is Encoding.PROTOBUF or foreign is not None:
        return foreign, inbound.body
    return None, encode_protobuf(decode(inbound.kind, inbound.body, Encoding.JSON))


def _foreign_cluster(inbound: Inbound, sender: Key) -> str | None:
    """Return a cluster in the request that this sender may not write to."""
    if sender.clusters is None:
        return None
    request = decode(inbound.kind, inbound.body, inbound.encoding)
    if isinstance(request, MetricsRequest):
        resources = [each.resource for each in request.resource_metrics]
    elif isinstance(request, TracesRequest):
        resources = [each.resource for each in request.resource_spans]
    else:
        resources = [each.resource for each in request.resource_logs]
    clusters = (resource_context(resource).cluster_id for resource in resources)
    return next((cluster for cluster in clusters if not sender.may_see(cluster)), None)
