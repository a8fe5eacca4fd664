"""F067, F068: NCCL calls become collective records, and a late rank shows in real processes."""

import numpy as np

from ingero.agent.ebpf.layout import FLAG_FAILED
from ingero.contract.collective import CollectiveRecord, CollectiveSource

NCCL = "nccl = load('libnccl.so.2')\n"
INIT = "comm = P()\nnccl.ncclCommInitRank(ctypes.byref(comm), I({nranks}), uid({id}), I({rank}))\n"
WORDS_0_TO_15 = 0xDC2F0BC959602C90  # hash of an id whose 16 little-endian words are 0..15
BYTES_0_TO_127 = 0x6BE39448E8F92CDA
WORDS = "b''.join(n.to_bytes(8, 'little') for n in range(16))"
ALL_REDUCE, SEND, RECV = 3, 7, 8


def records_of(tracing) -> list[CollectiveRecord]:
    return [record for batch in tracing.batches for record in batch.collectives(job="j", node="n")]


def test_collective_record_carries_everything_the_call_was_given(job, trace) -> None:
    process = job()
    process.do(NCCL)
    tracing = trace(pids=(process.pid,))
    process.do(
        INIT.format(nranks=4, id="range(128)", rank=3)
        + "nccl.ncclAllReduce(P(1), P(2), S(1 << 33), I(9), I(2), comm, P(0x5eed0000beef))\n"
    )
    tracing.wait(lambda: len(tracing.nccl) == 2)
    (record,) = records_of(tracing)
    assert record.end_ns > record.start_ns
    assert record == CollectiveRecord(
        job="j", node="n", global_rank=None, comm=BYTES_0_TO_127, seq=0, op="AllReduce", rank=3,
        nranks=4, peer=None,
        datatype="bfloat16", reduce_op="max", size_bytes=2 << 33, start_ns=record.start_ns,
        end_ns=record.end_ns,
        gpu_duration_ns=None, stream=0x5EED0000BEEF, source=CollectiveSource.EBPF,
    )  # fmt: skip
    init = tracing.nccl[0]
    assert (int(init["op"]), int(init["comm_hash"]), int(init["rank"]), int(init["nranks"])) == (
        1,
        BYTES_0_TO_127,
        3,
        4,
    )


def test_sequence_numbers_count_per_communicator_and_per_direction_of_a_pair(job, trace) -> None:
    process = job()
    process.do(NCCL)
    tracing = trace(pids=(process.pid,))
    process.do(
        INIT.format(nranks=2, id=WORDS, rank=0)
        + "first = comm\n"
        + INIT.format(nranks=2, id="range(128)", rank=1)
        + "second = comm\n"
        "def reduce(c): nccl.ncclAllReduce(P(1), P(2), S(8), I(7), I(0), c, P(0))\n"
        "def send(c, peer): nccl.ncclSend(P(1), S(8), I(7), I(peer), c, P(0))\n"
        "def recv(c, peer): nccl.ncclRecv(P(1), S(8), I(7), I(peer), c, P(0))\n"
        "reduce(first); reduce(second); reduce(first)\n"
        "send(first, 0); send(first, 1); send(first, 0); recv(first, 0); reduce(first)\n"
        "nccl.ncclAllGather(P(1), P(2), S(8), I(7), second, P(0))\n"
    )
    tracing.wait(lambda: len(tracing.nccl) == 11)
    seen = [(record.comm, record.op, record.peer, record.seq) for record in records_of(tracing)]
    one, two = WORDS_0_TO_15, BYTES_0_TO_127
    assert seen == [
        (one, "AllReduce", None, 0),
        (two, "AllReduce", None, 0),
        (one, "AllReduce", None, 1),
        (one, "Send", 0, 0),
        (one, "Send", 1, 0),
        (one, "Send", 0, 1),
        (one, "Recv", 0, 0),
        (one, "AllReduce", None, 2),
        (two, "AllGather", None, 1),
    ]


def test_communicator_at_the_address_of_another_starts_counting_anew(job, trace) -> None:
    """Ranks reuse addresses differently: a count that continued would not match its peers."""
    process = job()
    process.do(NCCL)
    tracing = trace(pids=(process.pid,))
    send = "nccl.ncclSend(P(1), S(8), I(7), I(1), comm, P(0))\n"
    first, second = (
        INIT.format(nranks=2, id=WORDS, rank=0),
        INIT.format(nranks=2, id="range(128)", rank=0),
    )
    process.do(f"{first}old = comm.value\n{send}{send}nccl.ncclCommDestroy(comm)\n")
    assert process.do(f"{second}{send}result = comm.value == old") == "True"
    tracing.wait(lambda: len(records_of(tracing)) == 3)
    assert [(one.comm, one.seq) for one in records_of(tracing)] == [
        (WORDS_0_TO_15, 0),
        (WORDS_0_TO_15, 1),
        (BYTES_0_TO_127, 0),
    ]


def test_call_that_goes_on_by_itself_has_not_failed(job, trace) -> None:
    """A communicator that does not block answers `ncclInProgress`."""
    process = job()
    process.do(NCCL)
    tracing = trace(pids=(process.pid,))
    reduce = "nccl.ncclAllReduce(P(1), P(2), S({}), I(7), I(0), comm, P(0))\n"
    process.do(INIT.format(nranks=2, id=WORDS, rank=0) + reduce.format(667) + reduce.format(666))
    tracing.wait(lambda: len(records_of(tracing)) == 2)
    calls = tracing.nccl[tracing.nccl["op"] == ALL_REDUCE]
    assert calls["ret"].tolist() == [7, 4]
    assert (calls["flags"] & FLAG_FAILED > 0).tolist() == [False, True]
    assert [row.failed for row in tracing.tracer.histograms() if row.name == "ncclAllReduce"] == [1]


def test_bcast_made_of_broadcast_counts_once(job, trace) -> None:
    process = job()
    process.do(NCCL)
    tracing = trace(pids=(process.pid,))
    process.do(
        INIT.format(nranks=2, id=WORDS, rank=0)
        + "nccl.ncclBcast(P(1), S(16), I(6), I(0), comm, P(3))\n"
        "nccl.ncclBroadcast(P(1), P(1), S(16), I(6), I(0), comm, P(3))\n"
        "nccl.ncclReduce(P(1), P(1), S(16), I(6), I(0), I(1), comm, P(0x44))\n"
    )
    tracing.wait(lambda: len(tracing.nccl) == 4)
    tracing.poll()
    seen = [
        (record.op, record.seq, record.size_bytes, record.stream) for record in records_of(tracing)
    ]
    assert seen == [("Broadcast", 0, 32, 3), ("Broadcast", 1, 32, 3), ("Reduce", 2, 32, 0x44)]
    assert tracing.count(process.pid, "ncclBroadcast") == 1


def test_communicators_by_config_by_all_and_by_split(job, trace) -> None:
    process = job()
    process.do(NCCL)
    tracing = trace(pids=(process.pid,))
    reduce = "nccl.ncclAllReduce(P(1), P(2), S(8), I(7), I(0), {}, P(0))\n"
    process.do(
        "comm = P(); child = P(); both = (P * 2)(); rank = I(); count = I()\n"
        f"nccl.ncclCommInitRankConfig(ctypes.byref(comm), I(9), uid({WORDS}), I(8), None)\n"
        + reduce.format("comm")
        + "nccl.ncclCommSplit(comm, I(1), I(0), ctypes.byref(child), None)\n"
        + reduce.format("child")
        + "nccl.ncclCommUserRank(child, ctypes.byref(rank))\n"
        + "nccl.ncclCommCount(child, ctypes.byref(count))\n"
        + reduce.format("child")
        + "nccl.ncclCommInitAll(both, I(2), None)\n"
        + reduce.format("P(both[1])")
    )
    tracing.wait(lambda: len(records_of(tracing)) == 4)
    config, split, asked, together = records_of(tracing)
    assert (config.comm, config.rank, config.nranks) == (WORDS_0_TO_15, 8, 9)
    assert (split.rank, split.nranks) == (-1, -1), "unknown is not zero"
    assert (asked.comm, asked.rank, asked.nranks, asked.seq) == (split.comm, 5, 6, 1)
    assert split.comm not in (0, config.comm)
    assert (together.rank, together.nranks) == (1, 2) and together.comm != 0


def test_communicator_made_before_we_came_is_counted_without_an_identity(job, trace) -> None:
    process = job()
    process.do(NCCL + INIT.format(nranks=4, id=WORDS, rank=3))
    tracing = trace(pids=(process.pid,))
    process.do("[nccl.ncclAllReduce(P(1), P(2), S(8), I(7), I(0), comm, P(0)) for _ in range(2)]")
    tracing.wait(lambda: len(tracing.nccl) == 2)
    assert [(one.comm, one.rank, one.nranks, one.seq) for one in records_of(tracing)] == [
        (0, -1, -1, 0),
        (0, -1, -1, 1),
    ]


def test_unreadable_or_empty_id_makes_no_communicator(job, trace) -> None:
    process = job()
    process.do(NCCL)
    tracing = trace(pids=(process.pid,))
    process.do(
        INIT.format(nranks=4, id="bytes(128)", rank=3)
        + "nccl.ncclAllReduce(P(1), P(2), S(8), I(7), I(0), comm, P(0))\n"
    )
    tracing.wait(lambda: len(tracing.nccl) == 2)
    (record,) = records_of(tracing)
    assert (record.comm, record.rank) == (0, -1)


def test_destroyed_communicator_is_forgotten_and_failures_are_kept(job, trace) -> None:
    process = job()
    process.do(NCCL)
    tracing = trace(pids=(process.pid,))
    process.do(
        INIT.format(nranks=4, id=WORDS, rank=3)
        + "nccl.ncclAllReduce(P(1), P(2), S(666), I(7), I(0), comm, P(0))\n"
        "nccl.ncclGroupStart(); nccl.ncclGroupEnd()\nnccl.ncclCommDestroy(comm)\n"
        "nccl.ncclAllReduce(P(1), P(2), S(8), I(7), I(0), comm, P(0))\n"
    )
    tracing.wait(lambda: len(tracing.nccl) == 6)
    assert tracing.nccl["op"].tolist() == [1, 3, 15, 16, 2, 3]
    assert tracing.nccl["ret"].tolist()[1] == 4
    assert [int(tracing.nccl["comm_hash"][index]) for index in (4, 5)] == [WORDS_0_TO_15, 0]


RANK_LOOP = """
import mmap
nccl = load('libnccl.so.2')
memory = mmap.mmap(os.open({barrier!r}, os.O_RDWR), 4096)
nccl.test_use_barrier(P(ctypes.addressof(ctypes.c_char.from_buffer(memory))))
comm = P()
"""
STEPS = """
nccl.ncclCommInitRank(ctypes.byref(comm), I(8), uid(range(128)), I({rank}))
for step in range(42):
    time.sleep(0.005)
    memory[2048 + {rank}] = step
    if {rank} == 5 and step % 14 == 13:
        while any(memory[2048 + rank] != step for rank in range(8)): time.sleep(0.001)
        time.sleep(0.5)
    nccl.ncclAllReduce(P(1), P(2), S(1 << 20), I(7), I(0), comm, P(0))
"""


def test_rank_that_arrives_late_every_14th_call_is_named_by_lateness(job, trace, tmp_path) -> None:
    """Eight processes with a real barrier in ncclAllReduce; one is 0.5 s late every 14th call."""
    shared = tmp_path / "barrier"
    shared.write_bytes(bytes(4096))
    ranks = [job() for _ in range(8)]
    for process in ranks:
        process.do(RANK_LOOP.format(barrier=str(shared)))
    ranks[0].do(
        "libc = ctypes.CDLL(None); attr = (ctypes.c_char * 64)()\n"
        "libc.pthread_barrierattr_init(attr); libc.pthread_barrierattr_setpshared(attr, 1)\n"
        "place = P(ctypes.addressof(ctypes.c_char.from_buffer(memory)))\n"
        "result = libc.pthread_barrier_init(place, attr, 8)\n"
    )
    tracing = trace(pids=tuple(process.pid for process in ranks))
    for rank, process in enumerate(ranks):
        process.send(STEPS.format(rank=rank))
    tracing.wait(lambda: len(records_of(tracing)) == 8 * 42)
    started = np.zeros((42, 8))
    for record in records_of(tracing):
        assert (record.comm, record.nranks) == (BYTES_0_TO_127, 8)
        started[record.seq, record.rank] = record.start_ns
    last = np.sort(started, axis=1)
    behind_ms = (last[:, -1] - last[:, -2]) / 1e6  # the last one behind the last but one
    late = np.flatnonzero(behind_ms > 300)
    assert [(int(step), int(started[step].argmax())) for step in late] == [
        (13, 5), (27, 5), (41, 5)
    ]  # fmt: skip
    assert not any(tracing.tracer.losses().values())
