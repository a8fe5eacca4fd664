# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The push of a registered node in one compiled step, to the reply that is kept for its cluster.

`answer` is the twin of `Receiver.answer` in `fleet/receive.py`, and `store` that of the calls over
gRPC: either None, and then nothing has changed, or the same reply and the same changes. Neither
takes a decision that is not taken there.
"""

from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int8_t, int64_t, uint64_t

from ingero.contract._native.codecs cimport (
    Bytes,
    MAX_SPELLED,
    Found,
    Request,
    Slice,
    read_push,
    report_of,
    spell_real,
    split_request,
    text_or_none,
)

include "kept.pxi"
include "roster.pxi"
include "scrape.pxi"


cdef enum:  # what is counted; the numbers of `Tally` in `fleet/processor.py`
    PUSHES
    MISMATCHED
    SKEWED


cdef class PushFastPath:
    """Answers pushes of one listener.

    What may change while Fleet runs is read from `receiver` at every push. Of `replies`, kept by
    cluster and verdict, the first are to protobuf and the second to JSON.
    """

    cdef object receiver
    cdef object answers
    cdef dict clusters
    cdef dict clusters_by_query
    cdef dict protobuf_replies
    cdef dict json_replies
    cdef int64_t[::1] tally
    cdef int64_t[::1] puts
    cdef int64_t[::1] plain_pushes
    cdef list kept_bodies  # of the sinks that only keep the last body of each node
    cdef list other_sinks
    cdef object report
    cdef object taken
    cdef object kind
    cdef object json
    cdef object protobuf
    cdef uint64_t max_body_bytes
    cdef uint64_t skew_ns

    def __init__(self, receiver, replies, *, report, taken, kind, json, protobuf,
                 uint64_t max_body_bytes, uint64_t skew_ns):
        self.receiver, self.report, self.taken, self.kind = receiver, report, taken, kind
        self.json, self.protobuf = json, protobuf
        self.max_body_bytes, self.skew_ns = max_body_bytes, skew_ns
        self.answers, processor = receiver.answers, receiver.processor
        self.clusters, self.clusters_by_query = processor.clusters, receiver.clusters_by_query
        self.protobuf_replies, self.json_replies = replies
        self.tally, self.puts = processor.counters.tally, processor.counters.puts
        self.plain_pushes = receiver.plain_pushes
        self.kept_bodies, self.other_sinks = [], []
        for sink in receiver.sinks.get(kind, ()):
            kept = getattr(sink, "kept", None)
            if isinstance(kept, KeptBodies):
                self.kept_bodies.append(kept)
            else:
                self.other_sinks.append(sink)

    def answer(self, bytes segment, double now_s, uint64_t wall_ns):
        """Return the whole reply to one segment, or None where `Receiver.answer` must handle it."""
        cdef Request request
        cdef Bytes start = segment
        if split_request(start, start + len(segment), &request) or request.is_gzip:
            return None
        if request.body.size > self.max_body_bytes or not self._is_admitted(&request):
            return None
        query = request.query.at[:request.query.size] if request.query.size else b""
        if query not in self.clusters_by_query:  # `Receiver` must parse it
            return None
        named = self.clusters_by_query[query]
        if not named and request.cluster.size:
            named = request.cluster.at[:request.cluster.size].decode("latin-1")
        reply = self._stored(&request.body, request.is_json, named, now_s, wall_ns)
        if reply is not None:
            self.plain_pushes[0] += 1
        return reply

    def store(self, bytes body, named, double now_s, uint64_t wall_ns):
        """Return the kept reply to an admitted call whose metadata names this cluster, or None."""
        cdef Slice sent
        sent.at, sent.size = <Bytes>body, <uint64_t>len(body)
        if sent.size > self.max_body_bytes:
            return None
        return self._stored(&sent, False, named, now_s, wall_ns)

    cdef object _stored(self, Slice* body, bint is_json, named, double now_s, uint64_t wall_ns):
        """Store a push for the cluster named beside it, else for that in its resource."""
        cdef Found found
        cdef RosterWriter writer
        if not read_push(body[0], is_json, &found):
            return None
        node, own = text_or_none(found.node), text_or_none(found.cluster)
        name = named or own
        cluster = self.clusters.get(name)
        writer = None if cluster is None else cluster.roster.writer
        if writer is None:
            return None
        row = writer.rows.get(node)
        if row is None:
            return None
        replies, key = self.json_replies if is_json else self.protobuf_replies, name
        texts = self.answers.verdict_texts
        if texts:
            about = (name, node)
            text = texts.get(about)
            if text:
                if about in self.answers.ask_texts:
                    return None
                key = (name, text)
        kept = replies.get(key)
        if kept is None or kept[0] is not cluster.served:
            return None
        report = report_of(&found, self.report, node, own)
        self.puts[writer.put(row, &found, report, now_s)] += 1
        self._count(&found, wall_ns, own is not None and own != name)
        self._offer(body, is_json, (name, node, text_or_none(found.lead) or ""), now_s)
        return kept[1]

    cdef bint _is_admitted(self, Request* request) except *:
        receiver = self.receiver
        if receiver.refuses or receiver.max_requests_per_s:
            return False
        token = receiver.http_token
        if not token.is_required:
            return True
        if not request.authorization.size:
            return token.admits(None)
        authorization = request.authorization.at[:request.authorization.size]
        return token.admits(authorization.decode("latin-1"))

    cdef void _count(self, Found* found, uint64_t wall_ns, bint is_mismatched) noexcept:
        cdef uint64_t off_ns = wall_ns - found.sent_ns
        if found.sent_ns > wall_ns:
            off_ns = found.sent_ns - wall_ns
        self.tally[PUSHES] += 1
        self.tally[MISMATCHED] += is_mismatched
        self.tally[SKEWED] += found.sent_ns != 0 and off_ns > self.skew_ns

    cdef _offer(self, Slice* sent, bint is_json, tuple key, double now_s):
        encoding = self.json if is_json else self.protobuf
        body = sent.at[:sent.size]
        for kept in self.kept_bodies:
            (<KeptBodies>kept).keep(key, body, encoding, now_s)
        for sink in self.other_sinks:
            sink.offer(self.kind, body, encoding, self.taken(*key))
