# A push of own times only, as columns. Twin of `decode_ranks` in `contract/measurements/ranks.py`:
# for every body, None or the same own times. Readers return -1 for anything unusual: other metrics,
# text that is not plain ASCII, numbers of another type or out of range. The full decoder then
# judges the body. Resources are returned as the octets that arrived, for the caller to look up.

cdef enum:
    LEAST_POINT_OCTETS = 11  # a tag, a length, and a value of nine octets

cdef struct OwnPoint:
    int64_t step  # -1 without a number
    int64_t count
    uint64_t end_ns
    double own_ms
    double idle_ms
    double span_ms

cdef struct OwnTimes:
    OwnPoint* points
    Py_ssize_t size
    Py_ssize_t first  # point of the resource that is being read
    Slice source  # of that resource; `at` is NULL without one


cdef inline double _milliseconds(double value) noexcept nogil:
    return value if value >= 0.0 and value - value == 0.0 else NAN


cdef int _use_own_attribute(Attribute* item, OwnPoint* point, Slice* source) noexcept nogil:
    if slice_is(item.key, b"ingero.step", 11):
        if not item.number.is_set or item.number.value < 0:
            return -1
        point.step = item.number.value
    elif slice_is(item.key, b"ingero.step.count", 17):
        if not item.number.is_set:
            return -1
        point.count = item.number.value if item.number.value > 0 else 1
    elif slice_is(item.key, b"ingero.step.idle_ms", 19):
        if not item.has_real:
            return -1
        point.idle_ms = _milliseconds(item.real)
    elif slice_is(item.key, b"ingero.step.span_ms", 19):
        if not item.has_real:
            return -1
        point.span_ms = _milliseconds(item.real)
    elif slice_is(item.key, b"ingero.source", 13):
        if not item.has_text:
            return -1
        source[0] = item.text
    return 0


cdef int _read_own_point(Slice message, OwnPoint* out, Slice* source) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef int64_t whole
    cdef Slice item
    cdef Attribute attribute
    out.step, out.count, out.end_ns = -1, 1, 0
    out.own_ms = out.idle_ms = out.span_ms = NAN
    source.at, source.size = NULL, 0
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if tag == 58:
            at = read_slice(at, end, &item)
            if at == NULL or _read_attribute(item, &attribute):
                return -1
            if _use_own_attribute(&attribute, out, source):
                return -1
        elif tag == 17 or tag == 25 or tag == 33 or tag == 49:
            if end - at < 8:
                return -1
            if tag == 25:
                memcpy(&out.end_ns, at, 8)
            elif tag != 17:
                if out.own_ms == out.own_ms:
                    return -1  # a value set twice
                if tag == 33:
                    memcpy(&out.own_ms, at, 8)
                else:
                    memcpy(&whole, at, 8)
                    out.own_ms = <double>whole
                if not (out.own_ms >= 0.0 and out.own_ms - out.own_ms == 0.0):
                    return -1
            at += 8
        else:
            return -1  # exemplars, flags, anything new
    return 0 if out.own_ms == out.own_ms else -1


cdef int _read_own_gauge(Slice gauge, OwnTimes* found) noexcept nogil:
    cdef Bytes at = gauge.at
    cdef Bytes end = gauge.at + gauge.size
    cdef uint64_t tag
    cdef Slice item, source
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL or tag != 10:
            return -1
        at = read_slice(at, end, &item)
        if at == NULL or item.size + 2 < LEAST_POINT_OCTETS:
            return -1
        if _read_own_point(item, &found.points[found.size], &source):
            return -1
        if found.size == found.first:
            found.source = source
        elif source.size != found.source.size or (
            source.size and memcmp(source.at, found.source.at, source.size) != 0
        ):
            return -1
        found.size += 1
    return 0


cdef int _read_own_metric(Slice message, OwnTimes* found) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef Slice name, item, gauge
    name.at, name.size = NULL, 0
    gauge.at, gauge.size = NULL, 0
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        at = read_slice(at, end, &item)
        if at == NULL:
            return -1
        if tag == 10:
            name = item
        elif tag == 18 or tag == 26:  # description, unit
            if not is_plain_ascii(item):
                return -1
        elif tag == 42 and gauge.at == NULL:
            gauge = item
        else:
            return -1
    if not slice_is(name, b"ingero.step.own_time_ms", 23):
        return -1
    return _read_own_gauge(gauge, found)


cdef int _read_own_scope(Slice message, OwnTimes* found) noexcept nogil:
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
            if _read_own_metric(item, found):
                return -1
        elif tag == 10:  # scope: name and version only
            inner = item.at
            while inner < at:
                inner = read_varint(inner, at, &tag)
                if inner == NULL or (tag != 10 and tag != 18):
                    return -1
                inner = read_slice(inner, at, &text)
                if inner == NULL or not is_plain_ascii(text):
                    return -1
        elif tag != 26 or not is_plain_ascii(item):
            return -1
    return 0


cdef int _read_own_resource(Slice message, Slice* resource, OwnTimes* found) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef Slice item
    resource.at, resource.size = NULL, 0
    found.first = found.size
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        at = read_slice(at, end, &item)
        if at == NULL:
            return -1
        if tag == 10 and resource.at == NULL:
            resource[0] = item
        elif tag == 18:
            if _read_own_scope(item, found):
                return -1
        elif tag != 26 or not is_plain_ascii(item):
            return -1
    return 0 if resource.at != NULL and found.size > found.first else -1


cdef tuple _own_columns(OwnTimes* found):
    """Return steps, counts and ends as one block of octets; own, idle and span as another."""
    cdef Py_ssize_t i, size = found.size
    whole = PyBytes_FromStringAndSize(NULL, 3 * 8 * size)
    real = PyBytes_FromStringAndSize(NULL, 3 * 8 * size)
    cdef int64_t* numbers = <int64_t*>PyBytes_AS_STRING(whole)
    cdef double* times = <double*>PyBytes_AS_STRING(real)
    for i in range(size):
        numbers[i] = found.points[i].step
        numbers[size + i] = found.points[i].count
        numbers[2 * size + i] = <int64_t>found.points[i].end_ns
        times[i] = found.points[i].own_ms
        times[size + i] = found.points[i].idle_ms
        times[2 * size + i] = found.points[i].span_ms
    return whole, real


def decode_own_times(bytes body not None):
    """Return resources, number of points and source of each, whole numbers, times; else None."""
    cdef Bytes at = body
    cdef Bytes end = at + len(body)
    cdef uint64_t tag
    cdef Slice message, resource
    cdef OwnTimes found
    resources, counts, sources = [], [], []
    found.size = 0
    found.points = <OwnPoint*>malloc((len(body) // LEAST_POINT_OCTETS + 1) * sizeof(OwnPoint))
    if found.points == NULL:
        raise MemoryError
    try:
        while at < end:
            at = read_varint(at, end, &tag)
            if at == NULL or tag != 10:
                return None
            at = read_slice(at, end, &message)
            if at == NULL or _read_own_resource(message, &resource, &found):
                return None
            resources.append(resource.at[:resource.size])
            counts.append(found.size - found.first)
            sources.append(found.source.at[:found.source.size] if found.source.size else b"")
        return (resources, counts, sources, *_own_columns(&found)) if found.size else None
    finally:
        free(found.points)
