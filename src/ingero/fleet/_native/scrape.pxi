# Series whose labels are known. Twin of `fleet/scrape/known.py`.

cdef str _value_text(object value):
    """The text of a number, as `render_value` in `contract/exposition.py` writes it."""
    cdef char text[MAX_SPELLED]
    cdef double real
    if type(value) is not float:
        return str(value)
    real = value
    if real != real:
        return "NaN"
    if real - real != 0.0:
        return "+Inf" if real > 0.0 else "-Inf"
    if -1e15 < real < 1e15 and real == <double><int64_t>real:
        return str(<int64_t>real)
    return PyUnicode_DecodeASCII(text, spell_real(text, real), NULL)


def add_known(list places, tuple numbers, dict families, Py_ssize_t total, Py_ssize_t most):
    """Add the series of a body; return how many there are now, and how many were left out."""
    cdef Py_ssize_t number, dropped = 0
    cdef tuple place, family, present
    cdef dict samples
    if len(numbers) != 2 * len(places):
        raise ValueError("each series has one time and one value")
    for number in range(len(places)):
        place = <tuple>places[number]
        family = families.get(place[0])
        if family is None:
            family = families[place[0]] = (place[1], place[2], {})
        samples = <dict>family[2]
        present = samples.get(place[3])
        at_ns = numbers[2 * number]
        if present is None:
            if total >= most:
                dropped += 1
                continue
            total += 1
        elif present[0] > at_ns:
            continue
        samples[place[3]] = (at_ns, _value_text(numbers[2 * number + 1]))
    return total, dropped


def lines_of(str name, samples):
    """Return the lines of some samples of one family."""
    cdef list pieces = []
    cdef tuple item, sample
    for item in samples:
        sample = <tuple>item[1]
        pieces.append(name)
        pieces.append(item[0])
        pieces.append(" ")
        pieces.append(sample[1])
        pieces.append("\n")
    return "".join(pieces).encode()
