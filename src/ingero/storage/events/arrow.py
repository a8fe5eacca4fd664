"""Batches of events as tables that DuckDB reads; buffers are shared, not copied value by value."""

from collections.abc import Sequence

import numpy as np

from ingero.contract.otlp.columns import Batch, Numbers, Texts
from ingero.storage.events.arrow_stream import (
    FLOAT64,
    INT32,
    INT64,
    JSON_TEXT,
    MICROSECONDS,
    NANOSECONDS,
    TEXT,
    ArrowTable,
    Column,
    binary_column,
    bitmap,
    int_column,
    text_column,
)


def batch_table(batch: Batch) -> ArrowTable:
    """Return the batch in the column order of `events`."""
    contexts = batch.contexts
    speakers = [context.who for context in contexts]
    rows = len(batch.seq)
    columns = {
        "seq": Column(INT64, rows, [None, np.ascontiguousarray(batch.seq)]),
        "idx": Column(INT32, rows, [None, np.ascontiguousarray(batch.idx)]),
        "ts": _numbers(batch.ts, NANOSECONDS),
        "start_ts": _numbers(batch.start_ts, NANOSECONDS),
        "received_ts": Column(MICROSECONDS, rows, [None, np.ascontiguousarray(batch.received_us)]),
        "cluster_id": _shared(batch, text_column([who.cluster_id for who in speakers])),
        "node_id": _shared(batch, text_column([who.node_id for who in speakers])),
        "rank": _shared(batch, int_column([who.rank for who in speakers], INT32)),
        "nranks": _shared(batch, int_column([who.nranks for who in speakers], INT32)),
        "job_id": _shared(batch, text_column([who.job_id for who in speakers])),
        "role": _shared(batch, text_column([who.role for who in speakers])),
        "provider": _shared(batch, text_column([who.provider for who in speakers])),
        "gpu_model": _shared(batch, text_column([who.gpu_model for who in speakers])),
        "scope": _shared(batch, text_column([context.scope for context in contexts])),
        "metric_name": _shared(batch, text_column([each.metric_name for each in contexts])),
        "kind": _shared(batch, text_column([context.kind for context in contexts])),
        "temporality": _shared(batch, text_column([each.temporality for each in contexts])),
        "unit": _shared(batch, text_column([context.unit for context in contexts])),
        "value_double": _numbers(batch.value_double, FLOAT64),
        "value_int": _numbers(batch.value_int, INT64),
        "cumulative_value": _numbers(batch.cumulative_value, FLOAT64),
        "causal_chain_id": _texts(batch.causal_chain_id),
        "attrs": _texts(batch.attrs, JSON_TEXT),
        "resource": _shared(batch, text_column([who.resource for who in speakers])),
        "detail": _texts(batch.detail, JSON_TEXT),
    }
    return ArrowTable(columns)


def digest_table(
    digests: Sequence[bytes], seqs: Sequence[int] = (), received_us: Sequence[int] = ()
) -> ArrowTable:
    """Return digests of requests, with their sequence numbers and times where these are given."""
    columns = {"digest": binary_column(digests)}
    if seqs:
        columns["seq"] = int_column(seqs)
        columns["received_ts"] = int_column(received_us, MICROSECONDS)
    return ArrowTable(columns)


def _shared(batch: Batch, values: Column) -> Column:
    """Return a column whose value is the same for all rows of one context."""
    codes = np.ascontiguousarray(batch.context)
    return Column(INT32, len(codes), [None, codes], values)


def _numbers(column: Numbers, format: str) -> Column:
    values = np.ascontiguousarray(column.values)
    return Column(format, len(values), [bitmap(column.valid), values])


def _texts(column: Texts, format: str = TEXT) -> Column:
    buffers = [bitmap(column.valid), np.ascontiguousarray(column.offsets), column.data]
    return Column(format, len(column.valid), buffers)
