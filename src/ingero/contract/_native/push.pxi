# One plain push as a report, from either encoding.

cdef extern from "Python.h":
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 highest)
    void* PyUnicode_DATA(object text)


cdef inline bint _is_good_id(Slice text) noexcept nogil:
    return 0 < text.size <= 253 and text.at[0] != 0x20 and text.at[text.size - 1] != 0x20


cdef inline bint _has_good_ids(Found* found) noexcept nogil:
    return (
        found.node.at != NULL and _is_good_id(found.node)
        and (found.cluster.at == NULL or _is_good_id(found.cluster))
        and (found.job.at == NULL or _is_good_id(found.job))
    )


cdef object text_or_none(Slice text):
    """Return a string; the readers have checked that its octets are ASCII."""
    if text.at == NULL:
        return None
    made = PyUnicode_New(text.size, 127)
    memcpy(PyUnicode_DATA(made), text.at, text.size)
    return made


cdef inline object _number_or_none(Number number):
    return number.value if number.is_set else None


cdef object report_of(Found* found, object report, object node, object cluster):
    return report(
        node,
        cluster,
        text_or_none(found.job),
        _number_or_none(found.rank if found.rank.is_set else found.node_rank),
        _number_or_none(found.world_size),
        text_or_none(found.provider),
        found.score if found.has_score else None,
        text_or_none(found.state) or "",
        text_or_none(found.workload) or "",
        text_or_none(found.mode) if found.has_mode else None,
        bool(found.degraded.value) if found.degraded.is_set else None,
        None,
        text_or_none(found.gpu_model),
        _number_or_none(found.gpu_count),
        found.sent_ns,
        text_or_none(found.version),
        _number_or_none(found.lost),
        _number_or_none(found.ready),
    )


cdef int read_push(Slice body, bint is_json, Found* found) except -1:
    """Read a body of either encoding: 1, or 0 where the full decoder must judge it."""
    cdef Bytes end = body.at + body.size
    memset(found, 0, sizeof(Found))
    if _read_json_request(body.at, end, found) if is_json else _read_request(body.at, end, found):
        return 0
    return _has_good_ids(found)


def decode_plain_push(bytes body, bint is_json, object report):
    """Return the `report` of a plain push and the name of its first metric; else None."""
    cdef Found found
    cdef Slice whole
    whole.at = body
    whole.size = len(body)
    if not read_push(whole, is_json, &found):
        return None
    made = report_of(&found, report, text_or_none(found.node), text_or_none(found.cluster))
    return made, text_or_none(found.lead) or ""
