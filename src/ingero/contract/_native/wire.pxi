# The protobuf wire format: varints and slices. Every reader returns NULL for malformed bytes.

cdef inline Bytes read_varint(Bytes at, Bytes end, uint64_t* out) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    if at < end and at[0] < 0x80:
        out[0] = at[0]
        return at + 1
    while at < end and shift < 64:
        if shift == 63 and at[0] > 1:
            return NULL
        value |= (<uint64_t>(at[0] & 0x7f)) << shift
        if not (at[0] & 0x80):
            out[0] = value
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline Bytes read_slice(Bytes at, Bytes end, Slice* out) noexcept nogil:
    at = read_varint(at, end, &out.size)
    if at == NULL or out.size > <uint64_t>(end - at):
        return NULL
    out.at = at
    return at + out.size


cdef inline bint slice_is(Slice text, const char* expected, uint64_t size) noexcept nogil:
    return text.size == size and memcmp(text.at, expected, size) == 0


cdef enum:
    WORD = 8  # octets checked in one step


cdef inline bint _is_plain_word(Bytes at) noexcept nogil:
    """Whether eight octets all lie between 0x20 and 0x7e.

    The high bit of an octet is set where it is above 0x7f, where adding 1 reaches 0x80,
    and where subtracting 0x20 wraps around.
    """
    cdef uint64_t word
    cdef uint64_t above, below
    memcpy(&word, at, WORD)
    above = word + 0x0101010101010101U
    below = word - 0x2020202020202020U
    return not ((word | above | below) & 0x8080808080808080U)


cdef inline bint is_plain_ascii(Slice text) noexcept nogil:
    """Whether the text is printable ASCII; the full decoder validates any other UTF-8."""
    cdef Bytes at = text.at
    cdef Bytes end = text.at + text.size
    if text.size < WORD:
        while at < end and 0x20 <= at[0] <= 0x7e:
            at += 1
        return at == end
    while end - at > WORD:
        if not _is_plain_word(at):
            return False
        at += WORD
    return _is_plain_word(end - WORD)


cdef inline bint next_part(Bytes* at, Bytes end, uint8_t wanted, Slice* out) noexcept nogil:
    """Find the next field with this tag and move past it; only for a message that was read."""
    cdef uint64_t tag, number
    while at[0] < end:
        at[0] = read_varint(at[0], end, &tag)
        if tag & 7 == 2: at[0] = read_slice(at[0], end, out)
        elif tag & 7 == 0: at[0] = read_varint(at[0], end, &number)
        else: at[0] += 8 if tag & 7 == 1 else 4
        if tag == wanted:
            return True
    return False
