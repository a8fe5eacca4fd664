# Counting the fields of an OTLP body before it is decoded. Twin of `contract/otlp/limits.py`,
# which also explains the table and the order of the limits.

cdef enum:  # what a length-delimited field holds
    HOLDS_TEXT = 1
    HOLDS_VARINTS
    HOLDS_WORDS
    HOLDS_MESSAGE

cdef enum:
    SCAN_MALFORMED = -1
    SCAN_TOO_MANY = -2
    SCAN_TOO_DEEP = -3
    SCAN_TOO_LONG = -4
    ROW_OCTETS = 64

cdef struct Scan:
    Bytes table
    uint64_t fields
    uint64_t max_fields
    uint64_t max_text_bytes
    int max_depth


cdef int _scan_message(Scan* scan, Bytes at, Bytes end, Py_ssize_t row, int depth) noexcept nogil:
    cdef uint64_t tag, number
    cdef Slice part
    cdef int holds, result
    if depth > scan.max_depth:
        return SCAN_TOO_DEEP
    while at < end:
        at = read_varint(at, end, &tag)
        if at == NULL:
            return SCAN_MALFORMED
        scan.fields += 1
        if scan.fields > scan.max_fields:
            return SCAN_TOO_MANY
        if tag & 7 == 2:
            at = read_slice(at, end, &part)
            if at == NULL:
                return SCAN_MALFORMED
            holds = scan.table[row * ROW_OCTETS + (tag >> 3)] if tag >> 3 < ROW_OCTETS else 0
            if holds >= HOLDS_MESSAGE:
                scan.fields += 1
                if scan.fields > scan.max_fields:
                    return SCAN_TOO_MANY
                result = _scan_message(
                    scan, part.at, at, holds - HOLDS_MESSAGE, depth + 1
                )
                if result < 0:
                    return result
            elif holds == HOLDS_TEXT:
                if part.size > scan.max_text_bytes:
                    return SCAN_TOO_LONG
            elif holds:
                scan.fields += part.size if holds == HOLDS_VARINTS else part.size // 8
                if scan.fields > scan.max_fields:
                    return SCAN_TOO_MANY
        elif tag & 7 == 0:
            at = read_varint(at, end, &number)
            if at == NULL:
                return SCAN_MALFORMED
        elif tag & 7 == 1 or tag & 7 == 5:
            number = 8 if tag & 7 == 1 else 4
            if <uint64_t>(end - at) < number:
                return SCAN_MALFORMED
            at += number
        else:
            return SCAN_MALFORMED
    return 0


def scan_protobuf(bytes body not None, bytes table not None, Py_ssize_t row, tuple limits not None):
    """Return the number of fields of a message, or why the scan stopped."""
    cdef Scan scan
    cdef Bytes start = body
    cdef Bytes end = start + len(body)
    cdef int result
    scan.table = table
    scan.fields = 0
    scan.max_fields, scan.max_text_bytes, scan.max_depth = limits
    with nogil:
        result = _scan_message(&scan, start, end, row, 1)
    return result if result < 0 else scan.fields


cdef int64_t _scan_json(
    Bytes at, Bytes end, int64_t max_fields, int64_t max_text_bytes, int64_t max_depth
) noexcept nogil:
    cdef int64_t fields = 0
    cdef int64_t depth = 0
    cdef Bytes text
    while at < end:
        if at[0] == 0x22:  # a text, up to the next quote that is not escaped
            text = at
            at += 1
            while at < end and at[0] != 0x22:
                if at[0] == 0x5c:
                    if end - at < 2:  # a backslash at the very end belongs to no text
                        break
                    at += 1
                at += 1
            if at < end and at[0] == 0x22:
                at += 1
            if at - text > max_text_bytes + 2:
                return SCAN_TOO_LONG
            continue
        if at[0] == 0x5d or at[0] == 0x7d:
            depth -= 1
        elif at[0] == 0x2c or at[0] == 0x5b or at[0] == 0x7b:
            fields += 1
            if fields > max_fields:
                return SCAN_TOO_MANY
            if at[0] != 0x2c:
                depth += 1
                if depth > max_depth:
                    return SCAN_TOO_DEEP
        at += 1
    return fields


def scan_json(bytes body not None, tuple limits not None):
    """Return the number of separators and openings outside texts, or why the scan stopped."""
    cdef Bytes start = body
    cdef Bytes end = start + len(body)
    cdef int64_t max_fields, max_text_bytes, max_depth, result
    max_fields, max_text_bytes, max_depth = limits
    with nogil:
        result = _scan_json(start, end, max_fields, max_text_bytes, max_depth)
    return result
