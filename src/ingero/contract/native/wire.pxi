# The protobuf wire format: varints, skipping, slices. Every reader returns NULL when the bytes are not well formed.
from libc.stdint cimport int8_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

ctypedef const uint8_t* Bytes

cdef struct Slice:
    Bytes at
    uint64_t size


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


cdef inline Bytes skip_field(Bytes at, Bytes end, uint64_t tag) noexcept nogil:
    cdef Slice ignored
    cdef uint64_t number
    if tag >> 3 == 0 or tag >> 32:
        return NULL
    if (tag & 7) == 0:
        return read_varint(at, end, &number)
    if (tag & 7) == 1:
        return at + 8 if end - at >= 8 else NULL
    if (tag & 7) == 2:
        return read_slice(at, end, &ignored)
    if (tag & 7) == 5:
        return at + 4 if end - at >= 4 else NULL
    return NULL  # groups: let the full decoder judge


cdef inline bint slice_is(Slice text, const char* expected, uint64_t size) noexcept nogil:
    return text.size == size and memcmp(text.at, expected, size) == 0


cdef enum:
    WORD = 8  # octets looked at in one step


cdef inline bint _is_plain_word(Bytes at) noexcept nogil:
    """Eight octets of 0x20 to 0x7e: neither they, nor one more, nor a blank less, reach the high bit of any."""
    cdef uint64_t word
    memcpy(&word, at, WORD)
    return not ((word | (word + 0x0101010101010101U) | (word - 0x2020202020202020U)) & 0x8080808080808080U)


cdef inline bint is_plain_ascii(Slice text) noexcept nogil:
    """Printable ASCII; anything else is left to the full decoder, which validates UTF-8."""
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
