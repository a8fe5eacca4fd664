# The columns of a batch while it grows, row by row.

# Imported by the first `take`: commands and pushes never build columns, and numpy takes 0.1 s.
_np = None

cdef class TakenOctets:
    """What a buffer held, for an array to read; it is not copied, and the buffer starts anew."""

    cdef char* data
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef object oc_array(OcBuffer* buffer, dtype):
    cdef TakenOctets octets
    cdef char* fitting
    if buffer.size == 0:
        return _np.zeros(0, dtype)
    octets = TakenOctets.__new__(TakenOctets)
    fitting = <char*>realloc(buffer.data, buffer.size)
    octets.data = buffer.data if fitting == NULL else fitting
    octets.size = buffer.size
    buffer.data = NULL
    buffer.size = buffer.capacity = 0
    return _np.frombuffer(octets, dtype)


# octets of one value, in the order of the buffers of ColumnRows from `context` to `detail_valid`
cdef size_t[20] OC_WIDTHS
OC_WIDTHS[:] = [4, 8, 4, 8, 8, 8, 8, 8, 8, 4, 4, 4, 1, 1, 1, 1, 1, 1, 1, 1]


cdef class ColumnRows:
    """Columns as octets. A request that turns out to be unusual is taken back with `back_to`."""

    # Of each row, all with room for `row_capacity` rows. A column of texts has the end of each.
    cdef OcBuffer context, seq, idx, received, ts, start, real, whole, total
    cdef OcBuffer chain_ends, attrs_ends, detail_ends
    cdef OcBuffer ts_valid, start_valid, real_valid, whole_valid, total_valid
    cdef OcBuffer chain_valid, attrs_valid, detail_valid
    cdef OcBuffer chain, attrs, detail, context_shared
    cdef size_t rows, row_capacity, request_start, request_parts, max_rows, not_finite
    cdef size_t shared, max_shared, resource_octets
    cdef int64_t request_seq, request_received
    cdef bint is_kept  # `check` leaves it false: nothing is written then
    cdef list contexts, resources
    cdef dict context_ids, resource_ids
    cdef object decode_rows, decode_resource, metric_kind, too_many_rows, shared_octets
    cdef object too_much_shared, check_limits
    cdef object new_context, new_batch, new_numbers, new_texts

    def __cinit__(self, pure):
        (self.decode_rows, self.decode_resource, self.check_limits, self.new_context,
         self.metric_kind, self.too_many_rows, self.max_rows, self.shared_octets,
         self.too_much_shared, self.max_shared, self.new_batch, self.new_numbers,
         self.new_texts) = pure
        self.resources = []
        self.resource_ids = {}
        self.is_kept = True
        self.clear()

    def __dealloc__(self):
        cdef OcBuffer* buffer = &self.context
        while buffer <= &self.context_shared:
            free(buffer.data)
            buffer += 1

    def __len__(self):
        return self.rows

    def clear(self):
        cdef OcBuffer* buffer = &self.context
        while buffer <= &self.context_shared:
            buffer.size = 0
            buffer += 1
        self.rows = 0
        self.not_finite = 0
        self.shared = 0
        self.contexts = []
        self.context_ids = {}
        if len(self.resources) > OC_CACHED_RESOURCES or self.resource_octets > OC_CACHED_OCTETS:
            self.resources = []
            self.resource_ids = {}
            self.resource_octets = 0

    cdef OcMark mark(self) noexcept:
        return OcMark(self.rows, self.chain.size, self.attrs.size, self.detail.size,
                      self.not_finite, self.shared)

    cdef void back_to(self, OcMark mark) noexcept:
        self.rows = mark.rows
        self.not_finite = mark.not_finite
        self.shared = mark.shared
        self.chain.size = mark.chain
        self.attrs.size = mark.attrs
        self.detail.size = mark.detail

    cdef int make_room(self) except -1:
        """Make room for twice as many rows."""
        cdef size_t capacity = 2 * self.rows if self.rows else OC_LEAST_ROWS
        cdef OcBuffer* buffer = &self.context
        cdef size_t i
        for i in range(20):
            oc_grow(&buffer[i], OC_WIDTHS[i] * capacity)
        self.row_capacity = capacity
        return 0

    cdef int finish_row(self, int32_t context, uint64_t moment, uint64_t start,
                        double real, uint8_t has_real, int64_t whole, uint8_t has_whole,
                        double total, uint8_t has_total, uint8_t has_chain, uint8_t has_attrs,
                        uint8_t has_detail, Slice chain) except -1:
        cdef size_t row = self.rows
        cdef size_t idx = row - self.request_start
        cdef uint8_t has_moment = 0 < moment <= <uint64_t>0x7ffffffffffffffe
        cdef uint8_t has_start = 0 < start <= <uint64_t>0x7ffffffffffffffe
        if idx >= self.max_rows:
            raise self.too_many_rows()
        if idx % OC_READ_A_TURN == OC_READ_A_TURN - 1:
            with nogil:  # other threads run, such as the one with the event loop
                pass
        self.shared += (<size_t*>self.context_shared.data)[context]
        self.rows += 1
        if not self.is_kept:
            return 0
        if row >= self.row_capacity:
            self.make_room()
        if has_real and real - real != 0:  # NaN and infinities
            has_real = 0
            self.not_finite += 1
        if has_total and total - total != 0:
            has_total = 0
            self.not_finite += 1
        if has_chain:
            oc_put(&self.chain, chain.at, chain.size)
        (<int32_t*>self.context.data)[row] = context
        (<int64_t*>self.seq.data)[row] = self.request_seq
        (<int32_t*>self.idx.data)[row] = <int32_t>idx
        (<int64_t*>self.received.data)[row] = self.request_received
        (<uint64_t*>self.ts.data)[row] = moment if has_moment else 0
        (<uint64_t*>self.start.data)[row] = start if has_start else 0
        (<double*>self.real.data)[row] = real if has_real else 0
        (<int64_t*>self.whole.data)[row] = whole if has_whole else 0
        (<double*>self.total.data)[row] = total if has_total else 0
        (<int32_t*>self.chain_ends.data)[row] = <int32_t>self.chain.size
        (<int32_t*>self.attrs_ends.data)[row] = <int32_t>self.attrs.size
        (<int32_t*>self.detail_ends.data)[row] = <int32_t>self.detail.size
        self.ts_valid.data[row] = has_moment
        self.start_valid.data[row] = has_start
        self.real_valid.data[row] = has_real
        self.whole_valid.data[row] = has_whole
        self.total_valid.data[row] = has_total
        self.chain_valid.data[row] = has_chain
        self.attrs_valid.data[row] = has_attrs
        self.detail_valid.data[row] = has_detail
        return 0

    @property
    def shared_bytes(self):
        """What the contexts of all rows hold, counted once for each row."""
        return self.shared

    cdef int add_context(self, context) except -1:
        cdef size_t octets = self.shared_octets(context)
        oc_put(&self.context_shared, &octets, sizeof(octets))
        self.contexts.append(context)
        self.context_ids[context] = len(self.contexts) - 1
        return len(self.contexts) - 1

    cdef int add_row(self, row) except -1:
        cdef Slice chain
        cdef bytes chain_bytes = (row.causal_chain_id or "").encode()
        cdef bytes attrs = b"" if row.attrs is None else row.attrs.encode()
        cdef bytes detail = b"" if row.detail is None else row.detail.encode()
        context = self.context_ids.get(row.context)
        if context is None:
            context = self.add_context(row.context)
        chain.at = <Bytes>PyBytes_AS_STRING(chain_bytes)
        chain.size = PyBytes_GET_SIZE(chain_bytes)
        oc_put(&self.attrs, PyBytes_AS_STRING(attrs), PyBytes_GET_SIZE(attrs))
        oc_put(&self.detail, PyBytes_AS_STRING(detail), PyBytes_GET_SIZE(detail))
        total = row.cumulative_value
        return self.finish_row(
            context, row.ts or 0, row.start_ts or 0,
            0.0 if row.value_double is None else row.value_double, row.value_double is not None,
            row.value_int or 0, row.value_int is not None,
            0.0 if total is None else total, total is not None,
            row.causal_chain_id is not None, row.attrs is not None, row.detail is not None, chain)

    def take(self):
        global _np
        cdef OcBuffer* buffer = &self.context
        cdef size_t i
        if _np is None:
            import numpy as _np
        for i in range(20):
            buffer[i].size = OC_WIDTHS[i] * self.rows
        self.row_capacity = 0  # the arrays take the memory
        batch = self.new_batch(
            contexts=self.contexts,
            context=oc_array(&self.context, _np.int32),
            not_finite=self.not_finite,
            seq=oc_array(&self.seq, _np.int64),
            idx=oc_array(&self.idx, _np.int32),
            received_us=oc_array(&self.received, _np.int64),
            ts=self.numbers(&self.ts, &self.ts_valid, _np.int64),
            start_ts=self.numbers(&self.start, &self.start_valid, _np.int64),
            value_double=self.numbers(&self.real, &self.real_valid, _np.float64),
            value_int=self.numbers(&self.whole, &self.whole_valid, _np.int64),
            cumulative_value=self.numbers(&self.total, &self.total_valid, _np.float64),
            causal_chain_id=self.texts(&self.chain, &self.chain_ends, &self.chain_valid),
            attrs=self.texts(&self.attrs, &self.attrs_ends, &self.attrs_valid),
            detail=self.texts(&self.detail, &self.detail_ends, &self.detail_valid),
        )
        self.clear()
        return batch

    cdef object numbers(self, OcBuffer* values, OcBuffer* valid, dtype):
        return self.new_numbers(oc_array(values, dtype), oc_array(valid, _np.uint8))

    cdef object texts(self, OcBuffer* data, OcBuffer* ends, OcBuffer* valid):
        offsets = _np.zeros(self.rows + 1, _np.int32)
        offsets[1:] = oc_array(ends, _np.int32)
        return self.new_texts(offsets, oc_array(data, _np.uint8), oc_array(valid, _np.uint8))
