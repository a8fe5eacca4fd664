"""Bodies that no agent would send: small when compressed, huge when decoded."""

from ingero.contract.timeline.varint import varint

MANY = 15_000_000  # empty messages, 30 MB


def nested(tags: bytes, innermost: bytes) -> bytes:
    """`innermost` inside one message per tag, the outermost tag first."""
    for tag in reversed(tags):
        innermost = bytes([tag]) + varint(len(innermost)) + innermost
    return innermost


def hostile_bodies() -> dict[str, bytes]:
    """By name: protobuf that means something else in every kind of request, but is valid in all."""
    return {
        "resources": b"\x0a\x00" * MANY,
        "scopes": nested(b"\x0a", b"\x12\x00" * MANY),
        "items": nested(b"\x0a\x12", b"\x12\x00" * MANY),
        "attributes": nested(b"\x0a\x0a", b"\x0a\x00" * MANY),
        "as many as are allowed": nested(b"\x0a\x12", b"\x12\x00" * 299_990),
        "a segment": nested(b"\x0a\x12", b"\x12\x00" * 90_000),
    }
