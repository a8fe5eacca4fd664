# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled codecs. Each has a pure-Python twin, which is the fallback and the test oracle."""

from libc.math cimport NAN
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset, strlen
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

include "wire.pxi"
include "limits.pxi"
include "segment.pxi"
include "push_fields.pxi"
include "push_protobuf.pxi"
include "json_tokens.pxi"
include "push_json.pxi"
include "push.pxi"
include "own_times.pxi"
include "spelling.pxi"
include "column_buffers.pxi"
include "column_rows.pxi"
include "column_values.pxi"
include "column_points.pxi"
include "column_records.pxi"
include "columns.pxi"
include "perfetto.pxi"
