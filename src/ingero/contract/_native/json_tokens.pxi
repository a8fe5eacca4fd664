# The tokens of JSON. Every reader returns NULL for text that a plain push does not contain:
# escapes, characters outside printable ASCII, numbers of 40 characters and more.

cdef extern from "Python.h":
    # With NULL for `overflow`, a number that is too large becomes infinity and raises nothing.
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0

cdef enum:
    MAX_NUMBER = 40


# Bodies are Python bytes, which end in a zero octet. Both tables stop there, so the inner loops
# need no bound.
cdef uint8_t IS_BLANK[256]
cdef uint8_t IS_TEXT[256]  # printable ASCII but quote and backslash
for _octet in b" \n\r\t":
    IS_BLANK[_octet] = 1
for _octet in range(0x20, 0x7f):
    IS_TEXT[_octet] = _octet != 34 and _octet != 92


cdef inline Bytes _blank(Bytes at, Bytes end) noexcept nogil:
    while IS_BLANK[at[0]]:
        at += 1
    return at


cdef inline Bytes _expect(Bytes at, Bytes end, uint8_t octet) noexcept nogil:
    at = _blank(at, end)
    return at + 1 if at < end and at[0] == octet else NULL


cdef inline Bytes _json_text(Bytes at, Bytes end, Slice* out) noexcept nogil:
    at = _expect(at, end, 34)
    if at == NULL:
        return NULL
    out.at = at
    while IS_TEXT[at[0]]:
        at += 1
    out.size = at - out.at
    return at + 1 if at[0] == 34 else NULL


cdef Bytes _json_number(Bytes at, Bytes end, Slice* out, bint* is_whole) noexcept nogil:
    """Read a number by the grammar of JSON, which is narrower than that of C."""
    at = _blank(at, end)
    out.at = at
    is_whole[0] = True
    if at < end and at[0] == 45:
        at += 1
    if at >= end or not 48 <= at[0] <= 57:
        return NULL
    if at[0] == 48:
        at += 1
    else:
        while at < end and 48 <= at[0] <= 57:
            at += 1
    if at < end and at[0] == 46:
        is_whole[0] = False
        at += 1
        if at >= end or not 48 <= at[0] <= 57:
            return NULL
        while at < end and 48 <= at[0] <= 57:
            at += 1
    if at < end and (at[0] == 101 or at[0] == 69):
        is_whole[0] = False
        at += 1
        if at < end and (at[0] == 43 or at[0] == 45):
            at += 1
        if at >= end or not 48 <= at[0] <= 57:
            return NULL
        while at < end and 48 <= at[0] <= 57:
            at += 1
    out.size = at - out.at
    return at if out.size < MAX_NUMBER else NULL


cdef int _whole(Slice text, uint64_t* out, bint* is_negative) noexcept nogil:
    """Read at most 19 digits; -1 for anything else, such as a leading zero or no digit at all."""
    cdef uint64_t i = 0
    cdef uint64_t value = 0
    is_negative[0] = text.size > 0 and text.at[0] == 45
    if is_negative[0]:
        i = 1
    if text.size == i or text.size - i > 19 or (text.at[i] == 48 and text.size - i > 1):
        return -1
    while i < text.size:
        if not 48 <= text.at[i] <= 57:
            return -1
        value = value * 10 + (text.at[i] - 48)
        i += 1
    out[0] = value
    return -1 if value > 9000000000000000000ULL else 0


cdef Bytes _json_integer(Bytes at, Bytes end, int64_t* out) noexcept nogil:
    """Read an integer written as a number or as a string; senders use both."""
    cdef Slice text
    cdef bint is_whole, is_negative
    cdef uint64_t value
    at = _blank(at, end)
    if at < end and at[0] == 34:
        at = _json_text(at, end, &text)
        is_whole = True
    else:
        at = _json_number(at, end, &text, &is_whole)
    if at == NULL or not is_whole or _whole(text, &value, &is_negative):
        return NULL
    out[0] = -<int64_t>value if is_negative else <int64_t>value
    return at


cdef Bytes _json_double(Bytes at, Bytes end, double* out):
    cdef Slice text
    cdef bint is_whole
    cdef char digits[MAX_NUMBER]
    at = _json_number(at, end, &text, &is_whole)
    if at == NULL:
        return NULL
    memcpy(digits, text.at, text.size)
    digits[text.size] = 0
    out[0] = PyOS_string_to_double(digits, NULL, NULL)
    return at if -1e308 < out[0] < 1e308 else NULL


cdef inline int _json_key(Bytes* cursor, Bytes end, int* count, Slice* key) noexcept nogil:
    """Read a key: 1 with the cursor after the colon, 0 with the cursor after the object, or -1."""
    cdef Bytes at = _blank(cursor[0], end)
    if at < end and at[0] == 125:
        cursor[0] = at + 1
        return 0
    if count[0]:
        at = _expect(at, end, 44)
        if at == NULL:
            return -1
    count[0] += 1
    at = _json_text(at, end, key)
    if at == NULL:
        return -1
    at = _expect(at, end, 58)
    if at == NULL:
        return -1
    cursor[0] = at
    return 1


cdef inline int _json_item(Bytes* cursor, Bytes end, int* count) noexcept nogil:
    """Find an element: 1 with the cursor before it, 0 with the cursor after the array, else -1."""
    cdef Bytes at = _blank(cursor[0], end)
    if at < end and at[0] == 93:
        cursor[0] = at + 1
        return 0
    if count[0]:
        at = _expect(at, end, 44)
        if at == NULL:
            return -1
    count[0] += 1
    cursor[0] = at
    return 1


cdef Bytes _json_literal(Bytes at, Bytes end) noexcept nogil:
    """Read true or false."""
    at = _blank(at, end)
    if end - at >= 4 and memcmp(at, <const char*>b"true", 4) == 0:
        return at + 4
    return at + 5 if end - at >= 5 and memcmp(at, <const char*>b"false", 5) == 0 else NULL
