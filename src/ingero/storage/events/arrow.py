"""Batches of events as Arrow tables; their buffers are shared, not copied value by value."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingero.contract.otlp.columns import Batch, Numbers, Texts

_NS = pa.timestamp("ns")
_US = pa.timestamp("us")


def batch_table(batch: Batch) -> pa.Table:
    """Return the batch in the column order of `events`."""
    contexts = batch.contexts
    speakers = [context.who for context in contexts]
    columns: dict[str, pa.Array] = {
        "seq": pa.array(batch.seq),
        "idx": pa.array(batch.idx),
        "ts": _numbers(batch.ts, _NS),
        "start_ts": _numbers(batch.start_ts, _NS),
        "received_ts": pa.array(batch.received_us).view(_US),
    }
    for name in (
        "cluster_id",
        "node_id",
        "rank",
        "nranks",
        "job_id",
        "role",
        "provider",
        "gpu_model",
    ):
        kind = pa.int32() if name in ("rank", "nranks") else pa.string()
        columns[name] = _shared(batch.context, [getattr(who, name) for who in speakers], kind)
    for name in ("scope", "metric_name", "kind", "temporality", "unit"):
        columns[name] = _shared(
            batch.context, [getattr(context, name) for context in contexts], pa.string()
        )
    columns["value_double"] = _numbers(batch.value_double, pa.float64())
    columns["value_int"] = _numbers(batch.value_int, pa.int64())
    columns["cumulative_value"] = _numbers(batch.cumulative_value, pa.float64())
    columns["causal_chain_id"] = _texts(batch.causal_chain_id)
    columns["attrs"] = _texts(batch.attrs)
    columns["resource"] = _shared(batch.context, [who.resource for who in speakers], pa.string())
    columns["detail"] = _texts(batch.detail)
    return pa.table(columns)


def _shared(context: NDArray[np.int32], values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column whose value is the same for all rows of one context."""
    return (
        pa.DictionaryArray.from_arrays(pa.array(context), pa.array(values, kind))
        if values
        else pa.array([], kind)
    )


def _numbers(column: Numbers, kind: pa.DataType) -> pa.Array:
    buffers = [_bitmap(column.valid), pa.py_buffer(np.ascontiguousarray(column.values))]
    return pa.Array.from_buffers(kind, len(column.values), buffers)


def _texts(column: Texts) -> pa.Array:
    buffers = [_bitmap(column.valid), pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.string(), len(column.valid), buffers)


def _bitmap(valid: NDArray[np.uint8]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
