# OTLP requests as columns, straight from the wire. Only their common shape is read here. Whatever
# is unusual (exemplars, octets as a value, unknown or repeated fields, anything malformed) makes
# `add` drop the rows of the request and call the pure `decode_rows`, which decides. Nothing is
# skipped unread.

cdef enum:  # the numbers of `Signal`
    OC_METRICS = 1
    OC_TRACES = 2
    OC_LOGS = 3


cdef class CompiledColumns(ColumnRecords):
    """Compiled builder of `Batch`; `PureColumns` in `contract/otlp/columns.py` is its twin."""

    def add(self, int signal, bytes body not None, int64_t seq, int64_t received_us):
        cdef OcMark mark = self.mark()
        cdef Slice whole
        self.request_start = self.rows
        self.request_parts = 0
        self.request_seq = seq
        self.request_received = received_us
        self.request_signal = signal
        self.request_body = body
        self.is_scanned = False
        whole.at = <Bytes>PyBytes_AS_STRING(body)
        whole.size = PyBytes_GET_SIZE(body)
        try:
            if OC_METRICS > signal or signal > OC_LOGS or self.read_request(whole) != OC_OK:
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
        finally:
            self.request_body = None
        return self.rows - mark.rows

    def check(self, int signal, bytes body not None):
        """Return how many rows `add` would append, or raise what it would raise.

        The builder is empty afterwards.
        """
        self.is_kept = False
        try:
            return self.add(signal, body, 0, 0)
        finally:
            self.is_kept = True
            self.clear()

    cdef int read_request(self, Slice body) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        if self.request_signal != OC_METRICS:
            self.scan()
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
            elif tag != 26 or not oc_is_text(part):  # 26: schema_url
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
        cdef bint item_seen = False
        scope.at = NULL
        scope.size = 0
        self.names_seen = 0
        if self.has_too_many_parts():
            return OC_UNUSUAL
        while at < end:
            tag = at[0]
            at = read_slice(at + 1, end, &part)
            if at == NULL:
                return OC_UNUSUAL
            if tag == 10 and not scope_seen and not item_seen:
                scope_seen = True
                if self.read_scope_name(part, &scope) != OC_OK:
                    return OC_UNUSUAL
            elif tag == 18:
                item_seen = True
                if self.read_item(part, resource, scope) != OC_OK:
                    return OC_UNUSUAL
            elif tag != 26 or not oc_is_text(part):
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
            if at == NULL or not oc_is_text(part) or (tag != 10 and tag != 18):  # name, version
                return OC_UNUSUAL
            if tag == 10:
                name[0] = part
        return OC_OK

    cdef inline int read_item(self, Slice body, int resource, Slice scope) except -1:
        if self.request_signal == OC_LOGS:
            return self.read_log(body, resource, scope)
        if self.request_signal == OC_TRACES:
            return self.read_span(body, resource, scope)
        return self.read_metric(body, resource, scope)

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
            if (tag == OC_GAUGE or tag == OC_SUM or tag == OC_HISTOGRAM or tag == OC_EXPONENTIAL
                    or tag == OC_SUMMARY):
                if kind:
                    return OC_UNUSUAL
                kind = tag
                points = part
                continue
            if not oc_is_text(part):
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
        cdef int context, result
        cdef bint cumulative
        if kind != OC_GAUGE and kind != OC_SUM:
            self.scan()
        while at < end:  # temporality and monotonicity come after the points
            tag = at[0]
            if tag == 10: at = read_slice(at + 1, end, &part)
            elif tag == 16 and kind != OC_GAUGE and kind != OC_SUMMARY:
                at = read_varint(at + 1, end, &temporality)
            elif tag == 24 and kind == OC_SUM: at = read_varint(at + 1, end, &monotonic)
            else: return OC_UNUSUAL
            if at == NULL:
                return OC_UNUSUAL
        if temporality > 2 or monotonic > 1:
            return OC_UNUSUAL
        context = self.context_of(kind, temporality, monotonic, resource, scope, name, unit)
        cumulative = kind == OC_SUM and temporality != 1 and monotonic
        at = body.at
        while next_part(&at, end, 10, &part):
            if kind == OC_HISTOGRAM: result = self.read_histogram(part, context)
            elif kind == OC_EXPONENTIAL: result = self.read_exponential(part, context)
            elif kind == OC_SUMMARY: result = self.read_summary(part, context)
            else: result = self.read_number(part, context, cumulative)
            if result != OC_OK:
                return OC_UNUSUAL
        return OC_OK
