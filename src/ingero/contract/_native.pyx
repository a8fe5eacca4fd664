# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled hot paths. Each has a pure-Python twin that is the fallback and the test oracle."""

include "native/wire.pxi"
include "native/request.pxi"
include "native/push.pxi"
include "native/push_json.pxi"
include "native/kept.pxi"
include "native/push_lane.pxi"
include "native/otlp_columns.pxi"
include "native/perfetto.pxi"
