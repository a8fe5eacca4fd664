# The push of a known node in one step: request, body, roster, copies for exporters, reply. Twin of the way through
# `Receiver.answer`: None, and then nothing has changed, or the same reply and the same changes. It knows the service's
# objects by their attributes only, and decides nothing that is not decided there.

cdef enum:  # what became of a report, as `fleet/roster.py` numbers them
    STORED
    DUPLICATE
    LATE


cdef inline int8_t _state_code(Slice state) noexcept nogil:
    """Index into `contract/push/decode.py`'s STATES; a plain push has one of the three."""
    return 0 if state.size == 6 else 1 if state.size == 11 else 2


cdef bint _read_body(Request* request, Found* found) except *:
    cdef Bytes start = request.body.at
    cdef Bytes end = start + request.body.size
    memset(found, 0, sizeof(Found))
    if _read_json_request(start, end, found) if request.is_json else _read_request(start, end, found):
        return False
    return _has_good_ids(found)


cdef class RosterWriter:
    """Writes reports of known nodes into the columns of one roster. Twin of `Roster.put`."""

    cdef dict rows
    cdef list reports
    cdef double[::1] score
    cdef double[::1] seen_s
    cdef int8_t[::1] state
    cdef uint64_t[::1] sent_ns
    cdef int64_t[::1] pushes
    cdef uint64_t reorder_ns

    def __init__(
        self, dict rows, list reports, double[::1] score, double[::1] seen_s, int8_t[::1] state,
        uint64_t[::1] sent_ns, int64_t[::1] pushes, uint64_t reorder_ns,
    ):
        self.rows, self.reports, self.reorder_ns = rows, reports, reorder_ns
        self.score, self.seen_s, self.state, self.sent_ns, self.pushes = score, seen_s, state, sent_ns, pushes

    cdef int put(self, Py_ssize_t row, Found* found, object report, double now_s):
        cdef uint64_t last_ns = self.sent_ns[row]
        self.seen_s[row] = now_s
        self.pushes[row] += 1
        if not found.has_score:
            return STORED
        if found.sent_ns and found.sent_ns <= last_ns:
            if found.sent_ns == last_ns:
                return DUPLICATE
            if last_ns - found.sent_ns < self.reorder_ns:
                return LATE
        self.sent_ns[row] = found.sent_ns
        self.score[row] = found.score
        self.state[row] = _state_code(found.state)
        self.reports[row] = report
        return STORED


cdef enum:  # what is counted, as `fleet/processor.py` numbers them
    PUSHES
    MISMATCHED
    SKEWED


cdef class PushLane:
    """`answer` for one listener. `receiver` is looked at with every push for what may change while it runs."""

    cdef object receiver
    cdef dict clusters
    cdef dict named
    cdef dict protobuf_replies
    cdef dict json_replies
    cdef int64_t[::1] tally
    cdef int64_t[::1] puts
    cdef int64_t[::1] short_cuts
    cdef list shelves  # of sinks that only keep the last body
    cdef list sinks  # the others
    cdef object report
    cdef object taken
    cdef object kind
    cdef object json
    cdef object protobuf
    cdef uint64_t max_body_bytes
    cdef uint64_t skew_ns

    def __init__(self, receiver, *, report, taken, kind, json, protobuf, uint64_t max_body_bytes, uint64_t skew_ns):
        self.receiver, self.report, self.taken, self.kind = receiver, report, taken, kind
        self.json, self.protobuf, self.max_body_bytes, self.skew_ns = json, protobuf, max_body_bytes, skew_ns
        processor, sinks = receiver.processor, receiver.sinks.get(kind, ())
        self.clusters, self.named = processor.clusters, receiver.clusters_by_query
        self.protobuf_replies, self.json_replies = receiver.rendered
        self.tally, self.puts, self.short_cuts = processor.counters.tally, processor.counters.puts, receiver.short_cuts
        kept = [getattr(sink, "kept", None) for sink in sinks]
        self.shelves = [each for each in kept if isinstance(each, KeptBodies)]
        self.sinks = [sink for sink, each in zip(sinks, kept, strict=True) if not isinstance(each, KeptBodies)]

    def answer(self, bytes segment, double now_s, uint64_t wall_ns):
        """The whole reply to one segment, or None: ask the long way."""
        cdef Request request
        cdef Found found
        cdef Bytes start = segment
        cdef RosterWriter writer
        if _split_request(start, start + len(segment), &request) or request.body.size > self.max_body_bytes:
            return None
        if not self._is_admitted(&request) or not _read_body(&request, &found):
            return None
        node, own = _text_or_none(found.node), _text_or_none(found.cluster)
        name = self._named(&request, own)
        cluster = self.clusters.get(name)
        writer = None if cluster is None else cluster.roster.writer
        if writer is None:
            return None
        row = writer.rows.get(node)
        rendered = self.json_replies.get(name) if request.is_json else self.protobuf_replies.get(name)
        if row is None or rendered is None or rendered[0] is not cluster.served:
            return None
        texts = self.receiver.verdict_texts
        if texts and (name, node) in texts:
            return None
        report = _report_of(&found, self.report, node, own)
        self.puts[writer.put(row, &found, report, now_s)] += 1
        self._count(&found, wall_ns, own is not None and own != name)
        self._offer(&request, (name, node, _text_or_none(found.lead) or ""), now_s)
        return rendered[1]

    cdef bint _is_admitted(self, Request* request) except *:
        receiver = self.receiver
        if receiver.draining or receiver.max_requests_per_s:
            return False
        token = receiver.http_token
        if not token.is_required:
            return True
        authorization = _octets_or_none(request.authorization)
        return token.admits(authorization.decode("latin-1") if authorization else None)

    cdef object _named(self, Request* request, object own):
        """The cluster: by query, by header, by resource; None where the long way must look."""
        if request.query.size:
            query = request.query.at[:request.query.size]
            if query not in self.named:
                return None
            name = self.named[query]
            if name is not None:
                return name
        if request.cluster.size:
            return request.cluster.at[:request.cluster.size].decode("latin-1")
        return own

    cdef void _count(self, Found* found, uint64_t wall_ns, bint is_mismatched) noexcept:
        cdef uint64_t off_ns = found.sent_ns - wall_ns if found.sent_ns > wall_ns else wall_ns - found.sent_ns
        self.tally[PUSHES] += 1
        self.tally[MISMATCHED] += is_mismatched
        self.tally[SKEWED] += found.sent_ns != 0 and off_ns > self.skew_ns
        self.short_cuts[0] += 1

    cdef _offer(self, Request* request, tuple key, double now_s):
        encoding = self.json if request.is_json else self.protobuf
        body = request.body.at[:request.body.size]
        for shelf in self.shelves:
            (<KeptBodies>shelf).keep(key, body, encoding, now_s)
        for sink in self.sinks:
            sink.offer(self.kind, body, encoding, self.taken(*key))
