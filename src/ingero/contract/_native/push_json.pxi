# The plain push in JSON, read in one pass. Twin of `contract/push/decode.py`, like
# `push_protobuf.pxi`. Unknown fields and values of other kinds are left to the full decoder.

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
    """Read the attributes of a resource when `point` is NULL, else of a point."""
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


cdef Bytes _json_points(Bytes at, Bytes end, Slice name, Found* found):
    """Read the value of `gauge` or `sum`."""
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
    """Read the value of `resource`."""
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
    if at == NULL or _json_key(&at, end, &count, &key) != 1:
        return -1
    if not slice_is(key, b"resourceMetrics", 15):
        return -1
    at = _expect(at, end, 91)
    if at == NULL or _json_item(&at, end, &items) != 1:
        return -1
    at = _json_resource_metrics(at, end, found)
    if at == NULL or _json_item(&at, end, &items) != 0 or _json_key(&at, end, &count, &key) != 0:
        return -1
    return 0 if _blank(at, end) == end else -1
