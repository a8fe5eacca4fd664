# The columns of one cluster's roster, written by row. Twin of `Roster.put` in `fleet/roster.py`.

cdef enum:  # what became of a report; the numbers of `Put` in `fleet/roster.py`
    STORED
    DUPLICATE
    LATE


cdef inline int8_t _state_code(Slice state) noexcept nogil:
    """Return the index into STATES of `contract/push/decode.py`; a plain push has one of these."""
    return 0 if state.size == 6 else 1 if state.size == 11 else 2


cdef class RosterWriter:
    """Writes reports of registered nodes into the columns of one roster."""

    cdef dict rows
    cdef list reports
    cdef double[::1] score
    cdef double[::1] seen_s
    cdef int8_t[::1] state
    cdef uint64_t[::1] sent_ns
    cdef int64_t[::1] pushes
    cdef uint64_t reorder_ns

    def __init__(
        self, dict rows, list reports, double[::1] score, double[::1] seen_s, int8_t[::1] state,
        uint64_t[::1] sent_ns, int64_t[::1] pushes, uint64_t reorder_ns,
    ):
        self.rows, self.reports, self.reorder_ns = rows, reports, reorder_ns
        self.score, self.seen_s, self.state = score, seen_s, state
        self.sent_ns, self.pushes = sent_ns, pushes

    cdef int put(self, Py_ssize_t row, Found* found, object report, double now_s):
        cdef uint64_t last_ns = self.sent_ns[row]
        self.seen_s[row] = now_s
        self.pushes[row] += 1
        if not found.has_score:
            return STORED
        if found.sent_ns and found.sent_ns <= last_ns:
            if found.sent_ns == last_ns:
                return DUPLICATE
            if last_ns - found.sent_ns < self.reorder_ns:
                return LATE
        self.sent_ns[row] = found.sent_ns
        self.score[row] = found.score
        self.state[row] = _state_code(found.state)
        self.reports[row] = report
        return STORED
