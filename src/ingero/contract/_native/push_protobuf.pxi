# The plain push in protobuf. Twin of `contract/push/decode.py`: for every body, None or the same
# answer. Readers return -1 for anything unusual: several resources, other metric kinds, text that
# is not plain ASCII, measurements, values that must be refused. The full decoder then judges the
# body, and counts refusals.

cdef int _read_value(Slice value, Attribute* out) noexcept nogil:
    cdef Bytes at = value.at
    cdef Bytes end = value.at + value.size
    cdef uint64_t tag, number
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if out.has_text or out.number.is_set or out.has_real:
            return -1  # a value set twice: rare enough for the full decoder
        if tag == 10:
            at = read_slice(at, end, &out.text)
            if at == NULL or not is_plain_ascii(out.text):
                return -1
            out.has_text = True
        elif tag == 24:
            out.digits.at = at
            at = read_varint(at, end, &number)
            if at == NULL:
                return -1
            out.digits.size = at - out.digits.at
            out.number.is_set = True
            out.number.value = <int64_t>number
        elif tag == 33 and end - at == 8:
            memcpy(&out.real, at, 8)
            out.digits.at, out.digits.size = at, 8
            out.has_real = True
            at += 8
        else:
            return -1
    return 0


cdef int _read_attribute(Slice message, Attribute* out) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef Slice value
    memset(out, 0, sizeof(Attribute))
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if tag == 10:
            at = read_slice(at, end, &out.key)
            if at == NULL or not is_plain_ascii(out.key):
                return -1
        elif tag == 18:
            if out.has_text or out.number.is_set or out.has_real:
                return -1
            at = read_slice(at, end, &value)
            if at == NULL or _read_value(value, out):
                return -1
        else:
            return -1
    return 0


cdef int _read_resource_attributes(Slice message, Found* found) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef Slice item
    cdef Attribute attribute
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL or tag != 10:
            return -1
        at = read_slice(at, end, &item)
        if at == NULL or _read_attribute(item, &attribute):
            return -1
        if _use_resource_attribute(&attribute, found):
            return -1
    return 0


cdef inline void _clear(Point* out) noexcept nogil:
    """Clear what is read without a flag; clearing all of it costs more than reading a point."""
    out.has_mode = out.has_older_mode = out.has_state = out.has_workload = False
    out.has_double = out.has_int = False
    out.gpu_model.at = NULL
    out.version.at = NULL
    out.gpu_count.is_set = False
    out.as_int = 0
    out.time_ns = 0


cdef int _read_point(Slice message, Point* out) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef Slice item
    cdef Attribute attribute
    _clear(out)
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if tag == 58:
            at = read_slice(at, end, &item)
            if at == NULL or _read_attribute(item, &attribute):
                return -1
            _use_point_attribute(&attribute, out)
        elif tag == 17 or tag == 25:  # start time, time
            if end - at < 8:
                return -1
            if tag == 25:
                memcpy(&out.time_ns, at, 8)
            at += 8
        elif tag == 33:
            if end - at < 8 or out.has_int:
                return -1
            memcpy(&out.as_double, at, 8)
            out.has_double = True
            at += 8
        elif tag == 49:
            if end - at < 8 or out.has_double:
                return -1
            memcpy(&out.as_int, at, 8)
            out.has_int = True
            at += 8
        else:
            return -1  # exemplars, flags, anything new
    return 0


cdef int _read_points(Slice kind, Slice name, Found* found) noexcept nogil:
    """Read the message of a gauge or sum."""
    cdef Bytes at = kind.at
    cdef Bytes end = kind.at + kind.size
    cdef uint64_t tag, number
    cdef Slice item
    cdef Point point
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if tag == 10:
            at = read_slice(at, end, &item)
            if at == NULL or _read_point(item, &point) or _use_point(name, &point, found):
                return -1
        elif tag == 16 or tag == 24:  # temporality, monotonic
            at = read_varint(at, end, &number)
            if at == NULL:
                return -1
        else:
            return -1
    return 0


cdef int _read_metric(Slice message, Found* found) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef Slice name, text, kind
    cdef bint has_kind = False
    name.at = NULL
    name.size = 0
    kind.at = NULL
    kind.size = 0
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if tag == 10:
            at = read_slice(at, end, &name)
            if at == NULL or not is_plain_ascii(name):
                return -1
        elif tag == 18 or tag == 26:  # description, unit
            at = read_slice(at, end, &text)
            if at == NULL or not is_plain_ascii(text):
                return -1
        elif tag == 42 or tag == 58:  # gauge, sum
            if has_kind:
                return -1
            has_kind = True
            at = read_slice(at, end, &kind)
            if at == NULL:
                return -1
        else:
            return -1
    if not found.has_lead:
        found.has_lead = True
        found.lead = name
    return _read_points(kind, name, found)


cdef int _read_scope_metrics(Slice message, Found* found) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef Bytes inner
    cdef uint64_t tag
    cdef Slice item, text
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        at = read_slice(at, end, &item)
        if at == NULL:
            return -1
        if tag == 18:
            if _read_metric(item, found):
                return -1
        elif tag == 10:  # scope: name and version only
            inner = item.at
            while inner < item.at + item.size:
                inner = read_varint(inner, item.at + item.size, &tag)
                if inner == NULL or (tag != 10 and tag != 18):
                    return -1
                inner = read_slice(inner, item.at + item.size, &text)
                if inner == NULL or not is_plain_ascii(text):
                    return -1
        elif tag == 26:
            if not is_plain_ascii(item):
                return -1
        else:
            return -1
    return 0


cdef int _read_request(Bytes at, Bytes end, Found* found) noexcept nogil:
    cdef Bytes inner
    cdef uint64_t tag
    cdef Slice resource_metrics, item
    at = read_varint(at, end, &tag)
    if at == NULL or tag != 10:
        return -1
    at = read_slice(at, end, &resource_metrics)
    if at == NULL or at != end:  # exactly one resource
        return -1
    inner = resource_metrics.at
    while inner < end:
        inner = read_varint(inner, end, &tag)
        if inner == NULL:
            return -1
        inner = read_slice(inner, end, &item)
        if inner == NULL:
            return -1
        if tag == 10:
            if found.node.at != NULL or _read_resource_attributes(item, found):
                return -1
        elif tag == 18:
            if _read_scope_metrics(item, found):
                return -1
        elif tag == 26:
            if not is_plain_ascii(item):
                return -1
        else:
            return -1
    return 0
