"""Batches of columns, as tests compare them."""

import dataclasses

from ingero.contract.otlp.columns import Batch, Numbers, Texts


def rows_of(batch: Batch) -> list[tuple]:
    """Return the rows of a batch with their contexts, as a table made of it would hold them."""
    columns = [[batch.contexts[i] for i in batch.context]]
    for field in dataclasses.fields(Batch)[3:]:
        column = getattr(batch, field.name)
        if isinstance(column, Numbers):
            columns.append(
                [repr(v) if ok else None for v, ok in zip(column.values, column.valid, strict=True)]
            )
        elif isinstance(column, Texts):
            cuts = zip(column.offsets[:-1], column.offsets[1:], column.valid, strict=True)
            data = column.data.tobytes()
            columns.append([data[a:b].decode() if ok else None for a, b, ok in cuts])
        else:
            columns.append(column.tolist())
    return list(zip(*columns, strict=True))
