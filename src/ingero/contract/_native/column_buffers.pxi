# Growing buffers, and the texts and numbers of JSON that are written into them.

cdef enum:
    OC_OK = 0
    OC_UNUSUAL = 1
    OC_CACHED_RESOURCES = 20000
    OC_CACHED_OCTETS = 16 << 20
    OC_MAX_PARTS = 100000  # resources, scopes and metrics of a request that is read here
    OC_ROWS_A_TURN = 1000  # rows from Python that are added before other threads run
    OC_READ_A_TURN = 4096  # the same for rows that are read here, which takes a millisecond
    OC_MAX_TEXT = 1 << 20  # MAX_TEXT_BYTES of `contract/otlp/limits.py`
    OC_LEAST_ROWS = 1024  # that a batch has room for

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

cdef int oc_grow(OcBuffer* buffer, size_t capacity) except -1:
    cdef char* grown = <char*>realloc(buffer.data, capacity)
    if grown == NULL:
        raise MemoryError("no memory for another batch of events")
    buffer.data = grown
    buffer.capacity = capacity
    return 0

cdef inline int oc_reserve(OcBuffer* buffer, size_t more) except -1:
    cdef size_t wanted = buffer.size + more
    if wanted > buffer.capacity:
        oc_grow(buffer, wanted * 2 if wanted > 4096 else 8192)
    return 0

cdef inline int oc_put(OcBuffer* buffer, const void* source, size_t size) except -1:
    oc_reserve(buffer, size)
    if size:
        memcpy(buffer.data + buffer.size, source, size)
    buffer.size += size
    return 0

cdef inline object oc_bytes(Slice span):
    return PyBytes_FromStringAndSize(<const char*>span.at, span.size)


cdef Bytes oc_after_character(Bytes at, Bytes end) noexcept nogil:
    """The end of a character outside ASCII, or NULL where the octets are not UTF-8."""
    cdef uint8_t first = at[0]
    cdef uint8_t least = 0x80, most = 0xBF  # of the second octet
    cdef int size, i
    if 0xC2 <= first <= 0xDF:
        size = 2
    elif 0xE0 <= first <= 0xEF:
        size = 3
        if first == 0xE0: least = 0xA0
        elif first == 0xED: most = 0x9F  # surrogates
    elif 0xF0 <= first <= 0xF4:
        size = 4
        if first == 0xF0: least = 0x90
        elif first == 0xF4: most = 0x8F
    else:
        return NULL
    if end - at < size or at[1] < least or at[1] > most:
        return NULL
    for i in range(2, size):
        if at[i] & 0xC0 != 0x80:
            return NULL
    return at + size


cdef inline uint64_t oc_short_word(Bytes at, uint64_t size) noexcept nogil:
    """The octets of a text of four to eight octets; those in its middle may be there twice."""
    cdef uint32_t first, last
    memcpy(&first, at, 4)
    memcpy(&last, at + size - 4, 4)
    return first | <uint64_t>last << 32


cdef inline bint oc_is_ascii(Slice text) noexcept nogil:
    cdef uint64_t i = 0, word, seen = 0
    if text.size >= WORD:
        while i < text.size - WORD:
            memcpy(&word, text.at + i, WORD)
            seen |= word
            i += WORD
        memcpy(&word, text.at + text.size - WORD, WORD)
        seen |= word
    elif text.size >= 4:
        seen = oc_short_word(text.at, text.size)
    else:
        for i in range(text.size):
            seen |= text.at[i]
    return not seen & 0x8080808080808080U


cdef bint oc_is_text(Slice text) noexcept nogil:
    """Whether it is UTF-8 and not too long for one text."""
    cdef Bytes at = text.at
    cdef Bytes end = text.at + text.size
    if text.size > OC_MAX_TEXT:
        return False
    if oc_is_ascii(text):
        return True
    while at < end:
        if at[0] < 0x80:
            at += 1
            continue
        at = oc_after_character(at, end)
        if at == NULL:
            return False
    return True


cdef inline bint _is_verbatim(uint64_t word) noexcept nogil:
    """Whether eight octets stand in a JSON string as they are.

    The high bit of an octet is set where it is not ASCII, below 0x20, a quote or a backslash.
    """
    cdef uint64_t quote = word ^ 0x2222222222222222U
    cdef uint64_t slash = word ^ 0x5C5C5C5C5C5C5C5CU
    cdef uint64_t odd = word | (word - 0x2020202020202020U)
    odd |= (quote - 0x0101010101010101U) & ~quote
    odd |= (slash - 0x0101010101010101U) & ~slash
    return not odd & 0x8080808080808080U


cdef inline bint _copy_verbatim(char* to, Slice text) noexcept nogil:
    """Copy a text that stands in a JSON string as it is; False for any other."""
    cdef uint64_t i = 0, word
    if text.size >= WORD:
        while i < text.size - WORD:
            memcpy(&word, text.at + i, WORD)
            if not _is_verbatim(word):
                return False
            memcpy(to + i, &word, WORD)
            i += WORD
        memcpy(&word, text.at + text.size - WORD, WORD)
        memcpy(to + text.size - WORD, &word, WORD)
        return _is_verbatim(word)
    if text.size >= 4:
        word = oc_short_word(text.at, text.size)
        memcpy(to, text.at, 4)
        memcpy(to + text.size - 4, text.at + text.size - 4, 4)
        return _is_verbatim(word)
    for i in range(text.size):
        if text.at[i] < 32 or text.at[i] == 34 or text.at[i] == 92 or text.at[i] >= 128:
            return False
        to[i] = text.at[i]
    return True


cdef inline char* _escaped(char* to, uint8_t c) noexcept nogil:
    to[0] = 92
    if c == 34 or c == 92: to[1] = c
    elif c == 10: to[1] = c'n'
    elif c == 13: to[1] = c'r'
    elif c == 9: to[1] = c't'
    elif c == 12: to[1] = c'f'
    elif c == 8: to[1] = c'b'
    else:
        snprintf(to + 1, 6, "u%04x", <int>c)
        return to + 6
    return to + 2


cdef int oc_quote(OcBuffer* out, Slice text) except -1:
    """A JSON string; OC_UNUSUAL for what is not UTF-8 and for a text that is too long."""
    cdef Bytes at = text.at
    cdef Bytes end = text.at + text.size
    cdef Bytes after
    cdef char* to
    if text.size > OC_MAX_TEXT:
        return OC_UNUSUAL
    oc_reserve(out, text.size * 6 + 3)
    to = out.data + out.size
    to[0] = c'"'
    to += 1
    if _copy_verbatim(to, text):
        to[text.size] = c'"'
        out.size += text.size + 2
        return OC_OK
    while at < end:
        if at[0] >= 128:
            after = oc_after_character(at, end)
            if after == NULL:
                return OC_UNUSUAL
            memcpy(to, at, after - at)
            to += after - at
            at = after
            continue
        if at[0] >= 32 and at[0] != 34 and at[0] != 92:
            to[0] = at[0]
            to += 1
        else:
            to = _escaped(to, at[0])
        at += 1
    to[0] = c'"'
    out.size = to + 1 - out.data
    return OC_OK


cdef int oc_hex(OcBuffer* out, Slice octets) except -1:
    """A JSON string of the octets in hexadecimal."""
    cdef uint64_t i
    cdef char* to
    cdef const char* digits = b"0123456789abcdef"
    oc_reserve(out, 2 * octets.size + 2)
    to = out.data + out.size
    to[0] = c'"'
    for i in range(octets.size):
        to[1 + 2 * i] = digits[octets.at[i] >> 4]
        to[2 + 2 * i] = digits[octets.at[i] & 15]
    to[1 + 2 * octets.size] = c'"'
    out.size += 2 * octets.size + 2
    return OC_OK


cdef int oc_whole(OcBuffer* out, int64_t value) except -1:
    oc_reserve(out, MAX_SPELLED)
    out.size += spell_integer(out.data + out.size, value)
    return OC_OK


cdef int oc_count(OcBuffer* out, uint64_t value) except -1:
    oc_reserve(out, MAX_SPELLED)
    out.size += _spell_whole(out.data + out.size, value)
    return OC_OK


cdef int oc_real(OcBuffer* out, double value) except -1:
    """A double as `number` of `contract/otlp/text.py` spells it."""
    oc_reserve(out, MAX_SPELLED)
    if value - value == 0:
        out.size += spell_real(out.data + out.size, value)
    elif value != value:
        oc_put(out, b'"NaN"', 5)
    elif value > 0:
        oc_put(out, b'"Infinity"', 10)
    else:
        oc_put(out, b'"-Infinity"', 11)
    return OC_OK


cdef inline int oc_field(OcBuffer* out, size_t start, const char* name) except -1:
    """Begin a field of the object that began at `start`, with a name that is JSON already."""
    oc_put(out, b"," if out.size > start else b"{", 1)
    return oc_put(out, name, strlen(name))


cdef inline Bytes read_word(Bytes at, Bytes end, void* out) noexcept nogil:
    """Read a fixed64 or double."""
    if end - at < 8:
        return NULL
    memcpy(out, at, 8)
    return at + 8
