"""A job whose collectives repeat nothing cannot be judged: replies, counts and headline say so."""

from dataclasses import replace

import numpy as np
from tests.support.verdict_pushes import START_S, own_time_push

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.fleet_api import RankCounts
from ingero.contract.measurements.collectives import encode_collectives
from ingero.contract.verdict import VerdictState, decode_verdicts
from ingero.core.live.headline import ClusterFacts, make_headline
from ingero.core.verdict.events.stepless import SAID_AFTER_S
from ingero.fleet.verdicts import VerdictService

SAID = "no repeating step is recognised in job j, its 2 ranks cannot be judged"


def _calls(second: int, dice: np.random.Generator) -> list[list[CollectiveRecord]]:
    """Return what two ranks do in a second: reductions of any size."""
    sizes = dice.integers(1 << 20, 1 << 28, 10).tolist()
    begin_ns = (second + 1) * 1_000_000_000
    return [
        [
            CollectiveRecord(
                job="j", node=f"n{rank}", global_rank=rank, comm=1, seq=second * 10 + number,
                op="AllReduce", rank=rank, nranks=2, peer=None, datatype="float32",
                reduce_op="sum", size_bytes=size, stream=None,
                start_ns=begin_ns + number * 80_000_000,
                end_ns=begin_ns + number * 80_000_000 + 40_000_000,
                gpu_duration_ns=20_000_000, source=CollectiveSource.PLUGIN,
            )
            for number, size in enumerate(sizes)
        ]
        for rank in range(2)
    ]  # fmt: skip


def test_a_job_without_repeating_steps_is_said_to_be_unjudged() -> None:
    service, dice = VerdictService(), np.random.default_rng(3)
    for second in range(int(SAID_AFTER_S) + 10):
        for rank, records in enumerate(_calls(second, dice)):
            service.take(encode_collectives(records, "c", f"n{rank}"), "c", START_S + second)
        service.tick(START_S + second)
    for node in ("n0", "n1"):
        (reply,) = decode_verdicts(service.texts["c", node])
        assert (reply.state, reply.evidence) == (VerdictState.NOT_SURE, SAID)
    assert service.texts["c", "n0"] is service.texts["c", "n1"], "it is encoded once"
    assert service.rank_counts("c") == RankCounts(without_steps=2)
    verdicts = service.recent_verdicts("c")
    facts = ClusterFacts(slow_nodes=(), silenced_nodes=(), threshold=None, doubt="")
    assert SAID in make_headline(verdicts, facts).text


def test_a_rank_that_gets_the_row_of_one_that_left_is_not_said_to_be_unjudged() -> None:
    service, dice = VerdictService(), np.random.default_rng(3)
    for second in range(int(SAID_AFTER_S) + 10):
        for rank, records in enumerate(_calls(second, dice)):
            service.take(encode_collectives(records, "c", f"n{rank}"), "c", START_S + second)
        service.tick(START_S + second)
    cluster = service.clusters["c"]
    row = cluster.members["n1", "j", 1]
    cluster._release([row])
    cluster.keys[row] = ("n9", "k", 0)
    service.tick(START_S + SAID_AFTER_S + 10)
    assert {job: said.nodes for job, said in cluster.stepless.jobs.items()} == {"j": {"n0"}}


def test_so_is_one_whose_steps_are_no_longer_recognised() -> None:
    """Its agents send single collectives again."""
    service, dice = VerdictService(), np.random.default_rng(3)
    for second in range(int(SAID_AFTER_S) + 40):
        for rank, records in enumerate(_calls(second, dice)):
            if second < 30:
                service.take(own_time_push(f"n{rank}", rank, second, 500.0), "c", START_S + second)
            step = second if second < 30 else None
            sent = [replace(each, step=step) for each in records]
            service.take(encode_collectives(sent, "c", f"n{rank}"), "c", START_S + second)
        service.tick(START_S + second)
        said = SAID in {verdict.evidence for verdict in service.recent_verdicts("c")}
        assert said == (second >= 30 + SAID_AFTER_S)
