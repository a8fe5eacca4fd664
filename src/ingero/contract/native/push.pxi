# The common push in one walk over its bytes. Twin of `contract/push/decode.py`: for every body, None or the same answer.
# Bails out (-1) on anything unusual: several resources or scopes' worth of odd fields, other metric kinds, text that is
# not plain ASCII, measurements, values that must be refused. The full decoder then judges, and counts.

cdef extern from "Python.h":
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 highest)
    void* PyUnicode_DATA(object text)

cdef struct Number:
    bint is_set
    int64_t value

cdef struct Found:
    Slice node
    Slice cluster
    Slice job
    Slice provider
    Slice state
    Slice workload
    Slice mode
    Slice gpu_model
    Slice lead
    Number rank
    Number node_rank
    Number world_size
    Number gpu_count
    Number degraded
    bint has_mode
    bint has_score
    bint has_lead
    double score
    uint64_t sent_ns

cdef struct Attribute:
    Slice key
    Slice text
    bint has_text
    Number number

cdef struct Point:
    Slice state
    Slice workload
    Slice mode
    Slice older_mode
    Slice gpu_model
    Number gpu_count
    bint has_mode
    bint has_older_mode
    bint has_state
    bint has_workload
    bint has_double
    bint has_int
    double as_double
    int64_t as_int
    uint64_t time_ns


cdef int _read_attribute(Slice message, Attribute* out) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef Bytes inner
    cdef Bytes inner_end
    cdef uint64_t tag, number
    cdef Slice value
    memset(out, 0, sizeof(Attribute))
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if tag == 10:
            at = read_slice(at, end, &out.key)
            if at == NULL or not is_plain_ascii(out.key):
                return -1
        elif tag == 18:
            if out.has_text or out.number.is_set:
                return -1
            at = read_slice(at, end, &value)
            if at == NULL:
                return -1
            inner = value.at
            inner_end = value.at + value.size
            while inner < inner_end:
                inner = read_varint(inner, inner_end, &tag)
                if inner == NULL:
                    return -1
                if out.has_text or out.number.is_set:
                    return -1  # a value set twice: rare enough for the full decoder
                if tag == 10:
                    inner = read_slice(inner, inner_end, &out.text)
                    if inner == NULL or not is_plain_ascii(out.text):
                        return -1
                    out.has_text = True
                elif tag == 24:
                    inner = read_varint(inner, inner_end, &number)
                    if inner == NULL:
                        return -1
                    out.number.is_set = True
                    out.number.value = <int64_t>number
                elif tag == 33 and inner_end - inner == 8:
                    inner += 8
                else:
                    return -1
        else:
            return -1
    return 0


cdef int _use_resource_attribute(Attribute* attribute, Found* found) noexcept nogil:
    if slice_is(attribute.key, b"ingero.node.id", 14):
        return _keep_once(attribute, &found.node)
    if slice_is(attribute.key, b"ingero.cluster.id", 17):
        return _keep_once(attribute, &found.cluster)
    if slice_is(attribute.key, b"ingero.job.id", 13):
        return _keep_once(attribute, &found.job)
    if slice_is(attribute.key, b"ingero.provider", 15):
        return _keep_once(attribute, &found.provider)
    if slice_is(attribute.key, b"ingero.rank", 11):
        found.rank = attribute.number
    elif slice_is(attribute.key, b"ingero.node.rank", 16):
        found.node_rank = attribute.number
    elif slice_is(attribute.key, b"ingero.world_size", 17):
        found.world_size = attribute.number
    return 0


cdef int _keep_once(Attribute* attribute, Slice* where) noexcept nogil:
    if where.at != NULL or not attribute.has_text:
        return -1
    where[0] = attribute.text
    return 0


cdef int _read_resource_attributes(Slice message, Found* found) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef Slice item
    cdef Attribute attribute
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL or tag != 10:
            return -1
        at = read_slice(at, end, &item)
        if at == NULL or _read_attribute(item, &attribute):
            return -1
        if _use_resource_attribute(&attribute, found):
            return -1
    return 0


cdef void _use_point_attribute(Attribute* attribute, Point* out) noexcept nogil:
    if slice_is(attribute.key, b"ingero.node.state", 17) and attribute.has_text:
        out.state = attribute.text
        out.has_state = True
    elif slice_is(attribute.key, b"ingero.workload_type", 20) and attribute.has_text:
        out.workload = attribute.text
        out.has_workload = True
    elif slice_is(attribute.key, b"ingero.detection_mode", 21):
        out.mode = attribute.text
        out.has_mode = attribute.has_text
    elif slice_is(attribute.key, b"mode", 4):
        out.older_mode = attribute.text
        out.has_older_mode = attribute.has_text
    elif slice_is(attribute.key, b"ingero.gpu_model", 16) and attribute.has_text:
        out.gpu_model = attribute.text
    elif slice_is(attribute.key, b"ingero.gpu_count", 16):
        out.gpu_count = attribute.number


cdef inline void _clear(Point* out) noexcept nogil:
    """What is read without its own flag; a memset of the whole costs more than reading the point."""
    out.has_mode = out.has_older_mode = out.has_state = out.has_workload = out.has_double = out.has_int = False
    out.gpu_model.at = NULL
    out.gpu_count.is_set = False
    out.as_int = 0
    out.time_ns = 0


cdef int _read_point(Slice message, Point* out) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef uint64_t tag
    cdef Slice item
    cdef Attribute attribute
    _clear(out)
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if tag == 58:
            at = read_slice(at, end, &item)
            if at == NULL or _read_attribute(item, &attribute):
                return -1
            _use_point_attribute(&attribute, out)
        elif tag == 17 or tag == 25:  # start time, time
            if end - at < 8:
                return -1
            if tag == 25:
                memcpy(&out.time_ns, at, 8)
            at += 8
        elif tag == 33:
            if end - at < 8 or out.has_int:
                return -1
            memcpy(&out.as_double, at, 8)
            out.has_double = True
            at += 8
        elif tag == 49:
            if end - at < 8 or out.has_double:
                return -1
            memcpy(&out.as_int, at, 8)
            out.has_int = True
            at += 8
        else:
            return -1  # exemplars, flags, anything new
    return 0


cdef int _use_point(Slice name, Point* point, Found* found) noexcept nogil:
    cdef double value = point.as_double if point.has_double else <double>point.as_int
    if slice_is(name, b"ingero.node.health_score", 24):
        if not (point.has_double or point.has_int) or not (value >= 0.0 and value <= 1.0) or found.has_score:
            return -1
        if not point.has_state:
            point.state.at = <Bytes><const char*>b"active"
            point.state.size = 6
        if not point.has_workload:
            point.workload.at = <Bytes><const char*>b"unknown"
            point.workload.size = 7
        if not (slice_is(point.state, b"active", 6) or slice_is(point.state, b"calibrating", 11)
                or slice_is(point.state, b"idle", 4)) or point.workload.size > 253:
            return -1
        found.has_score = True
        found.score = value
        found.state = point.state
        found.workload = point.workload
        found.sent_ns = point.time_ns
    elif slice_is(name, b"ingero.agent.detection_mode", 27):
        if point.has_mode and point.mode.size:
            found.mode = point.mode
            found.has_mode = True
        else:
            found.mode = point.older_mode
            found.has_mode = point.has_older_mode
    elif slice_is(name, b"ingero.node.degradation_warning", 31):
        if not (point.has_double or point.has_int):
            return -1
        found.degraded.is_set = True
        found.degraded.value = value != 0.0
    elif slice_is(name, b"ingero.node.info", 16):
        found.gpu_model = point.gpu_model
        found.gpu_count = point.gpu_count
    elif slice_is(name, b"ingero.node.straggler_event", 27) or slice_is(name, b"ingero.step.own_time_ms", 23):
        return -1
    elif name.size >= 16 and memcmp(name.at, <const char*>b"nccl.collective.", 16) == 0:
        return -1
    return 0


cdef int _read_metric(Slice message, Found* found) noexcept nogil:
    cdef Bytes at = message.at
    cdef Bytes end = message.at + message.size
    cdef Bytes inner
    cdef uint64_t tag
    cdef uint64_t number
    cdef Slice name, text, kind, item
    cdef bint has_kind = False
    cdef Point point
    name.at = NULL
    name.size = 0
    kind.at = NULL
    kind.size = 0
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return -1
        if tag == 10:
            at = read_slice(at, end, &name)
            if at == NULL or not is_plain_ascii(name):
                return -1
        elif tag == 18 or tag == 26:  # description, unit
            at = read_slice(at, end, &text)
            if at == NULL or not is_plain_ascii(text):
                return -1
        elif tag == 42 or tag == 58:  # gauge, sum
            if has_kind:
                return -1
            has_kind = True
            at = read_slice(at, end, &kind)
            if at == NULL:
                return -1
        else:
            return -1
    if not found.has_lead:
        found.has_lead = True
        found.lead = name
    inner = kind.at
    end = kind.at + kind.size
    while inner < end:
        inner = read_varint(inner, end, &tag)
        if inner == NULL:
            return -1
        if tag == 10:
            inner = read_slice(inner, end, &item)
            if inner == NULL or _read_point(item, &point) or _use_point(name, &point, found):
                return -1
        elif tag == 16 or tag == 24:  # temporality, monotonic
            inner = read_varint(inner, end, &number)
            if inner == NULL:
                return -1
        else:
            return -1
    return 0


cdef int _read_scope_metrics(Slice message, Found* found) noexcept nogil:
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
            if _read_metric(item, found):
                return -1
        elif tag == 10:  # scope: name and version only
            inner = item.at
            while inner < item.at + item.size:
                inner = read_varint(inner, item.at + item.size, &tag)
                if inner == NULL or (tag != 10 and tag != 18):
                    return -1
                inner = read_slice(inner, item.at + item.size, &text)
                if inner == NULL or not is_plain_ascii(text):
                    return -1
        elif tag == 26:
            if not is_plain_ascii(item):
                return -1
        else:
            return -1
    return 0


cdef int _read_request(Bytes at, Bytes end, Found* found) noexcept nogil:
    cdef Bytes inner
    cdef uint64_t tag
    cdef Slice resource_metrics, item
    at = read_varint(at, end, &tag)
    if at == NULL or tag != 10:
        return -1
    at = read_slice(at, end, &resource_metrics)
    if at == NULL or at != end:  # exactly one resource
        return -1
    inner = resource_metrics.at
    while inner < end:
        inner = read_varint(inner, end, &tag)
        if inner == NULL:
            return -1
        inner = read_slice(inner, end, &item)
        if inner == NULL:
            return -1
        if tag == 10:
            if found.node.at != NULL or _read_resource_attributes(item, found):
                return -1
        elif tag == 18:
            if _read_scope_metrics(item, found):
                return -1
        elif tag == 26:
            if not is_plain_ascii(item):
                return -1
        else:
            return -1
    return 0


cdef inline bint _is_good_id(Slice text) noexcept nogil:
    return 0 < text.size <= 253 and text.at[0] != 0x20 and text.at[text.size - 1] != 0x20


cdef inline object _text_or_none(Slice text):
    """What gets here was found to be ASCII, and is copied without a second look."""
    if text.at == NULL:
        return None
    made = PyUnicode_New(text.size, 127)
    memcpy(PyUnicode_DATA(made), text.at, text.size)
    return made


cdef inline object _number_or_none(Number number):
    return number.value if number.is_set else None


cdef inline bint _has_good_ids(Found* found) noexcept nogil:
    return (
        found.node.at != NULL and _is_good_id(found.node)
        and (found.cluster.at == NULL or _is_good_id(found.cluster))
        and (found.job.at == NULL or _is_good_id(found.job))
    )


cdef object _report_of(Found* found, object report, object node, object cluster):
    return report(
        node,
        cluster,
        _text_or_none(found.job),
        _number_or_none(found.rank if found.rank.is_set else found.node_rank),
        _number_or_none(found.world_size),
        _text_or_none(found.provider),
        found.score if found.has_score else None,
        _text_or_none(found.state) or "",
        _text_or_none(found.workload) or "",
        _text_or_none(found.mode) if found.has_mode else None,
        bool(found.degraded.value) if found.degraded.is_set else None,
        None,
        _text_or_none(found.gpu_model),
        _number_or_none(found.gpu_count),
        found.sent_ns,
    )


cdef object _answer(Found* found, object report):
    """`report` made of what was found, and the name of the first metric; None where an id must be refused."""
    if not _has_good_ids(found):
        return None
    made = _report_of(found, report, _text_or_none(found.node), _text_or_none(found.cluster))
    return made, _text_or_none(found.lead) or ""


def plain_push(bytes body, object report):
    """What `_answer` says about a protobuf body; None for a push that is not plain."""
    cdef Found found
    cdef Bytes start = body
    memset(&found, 0, sizeof(Found))
    if _read_request(start, start + len(body), &found):
        return None
    return _answer(&found, report)
