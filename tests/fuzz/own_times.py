"""Own times as columns: compiled code against the full decoder."""

from tests.support.own_times import as_measured

from ingero.contract.measurements.own_time_columns import decode_own_time_columns
from ingero.contract.measurements.ranks import decode_ranks
from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.errors import MalformedPush, TooLarge


def fuzz(data: bytes) -> None:
    """Columns hold what the full decoder returns; only resources are not decoded yet."""
    columns = decode_own_time_columns(data)
    if columns is None:
        return
    try:
        measured = as_measured(columns)
    except (MalformedPush, TooLarge):
        return
    request = decode_protobuf(MetricsRequest, data)
    assert repr(measured) == repr(list(decode_ranks(request)))
