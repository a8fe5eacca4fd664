"""Servers to compare Fleet with, on the same uvloop: a constant answer, plain ASGI, bare gRPC."""

import asyncio
import sys
import time
from typing import Any

import uvicorn
import uvloop

from ingero.contract.otlp.body import Encoding
from ingero.core.health.threshold import ThresholdPolicy
from ingero.fleet.processor import FleetProcessor
from ingero.fleet.receive import Receiver
from ingero.transport.access import Access

REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nX-Ingero-Threshold: 0.870348\r\n"
    b"X-Ingero-Quorum-Met: true\r\nContent-Length: 0\r\n\r\n"
)


class Constant(asyncio.Protocol):
    """Answers whatever arrives; one request is one segment here."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(REPLY)


async def serve_constant(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Constant, "127.0.0.1", port)
    await server.serve_forever()


async def serve_bare_grpc(port: int) -> None:
    """Serve a handler that does nothing but send the metadata of a reply."""
    import grpc  # the other servers do without

    metadata = (("ingero-threshold", "0.870348"), ("ingero-quorum-met", "true"))

    async def export(body: bytes, context: Any) -> bytes:
        dict(context.invocation_metadata() or ())
        context.set_trailing_metadata(metadata)
        await context.send_initial_metadata(metadata)
        return b""

    class Service(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
        handler = grpc.unary_unary_rpc_method_handler(export)

        def service(self, details: Any) -> Any:
            return self.handler

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Service(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def plain_asgi() -> Any:
    """Return an ASGI application with Fleet's decoding and roster, without its fast path."""
    processor = FleetProcessor(ThresholdPolicy())
    service = Receiver(processor).http_service(Access(None))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = dict(scope["headers"])
        encoding = Encoding(headers[b"content-type"].decode())
        cluster = scope["query_string"].decode().partition("=")[2]
        taken = processor.push(body, encoding, cluster, time.monotonic(), time.time_ns())
        content = b"{}" if encoding is Encoding.JSON else b""
        reply = [
            (name.encode(), value.encode())
            for name, value in service.headers_for(taken.cluster, None)
        ]
        reply += [
            (b"content-type", headers[b"content-type"]),
            (b"content-length", b"%d" % len(content)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": reply})
        await send({"type": "http.response.body", "body": content})

    return app


def main() -> None:
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "constant":
        uvloop.run(serve_constant(port))
    elif kind == "grpc":
        uvloop.run(serve_bare_grpc(port))
    else:
        uvicorn.run(
            plain_asgi(),
            port=port,
            log_level="error",
            access_log=False,
            loop="uvloop",
            lifespan="off",
        )


if __name__ == "__main__":
    main()
