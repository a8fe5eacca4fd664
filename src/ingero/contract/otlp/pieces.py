"""Parsing a large protobuf message in pieces.

The parser is compiled and holds Python's lock from the first to the last byte. Between two pieces
other threads run, such as the one with the event loop.
"""

from typing import Any, Final

PIECE_BYTES: Final = 32 * 1024  # at most some 2 ms of parsing, whatever they hold
_LENGTH_DELIMITED: Final = 2
_VARINT: Final = 0
_FIXED_SIZES: Final = {1: 8, 5: 4}


def parse_in_pieces(message: Any, body: bytes, levels: int = 2) -> None:
    """Merge `body` into `message`, as `ParseFromString` would; raises its DecodeError.

    Any run of whole fields is a message of its own. Large fields that are messages, down to
    `levels` below this one, are divided in the same way.
    """
    children = _repeated_messages(message) if levels else {}
    begin = place = 0
    while place < len(body):
        start = place
        tag, place = _varint(body, place)
        content = place
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, content = _varint(body, place)
            place = content + length
        elif kind in _FIXED_SIZES:
            place += _FIXED_SIZES[kind]
        elif kind == _VARINT:
            _, place = _varint(body, place)
        else:  # a group, which has no length; nobody uses them
            break
        name = children.get(tag >> 3) if kind == _LENGTH_DELIMITED else None
        if name is not None and len(body) >= place > content + PIECE_BYTES:
            message.MergeFromString(body[begin:start])
            parse_in_pieces(getattr(message, name).add(), body[content:place], levels - 1)
            begin = place
        elif place - begin > PIECE_BYTES:
            message.MergeFromString(body[begin:place])
            begin = place
    message.MergeFromString(body[begin:])


def _repeated_messages(message: Any) -> dict[int, str]:
    """Return the names of fields that hold a list of messages, by number."""
    fields = message.DESCRIPTOR.fields
    return {each.number: each.name for each in fields if each.is_repeated and each.message_type}


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number and where it ends; the parser refuses one that the data cuts off."""
    value = shift = 0
    while place < len(data):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            break
    return value, len(data)
