# A push of own times only, as columns. Twin of `decode_ranks` in `contract/measurements/ranks.py`:
# for every body, None or the same own times. Readers return -1 for anything unusual: other metrics,
# text that is not plain ASCII, numbers of another type or out of range. The full decoder then
# judges the body. Resources are returned as the octets that arrived, for the caller to look up.
#
# The points of a push differ in their numbers alone. So where the octets outside of these are those
# of the last point that was read in full, nothing else of a point is read.

cdef enum:
    LEAST_POINT_OCTETS = 11  # a tag, a length, and a value of nine octets
    MOST_NUMBERS = 8

cdef enum NumberKind:
    STEP_NUMBER
    STEP_COUNT
    IDLE_MS
    SPAN_MS
    START_NS
    END_NS
    OWN_MS
    OWN_WHOLE_MS

cdef struct OwnPoint:  # 48 octets, which the caller reads as six words
    int64_t step  # -1 without a number
    int64_t count
    uint64_t end_ns
    double own_ms
    double idle_ms
    double span_ms

cdef struct NumberPlace:
    NumberKind kind
    uint64_t at  # octets from the start of the point
    uint64_t size

cdef struct PointShape:
    Slice message  # of the last point that was read in full; `at` is NULL without one
    Slice source
    int numbers  # more than MOST_NUMBERS: no other point is compared with this one
    NumberPlace places[MOST_NUMBERS]

cdef struct OwnTimes:
    OwnPoint* points
    Py_ssize_t size
    Py_ssize_t first  # point of the resource that is being read
    Slice source  # of that resource; `at` is NULL without one
    PointShape shape


cdef inline double _milliseconds(double value) noexcept nogil:
    return value if value >= 0.0 and value - value == 0.0 else NAN


cdef inline void _clear_own(OwnPoint* out) noexcept nogil:
    out.step, out.count, out.end_ns = -1, 1, 0
    out.own_ms = out.idle_ms = out.span_ms = NAN


cdef int _take_number(NumberKind kind, Slice digits, OwnPoint* out) noexcept nogil:
    """Take one number of a point from its octets; -1 where it is out of range."""
    cdef uint64_t number = 0
    cdef double real
    if kind == STEP_NUMBER or kind == STEP_COUNT:
        if read_varint(digits.at, digits.at + digits.size, &number) != digits.at + digits.size:
            return -1
        if kind == STEP_COUNT:
            out.count = <int64_t>number if <int64_t>number > 0 else 1
            return 0
        out.step = <int64_t>number
        return 0 if out.step >= 0 else -1
    memcpy(&number, digits.at, 8)
    memcpy(&real, digits.at, 8)
    if kind == IDLE_MS:
        out.idle_ms = _milliseconds(real)
    elif kind == SPAN_MS:
        out.span_ms = _milliseconds(real)
    elif kind == END_NS:
        out.end_ns = number
    elif kind == OWN_MS or kind == OWN_WHOLE_MS:
        out.own_ms = real if kind == OWN_MS else <double><int64_t>number
        return 0 if out.own_ms >= 0.0 and out.own_ms - out.own_ms == 0.0 else -1
    return 0


cdef int _note_number(
    NumberKind kind, Slice digits, PointShape* shape, OwnPoint* out
) noexcept nogil:
    """Take a number, and note where it is."""
    cdef NumberPlace* place
    if shape.numbers < MOST_NUMBERS:
        place = &shape.places[shape.numbers]
        place.kind, place.at, place.size = kind, digits.at - shape.message.at, digits.size
    shape.numbers += 1
    return _take_number(kind, digits, out)


cdef int _use_own_attribute(Attribute* item, PointShape* shape, OwnPoint* out) noexcept nogil:
    if slice_is(item.key, b"ingero.step", 11):
        if not item.number.is_set:
            return -1
        return _note_number(STEP_NUMBER, item.digits, shape, out)
    if slice_is(item.key, b"ingero.step.count", 17):
        if not item.number.is_set:
            return -1
        return _note_number(STEP_COUNT, item.digits, shape, out)
    if slice_is(item.key, b"ingero.step.idle_ms", 19):
        return _note_number(IDLE_MS, item.digits, shape, out) if item.has_real else -1
    if slice_is(item.key, b"ingero.step.span_ms", 19):
        return _note_number(SPAN_MS, item.digits, shape, out) if item.has_real else -1
    if slice_is(item.key, b"ingero.source", 13):
        if not item.has_text:
            return -1
        shape.source = item.text
    return 0


cdef int _read_own_point(Slice message, PointShape* shape, OwnPoint* out) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef NumberKind kind
    cdef Slice item
    cdef Attribute attribute
    _clear_own(out)
    shape.message, shape.numbers = message, 0
    shape.source.at, shape.source.size = NULL, 0
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if tag == 58:
            at = read_slice(at, end, &item)
            if at == NULL or _read_attribute(item, &attribute):
                return -1
            if _use_own_attribute(&attribute, shape, out):
                return -1
        elif tag == 17 or tag == 25 or tag == 33 or tag == 49:
            if end - at < 8:
                return -1
            if (tag == 33 or tag == 49) and out.own_ms == out.own_ms:
                return -1  # a value set twice
            kind = START_NS if tag == 17 else END_NS if tag == 25 else OWN_MS
            item.at, item.size = at, 8
            if _note_number(OWN_WHOLE_MS if tag == 49 else kind, item, shape, out):
                return -1
            at += 8
        else:
            return -1  # exemplars, flags, anything new
    return 0 if out.own_ms == out.own_ms else -1


cdef int _read_alike(Slice message, PointShape* shape, OwnPoint* out) noexcept nogil:
    """Read a point that differs in numbers alone; -1 where it must be read in full."""
    cdef Bytes like = shape.message.at
    cdef uint64_t done = 0
    cdef int number
    cdef NumberPlace* place
    cdef Slice digits
    if like == NULL or message.size != shape.message.size or shape.numbers > MOST_NUMBERS:
        return -1
    _clear_own(out)
    for number in range(shape.numbers):
        place = &shape.places[number]
        if memcmp(message.at + done, like + done, place.at - done) != 0:
            return -1
        digits.at, digits.size = message.at + place.at, place.size
        if _take_number(place.kind, digits, out):
            return -1
        done = place.at + place.size
    return -1 if memcmp(message.at + done, like + done, message.size - done) != 0 else 0


cdef int _read_own_gauge(Slice gauge, OwnTimes* found) noexcept nogil:
    cdef Bytes at = gauge.at
    cdef Bytes end = gauge.at + gauge.size
    cdef uint64_t tag
    cdef Slice item, source
    cdef OwnPoint* point
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL or tag != 10:
            return -1
        at = read_slice(at, end, &item)
        if at == NULL or item.size + 2 < LEAST_POINT_OCTETS:
            return -1
        point = &found.points[found.size]
        if _read_alike(item, &found.shape, point) and _read_own_point(item, &found.shape, point):
            return -1
        source = found.shape.source
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


def decode_own_times(bytes body not None):
    """Return resources; points, source and last span of each; all points, as octets. Else None."""
    cdef Bytes at = body
    cdef Bytes end = at + len(body)
    cdef uint64_t tag
    cdef Slice message, resource
    cdef OwnTimes found
    resources, counts, sources, spans = [], [], [], []
    source = b""
    memset(&found, 0, sizeof(OwnTimes))
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
            if not slice_is(found.source, source, len(source)):
                source = found.source.at[:found.source.size]
            sources.append(source)
            spans.append(found.points[found.size - 1].span_ms)
        if not found.size:
            return None
        points = PyBytes_FromStringAndSize(<char*>found.points, found.size * sizeof(OwnPoint))
        return resources, counts, sources, spans, points
    finally:
        free(found.points)
