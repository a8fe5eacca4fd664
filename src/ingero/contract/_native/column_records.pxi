# Log records and spans as rows. A text that is there twice is unusual: both must be UTF-8.

cdef enum:  # beside the kinds of points
    OC_LOG = 1
    OC_SPAN = 2
    OC_NAMES = 16  # that are found without asking Python; most scopes have fewer

cdef struct OcName:
    Slice text
    int context


cdef const char* OC_SPAN_KINDS[6]
cdef const char* OC_STATUS[3]
OC_SPAN_KINDS[0] = b'"span_kind":"unspecified"'
OC_SPAN_KINDS[1] = b'"span_kind":"internal"'
OC_SPAN_KINDS[2] = b'"span_kind":"server"'
OC_SPAN_KINDS[3] = b'"span_kind":"client"'
OC_SPAN_KINDS[4] = b'"span_kind":"producer"'
OC_SPAN_KINDS[5] = b'"span_kind":"consumer"'
OC_STATUS[0] = b'"status":"unset"'
OC_STATUS[1] = b'"status":"ok"'
OC_STATUS[2] = b'"status":"error"'


cdef class ColumnRecords(ColumnPoints):
    """Reads log records and spans. A name of one scope is a context."""

    cdef OcName names[16]
    cdef size_t names_seen  # in this scope

    cdef int context_of(self, int kind, int temporality, int monotonic, int resource, Slice scope,
                        Slice name, Slice unit) except -1:
        key = (resource, kind, temporality, monotonic, oc_bytes(scope), oc_bytes(name),
               oc_bytes(unit))
        found = self.context_ids.get(key)
        if found is None:
            if kind == OC_LOG:
                words = "log", None, None
            elif kind == OC_SPAN:
                words = "span", None, "ms"
            else:  # the number of the field that holds the points
                words = (*self.metric_kind(kind >> 3, temporality, bool(monotonic)),
                         key[6].decode() or None)
            context = self.new_context(self.resources[resource], key[4].decode() or None,
                                       key[5].decode(), *words)
            # Two spellings may give one context, and `add_row` may have added it.
            found = self.context_ids.get(context)
            if found is None:
                found = self.add_context(context)
            self.context_ids[key] = found
        return found

    cdef int context_of_name(self, int kind, int resource, Slice scope, Slice name) except -1:
        cdef size_t i
        cdef Slice none
        for i in range(min(self.names_seen, OC_NAMES)):
            if slice_is(name, <const char*>self.names[i].text.at, self.names[i].text.size):
                return self.names[i].context
        none.at = NULL
        none.size = 0
        i = self.names_seen % OC_NAMES
        self.names[i].context = self.context_of(kind, 0, 0, resource, scope, name, none)
        self.names[i].text = name
        self.names_seen += 1
        return self.names[i].context

    cdef int put_id(self, OcPoint* point, const char* name, Slice octets) except -1:
        if not octets.size or not self.is_kept:
            return OC_OK
        oc_field(&self.detail, point.detail_from, name)
        return oc_hex(&self.detail, octets)

    cdef int put_named(self, OcPoint* point, const char* name, Slice text) except -1:
        if not text.size:
            return OC_OK
        if self.is_kept: oc_field(&self.detail, point.detail_from, name)
        return self.put_text(&self.detail, text)

    cdef int note_event_name(self, Slice attribute, Slice* name) except -1:
        """Note the name that an attribute gives a log record; one that is not text is unusual."""
        cdef Slice key, value
        if self.split_pair(attribute, &key, &value) != OC_OK:
            return OC_UNUSUAL
        if not slice_is(key, "event.name", 10):
            return OC_OK
        if name.at != NULL or value.size < 2 or value.at[0] != 10:
            return OC_UNUSUAL
        if read_slice(value.at + 1, value.at + value.size, name) != value.at + value.size:
            return OC_UNUSUAL
        return OC_OK

    cdef int read_log(self, Slice body, int resource, Slice scope) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part, severity, said, trace, span, name, event_name
        cdef uint64_t observed = 0, number = 0, dropped = 0
        cdef uint8_t tag
        cdef OcPoint point = self.new_point()
        memset(&severity, 0, sizeof(Slice))
        said = trace = span = name = event_name = severity
        while at < end:
            tag = at[0]
            at += 1
            if tag == 50:
                at = read_slice(at, end, &part)
                if at == NULL or self.note_event_name(part, &event_name) != OC_OK:
                    return OC_UNUSUAL
                if self.read_attribute(part, &point) != OC_OK:
                    return OC_UNUSUAL
                continue
            if tag == 9: at = read_word(at, end, &point.moment)
            elif tag == 89: at = read_word(at, end, &observed)
            elif tag == 16: at = read_varint(at, end, &number)
            elif tag == 26 and severity.at == NULL: at = read_slice(at, end, &severity)
            elif tag == 42 and said.at == NULL: at = read_slice(at, end, &said)
            elif tag == 56: at = read_varint(at, end, &dropped)
            elif tag == 69: at = at + 4 if end - at >= 4 else NULL
            elif tag == 74: at = read_slice(at, end, &trace)
            elif tag == 82: at = read_slice(at, end, &span)
            elif tag == 98 and name.at == NULL: at = read_slice(at, end, &name)
            else: return OC_UNUSUAL
            if at == NULL or number > 0x7fffffff or dropped > 0xffffffff:
                return OC_UNUSUAL
        if not 0 < point.moment <= <uint64_t>0x7ffffffffffffffe:
            point.moment = observed
        if not name.size:
            name = event_name
        if self.put_log(&point, severity, number, said, trace, span) != OC_OK:
            return OC_UNUSUAL
        if not name.size:
            name.at = <Bytes>b"log"
            name.size = 3
        if not oc_is_text(name):
            return OC_UNUSUAL
        return self.finish(&point, self.context_of_name(OC_LOG, resource, scope, name))

    cdef int put_log(self, OcPoint* point, Slice severity, uint64_t number, Slice said,
                     Slice trace, Slice span) except -1:
        if self.put_named(point, b'"severity":', severity) != OC_OK:
            return OC_UNUSUAL
        if number and self.is_kept:
            oc_field(&self.detail, point.detail_from, b'"severity_number":')
            oc_count(&self.detail, number)
        if said.at != NULL:
            if self.is_kept: oc_field(&self.detail, point.detail_from, b'"body":')
            if self.put_value(&self.detail, said, 0) != OC_OK:
                return OC_UNUSUAL
        self.put_id(point, b'"trace_id":', trace)
        return self.put_id(point, b'"span_id":', span)

    cdef int read_span(self, Slice body, int resource, Slice scope) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part, trace, span, parent, state, name, status
        cdef uint64_t kind = 0, dropped = 0, stop = 0
        cdef uint8_t tag
        cdef bint has_events = False, has_links = False
        cdef OcPoint point = self.new_point()
        memset(&trace, 0, sizeof(Slice))
        span = parent = state = name = status = trace
        while at < end:
            tag = at[0]
            at += 1
            if tag == 74:
                at = read_slice(at, end, &part)
                if at == NULL or self.read_attribute(part, &point) != OC_OK:
                    return OC_UNUSUAL
                continue
            if tag == 10: at = read_slice(at, end, &trace)
            elif tag == 18: at = read_slice(at, end, &span)
            elif tag == 26 and state.at == NULL: at = read_slice(at, end, &state)
            elif tag == 34: at = read_slice(at, end, &parent)
            elif tag == 42 and name.at == NULL: at = read_slice(at, end, &name)
            elif tag == 48: at = read_varint(at, end, &kind)
            elif tag == 57: at = read_word(at, end, &point.start)
            elif tag == 65: at = read_word(at, end, &stop)
            elif tag == 80 or tag == 96 or tag == 112: at = read_varint(at, end, &dropped)
            elif tag == 90:
                at = read_slice(at, end, &part)
                has_events = True
            elif tag == 106:
                at = read_slice(at, end, &part)
                has_links = True
            elif tag == 122 and status.at == NULL: at = read_slice(at, end, &status)
            elif tag == 133 and end - at >= 5 and at[0] == 1: at += 5  # flags, a fixed32
            else: return OC_UNUSUAL
            if at == NULL or kind > 5 or dropped > 0xffffffff:
                return OC_UNUSUAL
        if not oc_is_text(name):
            return OC_UNUSUAL
        self.put_id(&point, b'"trace_id":', trace)
        self.put_id(&point, b'"span_id":', span)
        self.put_id(&point, b'"parent_span_id":', parent)
        if self.put_state(&point, kind, status, state) != OC_OK:
            return OC_UNUSUAL
        if has_events and self.put_list(&point, body, b'"events":', 90) != OC_OK:
            return OC_UNUSUAL
        if has_links and self.put_list(&point, body, b'"links":', 106) != OC_OK:
            return OC_UNUSUAL
        return self.finish_span(&point, stop, self.context_of_name(OC_SPAN, resource, scope, name))

    cdef int put_state(self, OcPoint* point, uint64_t kind, Slice status, Slice state) except -1:
        if self.is_kept: oc_field(&self.detail, point.detail_from, OC_SPAN_KINDS[kind])
        if status.at != NULL and self.put_status(point, status) != OC_OK:
            return OC_UNUSUAL
        return self.put_named(point, b'"trace_state":', state)

    cdef int finish_span(self, OcPoint* point, uint64_t stop, int context) except -1:
        cdef bint has_start = 0 < point.start <= <uint64_t>0x7ffffffffffffffe
        cdef bint has_stop = 0 < stop <= <uint64_t>0x7ffffffffffffffe
        cdef double duration_ms = 0
        point.moment = stop if has_stop else point.start
        if has_start and has_stop:
            duration_ms = <double>(<int64_t>stop - <int64_t>point.start) / 1e6
        return self.finish(point, context, duration_ms, has_start and has_stop)

    cdef int put_status(self, OcPoint* point, Slice body) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice message
        cdef uint64_t code = 0
        message.at = NULL
        message.size = 0
        while at < end:
            if at[0] == 18 and message.at == NULL: at = read_slice(at + 1, end, &message)
            elif at[0] == 24: at = read_varint(at + 1, end, &code)
            else: return OC_UNUSUAL
            if at == NULL or code > 2:
                return OC_UNUSUAL
        if self.is_kept: oc_field(&self.detail, point.detail_from, OC_STATUS[code])
        return self.put_named(point, b'"message":', message)

    cdef int put_list(self, OcPoint* point, Slice body, const char* name, uint8_t tag) except -1:
        """Append the events or links of a span."""
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef bint is_first = True
        if self.is_kept: oc_field(&self.detail, point.detail_from, name)
        while next_part(&at, end, tag, &part):
            if self.is_kept: oc_put(&self.detail, b"[" if is_first else b",", 1)
            is_first = False
            if (self.put_event(part) if tag == 90 else self.put_link(part)) != OC_OK:
                return OC_UNUSUAL
        return oc_put(&self.detail, b"]", 1) if self.is_kept else OC_OK

    cdef int put_event(self, Slice body) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice name, part
        cdef uint64_t moment = 0, dropped = 0
        cdef bint has_attributes = False
        name.at = NULL
        name.size = 0
        while at < end:
            if at[0] == 9: at = read_word(at + 1, end, &moment)
            elif at[0] == 18 and name.at == NULL: at = read_slice(at + 1, end, &name)
            elif at[0] == 26:
                at = read_slice(at + 1, end, &part)
                has_attributes = True
            elif at[0] == 32: at = read_varint(at + 1, end, &dropped)
            else: return OC_UNUSUAL
            if at == NULL or dropped > 0xffffffff:
                return OC_UNUSUAL
        if self.is_kept: oc_put(&self.detail, b'{"name":', 8)
        if self.put_text(&self.detail, name) != OC_OK:
            return OC_UNUSUAL
        if self.is_kept:
            oc_put(&self.detail, b',"time_unix_nano":', 18)
            oc_count(&self.detail, moment)
        return self.end_with_attributes(body, 26, has_attributes)

    cdef int put_link(self, Slice body) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice trace, span, state, part
        cdef uint64_t dropped = 0
        cdef bint has_attributes = False
        memset(&trace, 0, sizeof(Slice))
        span = state = trace
        while at < end:
            if at[0] == 10: at = read_slice(at + 1, end, &trace)
            elif at[0] == 18: at = read_slice(at + 1, end, &span)
            elif at[0] == 26 and state.at == NULL: at = read_slice(at + 1, end, &state)
            elif at[0] == 34:
                at = read_slice(at + 1, end, &part)
                has_attributes = True
            elif at[0] == 40: at = read_varint(at + 1, end, &dropped)
            elif at[0] == 53: at = at + 5 if end - at >= 5 else NULL
            else: return OC_UNUSUAL
            if at == NULL or dropped > 0xffffffff:
                return OC_UNUSUAL
        if not oc_is_text(state):
            return OC_UNUSUAL
        if self.is_kept:
            oc_put(&self.detail, b'{"trace_id":', 12)
            oc_hex(&self.detail, trace)
            oc_put(&self.detail, b',"span_id":', 11)
            oc_hex(&self.detail, span)
        return self.end_with_attributes(body, 34, has_attributes)

    cdef int end_with_attributes(self, Slice body, uint8_t tag, bint has_attributes) except -1:
        """Append the attributes under this tag of an event or link, and end its object."""
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef bint is_first = True
        if has_attributes:
            if self.is_kept: oc_put(&self.detail, b',"attributes":', 14)
            while next_part(&at, end, tag, &part):
                if self.is_kept: oc_put(&self.detail, b"{" if is_first else b",", 1)
                is_first = False
                if self.put_pair(&self.detail, part, 0) != OC_OK:
                    return OC_UNUSUAL
            if self.is_kept: oc_put(&self.detail, b"}", 1)
        return oc_put(&self.detail, b"}", 1) if self.is_kept else OC_OK
