# OTLP metrics as columns, straight from the wire. Only the common shape of gauges and sums is
# read here. Whatever is unusual (other kinds, nested values, text outside ASCII, unknown or
# repeated fields, anything malformed) makes `add` drop the rows of the request and call the pure
# `decode_rows`, which decides. Nothing is skipped unread.


cdef class CompiledColumns(ColumnRows):
    """Compiled builder of `Batch`; `PureColumns` in `contract/otlp/columns.py` is its twin."""

    def add(self, int signal, bytes body not None, int64_t seq, int64_t received_us):
        cdef OcMark mark
        cdef Slice whole
        cdef int result = OC_UNUSUAL
        mark.rows = self.rows
        mark.chain = self.chain.size
        mark.attrs = self.attrs.size
        mark.detail = self.detail.size
        mark.not_finite = self.not_finite
        mark.shared = self.shared
        self.request_start = self.rows
        self.request_parts = 0
        self.request_seq = seq
        self.request_received = received_us
        try:
            if signal == OC_METRICS:
                whole.at = <Bytes>PyBytes_AS_STRING(body)
                whole.size = PyBytes_GET_SIZE(body)
                result = self.read_request(whole)
            if result == OC_UNUSUAL:
                self.back_to(mark)
                rows = self.decode_rows(signal, body)
                rows.reverse()
                while rows:  # each row is freed at once: 200,000 together take 50 ms
                    self.add_row(rows.pop())
                    if self.rows % OC_ROWS_A_TURN == 0:
                        with nogil:  # other threads run, such as the one with the event loop
                            pass
            if self.shared - mark.shared > self.max_shared:
                raise self.too_much_shared()
        except BaseException:
            self.back_to(mark)
            raise
        return self.rows - mark.rows

    def check(self, int signal, bytes body not None):
        """Return how many rows `add` would append, or raise what it would raise.

        The builder is empty afterwards.
        """
        self.spelled_out = False
        try:
            return self.add(signal, body, 0, 0)
        finally:
            self.spelled_out = True
            self.clear()

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
        cdef int resource = -1
        cdef uint8_t tag
        if self.has_too_many_parts():
            return OC_UNUSUAL
        while at < end:
            tag = at[0]
            at = read_slice(at + 1, end, &part)
            if at == NULL:
                return OC_UNUSUAL
            if tag == 10 and resource < 0:
                resource = self.resource_of(oc_bytes(part))
            elif tag == 18 and resource >= 0:  # senders write the resource first
                if self.read_scope(part, resource) != OC_OK:
                    return OC_UNUSUAL
            elif tag != 26 or not oc_is_ascii(part):  # 26: schema_url
                return OC_UNUSUAL
        return OC_OK

    cdef inline bint has_too_many_parts(self) noexcept:
        """Count one part; empty ones would otherwise keep this code busy for seconds."""
        self.request_parts += 1
        return self.request_parts > OC_MAX_PARTS

    cdef int resource_of(self, bytes encoded) except -1:
        found = self.resource_ids.get(encoded)
        if found is None:
            self.resources.append(self.decode_resource(encoded))
            self.resource_octets += len(encoded)
            found = self.resource_ids[encoded] = len(self.resources) - 1
        return found

    cdef int read_scope(self, Slice body, int resource) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef Slice scope
        cdef uint8_t tag
        cdef bint scope_seen = False
        cdef bint metric_seen = False
        scope.at = NULL
        scope.size = 0
        if self.has_too_many_parts():
            return OC_UNUSUAL
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
                if self.read_metric(part, resource, scope) != OC_OK:
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

    cdef int read_metric(self, Slice body, int resource, Slice scope) except -1:
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
        if self.has_too_many_parts():
            return OC_UNUSUAL
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
        return self.read_points(points, kind, resource, scope, name, unit)

    cdef int read_points(self, Slice body, uint8_t kind, int resource, Slice scope, Slice name,
                         Slice unit) except -1:
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
        context = self.context_of(kind, temporality, monotonic, resource, scope, name, unit)
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

    cdef int context_of(self, int kind, int temporality, int monotonic, int resource, Slice scope,
                        Slice name, Slice unit) except -1:
        key = (resource, kind, temporality, monotonic, oc_bytes(scope), oc_bytes(name),
               oc_bytes(unit))
        found = self.context_ids.get(key)
        if found is None:
            words = self.sum_kind(temporality, bool(monotonic)) if kind == 58 else ("gauge", None)
            context = self.new_context(self.resources[resource], key[4].decode() or None,
                                       key[5].decode(), *words, key[6].decode() or None)
            # Two spellings may give one context, and `add_row` may have added it.
            found = self.context_ids.get(context)
            if found is None:
                found = self.add_context(context)
            self.context_ids[key] = found
        return found

    cdef int read_point(self, Slice body, int context, bint cumulative) except -1:
        cdef Bytes at = body.at, end = body.at + body.size
        cdef Slice part, chain
        cdef uint64_t moment = 0, start = 0, flags = 0
        cdef int64_t whole = 0
        cdef double real = 0
        cdef uint8_t tag, has = 0  # 1: a double, 2: an integer
        cdef size_t attrs_from = self.attrs.size
        cdef bint chain_seen = False
        chain.at = NULL
        chain.size = 0
        while at < end:
            tag = at[0]
            at += 1
            if tag == 58:
                at = read_slice(at, end, &part)
                if at == NULL:
                    return OC_UNUSUAL
                if self.read_attribute(part, &chain, &chain_seen, attrs_from) != OC_OK:
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
        self.finish_row(
            context, moment, start, real, has != 0 and not cumulative,
            whole, has == 2 and not cumulative, real, has != 0 and cumulative,
            chain_seen, self.attrs.size > attrs_from, False, chain)
        return OC_OK

    cdef int read_attribute(self, Slice body, Slice* chain, bint* chain_seen,
                            size_t attrs_from) except -1:
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
            if read_slice(value.at + 1, end, &text) != end or not oc_is_ascii(text):
                return OC_UNUSUAL
            chain[0] = text
            chain_seen[0] = True
            return OC_OK
        oc_put(&self.attrs, b"," if self.attrs.size > attrs_from else b"{", 1)
        if oc_quote(&self.attrs, key) != OC_OK:
            return OC_UNUSUAL
        oc_put(&self.attrs, b":", 1)
        return oc_value(&self.attrs, value, self.spelled_out)
