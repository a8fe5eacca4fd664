# Growing buffers, and scalar attribute values written into them as JSON.

cdef enum:
    OC_OK = 0
    OC_UNUSUAL = 1
    OC_METRICS = 1
    OC_CACHED_RESOURCES = 20000
    OC_CACHED_OCTETS = 16 << 20
    OC_MAX_PARTS = 100000  # resources, scopes and metrics of a request that is read here
    OC_ROWS_A_TURN = 1000  # rows from Python that are added before other threads run
    OC_MAX_TEXT = 1 << 20  # MAX_TEXT_BYTES of `contract/otlp/limits.py`

cdef struct OcBuffer:
    char* data
    size_t size
    size_t capacity

cdef struct OcMark:
    size_t rows
    size_t chain
    size_t attrs
    size_t detail
    size_t not_finite
    size_t shared

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
    """A JSON string; OC_UNUSUAL outside ASCII and for a text that is too long."""
    cdef uint64_t i
    cdef uint8_t c
    cdef char* to
    if text.size > OC_MAX_TEXT:
        return OC_UNUSUAL
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
    """Append a scalar AnyValue as JSON.

    `check` leaves `spelled_out` false: nobody reads the text.
    """
    cdef Bytes end = value.at + value.size
    cdef Slice text
    cdef uint64_t number
    cdef double real
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
        oc_reserve(out, MAX_SPELLED)
        out.size += spell_integer(out.data + out.size, <int64_t>number)
        return OC_OK
    if tag == 33:  # double
        if end - at != 8:
            return OC_UNUSUAL
        memcpy(&real, at, 8)
        if real != real or real - real != 0:  # NaN and infinities
            return OC_UNUSUAL
        if not spelled_out:
            return OC_OK
        oc_reserve(out, MAX_SPELLED)
        out.size += spell_real(out.data + out.size, real)
        return OC_OK
    if tag == 16 and value.size == 2 and at[0] < 2:  # bool
        if at[0]: oc_put(out, b"true", 4)
        else: oc_put(out, b"false", 5)
        return OC_OK
    return OC_UNUSUAL
