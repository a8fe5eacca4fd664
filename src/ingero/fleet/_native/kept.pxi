# The last body of each kind of push per node. Twin of `fleet/kept.py`.

cdef class KeptBody:
    cdef readonly double at_s
    cdef readonly bytes body
    cdef readonly object encoding


cdef class KeptBodies:
    cdef readonly dict bodies
    cdef readonly int64_t size_bytes
    cdef readonly int64_t dropped
    cdef int64_t max_body_bytes
    cdef int64_t max_bytes
    cdef int64_t max_bodies

    def __init__(self, int64_t max_body_bytes, int64_t max_bytes, int64_t max_bodies):
        self.max_body_bytes, self.max_bytes, self.max_bodies = max_body_bytes, max_bytes, max_bodies
        self.bodies = {}

    cpdef keep(self, tuple key, bytes body, object encoding, double now_s):
        cdef KeptBody kept
        if len(body) > self.max_body_bytes:
            self.dropped += 1
            return
        kept = self.bodies.get(key)
        if kept is None:
            kept = self.bodies[key] = KeptBody()
        else:
            self.size_bytes -= len(kept.body)
        kept.at_s, kept.body, kept.encoding = now_s, body, encoding
        self.size_bytes += len(body)
        if self.size_bytes > self.max_bytes or len(self.bodies) > self.max_bodies:
            self._make_room()

    cdef _make_room(self):
        by_age = sorted(
            ((<KeptBody>kept).at_s, number, key)
            for number, (key, kept) in enumerate(self.bodies.items())
        )
        oldest = by_age[: 1 + len(self.bodies) // 4]
        for _, _, key in oldest:
            self._drop(key)
        self.dropped += len(oldest)

    def expire(self, double before_s):
        for key in [key for key, kept in self.bodies.items() if (<KeptBody>kept).at_s < before_s]:
            self._drop(key)

    cdef _drop(self, tuple key):
        cdef KeptBody kept = self.bodies.pop(key)
        self.size_bytes -= len(kept.body)
