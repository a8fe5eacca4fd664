"""Hypothesis strategies for whole OTLP requests, small but touching every field."""

from typing import get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from ingero.contract.otlp import values as otlp

texts = st.text(st.characters(codec="utf-8"), max_size=4)
times = st.integers(0, 2**64 - 1)
floats = st.floats(allow_nan=False)


def any_values() -> st.SearchStrategy[otlp.AnyValue]:
    scalars = st.one_of(
        st.none(),
        texts,
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        floats,
        st.binary(max_size=3),
    )
    plains = st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
        max_leaves=3,
    )
    return plains.map(otlp.any_value)


def values(cls: type) -> st.SearchStrategy:
    """A value of any OTLP type, every field drawn or left at its default."""
    hints = get_type_hints(cls, include_extras=True)
    fields = {
        field.name: st.just(field.default) | _field(hints[field.name])
        for field in msgspec.structs.fields(cls)
    }
    if cls in (otlp.NumberPoint, otlp.Exemplar):  # one of the two, as the protocol says
        return st.one_of(
            st.builds(cls, **fields | {"as_int": st.none()}),
            st.builds(cls, **fields | {"as_double": st.none()}),
        )
    if cls is otlp.Metric:
        kinds = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
        return st.one_of(
            *(
                st.builds(cls, **fields | {other: st.none() for other in kinds if other != kind})
                for kind in kinds
            )
        )
    return st.builds(cls, **fields)


def _field(hint: object) -> st.SearchStrategy:
    arguments = get_args(hint)
    if type(None) in arguments:
        return st.none() | _field(
            next(argument for argument in arguments if argument is not type(None))
        )
    if get_origin(hint) is tuple:
        return st.lists(_field(arguments[0]), max_size=2).map(tuple)
    scalars = {
        otlp.UInt64: times,
        otlp.Int64: st.integers(-(2**63), 2**63 - 1),
        otlp.UInt32: st.integers(0, 2**32 - 1),
        otlp.Int32: st.integers(0, 3),
        otlp.TraceId: st.just("") | st.binary(min_size=16, max_size=16).map(bytes.hex),
        otlp.SpanId: st.just("") | st.binary(min_size=8, max_size=8).map(bytes.hex),
        str: texts,
        float: floats,
        bool: st.booleans(),
        otlp.AnyValue: any_values(),
    }
    return scalars[hint] if hint in scalars else values(hint)
