# The points of all kinds of metrics as rows.
#
# What an event has no column for is written as JSON into `detail`, in the order of
# `contract/otlp/detail.py`. Fields may come in any order on the wire, so a point is read first and
# written then. A field that is there twice is unusual, unless the last one counts.

cdef enum:  # the tag under which a metric holds points of this kind
    OC_GAUGE = 42
    OC_SUM = 58
    OC_HISTOGRAM = 74
    OC_EXPONENTIAL = 82
    OC_SUMMARY = 90

cdef struct OcTotals:  # of a histogram
    uint64_t count
    double sum
    double least
    double most
    bint has_sum
    bint has_least
    bint has_most

cdef inline bint oc_is_negative_zero(double value) noexcept nogil:
    """The runtime may drop it or keep it where a field without a value is 0."""
    cdef uint64_t bits
    memcpy(&bits, &value, 8)
    return bits == <uint64_t>1 << 63

cdef inline int64_t oc_zigzag(uint64_t value) noexcept nogil:
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)


cdef class ColumnPoints(ColumnValues):
    """Reads points, each as one row."""

    cdef int read_number(self, Slice body, int context, bint cumulative) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef uint64_t flags = 0
        cdef int64_t whole = 0
        cdef double real = 0
        cdef uint8_t tag, has = 0  # 1: a double, 2: an integer
        cdef OcPoint point = self.new_point()
        while at < end:
            tag = at[0]
            at += 1
            if tag == 58:
                at = read_slice(at, end, &part)
                if at == NULL or self.read_attribute(part, &point) != OC_OK:
                    return OC_UNUSUAL
                continue
            if tag == 25: at = read_word(at, end, &point.moment)
            elif tag == 17: at = read_word(at, end, &point.start)
            elif tag == 33:
                at = read_word(at, end, &real)
                has = 1
            elif tag == 49:
                at = read_word(at, end, &whole)
                has = 2
            elif tag == 64: at = read_varint(at, end, &flags)
            else: return OC_UNUSUAL
            if at == NULL or flags > 0xffffffff:
                return OC_UNUSUAL
        if flags & 1:
            has = 0
        if has == 2:
            real = <double>whole
        return self.finish(&point, context, real, has != 0 and not cumulative,
                           whole, has == 2 and not cumulative, real, has != 0 and cumulative)

    cdef int put_totals(self, OcPoint* point, OcTotals* totals) except -1:
        cdef OcBuffer* out = &self.detail
        oc_field(out, point.detail_from, b'"count":')
        oc_count(out, totals.count)
        if totals.has_sum:
            oc_field(out, point.detail_from, b'"sum":')
            oc_real(out, totals.sum)
        if totals.has_least:
            oc_field(out, point.detail_from, b'"min":')
            oc_real(out, totals.least)
        if totals.has_most:
            oc_field(out, point.detail_from, b'"max":')
            oc_real(out, totals.most)
        return 0

    cdef int put_words(self, Slice words, bint is_real) except -1:
        """Append packed doubles or fixed64 as an array."""
        cdef OcBuffer* out = &self.detail
        cdef uint64_t i, word
        cdef double real
        oc_put(out, b"[", 1)
        for i in range(words.size // 8):
            if i: oc_put(out, b",", 1)
            if is_real:
                memcpy(&real, words.at + 8 * i, 8)
                oc_real(out, real)
            else:
                memcpy(&word, words.at + 8 * i, 8)
                oc_count(out, word)
        return oc_put(out, b"]", 1)

    cdef int read_histogram(self, Slice body, int context) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part, counts, bounds
        cdef uint64_t flags = 0
        cdef OcTotals totals
        cdef OcPoint point = self.new_point()
        memset(&totals, 0, sizeof(totals))
        memset(&counts, 0, sizeof(counts))
        memset(&bounds, 0, sizeof(bounds))
        while at < end:
            tag = at[0]
            at += 1
            if tag == 74:
                at = read_slice(at, end, &part)
                if at == NULL or self.read_attribute(part, &point) != OC_OK:
                    return OC_UNUSUAL
                continue
            if tag == 25: at = read_word(at, end, &point.moment)
            elif tag == 17: at = read_word(at, end, &point.start)
            elif tag == 33: at = read_word(at, end, &totals.count)
            elif tag == 41:
                at = read_word(at, end, &totals.sum)
                totals.has_sum = True
            elif tag == 89:
                at = read_word(at, end, &totals.least)
                totals.has_least = True
            elif tag == 97:
                at = read_word(at, end, &totals.most)
                totals.has_most = True
            elif tag == 50 and counts.at == NULL: at = read_slice(at, end, &counts)
            elif tag == 58 and bounds.at == NULL: at = read_slice(at, end, &bounds)
            elif tag == 80: at = read_varint(at, end, &flags)
            else: return OC_UNUSUAL
            if at == NULL or flags > 0xffffffff or counts.size % 8 or bounds.size % 8:
                return OC_UNUSUAL
        if self.is_kept:
            self.put_totals(&point, &totals)
            if bounds.size:
                oc_field(&self.detail, point.detail_from, b'"bounds":')
                self.put_words(bounds, True)
            if counts.size:
                oc_field(&self.detail, point.detail_from, b'"counts":')
                self.put_words(counts, False)
        return self.finish(&point, context)

    cdef int read_exponential(self, Slice body, int context) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part, positive, negative
        cdef uint64_t flags = 0, scale = 0, zeros = 0
        cdef double threshold = 0
        cdef OcTotals totals
        cdef OcPoint point = self.new_point()
        memset(&totals, 0, sizeof(totals))
        memset(&positive, 0, sizeof(positive))
        memset(&negative, 0, sizeof(negative))
        while at < end:
            tag = at[0]
            at += 1
            if tag == 10:
                at = read_slice(at, end, &part)
                if at == NULL or self.read_attribute(part, &point) != OC_OK:
                    return OC_UNUSUAL
                continue
            if tag == 25: at = read_word(at, end, &point.moment)
            elif tag == 17: at = read_word(at, end, &point.start)
            elif tag == 33: at = read_word(at, end, &totals.count)
            elif tag == 41:
                at = read_word(at, end, &totals.sum)
                totals.has_sum = True
            elif tag == 97:
                at = read_word(at, end, &totals.least)
                totals.has_least = True
            elif tag == 105:
                at = read_word(at, end, &totals.most)
                totals.has_most = True
            elif tag == 48: at = read_varint(at, end, &scale)
            elif tag == 57: at = read_word(at, end, &zeros)
            elif tag == 113: at = read_word(at, end, &threshold)
            elif tag == 66 and positive.at == NULL: at = read_slice(at, end, &positive)
            elif tag == 74 and negative.at == NULL: at = read_slice(at, end, &negative)
            elif tag == 80: at = read_varint(at, end, &flags)
            else: return OC_UNUSUAL
            if at == NULL or flags > 0xffffffff or scale > 0xffffffff:
                return OC_UNUSUAL
        if oc_is_negative_zero(threshold):
            return OC_UNUSUAL
        if self.is_kept:
            self.put_totals(&point, &totals)
            self.put_scale(&point, scale, zeros, threshold)
        if self.put_buckets(&point, positive, b'"positive":') != OC_OK:
            return OC_UNUSUAL
        if self.put_buckets(&point, negative, b'"negative":') != OC_OK:
            return OC_UNUSUAL
        return self.finish(&point, context)

    cdef int put_scale(self, OcPoint* point, uint64_t scale, uint64_t zeros,
                       double threshold) except -1:
        oc_field(&self.detail, point.detail_from, b'"scale":')
        oc_whole(&self.detail, oc_zigzag(scale))
        oc_field(&self.detail, point.detail_from, b'"zero_count":')
        oc_count(&self.detail, zeros)
        oc_field(&self.detail, point.detail_from, b'"zero_threshold":')
        return oc_real(&self.detail, threshold)

    cdef int put_buckets(self, OcPoint* point, Slice body, const char* name) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice counts
        cdef uint64_t number, offset = 0
        cdef OcBuffer* out = &self.detail
        if body.at == NULL:
            return OC_OK
        memset(&counts, 0, sizeof(counts))
        while at < end:
            if at[0] == 8: at = read_varint(at + 1, end, &offset)
            elif at[0] == 18 and counts.at == NULL: at = read_slice(at + 1, end, &counts)
            else: return OC_UNUSUAL
            if at == NULL or offset > 0xffffffff:
                return OC_UNUSUAL
        if self.is_kept:
            oc_field(out, point.detail_from, name)
            oc_put(out, b'{"offset":', 10)
            oc_whole(out, oc_zigzag(offset))
            oc_put(out, b',"counts":[', 11)
        at = counts.at
        end = at + counts.size
        while at < end:
            if self.is_kept and at > counts.at: oc_put(out, b",", 1)
            at = read_varint(at, end, &number)
            if at == NULL:
                return OC_UNUSUAL
            if self.is_kept: oc_count(out, number)
        if self.is_kept: oc_put(out, b"]}", 2)
        return OC_OK

    cdef int read_summary(self, Slice body, int context) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Slice part
        cdef uint64_t flags = 0, count = 0
        cdef double total = 0
        cdef bint has_quantiles = False
        cdef OcPoint point = self.new_point()
        while at < end:
            tag = at[0]
            at += 1
            if tag == 58:
                at = read_slice(at, end, &part)
                if at == NULL or self.read_attribute(part, &point) != OC_OK:
                    return OC_UNUSUAL
                continue
            if tag == 25: at = read_word(at, end, &point.moment)
            elif tag == 17: at = read_word(at, end, &point.start)
            elif tag == 33: at = read_word(at, end, &count)
            elif tag == 41: at = read_word(at, end, &total)
            elif tag == 64: at = read_varint(at, end, &flags)
            elif tag == 50:
                at = read_slice(at, end, &part)
                has_quantiles = True
            else: return OC_UNUSUAL
            if at == NULL or flags > 0xffffffff:
                return OC_UNUSUAL
        if oc_is_negative_zero(total):
            return OC_UNUSUAL
        if self.is_kept:
            oc_field(&self.detail, point.detail_from, b'"count":')
            oc_count(&self.detail, count)
            oc_field(&self.detail, point.detail_from, b'"sum":')
            oc_real(&self.detail, total)
        if has_quantiles and self.put_quantiles(&point, body) != OC_OK:
            return OC_UNUSUAL
        return self.finish(&point, context)

    cdef int put_quantiles(self, OcPoint* point, Slice body) except -1:
        cdef Bytes at = body.at
        cdef Bytes end = body.at + body.size
        cdef Bytes place
        cdef Slice part
        cdef double place_of, value
        cdef OcBuffer* out = &self.detail
        cdef bint is_first = True
        if self.is_kept: oc_field(out, point.detail_from, b'"quantiles":')
        while next_part(&at, end, 50, &part):
            place_of = value = 0
            place = part.at
            while place < part.at + part.size:
                if place[0] == 9: place = read_word(place + 1, part.at + part.size, &place_of)
                elif place[0] == 17: place = read_word(place + 1, part.at + part.size, &value)
                else: return OC_UNUSUAL
                if place == NULL:
                    return OC_UNUSUAL
            if oc_is_negative_zero(place_of) or oc_is_negative_zero(value):
                return OC_UNUSUAL
            if self.is_kept:
                oc_put(out, b'[{"quantile":' if is_first else b',{"quantile":', 13)
                oc_real(out, place_of)
                oc_put(out, b',"value":', 9)
                oc_real(out, value)
                oc_put(out, b"}", 1)
            is_first = False
        return oc_put(out, b"]", 1) if self.is_kept else OC_OK
