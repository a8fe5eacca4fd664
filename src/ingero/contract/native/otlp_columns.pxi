# OTLP metrics -> columns, straight from the wire. Only the common shape of gauges and sums is read here; whatever is
# unusual (other kinds, nested values, non-ASCII text, unknown or repeated fields, anything malformed) makes `add` drop
# what it has of the request and ask the pure `decode_rows`, which decides. Nothing is skipped unread.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc
_np = None  # set by the first `take`: commands and the push path never build columns, and numpy takes 0.1 s to import

cdef extern from "Python.h":
    char* PyOS_double_to_string(double value, char format_code, int precision, int flags, int* kind) except NULL
    int Py_DTSF_ADD_DOT_0

cdef enum:
    OC_OK = 0
    OC_UNUSUAL = 1
    OC_METRICS = 1
    OC_CACHED_RESOURCES = 20000

cdef struct OcBuffer:
    char* data
    size_t size
    size_t capacity

cdef struct OcMark:
    size_t rows
    size_t chain
    size_t attrs
    size_t detail

cdef inline int oc_reserve(OcBuffer* buffer, size_t more) except -1:
    cdef size_t wanted = buffer.size + more
    cdef size_t capacity
    cdef char* grown
    if wanted > buffer.capacity:
        capacity = wanted * 2 if wanted > 4096 else 8192
        grown = <char*>realloc(buffer.data, capacity)
        if grown == NULL:
            raise MemoryError("no memory for another batch of events")
        buffer.data = grown
        buffer.capacity = capacity
    return 0

cdef inline int oc_put(OcBuffer* buffer, const void* source, size_t size) except -1:
    oc_reserve(buffer, size)
    if size:
        memcpy(buffer.data + buffer.size, source, size)
    buffer.size += size
    return 0

cdef inline bint oc_is_ascii(Slice text) noexcept:
    cdef uint64_t i
    for i in range(text.size):
        if text.at[i] >= 128:
            return False
    return True

cdef inline object oc_bytes(Slice span):
    return PyBytes_FromStringAndSize(<const char*>span.at, span.size)

cdef int oc_quote(OcBuffer* out, Slice text) except -1:
    """A JSON string; OC_UNUSUAL outside ASCII."""
    cdef uint64_t i
    cdef uint8_t c
    cdef char* to
    oc_reserve(out, text.size * 6 + 3)
    to = out.data + out.size
    to[0] = c'"'
    to += 1
    for i in range(text.size):
        c = text.at[i]
        if c >= 128:
            return OC_UNUSUAL
        if c >= 32 and c != 34 and c != 92:
            to[0] = c
            to += 1
            continue
        to[0] = 92
        if c == 34 or c == 92: to[1] = c
        elif c == 10: to[1] = c'n'
        elif c == 13: to[1] = c'r'
        elif c == 9: to[1] = c't'
        elif c == 12: to[1] = c'f'
        elif c == 8: to[1] = c'b'
        else:
            snprintf(to + 1, 6, "u%04x", <int>c)
            to += 4
        to += 2
    to[0] = c'"'
    out.size = to + 1 - out.data
    return OC_OK

cdef int oc_value(OcBuffer* out, Slice value, bint spelled_out) except -1:
    """A scalar AnyValue as JSON; a check alone does not spell out numbers, which is what takes the time."""
    cdef Bytes end = value.at + value.size
    cdef Slice text
    cdef uint64_t number
    cdef double real
    cdef char* spelled
    if value.size < 2:
        return OC_UNUSUAL
    cdef uint8_t tag = value.at[0]
    cdef Bytes at = value.at + 1
    if tag == 10:  # string
        if read_slice(at, end, &text) != end:
            return OC_UNUSUAL
        return oc_quote(out, text)
    if tag == 24:  # int
        if read_varint(at, end, &number) != end:
            return OC_UNUSUAL
        oc_reserve(out, 24)
        out.size += snprintf(out.data + out.size, 24, "%lld", <long long>number)
        return OC_OK
    if tag == 33:  # double
        if end - at != 8:
            return OC_UNUSUAL
        memcpy(&real, at, 8)
        if real != real or real - real != 0:  # NaN and infinities
            return OC_UNUSUAL
        if not spelled_out:
            return OC_OK
        spelled = PyOS_double_to_string(real, c'r', 0, Py_DTSF_ADD_DOT_0, NULL)
        oc_reserve(out, 40)
        out.size += snprintf(out.data + out.size, 40, "%s", spelled)
        PyMem_Free(spelled)
        return OC_OK
    if tag == 16 and value.size == 2 and at[0] < 2:  # bool
        if at[0]: oc_put(out, b"true", 4)
        else: oc_put(out, b"false", 5)
        return OC_OK
    return OC_UNUSUAL


cdef class NativeColumns:
    """Compiled builder of `Batch`; see `otlp_columns.py`."""

    cdef OcBuffer context, seq, idx, received, ts, ts_valid, start, start_valid, real, real_valid, whole, whole_valid
    cdef OcBuffer total, total_valid, chain, chain_ends, chain_valid, attrs, attrs_ends, attrs_valid
    cdef OcBuffer detail, detail_ends, detail_valid
    cdef size_t rows, request_start, max_rows
    cdef int64_t request_seq, request_received
    cdef bint spelled_out
    cdef list contexts, speakers
    cdef dict context_ids, speaker_ids
    cdef object decode_rows, decode_resource, new_context, sum_kind, too_many_rows, new_batch, new_numbers, new_texts

    def __cinit__(self, help):
        (self.decode_rows, self.decode_resource, self.new_context, self.sum_kind, self.too_many_rows, self.max_rows,
         self.new_batch, self.new_numbers, self.new_texts) = help
        self.speakers = []
        self.speaker_ids = {}
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
        self.contexts = []
        self.context_ids = {}
        if len(self.speakers) > OC_CACHED_RESOURCES:
            self.speakers = []
            self.speaker_ids = {}

    def add(self, int signal, bytes body not None, int64_t seq, int64_t received_us):
        cdef OcMark mark
        cdef Slice whole
        cdef int result = OC_UNUSUAL
        mark.rows = self.rows
        mark.chain = self.chain.size
        mark.attrs = self.attrs.size
        mark.detail = self.detail.size
        self.request_start = self.rows
        self.request_seq = seq
        self.request_received = received_us
        try:
            if signal == OC_METRICS:
                whole.at = <Bytes>PyBytes_AS_STRING(body)
                whole.size = PyBytes_GET_SIZE(body)
                result = self.read_request(whole)
            if result == OC_UNUSUAL:
                self.back_to(mark)
                for row in self.decode_rows(signal, body):
                    self.add_row(row)
        except BaseException:
            self.back_to(mark)
            raise
        return self.rows - mark.rows

    def check(self, int signal, bytes body not None):
        """How many rows `add` would append, or what it would raise; the builder is empty afterwards."""
        self.spelled_out = False
        try:
            return self.add(signal, body, 0, 0)
        finally:
            self.spelled_out = True
            self.clear()

    cdef void back_to(self, OcMark mark) noexcept:
        self.rows = mark.rows
        for_fixed(&self.context, 4, mark.rows)
        for_fixed(&self.seq, 8, mark.rows)
        for_fixed(&self.idx, 4, mark.rows)
        for_fixed(&self.received, 8, mark.rows)
        for_fixed(&self.ts, 8, mark.rows)
        for_fixed(&self.ts_valid, 1, mark.rows)
        for_fixed(&self.start, 8, mark.rows)
        for_fixed(&self.start_valid, 1, mark.rows)
        for_fixed(&self.real, 8, mark.rows)
        for_fixed(&self.real_valid, 1, mark.rows)
        for_fixed(&self.whole, 8, mark.rows)
        for_fixed(&self.whole_valid, 1, mark.rows)
        for_fixed(&self.total, 8, mark.rows)
        for_fixed(&self.total_valid, 1, mark.rows)
        for_fixed(&self.chain_ends, 4, mark.rows)
        for_fixed(&self.chain_valid, 1, mark.rows)
        for_fixed(&self.attrs_ends, 4, mark.rows)
        for_fixed(&self.attrs_valid, 1, mark.rows)
        for_fixed(&self.detail_ends, 4, mark.rows)
        for_fixed(&self.detail_valid, 1, mark.rows)
        self.chain.size = mark.chain
        self.attrs.size = mark.attrs
        self.detail.size = mark.detail

    # --- the wire ---------------------------------------------------------------------------------------------------
    cdef int read_request(self, Slice body) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        while at < end:
            if at[0] != 10:
                return OC_UNUSUAL
            at = read_slice(at + 1, end, &part)
            if at == NULL or self.read_resource(part) != OC_OK:
                return OC_UNUSUAL
        return OC_OK

    cdef int read_resource(self, Slice body) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef int speaker = -1
        cdef uint8_t tag
        while at < end:
            tag = at[0]
            at = read_slice(at + 1, end, &part)
            if at == NULL:
                return OC_UNUSUAL
            if tag == 10 and speaker < 0:
                speaker = self.speaker_of(oc_bytes(part))
            elif tag == 18 and speaker >= 0:  # senders write the resource first
                if self.read_scope(part, speaker) != OC_OK:
                    return OC_UNUSUAL
            elif tag != 26 or not oc_is_ascii(part):  # 26: schema_url
                return OC_UNUSUAL
        return OC_OK

    cdef int speaker_of(self, bytes resource) except -1:
        found = self.speaker_ids.get(resource)
        if found is None:
            self.speakers.append(self.decode_resource(resource))
            found = self.speaker_ids[resource] = len(self.speakers) - 1
        return found

    cdef int read_scope(self, Slice body, int speaker) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef Slice scope
        cdef uint8_t tag
        cdef bint scope_seen = False
        cdef bint metric_seen = False
        scope.at = NULL
        scope.size = 0
        while at < end:
            tag = at[0]
            at = read_slice(at + 1, end, &part)
            if at == NULL:
                return OC_UNUSUAL
            if tag == 10 and not scope_seen and not metric_seen:
                scope_seen = True
                if self.read_scope_name(part, &scope) != OC_OK:
                    return OC_UNUSUAL
            elif tag == 18:
                metric_seen = True
                if self.read_metric(part, speaker, scope) != OC_OK:
                    return OC_UNUSUAL
            elif tag != 26 or not oc_is_ascii(part):
                return OC_UNUSUAL
        return OC_OK

    cdef int read_scope_name(self, Slice body, Slice* name) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef uint8_t tag
        while at < end:
            tag = at[0]
            at = read_slice(at + 1, end, &part)
            if at == NULL or not oc_is_ascii(part) or (tag != 10 and tag != 18):  # name, version
                return OC_UNUSUAL
            if tag == 10:
                name[0] = part
        return OC_OK

    cdef int read_metric(self, Slice body, int speaker, Slice scope) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef Slice name
        cdef Slice unit
        cdef Slice points
        cdef uint8_t tag
        cdef uint8_t kind = 0
        name.at = NULL
        name.size = 0
        unit = name
        points = name
        while at < end:
            tag = at[0]
            at = read_slice(at + 1, end, &part)
            if at == NULL:
                return OC_UNUSUAL
            if tag == 42 or tag == 58:  # gauge, sum
                if kind:
                    return OC_UNUSUAL
                kind = tag
                points = part
                continue
            if not oc_is_ascii(part):
                return OC_UNUSUAL
            if tag == 10: name = part
            elif tag == 26: unit = part
            elif tag != 18: return OC_UNUSUAL  # 18: description
        if not kind:
            return OC_UNUSUAL if body.size else OC_OK
        return self.read_points(points, kind, speaker, scope, name, unit)

    cdef int read_points(self, Slice body, uint8_t kind, int speaker, Slice scope, Slice name, Slice unit) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef uint64_t temporality = 0
        cdef uint64_t monotonic = 0
        cdef uint8_t tag
        cdef int context
        cdef bint cumulative
        if kind == 58:  # temporality and monotonicity come after the points
            while at < end:
                tag = at[0]
                if tag == 10: at = read_slice(at + 1, end, &part)
                elif tag == 16: at = read_varint(at + 1, end, &temporality)
                elif tag == 24: at = read_varint(at + 1, end, &monotonic)
                else: return OC_UNUSUAL
                if at == NULL:
                    return OC_UNUSUAL
            if temporality > 2 or monotonic > 1:
                return OC_UNUSUAL
        context = self.context_of(kind, temporality, monotonic, speaker, scope, name, unit)
        cumulative = kind == 58 and temporality != 1 and monotonic
        at = body.at
        while at < end:
            tag = at[0]
            if tag != 10:
                if kind != 58:
                    return OC_UNUSUAL
                at = read_varint(at + 1, end, &temporality)
                continue
            at = read_slice(at + 1, end, &part)
            if at == NULL or self.read_point(part, context, cumulative) != OC_OK:
                return OC_UNUSUAL
        return OC_OK

    cdef int context_of(self, int kind, int temporality, int monotonic, int speaker, Slice scope, Slice name,
                        Slice unit) except -1:
        key = (speaker, kind, temporality, monotonic, oc_bytes(scope), oc_bytes(name), oc_bytes(unit))
        found = self.context_ids.get(key)
        if found is None:
            words = self.sum_kind(temporality, bool(monotonic)) if kind == 58 else ("gauge", None)
            context = self.new_context(self.speakers[speaker], key[4].decode() or None, key[5].decode(), *words,
                                       key[6].decode() or None)
            found = self.context_ids.get(context)  # two spellings of one context, or one from `add_row`
            if found is None:
                found = len(self.contexts)
                self.contexts.append(context)
                self.context_ids[context] = found
            self.context_ids[key] = found
        return found

    cdef int read_point(self, Slice body, int context, bint cumulative) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef Slice chain
        cdef uint64_t moment = 0
        cdef uint64_t start = 0
        cdef uint64_t flags = 0
        cdef int64_t whole = 0
        cdef double real = 0
        cdef uint8_t tag
        cdef uint8_t has = 0  # 1: a double, 2: an integer
        cdef size_t attrs_from = self.attrs.size
        cdef bint chain_seen = False
        chain.at = NULL
        chain.size = 0
        while at < end:
            tag = at[0]
            at += 1
            if tag == 58:
                at = read_slice(at, end, &part)
                if at == NULL or self.read_attribute(part, &chain, &chain_seen, attrs_from) != OC_OK:
                    return OC_UNUSUAL
                continue
            if tag == 64:
                at = read_varint(at, end, &flags)
                if at == NULL or flags > 0xffffffff:
                    return OC_UNUSUAL
                continue
            if end - at < 8:
                return OC_UNUSUAL
            if tag == 25: memcpy(&moment, at, 8)
            elif tag == 17: memcpy(&start, at, 8)
            elif tag == 33:
                memcpy(&real, at, 8)
                has = 1
            elif tag == 49:
                memcpy(&whole, at, 8)
                has = 2
            else:
                return OC_UNUSUAL
            at += 8
        if self.attrs.size > attrs_from:
            oc_put(&self.attrs, b"}", 1)
        if flags & 1:
            has = 0
        if has == 2:
            real = <double>whole
        self.finish_row(context, moment, start, real, has != 0 and not cumulative, whole, has == 2 and not cumulative,
                        real, has != 0 and cumulative, chain_seen, self.attrs.size > attrs_from, False, chain)
        return OC_OK

    cdef int read_attribute(self, Slice body, Slice* chain, bint* chain_seen, size_t attrs_from) except -1:
        cdef Bytes end = body.at + body.size
        cdef Slice key
        cdef Slice value
        cdef Slice text
        cdef Bytes at
        if body.size < 2 or body.at[0] != 10:
            return OC_UNUSUAL
        at = read_slice(body.at + 1, end, &key)
        if at == NULL or at >= end or at[0] != 18 or read_slice(at + 1, end, &value) != end:
            return OC_UNUSUAL
        if slice_is(key, "causal_chain_id", 15):
            if chain_seen[0] or value.size < 2 or value.at[0] != 10:
                return OC_UNUSUAL
            if read_slice(value.at + 1, value.at + value.size, &text) != end or not oc_is_ascii(text):
                return OC_UNUSUAL
            chain[0] = text
            chain_seen[0] = True
            return OC_OK
        oc_put(&self.attrs, b"," if self.attrs.size > attrs_from else b"{", 1)
        if oc_quote(&self.attrs, key) != OC_OK:
            return OC_UNUSUAL
        oc_put(&self.attrs, b":", 1)
        return oc_value(&self.attrs, value, self.spelled_out)

    # --- rows -------------------------------------------------------------------------------------------------------
    cdef int finish_row(self, int32_t context, uint64_t moment, uint64_t start, double real, uint8_t has_real,
                        int64_t whole, uint8_t has_whole, double total, uint8_t has_total, uint8_t has_chain,
                        uint8_t has_attrs, uint8_t has_detail, Slice chain) except -1:
        cdef int32_t idx = self.rows - self.request_start
        cdef uint8_t has_moment = 0 < moment <= <uint64_t>0x7ffffffffffffffe
        cdef uint8_t has_start = 0 < start <= <uint64_t>0x7ffffffffffffffe
        cdef int32_t ends
        if <size_t>idx >= self.max_rows:
            raise self.too_many_rows()
        if not has_moment: moment = 0
        if not has_start: start = 0
        if not has_real: real = 0
        if not has_whole: whole = 0
        if not has_total: total = 0
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

    cdef int add_row(self, row) except -1:
        cdef Slice chain
        cdef bytes chain_bytes = b"" if row.causal_chain_id is None else row.causal_chain_id.encode()
        cdef bytes attrs = b"" if row.attrs is None else row.attrs.encode()
        cdef bytes detail = b"" if row.detail is None else row.detail.encode()
        context = self.context_ids.get(row.context)
        if context is None:
            context = len(self.contexts)
            self.contexts.append(row.context)
            self.context_ids[row.context] = context
        chain.at = <Bytes>PyBytes_AS_STRING(chain_bytes)
        chain.size = PyBytes_GET_SIZE(chain_bytes)
        oc_put(&self.attrs, PyBytes_AS_STRING(attrs), PyBytes_GET_SIZE(attrs))
        oc_put(&self.detail, PyBytes_AS_STRING(detail), PyBytes_GET_SIZE(detail))
        return self.finish_row(
            context, row.ts or 0, row.start_ts or 0, 0.0 if row.value_double is None else row.value_double, row.value_double is not None,
            row.value_int or 0, row.value_int is not None, 0.0 if row.cumulative_value is None else row.cumulative_value,
            row.cumulative_value is not None, row.causal_chain_id is not None, row.attrs is not None,
            row.detail is not None, chain)

    def take(self):
        global _np
        if _np is None:
            import numpy as _np
        batch = self.new_batch(
            contexts=self.contexts,
            context=oc_array(&self.context, _np.int32),
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
        return self.new_texts(offsets, PyBytes_FromStringAndSize(data.data, data.size), oc_array(valid, _np.uint8))


cdef inline void for_fixed(OcBuffer* buffer, size_t width, size_t rows) noexcept:
    buffer.size = width * rows

cdef object oc_array(OcBuffer* buffer, dtype):
    return _np.frombuffer(PyBytes_FromStringAndSize(buffer.data, buffer.size), dtype)
