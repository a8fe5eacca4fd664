# The common push in JSON, in one walk. Same bargain as push.pxi: None, or what the full decoder would say.
# Text with escapes or outside printable ASCII, unknown fields, values of other kinds: left to the full decoder.

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0  # NULL: infinity, no error

cdef enum:
    MAX_NUMBER = 40


# Bodies are Python bytes, which end in a zero octet that both tables stop at: the inner loops need no bound.
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
    """A number by JSON's grammar, which is narrower than C's."""
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
    """Digits to a number of at most 18 digits; -1 for anything else, including a leading zero or nothing."""
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
    """An integer as a number or as a string, both of which senders use."""
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


cdef int _json_key(Bytes* cursor, Bytes end, int* count, Slice* key) noexcept nogil:
    """1 and the cursor after the colon, 0 and the cursor after the object, -1 for neither."""
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


cdef int _json_item(Bytes* cursor, Bytes end, int* count) noexcept nogil:
    """1 and the cursor before an element, 0 and the cursor after the array, -1 for neither."""
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


cdef Bytes _json_attribute(Bytes at, Bytes end, Attribute* out):
    cdef int count = 0
    cdef int inner
    cdef int more
    cdef bint has_key = False
    cdef bint has_value = False
    cdef Slice key
    cdef double ignored
    memset(out, 0, sizeof(Attribute))
    at = _expect(at, end, 123)
    if at == NULL:
        return NULL
    while True:
        more = _json_key(&at, end, &count, &key)
        if more <= 0:
            break
        if slice_is(key, b"key", 3) and not has_key:
            has_key = True
            at = _json_text(at, end, &out.key)
            if at == NULL:
                return NULL
        elif slice_is(key, b"value", 5) and not has_value:
            has_value = True
            at = _expect(at, end, 123)
            inner = 0
            if at == NULL or _json_key(&at, end, &inner, &key) != 1:
                return NULL
            if slice_is(key, b"stringValue", 11):
                at = _json_text(at, end, &out.text)
                out.has_text = True
            elif slice_is(key, b"intValue", 8):
                at = _json_integer(at, end, &out.number.value)
                out.number.is_set = True
            elif slice_is(key, b"doubleValue", 11):
                at = _json_double(at, end, &ignored)
            else:
                return NULL
            if at == NULL or _json_key(&at, end, &inner, &key) != 0:
                return NULL
        else:
            return NULL
    return at if more == 0 else NULL


cdef Bytes _json_attributes(Bytes at, Bytes end, Found* found, Point* point):
    """Of a resource when `point` is NULL, else of a point."""
    cdef int count = 0
    cdef int more
    cdef Attribute attribute
    at = _expect(at, end, 91)
    if at == NULL:
        return NULL
    while True:
        more = _json_item(&at, end, &count)
        if more <= 0:
            break
        at = _json_attribute(at, end, &attribute)
        if at == NULL:
            return NULL
        if point != NULL:
            _use_point_attribute(&attribute, point)
        elif _use_resource_attribute(&attribute, found):
            return NULL
    return at if more == 0 else NULL


cdef Bytes _json_point(Bytes at, Bytes end, Found* found, Point* out):
    cdef int count = 0
    cdef int more
    cdef int64_t number
    cdef bint has_attributes = False
    cdef Slice key
    memset(out, 0, sizeof(Point))
    at = _expect(at, end, 123)
    if at == NULL:
        return NULL
    while True:
        more = _json_key(&at, end, &count, &key)
        if more <= 0:
            break
        if slice_is(key, b"attributes", 10) and not has_attributes:
            has_attributes = True
            at = _json_attributes(at, end, found, out)
        elif slice_is(key, b"timeUnixNano", 12) or slice_is(key, b"startTimeUnixNano", 17):
            at = _json_integer(at, end, &number)
            if at == NULL or number < 0:
                return NULL
            if key.size == 12:
                out.time_ns = <uint64_t>number
        elif slice_is(key, b"asDouble", 8) and not out.has_double and not out.has_int:
            at = _json_double(at, end, &out.as_double)
            out.has_double = True
        elif slice_is(key, b"asInt", 5) and not out.has_double and not out.has_int:
            at = _json_integer(at, end, &out.as_int)
            out.has_int = True
        else:
            return NULL
        if at == NULL:
            return NULL
    return at if more == 0 else NULL


cdef Bytes _json_literal(Bytes at, Bytes end) noexcept nogil:
    """true or false."""
    at = _blank(at, end)
    if end - at >= 4 and memcmp(at, <const char*>b"true", 4) == 0:
        return at + 4
    return at + 5 if end - at >= 5 and memcmp(at, <const char*>b"false", 5) == 0 else NULL


cdef Bytes _json_points(Bytes at, Bytes end, Slice name, Found* found):
    """The value of `gauge` or `sum`."""
    cdef int count = 0
    cdef int items
    cdef int more
    cdef int each
    cdef int64_t number
    cdef bint has_points = False
    cdef Slice key
    cdef Point point
    at = _expect(at, end, 123)
    if at == NULL:
        return NULL
    while True:
        more = _json_key(&at, end, &count, &key)
        if more <= 0:
            break
        if slice_is(key, b"dataPoints", 10) and not has_points:
            has_points = True
            at = _expect(at, end, 91)
            items = 0
            if at == NULL:
                return NULL
            while True:
                each = _json_item(&at, end, &items)
                if each <= 0:
                    break
                at = _json_point(at, end, found, &point)
                if at == NULL or _use_point(name, &point, found):
                    return NULL
            if each < 0:
                return NULL
        elif slice_is(key, b"aggregationTemporality", 22):
            at = _json_integer(at, end, &number)
            if at == NULL or not 0 <= number <= 2:
                return NULL
        elif slice_is(key, b"isMonotonic", 11):
            at = _json_literal(at, end)
            if at == NULL:
                return NULL
        else:
            return NULL
    return at if more == 0 else NULL


cdef Bytes _json_metric(Bytes at, Bytes end, Found* found):
    cdef int count = 0
    cdef int more
    cdef bint has_name = False
    cdef bint has_kind = False
    cdef Slice key, name, text
    name.at = NULL
    name.size = 0
    at = _expect(at, end, 123)
    if at == NULL:
        return NULL
    while True:
        more = _json_key(&at, end, &count, &key)
        if more <= 0:
            break
        if slice_is(key, b"name", 4) and not has_name:
            has_name = True
            at = _json_text(at, end, &name)
            if not found.has_lead:
                found.has_lead = True
                found.lead = name
        elif slice_is(key, b"unit", 4) or slice_is(key, b"description", 11):
            at = _json_text(at, end, &text)
        elif has_name and not has_kind and (slice_is(key, b"gauge", 5) or slice_is(key, b"sum", 3)):
            has_kind = True
            at = _json_points(at, end, name, found)
        else:
            return NULL
        if at == NULL:
            return NULL
    return at if more == 0 and has_name else NULL


cdef Bytes _json_scope_metrics(Bytes at, Bytes end, Found* found):
    cdef int count = 0
    cdef int items
    cdef int more
    cdef int each
    cdef bint has_metrics = False
    cdef bint has_scope = False
    cdef Slice key, text
    at = _expect(at, end, 123)
    if at == NULL:
        return NULL
    while True:
        more = _json_key(&at, end, &count, &key)
        if more <= 0:
            break
        items = 0
        if slice_is(key, b"metrics", 7) and not has_metrics:
            has_metrics = True
            at = _expect(at, end, 91)
            if at == NULL:
                return NULL
            while True:
                each = _json_item(&at, end, &items)
                if each <= 0:
                    break
                at = _json_metric(at, end, found)
                if at == NULL:
                    return NULL
        elif slice_is(key, b"scope", 5) and not has_scope:
            has_scope = True
            at = _expect(at, end, 123)
            if at == NULL:
                return NULL
            while True:
                each = _json_key(&at, end, &items, &key)
                if each <= 0:
                    break
                if not (slice_is(key, b"name", 4) or slice_is(key, b"version", 7)):
                    return NULL
                at = _json_text(at, end, &text)
                if at == NULL:
                    return NULL
        else:
            return NULL
        if each < 0:
            return NULL
    return at if more == 0 else NULL


cdef Bytes _json_resource(Bytes at, Bytes end, Found* found):
    """The value of `resource`."""
    cdef int count = 0
    cdef Slice key
    at = _expect(at, end, 123)
    if at == NULL or _json_key(&at, end, &count, &key) != 1 or not slice_is(key, b"attributes", 10):
        return NULL
    at = _json_attributes(at, end, found, NULL)
    return at if at != NULL and _json_key(&at, end, &count, &key) == 0 else NULL


cdef Bytes _json_resource_metrics(Bytes at, Bytes end, Found* found):
    cdef int count = 0
    cdef int items
    cdef int more
    cdef int each
    cdef bint has_resource = False
    cdef bint has_scopes = False
    cdef Slice key
    at = _expect(at, end, 123)
    if at == NULL:
        return NULL
    while True:
        more = _json_key(&at, end, &count, &key)
        if more <= 0:
            break
        if slice_is(key, b"resource", 8) and not has_resource:
            has_resource = True
            at = _json_resource(at, end, found)
            if at == NULL:
                return NULL
        elif slice_is(key, b"scopeMetrics", 12) and not has_scopes:
            has_scopes = True
            at = _expect(at, end, 91)
            items = 0
            if at == NULL:
                return NULL
            while True:
                each = _json_item(&at, end, &items)
                if each <= 0:
                    break
                at = _json_scope_metrics(at, end, found)
                if at == NULL:
                    return NULL
            if each < 0:
                return NULL
        else:
            return NULL
    return at if more == 0 else NULL


cdef int _read_json_request(Bytes at, Bytes end, Found* found):
    cdef int count = 0
    cdef int items = 0
    cdef Slice key
    at = _expect(at, end, 123)
    if at == NULL or _json_key(&at, end, &count, &key) != 1 or not slice_is(key, b"resourceMetrics", 15):
        return -1
    at = _expect(at, end, 91)
    if at == NULL or _json_item(&at, end, &items) != 1:
        return -1
    at = _json_resource_metrics(at, end, found)
    if at == NULL or _json_item(&at, end, &items) != 0 or _json_key(&at, end, &count, &key) != 0:
        return -1
    return 0 if _blank(at, end) == end else -1


def plain_push_json(bytes body, object report):
    """What `_answer` says about a JSON body; None for a push that is not plain."""
    cdef Found found
    cdef Bytes start = body
    memset(&found, 0, sizeof(Found))
    if _read_json_request(start, start + len(body), &found):
        return None
    return _answer(&found, report)
