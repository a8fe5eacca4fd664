"""What the reading child sends: records survive the way, and nothing else is accepted."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.cli.recordings.wire import (
    Answered,
    Batch,
    decode,
    decode_records,
    encode,
    encode_records,
)
from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer, Culprit, Fix, Heat
from ingero.errors import MalformedInput

NUMBER = st.integers(0, 2**62)
TEXT = st.text(max_size=8)
RECORD = st.builds(
    CollectiveRecord,
    job=st.none() | TEXT, node=st.none() | TEXT, global_rank=st.none() | NUMBER,
    comm=st.integers(0, 2**64 - 1), seq=st.none() | NUMBER, op=TEXT, rank=NUMBER, nranks=NUMBER,
    peer=st.none() | NUMBER, datatype=TEXT, reduce_op=st.none() | TEXT, size_bytes=NUMBER,
    start_ns=NUMBER, end_ns=NUMBER, gpu_duration_ns=st.none() | NUMBER, stream=st.none() | NUMBER,
    source=st.sampled_from(CollectiveSource), barrier_wait_ns=st.none() | NUMBER,
)  # fmt: skip
TEXTS = ("job", "node", "op", "datatype", "reduce_op", "source")
ONE = CollectiveRecord(
    job=None, node="n", global_rank=0, comm=1, seq=None, op="AllReduce", rank=0, nranks=2,
    peer=None, datatype="uint8", reduce_op=None, size_bytes=8, start_ns=1, end_ns=2,
    gpu_duration_ns=None, stream=None, source=CollectiveSource.KINETO,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(RECORD, max_size=20))
def test_records_survive_the_way(records: list[CollectiveRecord]) -> None:
    sent = list(encode_records(records))
    assert [record for batch in sent for record in decode_records(batch)] == records


def test_an_answer_with_its_heat_map_survives_the_way() -> None:
    heat = Heat(("rank 0", "rank 1"), (1, 2, 3), np.array([[1.0, np.nan, 2.0], [0.5, 1.0, 1.5]]))
    culprit = Culprit(worker="rank 1", rank=1, cause=CauseClass.HOST, confidence=0.9)
    answer = Answer(
        source="kineto", culprits=(culprit,), fixes=(Fix("rank 1", 1.0, 0.1),), shares={"m_w": 0.5}
    )
    found = decode(encode(Answered(replace(answer, heat=heat), {"kineto trace": 2})), Answered)
    assert found.kinds == {"kineto trace": 2}
    assert found.answer.heat is not None
    np.testing.assert_array_equal(found.answer.heat.values, heat.values)
    assert replace(found.answer, heat=None) == answer


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    for kind in (Answered, Batch):
        with pytest.raises(MalformedInput):
            decode(data, kind)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 2},
        {"rows": -1},
        {"rows": 1 << 40},
        {"comm": b"1234567"},
        {"integers": {}},
        {"codes": {}},
        {"tables": {}},
        {"tables": {key: ["x"] for key in TEXTS}},
        {"tables": {key: [None] for key in TEXTS}},
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_together_are_refused(changes: dict[str, object]) -> None:
    (data,) = encode_records([ONE])
    sent = msgspec.msgpack.decode(data)
    with pytest.raises(MalformedInput):
        decode_records(encode({**sent, **changes}))


@pytest.mark.parametrize("shape", [[1, 1], [3, -1], [0, 0], [1], "x"])
def test_a_table_of_another_size_than_its_bytes_is_refused(shape: object) -> None:
    heat = Heat(("a",), (1, 2), np.ones((1, 2)))
    sent = msgspec.msgpack.decode(encode(Answered(Answer(source="kineto", heat=heat), {})))
    sent["answer"]["heat"]["values"][0] = shape
    with pytest.raises(MalformedInput):
        decode(encode(sent), Answered)


def test_a_value_that_is_no_number_is_refused_before_it_is_sent() -> None:
    with pytest.raises(MalformedInput, match="impossible value"):
        list(encode_records([replace(ONE, rank="zero")]))  # type: ignore[arg-type]  # the point
