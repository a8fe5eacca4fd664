"""Attempts on the wire that Fleet and Echo refuse: bombs, endless requests, HTTP/2 floods, JSON."""

import gzip
import zlib
from pathlib import Path

from tests.support import http2_frames as h2
from tests.support.pushes import as_json

from ingero.contract.otlp.values import MetricsRequest
from ingero.transport.otlp.server_grpc import PATHS

METRICS = PATHS[MetricsRequest]
ZEROS = bytes(34 << 20)
MEMORY_BYTES = 96 << 20  # more than any attempt may add to a process that holds a service


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(body) + packer.flush()


BOMBS = {
    "gzip": ("gzip", gzip.compress(ZEROS, 9), 413),
    "gzip in gzip": ("gzip", gzip.compress(gzip.compress(ZEROS, 9), 9), 400),
    "two members of gzip": ("gzip", gzip.compress(b"") + gzip.compress(ZEROS, 9), 400),
    "deflate": ("deflate", zlib.compress(ZEROS, 9), 413),
    "raw deflate": ("deflate", raw_deflate(ZEROS), 413),
    "cut off": ("gzip", gzip.compress(ZEROS, 9)[:-9], 413),
    "two encodings": ("gzip, gzip", gzip.compress(gzip.compress(ZEROS, 9), 9), 400),
    "zstd": ("zstd", b"\x28\xb5\x2f\xfd" + bytes(100), 400),
    "br": ("br", bytes(100), 400),
    "compress": ("compress", bytes(100), 400),
}


CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"


def odd_requests(max_body_bytes: int, *more: str) -> dict[str, tuple[bytes, bytes]]:
    """Requests that no client sends, each with the status it gets; `more` are header lines."""
    lines = ["POST /v1/metrics HTTP/1.1", "Host: x", "Content-Type: application/x-protobuf", *more]
    head = "".join(f"{line}\r\n" for line in lines).encode()
    chunks = (b"10000\r\n" + bytes(1 << 16) + b"\r\n") * (max_body_bytes // (1 << 16) + 6)
    return {
        "chunks without end": (head + CHUNKS + chunks, b"413"),
        "extensions of chunks": (head + CHUNKS + b"1;" + b"x" * 70_000, b"400"),
        "trailers": (head + CHUNKS + b"0\r\n" + b"a: b\r\n" * 300, b"400"),
        "many headers": (head + b"a: b\r\n" * 300 + b"\r\n", b"400"),
        "a long header": (head + b"a: " + b"x" * 70_000, b"400"),
        "a long path": (b"POST /" + b"x" * 70_000, b"400"),
        "two lengths": (head + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        "a length and chunks": (head + b"Content-Length: 5\r\n" + CHUNKS + b"0\r\n\r\n", b"400"),
        "a negative length": (head + b"Content-Length: -1\r\n\r\n", b"400"),
        "a length without end": (head + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", b"400"),
        "a great length": (head + b"Content-Length: 9000000000\r\n\r\n", b"413"),
        "pipelined requests": ((head + b"Content-Length: 0\r\n\r\n") * 500, b"400"),
        "HTTP/2": (h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0), b"400"),
        "not HTTP": (b"\x16\x03\x01\x02\x00" + bytes(512), b"400"),
    }


def nested_json(depth: int) -> bytes:
    return b'{"resourceMetrics":' * depth + b"[]" + b"}" * depth


ODD_JSON = {
    "a double key": (b'{"resourceMetrics":[],"resourceMetrics":[]}', {200}),
    "a huge exponent": (as_json("n", 0.125).replace(b"0.125", b"1e999"), {200, 400}),
    "a long number": (as_json("n", 0.125).replace(b"0.125", b"1" * 10_000), {200, 400}),
    "NaN": (as_json("n", 0.125).replace(b"0.125", b"NaN"), {400}),
    "NaN as a text": (as_json("n", 0.125).replace(b"0.125", b'"NaN"'), {200}),
    "Infinity as a text": (as_json("n", 0.125).replace(b"0.125", b'"-Infinity"'), {200}),
    "nesting": (nested_json(40_000), {400, 413}),
    "arrays": (b"[" * 100_000, {400, 413}),
    "bytes that are no UTF-8": (as_json("node-x", 0.5).replace(b"node-x", b"\xff\xfe"), {400}),
    "half a character": (as_json("node-x", 0.5).replace(b"node-x", b"\\ud800"), {200, 400}),
    "a zero character": (as_json("node-x", 0.5).replace(b"node-x", b"\\u0000"), {200}),
    "nothing": (b"", {400}),
}


_NO_WINDOW = b"\x00\x04" + bytes(4)  # the initial window of a stream


def rapid_resets(call: bytes, count: int) -> bytes:
    """Calls that are cancelled as soon as they are made."""
    cancel = b"\x00\x00\x00\x08"
    return b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, stream, call)
        + h2.frame(h2.RST_STREAM, 0, stream, cancel)
        for stream in range(1, 2 * count, 2)
    )


def calls_with(call: bytes, message: bytes, count: int = 1000) -> bytes:
    """Calls that all send one message."""
    return b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, stream, call)
        + h2.frame(h2.DATA, h2.END_STREAM, stream, message)
        for stream in range(1, 2 * count, 2)
    )


def http2_floods(**headers: str) -> dict[str, bytes]:
    """Frames that follow the preface of a connection; `headers` are those of each call."""
    call = h2.call(METRICS) + h2.headers(**headers)
    return {
        "rapid resets": rapid_resets(call, 3000),
        "calls without messages": b"".join(
            h2.frame(h2.HEADERS, h2.END_HEADERS, stream, call) for stream in range(1, 6000, 2)
        ),
        "headers without end": h2.frame(h2.HEADERS, 0, 1, call)
        + h2.frame(h2.CONTINUATION, 0, 1, h2.headers(a="x" * 100)) * 3000,
        "long headers": h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.headers(a="x" * 16_000)),
        "replies that nobody reads": h2.frame(h2.SETTINGS, 0, 0, _NO_WINDOW)
        + calls_with(call, b"\x00" + bytes(4)),
        "wrong compression": calls_with(call, b"\x01\x00\x00\x00\x04abcd"),
        "settings": h2.frame(h2.SETTINGS, 0, 0) * 10_000,
        "pings": h2.frame(h2.PING, 0, 0, bytes(8)) * 10_000,
        "empty data": h2.frame(h2.HEADERS, h2.END_HEADERS, 1, call)
        + h2.frame(h2.DATA, 0, 1) * 10_000,
    }
