"""OTLP decoding: compiled against pure code, and JSON against protobuf."""

from tests.support.batches import rows_of

from ingero.contract.otlp import limits
from ingero.contract.otlp.codec import decode_json, decode_protobuf, encode_json, encode_protobuf
from ingero.contract.otlp.columns import Columns, PureColumns, new_columns
from ingero.contract.otlp.values import Kind, LogsRequest, MetricsRequest, Request, TracesRequest
from ingero.contract.push.decode import decode_plain_push, decode_push
from ingero.errors import MalformedPush, TooLarge

KINDS: tuple[Kind, ...] = (MetricsRequest, TracesRequest, LogsRequest)
BOUNDS = (200, 50, 12)


def fuzz(data: bytes) -> None:
    """The first octet chooses the kind and the encoding, the rest is the body."""
    if not data:
        return
    kind, is_json, body = KINDS[data[0] % 3], data[0] & 0x80 != 0, data[1:]
    table, rows = limits.field_table()
    found = limits.scan_protobuf(body, table, rows[kind], BOUNDS)
    assert found == limits.scan_protobuf_purely(body, table, rows[kind], BOUNDS)
    assert limits.scan_json(body, BOUNDS) == limits.scan_json_purely(body, BOUNDS)
    signal = KINDS.index(kind) + 1
    assert _rows(new_columns(), signal, body) == _rows(PureColumns(), signal, body)
    plain = decode_plain_push(body, is_json)
    try:
        request = (decode_json if is_json else decode_protobuf)(kind, body)
        again = encode_protobuf(request)
    except (MalformedPush, TooLarge):
        return
    if plain is not None and isinstance(request, MetricsRequest):
        assert decode_push(request).reports == (plain[0],)
    _compare(kind, decode_protobuf(kind, again))


def _rows(columns: Columns, signal: int, body: bytes) -> object:
    """Return what Echo stores of a request, or the type of the error."""
    try:
        columns.add(signal, body, 1, 1)
    except (MalformedPush, TooLarge) as error:
        return type(error)
    return rows_of(columns.take())


def _compare(kind: Kind, request: Request) -> None:
    """Both encodings give the same value; NaN is not equal to itself, so bytes are compared.

    Protobuf has many values that are not a number, JSON has one.
    """
    text = encode_json(request)
    again = decode_json(kind, text)
    assert encode_json(again) == text
    assert b'"NaN"' in text or encode_protobuf(again) == encode_protobuf(request)
