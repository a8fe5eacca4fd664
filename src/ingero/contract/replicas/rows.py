"""Reports of known nodes as packed rows: 29 bytes each, while names cross the log once."""

import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ingero.errors import MalformedInput

# `row` is the node's row in the roster that all replicas share, and `check` its `name_check`:
# a row may be given to another node between packing and applying.
ROW: Final = np.dtype(
    [
        ("row", "<u4"),
        ("check", "<u4"),
        ("score", "<f8"),
        ("sent_ns", "<u8"),
        ("age_ms", "<u2"),
        ("pushes", "<u2"),
        ("state", "i1"),  # an index into `STATES`; -1 without a score
    ]
)
MAX_AGE_MS: Final = 65_535
MAX_PUSHES: Final = 65_535
Packed = NDArray[Any]


def name_check(node: str) -> int:
    """Return what tells apart nodes that had the same row, one after the other."""
    return zlib.crc32(node.encode()) or 1  # 0 is a row without a node


def unpack_rows(packed: bytes) -> Packed:
    """Return the rows; raise MalformedInput where the bytes are none."""
    if len(packed) % ROW.itemsize:
        raise MalformedInput(f"{len(packed)} bytes are no packed rows")
    rows = np.frombuffer(packed, ROW)
    scored = rows["state"] >= 0
    score = rows["score"][scored]
    if not ((score >= 0.0) & (score <= 1.0)).all() or (rows["state"] > 2).any():
        raise MalformedInput("a packed row has no valid score or state")
    return rows
