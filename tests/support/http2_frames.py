"""HTTP/2 frames by hand, for what no client library would send."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(**fields: str) -> bytes:
    """Fields as literals that no table remembers; `_` at the beginning of a name means a colon."""
    return b"".join(
        b"\x00" + _text(":" + name[1:] if name[0] == "_" else name.replace("_", "-")) + _text(value)
        for name, value in fields.items()
    )


def call(path: str) -> bytes:
    """The headers of a gRPC call."""
    return headers(
        _method="POST", _scheme="http", _path=path, _authority="x",
        content_type="application/grpc", te="trailers",
    )  # fmt: skip


def _text(value: str) -> bytes:
    length = len(value)
    prefix = bytes([length]) if length < 127 else b"\x7f" + _varint(length - 127)
    return prefix + value.encode()


def _varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])
