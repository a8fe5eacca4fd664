"""The variable-length numbers of protobuf."""


def varint(value: int) -> bytes:
    """Return the low 64 bits of a number, seven bits per byte."""
    value &= 0xFFFFFFFFFFFFFFFF
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
