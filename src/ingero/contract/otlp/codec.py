"""OTLP bytes to values and back: protobuf through the upb runtime, JSON through msgspec.

One table per value type, made from its annotations, drives all four directions. A field therefore
cannot be known to one encoding and unknown to the other.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ingero.contract.otlp.limits import check_json, check_protobuf
from ingero.contract.otlp.pieces import PIECE_BYTES, parse_in_pieces
from ingero.contract.otlp.values import (
    HexId,
    KeyValue,
    Kind,
    LogsRequest,
    MetricsRequest,
    Request,
    TracesRequest,
    UInt64,
    Value,
)
from ingero.errors import MalformedPush

R = TypeVar("R", bound=Request)
_ITEM_PATHS: Final[dict[Kind, tuple[str, ...]]] = {
    TracesRequest: ("resource_spans", "scope_spans", "spans"),
    LogsRequest: ("resource_logs", "scope_logs", "log_records"),
}
# OTLP/JSON requires numbers for these fields; some senders write the names.
_ENUM_FIELDS: Final = ("aggregationTemporality", "kind", "code", "severityNumber")
_SAFE_INTEGER: Final = 2**53  # JSON readers may round larger integers; those are sent as strings

_SCALAR, _HEX, _VALUE, _VALUES, _SCALARS = range(5)
_Field = tuple[str, str, int, type[Value], bool, bool, Any]
_FIELDS: dict[type, tuple[_Field, ...]] = {}


def _fields(cls: type[Value]) -> tuple[_Field, ...]:
    """Return a row for each field of a value type.

    A row is (name, JSON name, kind, inner type, may be None, always a JSON string, default).
    """
    if cls not in _FIELDS:
        hints = get_type_hints(cls, include_extras=True)
        _FIELDS[cls] = tuple(
            (field.name, field.encode_name, *_classify(hints[field.name]), field.default)
            for field in msgspec.structs.fields(cls)
        )
    return _FIELDS[cls]


def _classify(hint: Any) -> tuple[int, type[Value], bool, bool]:
    arguments = get_args(hint)
    optional = type(None) in arguments
    if optional:
        hint = next(argument for argument in arguments if argument is not type(None))
    if hint == HexId:
        return _HEX, Value, optional, False
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        is_value = isinstance(inner, type) and issubclass(inner, Value)
        return (
            (_VALUES if is_value else _SCALARS),
            inner if is_value else Value,
            optional,
            inner == UInt64,
        )
    if isinstance(hint, type) and issubclass(hint, Value):
        return _VALUE, hint, optional, False
    return _SCALAR, Value, optional, hint == UInt64


def decode_protobuf(kind: type[R], body: bytes) -> R:
    """Return the request; raises MalformedPush, or TooLarge for one beyond a limit."""
    request: R = _read(kind, _parse(kind, body))
    return request


def count_protobuf_items(kind: Kind, body: bytes) -> int:
    """Return the number of points, spans or records; raises what `decode_protobuf` raises."""
    return _count(_parse(kind, body), _ITEM_PATHS[kind])


def _parse(kind: Any, body: bytes) -> Any:
    from ingero.contract.otlp.messages import (  # noqa: PLC0415 - loaded at the first use
        REQUESTS,
        DecodeError,
    )

    check_protobuf(kind, body)
    message = REQUESTS[kind]()
    try:
        if len(body) > PIECE_BYTES:
            parse_in_pieces(message, body)
        else:
            message.ParseFromString(body)
    except DecodeError as error:
        raise MalformedPush(
            f"the body is not an OTLP {kind.__name__} in protobuf: {error}"
        ) from None
    return message


def _count(message: Any, path: tuple[str, ...]) -> int:
    children = getattr(message, path[0])
    return sum(_count(child, path[1:]) for child in children) if path[1:] else len(children)


def encode_protobuf(request: Request) -> bytes:
    """Return protobuf bytes.

    Raises MalformedPush for a number from JSON that protobuf cannot hold.
    """
    from ingero.contract.otlp.messages import REQUESTS  # noqa: PLC0415 - loaded at the first use

    message = REQUESTS[type(request)]()
    try:
        _write(request, message)
    except ValueError as error:
        raise MalformedPush(f"a number does not fit into OTLP: {error}") from None
    encoded: bytes = message.SerializeToString()
    return encoded


_Reader = tuple[str, Callable[[Any], Any] | None]
_READERS: dict[type, dict[Any, _Reader]] = {}


def _readers(cls: type[Value], message: Any) -> dict[Any, _Reader]:
    """Return, by field of the message, the name and the conversion of the value.

    Fields that the value type does not have are left out.
    """
    found: dict[Any, _Reader] = {}
    for name, _, kind, inner, *_ in _fields(cls):
        read: Callable[[Any], Any] | None = None
        if kind == _HEX:
            read = bytes.hex
        elif kind == _SCALARS:
            read = tuple
        elif kind == _VALUES:
            read = partial(
                _read_all, _read_attribute if inner is KeyValue else partial(_read, inner)
            )
        elif kind == _VALUE:
            read = partial(_read, inner)
        found[message.DESCRIPTOR.fields_by_name[name]] = (name, read)
    return found


def _read_all(read: Callable[[Any], Any], items: Any) -> tuple[Any, ...]:
    return tuple([read(item) for item in items])


def _read(cls: type[Any], message: Any) -> Any:
    readers = _READERS.get(cls)
    if readers is None:
        readers = _READERS[cls] = _readers(cls, message)
    found: dict[str, Any] = {}
    for field, value in message.ListFields():  # only the fields that are set
        if (reader := readers.get(field)) is not None:
            name, read = reader
            found[name] = value if read is None else read(value)
    return cls(**found)


# A cache: most attributes of a request were in many requests before it.
_attributes: dict[bytes, KeyValue] = {}
_MAX_ATTRIBUTES: Final = 8192
_MAX_ATTRIBUTE_BYTES: Final = 256


def _read_attribute(message: Any) -> KeyValue:
    wire = message.SerializeToString()
    known = _attributes.get(wire)
    if known is None:
        known = _read(KeyValue, message)
        if len(wire) <= _MAX_ATTRIBUTE_BYTES:
            if len(_attributes) >= _MAX_ATTRIBUTES:
                _attributes.clear()
            _attributes[wire] = known
    return known


def _write(value: Value, message: Any) -> None:
    for name, _, kind, _, _, _, default in _fields(type(value)):
        item = getattr(value, name)
        if item is None:
            continue
        if kind == _VALUES:
            target = getattr(message, name)
            for element in item:
                _write(element, target.add())
        elif kind == _VALUE:
            getattr(message, name).SetInParent()
            _write(item, getattr(message, name))
        elif kind == _SCALARS:
            getattr(message, name).extend(item)
        elif item != default:
            setattr(message, name, bytes.fromhex(item) if kind == _HEX else item)


_DECODERS: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind, strict=False)
    for kind in (MetricsRequest, TracesRequest, LogsRequest)
}


def decode_json(kind: type[R], body: bytes) -> R:
    """Return the request; raises MalformedPush, or TooLarge for one beyond a limit.

    Integers may be strings, unknown fields are ignored, and null means absent.
    """
    check_json(body)
    try:
        request: R = _DECODERS[kind].decode(body)
    except (msgspec.ValidationError, RecursionError):
        return _decode_leniently(kind, body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedPush(f"the body is not JSON: {error}") from None
    return request


def _decode_leniently(kind: type[R], body: bytes) -> R:
    """Decode more slowly, for senders that write null for absent fields or names for enums."""
    try:
        return msgspec.convert(_tidy(msgspec.json.decode(body)), kind, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise MalformedPush(f"the body is not an OTLP {kind.__name__} in JSON: {error}") from None
    except RecursionError:
        raise MalformedPush("the body is nested too deeply") from None


def _tidy(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _enum_number(key, value)
            if key in _ENUM_FIELDS and isinstance(value, str)
            else _tidy(value)
            for key, value in node.items()
            if value is not None
        }
    return [_tidy(item) for item in node] if isinstance(node, list) else node


def _enum_number(field: str, name: str) -> int | str:
    from ingero.contract.otlp.messages import ENUMS  # noqa: PLC0415 - loaded at the first use

    numbers: dict[str, int] = dict(ENUMS[field].items())
    return numbers.get(name, name)


def encode_json(request: Request) -> bytes:
    """Return JSON: times and counts as strings, other integers as numbers up to 2**53."""
    return msgspec.json.encode(_to_json(request))


def _to_json(value: Value) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, json_name, kind, _, _, as_string, default in _fields(type(value)):
        item = getattr(value, name)
        if item is None or (kind != _VALUE and default is not None and item == default):
            continue
        if kind == _VALUES:
            found[json_name] = [_to_json(element) for element in item]
        elif kind == _VALUE:
            found[json_name] = _to_json(item)
        elif kind == _SCALARS:
            found[json_name] = [
                str(element) if as_string else _json_number(element) for element in item
            ]
        else:
            found[json_name] = str(item) if as_string else _json_number(item)
    return found


def _json_number(item: Any) -> Any:
    if isinstance(item, float) and not math.isfinite(item):
        return "NaN" if math.isnan(item) else "Infinity" if item > 0 else "-Infinity"
    return (
        str(item)
        if isinstance(item, int) and not isinstance(item, bool) and abs(item) > _SAFE_INTEGER
        else item
    )
