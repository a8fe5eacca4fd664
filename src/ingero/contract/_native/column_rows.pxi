# The columns of a batch while it grows, row by row.

# Imported by the first `take`: commands and pushes never build columns, and numpy takes 0.1 s.
_np = None

cdef inline void cut_to_rows(OcBuffer* buffer, size_t width, size_t rows) noexcept:
    buffer.size = width * rows


cdef class TakenOctets:
    """What a buffer held, for an array to read; it is not copied, and the buffer starts anew."""

    cdef char* data
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef void oc_free(OcBuffer* buffer) noexcept:
    free(buffer.data)
    buffer.data = NULL
    buffer.size = buffer.capacity = 0


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


cdef class ColumnRows:
    """Columns as octets. A request that turns out to be unusual is taken back with `back_to`."""

    # `clear` and `__dealloc__` walk from the first of these buffers to the last.
    cdef OcBuffer context, context_shared, seq, idx, received, ts, ts_valid, start, start_valid
    cdef OcBuffer real, real_valid, whole, whole_valid, total, total_valid
    cdef OcBuffer chain, chain_ends, chain_valid, attrs, attrs_ends, attrs_valid
    cdef OcBuffer detail, detail_ends, detail_valid
    cdef size_t rows, request_start, request_parts, max_rows, not_finite, resource_octets
    cdef size_t shared, max_shared
    cdef int64_t request_seq, request_received
    cdef bint spelled_out
    cdef list contexts, resources
    cdef dict context_ids, resource_ids
    cdef object decode_rows, decode_resource, sum_kind, too_many_rows, shared_octets
    cdef object too_much_shared
    cdef object new_context, new_batch, new_numbers, new_texts

    def __cinit__(self, pure):
        (self.decode_rows, self.decode_resource, self.new_context, self.sum_kind,
         self.too_many_rows, self.max_rows, self.shared_octets, self.too_much_shared,
         self.max_shared, self.new_batch, self.new_numbers, self.new_texts) = pure
        self.resources = []
        self.resource_ids = {}
        self.spelled_out = True
        self.clear()

    def __dealloc__(self):
        cdef OcBuffer* buffer = &self.context
        cdef OcBuffer* end = &self.detail_valid
        while buffer <= end:
            free(buffer.data)
            buffer += 1

    def __len__(self):
        return self.rows

    def clear(self):
        cdef OcBuffer* buffer = &self.context
        cdef OcBuffer* end = &self.detail_valid
        while buffer <= end:
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

    cdef void back_to(self, OcMark mark) noexcept:
        self.rows = mark.rows
        self.not_finite = mark.not_finite
        self.shared = mark.shared
        cut_to_rows(&self.context, 4, mark.rows)
        cut_to_rows(&self.seq, 8, mark.rows)
        cut_to_rows(&self.idx, 4, mark.rows)
        cut_to_rows(&self.received, 8, mark.rows)
        cut_to_rows(&self.ts, 8, mark.rows)
        cut_to_rows(&self.ts_valid, 1, mark.rows)
        cut_to_rows(&self.start, 8, mark.rows)
        cut_to_rows(&self.start_valid, 1, mark.rows)
        cut_to_rows(&self.real, 8, mark.rows)
        cut_to_rows(&self.real_valid, 1, mark.rows)
        cut_to_rows(&self.whole, 8, mark.rows)
        cut_to_rows(&self.whole_valid, 1, mark.rows)
        cut_to_rows(&self.total, 8, mark.rows)
        cut_to_rows(&self.total_valid, 1, mark.rows)
        cut_to_rows(&self.chain_ends, 4, mark.rows)
        cut_to_rows(&self.chain_valid, 1, mark.rows)
        cut_to_rows(&self.attrs_ends, 4, mark.rows)
        cut_to_rows(&self.attrs_valid, 1, mark.rows)
        cut_to_rows(&self.detail_ends, 4, mark.rows)
        cut_to_rows(&self.detail_valid, 1, mark.rows)
        self.chain.size = mark.chain
        self.attrs.size = mark.attrs
        self.detail.size = mark.detail

    cdef int finish_row(self, int32_t context, uint64_t moment, uint64_t start,
                        double real, uint8_t has_real, int64_t whole, uint8_t has_whole,
                        double total, uint8_t has_total, uint8_t has_chain, uint8_t has_attrs,
                        uint8_t has_detail, Slice chain) except -1:
        cdef int32_t idx = self.rows - self.request_start
        cdef uint8_t has_moment = 0 < moment <= <uint64_t>0x7ffffffffffffffe
        cdef uint8_t has_start = 0 < start <= <uint64_t>0x7ffffffffffffffe
        cdef int32_t ends
        if <size_t>idx >= self.max_rows:
            raise self.too_many_rows()
        if not has_moment: moment = 0
        if not has_start: start = 0
        if has_real and real - real != 0:  # NaN and infinities
            has_real = 0
            self.not_finite += 1
        if has_total and total - total != 0:
            has_total = 0
            self.not_finite += 1
        if not has_real: real = 0
        if not has_whole: whole = 0
        if not has_total: total = 0
        self.shared += (<size_t*>self.context_shared.data)[context]
        oc_put(&self.context, &context, 4)
        oc_put(&self.seq, &self.request_seq, 8)
        oc_put(&self.idx, &idx, 4)
        oc_put(&self.received, &self.request_received, 8)
        oc_put(&self.ts, &moment, 8)
        oc_put(&self.ts_valid, &has_moment, 1)
        oc_put(&self.start, &start, 8)
        oc_put(&self.start_valid, &has_start, 1)
        oc_put(&self.real, &real, 8)
        oc_put(&self.real_valid, &has_real, 1)
        oc_put(&self.whole, &whole, 8)
        oc_put(&self.whole_valid, &has_whole, 1)
        oc_put(&self.total, &total, 8)
        oc_put(&self.total_valid, &has_total, 1)
        if has_chain:
            oc_put(&self.chain, chain.at, chain.size)
        ends = self.chain.size
        oc_put(&self.chain_ends, &ends, 4)
        oc_put(&self.chain_valid, &has_chain, 1)
        ends = self.attrs.size
        oc_put(&self.attrs_ends, &ends, 4)
        oc_put(&self.attrs_valid, &has_attrs, 1)
        ends = self.detail.size
        oc_put(&self.detail_ends, &ends, 4)
        oc_put(&self.detail_valid, &has_detail, 1)
        self.rows += 1
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
        if _np is None:
            import numpy as _np
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
        text = PyBytes_FromStringAndSize(data.data, data.size)
        oc_free(data)
        return self.new_texts(offsets, text, oc_array(valid, _np.uint8))
