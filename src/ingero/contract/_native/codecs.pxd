# What another compiled module may cimport from the codecs: one push, from its segment to a report.
from libc.stdint cimport int64_t, uint8_t, uint64_t

ctypedef const uint8_t* Bytes

cdef struct Slice:
    Bytes at
    uint64_t size

cdef struct Request:
    bint is_json
    bint is_gzip
    Slice query
    Slice cluster  # `at` is NULL without the header; the same holds for `authorization`
    Slice authorization
    Slice body

cdef struct Number:
    bint is_set
    int64_t value

cdef struct Found:  # the fields of a push; `at` is NULL for text that is missing
    Slice node
    Slice cluster
    Slice job
    Slice provider
    Slice state
    Slice workload
    Slice mode
    Slice gpu_model
    Slice version
    Slice lead  # the name of the first metric
    Number rank
    Number node_rank
    Number world_size
    Number gpu_count
    Number lost
    Number ready
    Number degraded
    bint has_mode
    bint has_score
    bint has_lead
    double score
    uint64_t sent_ns

cdef enum:
    MAX_SPELLED = 32  # octets of any number
# Writes a finite double as `repr` does, and returns how many octets.
cdef int spell_real(char* out, double value) noexcept nogil
# -1 for a segment that is not one whole plain push.
cdef int split_request(Bytes at, Bytes end, Request* out) noexcept nogil
# 1, or 0 for a body that the full decoder must judge.
cdef int read_push(Slice body, bint is_json, Found* found) except -1
cdef object text_or_none(Slice text)
cdef object report_of(Found* found, object report, object node, object cluster)
