# What the attributes and points of a plain push mean, whichever encoding they were read from.

cdef enum:
    MAX_LABEL = 253  # longer ones are cut by the full decoder


cdef struct Attribute:
    Slice key
    Slice text
    bint has_text
    bint has_real
    Number number
    double real
    Slice digits  # the octets of either number


cdef struct Point:
    Slice state
    Slice workload
    Slice mode
    Slice older_mode
    Slice gpu_model
    Slice version
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


cdef int _keep_once(Attribute* attribute, Slice* where) noexcept nogil:
    if where.at != NULL or not attribute.has_text:
        return -1
    where[0] = attribute.text
    return 0


cdef inline int _use_resource_attribute(Attribute* attribute, Found* found) noexcept nogil:
    if slice_is(attribute.key, b"ingero.node.id", 14):
        return _keep_once(attribute, &found.node)
    if slice_is(attribute.key, b"ingero.cluster.id", 17):
        return _keep_once(attribute, &found.cluster)
    if slice_is(attribute.key, b"ingero.job.id", 13):
        return _keep_once(attribute, &found.job)
    if slice_is(attribute.key, b"ingero.provider", 15):
        return _keep_once(attribute, &found.provider) or found.provider.size > MAX_LABEL
    if slice_is(attribute.key, b"ingero.rank", 11):
        found.rank = attribute.number
    elif slice_is(attribute.key, b"ingero.node.rank", 16):
        found.node_rank = attribute.number
    elif slice_is(attribute.key, b"ingero.world_size", 17):
        found.world_size = attribute.number
    return 0


cdef inline void _use_point_attribute(Attribute* attribute, Point* out) noexcept nogil:
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
    elif slice_is(attribute.key, b"ingero.agent.version", 20) and attribute.has_text:
        out.version = attribute.text


cdef inline bint _is_measured(Slice name) noexcept nogil:
    """Whether the verdict engines read this metric."""
    return (
        slice_is(name, b"ingero.step.own_time_ms", 23)
        or (name.size >= 16 and memcmp(name.at, <const char*>b"nccl.collective.", 16) == 0)
        or (name.size >= 12 and memcmp(name.at, <const char*>b"ingero.rank.", 12) == 0)
        or (name.size >= 14 and memcmp(name.at, <const char*>b"ingero.engine.", 14) == 0)
    )


cdef inline int _use_score(Point* point, double value, Found* found) noexcept nogil:
    if found.has_score or not (point.has_double or point.has_int):
        return -1
    if not (value >= 0.0 and value <= 1.0):
        return -1
    if not point.has_state:
        point.state.at = <Bytes><const char*>b"active"
        point.state.size = 6
    if not point.has_workload:
        point.workload.at = <Bytes><const char*>b"unknown"
        point.workload.size = 7
    if not (slice_is(point.state, b"active", 6) or slice_is(point.state, b"calibrating", 11)
            or slice_is(point.state, b"idle", 4)) or point.workload.size > MAX_LABEL:
        return -1
    found.has_score = True
    found.score = value
    found.state = point.state
    found.workload = point.workload
    found.sent_ns = point.time_ns
    return 0


cdef inline int _use_point(Slice name, Point* point, Found* found) noexcept nogil:
    cdef double value = point.as_double if point.has_double else <double>point.as_int
    if slice_is(name, b"ingero.node.health_score", 24):
        return _use_score(point, value, found)
    if slice_is(name, b"ingero.agent.detection_mode", 27):
        if point.has_mode and point.mode.size:
            found.mode = point.mode
            found.has_mode = True
        else:
            found.mode = point.older_mode
            found.has_mode = point.has_older_mode
        if found.has_mode and found.mode.size > MAX_LABEL:
            return -1
    elif slice_is(name, b"ingero.node.degradation_warning", 31):
        if not (point.has_double or point.has_int):
            return -1
        found.degraded.is_set = True
        found.degraded.value = value != 0.0
    elif slice_is(name, b"ingero.node.info", 16):
        if point.gpu_model.at != NULL and point.gpu_model.size > MAX_LABEL:
            return -1
        found.gpu_model = point.gpu_model
        found.gpu_count = point.gpu_count
    elif slice_is(name, b"ingero.agent.lost_records", 25):
        if point.version.at != NULL and point.version.size > MAX_LABEL:
            return -1
        found.version = point.version
        found.lost.is_set = point.has_int and point.as_int >= 0
        found.lost.value = point.as_int
    elif slice_is(name, b"ingero.agent.ready_s", 20):
        found.ready.is_set = point.has_int and point.as_int >= 0
        found.ready.value = point.as_int
    elif slice_is(name, b"ingero.node.straggler_event", 27) or _is_measured(name):
        return -1
    return 0
