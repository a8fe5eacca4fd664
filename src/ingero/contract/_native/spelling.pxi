# Numbers as text, as `repr` spells them. A double gets the fewest digits that read back as the same
# double, by Schubfach's method (R. Giulietti): the interval of decimals that round to it is scaled
# by a power of ten, and of the shortest decimals inside the nearest one is taken.

cdef extern from *:
    """
    typedef unsigned __int128 ingero_u128;
    """
    ctypedef unsigned long long ingero_u128

cdef enum:
    LEAST_POWER = -292
    POWERS = 617
    EXPONENT_FROM = 16  # digits before the point, from which repr writes an exponent

cdef uint64_t POWER_HIGH[617]
cdef uint64_t POWER_LOW[617]


def _fill_powers():
    """Round 10 ** k up to 128 significant bits, for every k that a double needs."""
    for place in range(POWERS):
        power = place + LEAST_POWER
        top = 10 ** max(power, 0)
        bottom = 10 ** max(-power, 0)
        shift = 128 - top.bit_length() + bottom.bit_length()
        scaled = -((-top << max(shift, 0)) // (bottom << max(-shift, 0)))
        if scaled >> 128:
            shift -= 1
            scaled = -((-top << max(shift, 0)) // (bottom << max(-shift, 0)))
        POWER_HIGH[place] = scaled >> 64
        POWER_LOW[place] = scaled & 0xFFFFFFFFFFFFFFFF


_fill_powers()


cdef inline int _spell_whole(char* out, uint64_t value) noexcept nogil:
    """Write digits and return how many."""
    cdef char digits[20]
    cdef int size = 0
    cdef int i
    while True:
        digits[size] = <char>(48 + value % 10)
        size += 1
        value //= 10
        if value == 0:
            break
    for i in range(size):
        out[i] = digits[size - 1 - i]
    return size


cdef inline int spell_integer(char* out, int64_t value) noexcept nogil:
    if value >= 0:
        return _spell_whole(out, <uint64_t>value)
    out[0] = c'-'
    return 1 + _spell_whole(out + 1, 0 - <uint64_t>value)


cdef inline uint64_t _scaled(uint64_t high, uint64_t low, uint64_t factor) noexcept nogil:
    """The product with a power of ten, without its 128 lowest bits; odd where those are not 0."""
    cdef ingero_u128 small = <ingero_u128>low * factor
    cdef ingero_u128 large = <ingero_u128>high * factor + <uint64_t>(small >> 64)
    return <uint64_t>(large >> 64) | (<uint64_t>large > 1)


cdef inline int64_t _log2_of_power(int64_t exponent) noexcept nogil:
    return (exponent * 1741647) >> 19  # floor(log2(10 ** exponent))


cdef uint64_t _shortest(uint64_t whole, int64_t power, bint is_edge, int64_t* ten) noexcept nogil:
    """The digits of whole * 2 ** power, and their power of ten.

    `is_edge` is set where the next smaller double is half as far away as the next larger one.
    """
    cdef uint64_t is_odd = whole & 1
    cdef int64_t k = (power * 1262611 - (524031 if is_edge else 0)) >> 22
    cdef int64_t shift = power + _log2_of_power(-k) + 1
    cdef uint64_t high = POWER_HIGH[-k - LEAST_POWER]
    cdef uint64_t low = POWER_LOW[-k - LEAST_POWER]
    cdef uint64_t middle = _scaled(high, low, (4 * whole) << shift)
    cdef uint64_t lower = _scaled(high, low, (4 * whole - 2 + is_edge) << shift) + is_odd
    cdef uint64_t upper = _scaled(high, low, (4 * whole + 2) << shift) - is_odd
    cdef uint64_t digits = middle // 4
    cdef uint64_t short = digits // 10
    cdef bint is_down, is_up
    if digits >= 10:
        is_down, is_up = lower <= 40 * short, 40 * short + 40 <= upper
        if is_down != is_up:
            ten[0] = k + 1
            return short + is_up
    ten[0] = k
    is_down, is_up = lower <= 4 * digits, 4 * digits + 4 <= upper
    if is_down != is_up:
        return digits + is_up
    is_up = middle > 4 * digits + 2
    if middle == 4 * digits + 2:
        is_up = digits & 1
    return digits + is_up


cdef int _place_point(char* out, uint64_t digits, int64_t ten) noexcept nogil:
    """Write digits * 10 ** ten as repr does: with an exponent where the point is far away."""
    cdef char text[20]
    cdef int size, i
    cdef int64_t point
    cdef int written = 0
    while digits % 10 == 0:
        digits //= 10
        ten += 1
    size = _spell_whole(text, digits)
    point = size + ten  # digits before it
    if -4 < point <= 0:
        memcpy(out, b"0.00000", 7)
        memcpy(out + 2 - point, text, size)
        return 2 - <int>point + size
    if 0 < point <= EXPONENT_FROM:
        for i in range(size if size > point else <int>point):
            if i == point:
                out[written] = c'.'
                written += 1
            out[written] = text[i] if i < size else c'0'
            written += 1
        if size <= point:
            memcpy(out + written, b".0", 2)
            written += 2
        return written
    out[0] = text[0]
    written = 1
    if size > 1:
        out[1] = c'.'
        memcpy(out + 2, text + 1, size - 1)
        written = size + 1
    out[written] = c'e'
    out[written + 1] = c'-' if point <= 0 else c'+'
    written += 2
    point = 1 - point if point <= 0 else point - 1
    if point < 10:
        out[written] = c'0'
        written += 1
    return written + _spell_whole(out + written, <uint64_t>point)


cdef int spell_real(char* out, double value) noexcept nogil:
    """Write a finite double, at most MAX_SPELLED octets, and return how many."""
    cdef uint64_t bits, fraction, whole, digits
    cdef int64_t exponent, power, ten
    cdef int negative = 0
    memcpy(&bits, &value, 8)
    if bits >> 63:
        out[0] = c'-'
        negative = 1
        out += 1
    fraction = bits & 0xFFFFFFFFFFFFFU
    exponent = (bits >> 52) & 0x7FF
    if exponent == 0 and fraction == 0:
        memcpy(out, b"0.0", 3)
        return negative + 3
    whole = fraction | (<uint64_t>1 << 52) if exponent else fraction
    power = (exponent if exponent else 1) - 1075
    if -53 < power <= 0 and not whole & ((<uint64_t>1 << -power) - 1):  # a whole number
        ten = _spell_whole(out, whole >> -power)
        memcpy(out + ten, b".0", 2)
        return <int>(negative + ten + 2)
    digits = _shortest(whole, power, fraction == 0 and exponent > 1, &ten)
    return negative + _place_point(out, digits, ten)


def spell(double value):
    """Return what `repr` returns for a finite double."""
    cdef char text[MAX_SPELLED]
    return text[:spell_real(text, value)].decode("ascii")
