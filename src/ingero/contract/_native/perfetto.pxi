# Slices of a timeline as JSON and as packets, straight from columns.
# Twin of `contract/timeline/perfetto.py`.

cdef inline char* _put(char* p, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(p, text, size)
    return p + size


cdef inline char* _number(char* p, int64_t value) noexcept nogil:
    cdef char digits[24]
    cdef int n = 0
    cdef uint64_t left
    if value < 0:
        p[0] = b"-"
        p += 1
        left = <uint64_t>(-(value + 1)) + 1
    else:
        left = <uint64_t>value
    while True:
        digits[n] = <char>(48 + left % 10)
        n += 1
        left = left // 10
        if left == 0:
            break
    while n:
        n -= 1
        p[0] = digits[n]
        p += 1
    return p


cdef inline char* _json_args(char* p, int64_t gpu_id, int64_t ret_code) noexcept nogil:
    p = _put(p, b',"args":{', 9)
    if gpu_id:
        p = _put(p, b'"gpu_id":', 9)
        p = _number(p, gpu_id)
    if ret_code:
        if gpu_id:
            p = _put(p, b",", 1)
        p = _put(p, b'"ret_code":', 11)
        p = _number(p, ret_code)
    return _put(p, b"}", 1)


cdef enum:
    MAX_SLICE_TEXT = 224  # of one Trace Event object without its head: seven numbers and their keys


def perfetto_json_slices(const int64_t[::1] ts_us, const int64_t[::1] dur_us,
                         const int64_t[::1] head, const int64_t[::1] pid, const int64_t[::1] tid,
                         const int64_t[::1] gpu_id, const int64_t[::1] ret_code, list heads):
    """Return Trace Event objects joined by `,\\n`; `heads[i]` is `{"name":…,"cat":…` of kind i."""
    cdef Py_ssize_t n = ts_us.shape[0], kinds = len(heads), i
    cdef Py_ssize_t longest = max(map(len, heads), default=0)
    cdef const char** text = <const char**>malloc((kinds + 1) * sizeof(char*))
    cdef Py_ssize_t* size = <Py_ssize_t*>malloc((kinds + 1) * sizeof(Py_ssize_t))
    cdef char* buffer = <char*>malloc(n * (longest + MAX_SLICE_TEXT) + 1)
    cdef char* p = buffer
    try:
        if text == NULL or size == NULL or buffer == NULL:
            raise MemoryError
        for i in range(kinds):
            text[i] = PyBytes_AS_STRING(heads[i])
            size[i] = PyBytes_GET_SIZE(heads[i])
        with nogil:
            for i in range(n):
                if i:
                    p = _put(p, b",\n", 2)
                p = _put(p, text[head[i]], size[head[i]])
                if dur_us[i] > 0:
                    p = _put(p, b',"ph":"X","ts":', 15)
                    p = _number(p, ts_us[i])
                    p = _put(p, b',"dur":', 7)
                    p = _number(p, dur_us[i])
                else:
                    p = _put(p, b',"ph":"i","s":"t","ts":', 23)
                    p = _number(p, ts_us[i])
                p = _put(p, b',"pid":', 7)
                p = _number(p, pid[i])
                p = _put(p, b',"tid":', 7)
                p = _number(p, tid[i])
                if gpu_id[i] or ret_code[i]:
                    p = _json_args(p, gpu_id[i], ret_code[i])
                p = _put(p, b"}", 1)
        return PyBytes_FromStringAndSize(buffer, p - buffer)
    finally:
        free(text)
        free(size)
        free(buffer)


cdef inline uint8_t* _varint(uint8_t* p, uint64_t value) noexcept nogil:
    while value >= 128:
        p[0] = <uint8_t>(value | 128)
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1


cdef enum:  # TrackEvent.Type
    BEGIN = 1
    END = 2
    INSTANT = 3


cdef inline uint8_t* _track_packet(uint8_t* out, uint64_t ts, int kind, uint64_t name,
                                   uint64_t category, uint64_t track) noexcept nogil:
    cdef uint8_t event[48]
    cdef uint8_t body[96]
    cdef uint8_t* e = event
    cdef uint8_t* b = body
    if kind != END:
        e[0] = 0x18  # category_iids
        e = _varint(e + 1, category)
    e[0] = 0x48  # type
    e[1] = kind
    e += 2
    if kind != END:
        e[0] = 0x50  # name_iid
        e = _varint(e + 1, name)
    e[0] = 0x58  # track_uuid
    e = _varint(e + 1, track)
    b[0] = 0x40  # timestamp
    b = _varint(b + 1, ts)
    b[0] = 0x50  # trusted_packet_sequence_id
    b[1] = 1
    b[2] = 0x5A  # track_event
    b[3] = <uint8_t>(e - event)
    b += 4
    memcpy(b, event, e - event)
    b += e - event
    b[0] = 0x68  # sequence_flags: needs incremental state
    b[1] = 2
    b += 2
    out[0] = 0x0A  # Trace.packet
    out = _varint(out + 1, b - body)
    memcpy(out, body, b - body)
    return out + (b - body)


def perfetto_packet_slices(const int64_t[::1] ts_ns, const int64_t[::1] dur_ns,
                           const int64_t[::1] name_iid, const int64_t[::1] category_iid,
                           const int64_t[::1] track):
    """Return begin and end packets of every slice; one instant where the duration is zero."""
    cdef Py_ssize_t i, n = ts_ns.shape[0]
    cdef uint8_t* buffer = <uint8_t*>malloc(n * 192 + 1)
    cdef uint8_t* p = buffer
    cdef int kind
    if buffer == NULL:
        raise MemoryError
    with nogil:
        for i in range(n):
            kind = BEGIN if dur_ns[i] > 0 else INSTANT
            p = _track_packet(p, <uint64_t>ts_ns[i], kind, <uint64_t>name_iid[i],
                              <uint64_t>category_iid[i], <uint64_t>track[i])
            if kind == BEGIN:
                p = _track_packet(p, <uint64_t>(ts_ns[i] + dur_ns[i]), END, 0, 0,
                                  <uint64_t>track[i])
    result = PyBytes_FromStringAndSize(<char*>buffer, p - buffer)
    free(buffer)
    return result


cdef inline uint64_t _mixed(uint64_t key, uint64_t value) noexcept nogil:
    key = (key ^ value) * <uint64_t>0x9E3779B97F4A7C15
    return key ^ (key >> 29)


def perfetto_groups(const int64_t[::1] node, const int64_t[::1] pid, const int64_t[::1] tid,
                    const int64_t[::1] source, int64_t[::1] code):
    """Number the distinct (node, pid, tid, source) in order of appearance.

    Return the index at which each appears first.
    """
    cdef Py_ssize_t n = node.shape[0], i, room = 64, at, found, groups = 0
    while room < 2 * n:
        room *= 2
    cdef int64_t* slots = <int64_t*>malloc(room * sizeof(int64_t))
    if slots == NULL:
        raise MemoryError
    firsts = []
    cdef uint64_t key
    for at in range(room):
        slots[at] = -1
    for i in range(n):
        key = _mixed(_mixed(1, <uint64_t>tid[i]), <uint64_t>pid[i])
        key = _mixed(_mixed(key, <uint64_t>node[i]), <uint64_t>source[i])
        at = <Py_ssize_t>(key & <uint64_t>(room - 1))
        while True:
            found = slots[at]
            if found < 0:
                slots[at] = i
                code[i] = groups
                groups += 1
                firsts.append(i)
                break
            if (tid[found] == tid[i] and pid[found] == pid[i] and node[found] == node[i]
                    and source[found] == source[i]):
                code[i] = code[found]
                break
            at = (at + 1) & (room - 1)
    free(slots)
    return firsts


def perfetto_overlaps(const int64_t[::1] code, const int64_t[::1] ts_ns, const int64_t[::1] dur_ns,
                      int64_t[::1] ends_ns, uint8_t[::1] overlaps):
    """Mark groups in which a slice begins before an earlier one ended; update their `ends_ns`."""
    cdef Py_ssize_t i
    cdef int64_t group
    with nogil:
        for i in range(code.shape[0]):
            group = code[i]
            if ts_ns[i] < ends_ns[group]:
                overlaps[group] = 1
            if ts_ns[i] + dur_ns[i] > ends_ns[group]:
                ends_ns[group] = ts_ns[i] + dur_ns[i]
