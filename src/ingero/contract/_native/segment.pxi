# One whole plain push in one segment. Twin of `contract/push/segment.py`.

cdef enum HeaderCode:
    OTHER
    CONTENT_TYPE
    CONTENT_LENGTH
    CLUSTER
    AUTHORIZATION
    CONNECTION
    CONTENT_ENCODING
    UNUSUAL

cdef uint8_t IS_TOKEN[256]
cdef uint8_t _octet
for _octet in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~":
    IS_TOKEN[_octet] = 1


cdef inline bint _is_word(Slice text, const char* lower, uint64_t size) noexcept nogil:
    """Whether the text equals `lower`, which is lower case, without regard to its own case."""
    cdef uint64_t i
    cdef uint8_t octet
    if text.size != size:
        return False
    for i in range(size):
        octet = text.at[i]
        if 65 <= octet <= 90:
            octet |= 32
        if octet != <uint8_t>lower[i]:
            return False
    return True


cdef inline HeaderCode _code_of(Slice name) noexcept nogil:
    if name.size == 12 and _is_word(name, b"content-type", 12):
        return CONTENT_TYPE
    if name.size == 14 and _is_word(name, b"content-length", 14):
        return CONTENT_LENGTH
    if name.size == 17:
        if _is_word(name, b"ingero.cluster.id", 17):
            return CLUSTER
        if _is_word(name, b"transfer-encoding", 17):
            return UNUSUAL
    if name.size == 13 and _is_word(name, b"authorization", 13):
        return AUTHORIZATION
    if name.size == 10 and _is_word(name, b"connection", 10):
        return CONNECTION
    if name.size == 16 and _is_word(name, b"content-encoding", 16):
        return CONTENT_ENCODING
    if (_is_word(name, b"expect", 6) or _is_word(name, b"upgrade", 7)
            or _is_word(name, b"trailer", 7)):
        return UNUSUAL
    return OTHER


cdef Bytes _read_header(Bytes at, Bytes end, Slice* name, Slice* value) noexcept nogil:
    """Return the position after the line's CRLF, or NULL. The value has no blanks around it."""
    name.at = at
    while at < end and IS_TOKEN[at[0]]:
        at += 1
    name.size = at - name.at
    if name.size == 0 or at >= end or at[0] != 58:
        return NULL
    at += 1
    while at < end and (at[0] == 32 or at[0] == 9):
        at += 1
    value.at = at
    while at < end and (at[0] == 9 or (at[0] >= 32 and at[0] != 127)):
        at += 1
    if end - at < 2 or at[0] != 13 or at[1] != 10:
        return NULL
    value.size = at - value.at
    while value.size and (value.at[value.size - 1] == 32 or value.at[value.size - 1] == 9):
        value.size -= 1
    return at + 2


cdef int _use_header(HeaderCode code, Slice value, Request* out, int64_t* size,
                     int* is_json) noexcept nogil:
    cdef uint64_t i
    if code == CONTENT_TYPE and is_json[0] == -1:
        is_json[0] = slice_is(value, b"application/json", 16)
        return 0 if is_json[0] or slice_is(value, b"application/x-protobuf", 22) else -1
    if code == CONTENT_LENGTH and size[0] == -1 and 0 < value.size <= 9:
        size[0] = 0
        for i in range(value.size):
            if not 48 <= value.at[i] <= 57:
                return -1
            size[0] = size[0] * 10 + value.at[i] - 48
        return 0
    if code == CLUSTER and out.cluster.at == NULL:
        out.cluster = value
        return 0
    if code == AUTHORIZATION and out.authorization.at == NULL:
        out.authorization = value
        return 0
    if code == CONTENT_ENCODING and not out.is_gzip:
        out.is_gzip = _is_word(value, b"gzip", 4)
        return 0 if out.is_gzip else -1
    return 0 if code == CONNECTION and _is_word(value, b"keep-alive", 10) else -1


cdef int split_request(Bytes at, Bytes end, Request* out) noexcept nogil:
    """Split a segment; -1 for whatever is not one whole plain push."""
    cdef Slice name, value
    cdef int is_json = -1
    cdef int headers = 0
    cdef int64_t size = -1
    cdef HeaderCode code
    memset(out, 0, sizeof(Request))
    if end - at < 32 or memcmp(at, <const char*>b"POST /v1/metrics", 16) != 0:
        return -1
    at += 16
    if at[0] == 63:
        at += 1
        out.query.at = at
        while at < end and 33 <= at[0] <= 126:
            at += 1
        out.query.size = at - out.query.at
    if end - at < 11 or memcmp(at, <const char*>b" HTTP/1.1\r\n", 11) != 0:
        return -1
    at += 11
    while not (end - at >= 2 and at[0] == 13 and at[1] == 10):
        at = _read_header(at, end, &name, &value)
        headers += 1
        if at == NULL or headers >= 64:
            return -1
        code = _code_of(name)
        if code != OTHER and _use_header(code, value, out, &size, &is_json):
            return -1
    at += 2
    if is_json == -1 or size != end - at:
        return -1
    out.is_json = is_json
    out.body.at = at
    out.body.size = size
    return 0


cdef inline object _octets_or_none(Slice text):
    return None if text.at == NULL else text.at[:text.size]


def decode_segment(bytes segment):
    """Return the fields of a PlainRequest as a tuple, or None."""
    cdef Request found
    cdef Bytes start = segment
    if split_request(start, start + len(segment), &found):
        return None
    return (
        <bint>found.is_json,
        found.query.at[:found.query.size] if found.query.at != NULL else b"",
        _octets_or_none(found.cluster),
        _octets_or_none(found.authorization),
        found.body.at[:found.body.size],
        <bint>found.is_gzip,
    )
