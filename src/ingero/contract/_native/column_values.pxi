# Attributes and other values, written as JSON while they are read.

cdef enum:
    OC_MAX_NESTED = 16  # of values in values; deeper ones are left to the pure decoder

cdef struct OcPoint:  # what points of all kinds, log records and spans have
    uint64_t moment
    uint64_t start
    Slice chain  # `at` is NULL without one
    size_t attrs_from
    size_t detail_from


cdef class ColumnValues(ColumnRows):
    """Reads values. Each method returns OC_OK, or OC_UNUSUAL for what is left to pure code."""

    cdef bytes request_body
    cdef int request_signal
    cdef bint is_scanned  # whether the fields of the request were counted

    cdef int scan(self) except -1:
        """Count the fields, as the pure decoder does first.

        Gauges and sums without nested values do without: the number of their rows limits them.
        """
        if not self.is_scanned:
            self.check_limits(self.request_signal, self.request_body)
            self.is_scanned = True
        return 0

    cdef OcPoint new_point(self) noexcept:
        cdef OcPoint point
        memset(&point, 0, sizeof(point))
        point.attrs_from = self.attrs.size
        point.detail_from = self.detail.size
        return point

    cdef inline int put_text(self, OcBuffer* out, Slice text) except -1:
        if self.is_kept:
            return oc_quote(out, text)
        return OC_OK if oc_is_text(text) else OC_UNUSUAL

    cdef int put_value(self, OcBuffer* out, Slice value, int depth) except -1:
        """Append an AnyValue as JSON."""
        cdef Bytes end = value.at + value.size
        cdef Bytes at = value.at + 1
        cdef Slice part
        cdef uint64_t number
        cdef double real
        cdef uint8_t tag
        if not value.size:
            if self.is_kept: oc_put(out, b"null", 4)
            return OC_OK
        tag = value.at[0]
        if tag == 10:  # string
            return self.put_text(out, part) if read_slice(at, end, &part) == end else OC_UNUSUAL
        if tag == 24:  # int
            if read_varint(at, end, &number) != end:
                return OC_UNUSUAL
            return oc_whole(out, <int64_t>number) if self.is_kept else OC_OK
        if tag == 33:  # double
            if read_word(at, end, &real) != end:
                return OC_UNUSUAL
            return oc_real(out, real) if self.is_kept else OC_OK
        if tag == 16 and value.size == 2 and at[0] < 2:  # bool
            if self.is_kept: oc_put(out, b"true" if at[0] else b"false", 5 - at[0])
            return OC_OK
        if (tag == 42 or tag == 50) and depth < OC_MAX_NESTED:  # array, list of attributes
            self.scan()
            if read_slice(at, end, &part) == end:
                return self.put_nested(out, part, tag == 50, depth + 1)
        return OC_UNUSUAL

    cdef int put_nested(self, OcBuffer* out, Slice items, bint is_object, int depth) except -1:
        cdef Bytes at = items.at
        cdef Bytes end = items.at + items.size
        cdef Slice item
        cdef size_t start
        if self.is_kept: oc_put(out, b"{" if is_object else b"[", 1)
        start = out.size
        while at < end:
            if at[0] != 10:
                return OC_UNUSUAL
            at = read_slice(at + 1, end, &item)
            if at == NULL:
                return OC_UNUSUAL
            if self.is_kept and out.size > start: oc_put(out, b",", 1)
            if is_object:
                if self.put_pair(out, item, depth) != OC_OK:
                    return OC_UNUSUAL
            elif self.put_value(out, item, depth) != OC_OK:
                return OC_UNUSUAL
        if self.is_kept: oc_put(out, b"}" if is_object else b"]", 1)
        return OC_OK

    cdef int put_pair(self, OcBuffer* out, Slice body, int depth) except -1:
        """Append a KeyValue as a name and a value."""
        cdef Slice key, value
        if self.split_pair(body, &key, &value) != OC_OK:
            return OC_UNUSUAL
        return self.put_split(out, key, value, depth)

    cdef inline int put_split(self, OcBuffer* out, Slice key, Slice value, int depth) except -1:
        if self.put_text(out, key) != OC_OK:
            return OC_UNUSUAL
        if self.is_kept: oc_put(out, b":", 1)
        return self.put_value(out, value, depth)

    cdef inline int split_pair(self, Slice body, Slice* key, Slice* value) noexcept:
        cdef Bytes end = body.at + body.size
        cdef Bytes at
        if body.size < 2 or body.at[0] != 10:
            return OC_UNUSUAL
        at = read_slice(body.at + 1, end, key)
        if at == NULL or at >= end or at[0] != 18 or read_slice(at + 1, end, value) != end:
            return OC_UNUSUAL
        return OC_OK

    cdef int read_attribute(self, Slice body, OcPoint* point) except -1:
        cdef Slice key, value, text
        if self.split_pair(body, &key, &value) != OC_OK:
            return OC_UNUSUAL
        if slice_is(key, "causal_chain_id", 15):
            if point.chain.at != NULL or value.size < 2 or value.at[0] != 10:
                return OC_UNUSUAL
            if read_slice(value.at + 1, value.at + value.size, &text) != value.at + value.size:
                return OC_UNUSUAL
            point.chain = text
            return OC_OK if oc_is_text(text) else OC_UNUSUAL
        if self.is_kept:
            oc_put(&self.attrs, b"," if self.attrs.size > point.attrs_from else b"{", 1)
        return self.put_split(&self.attrs, key, value, 0)

    cdef int finish(self, OcPoint* point, int context, double real=0, bint has_real=False,
                    int64_t whole=0, bint has_whole=False, double total=0,
                    bint has_total=False) except -1:
        """End both objects and add the row."""
        cdef bint has_attrs = self.attrs.size > point.attrs_from
        cdef bint has_detail = self.detail.size > point.detail_from
        if has_attrs: oc_put(&self.attrs, b"}", 1)
        if has_detail: oc_put(&self.detail, b"}", 1)
        return self.finish_row(
            context, point.moment, point.start, real, has_real, whole, has_whole, total, has_total,
            point.chain.at != NULL, has_attrs, has_detail, point.chain)
