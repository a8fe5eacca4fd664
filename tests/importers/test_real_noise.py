"""Faults added to the records of a real healthy job: real scatter with a known truth."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.support.shared_data import shared

from ingero.core.blame.records import blame_records
from ingero.core.blame.whatif import build_chain, replay_chain
from ingero.core.collectives.columns import Collectives, from_records
from ingero.importers.collectives_csv import read_csv

PER_STEP = 3  # two tensor-parallel collectives, then the data-parallel one


def _injected(gpu: Mapping[int, float], host: Mapping[int, float], every: int) -> Collectives:
    """Replay the healthy run with longer gaps.

    These are a share more GPU work, or seconds of host time at the start of a step.
    """
    path = shared("data/nccl-h200/healthy/collectives.csv")
    base = from_records(read_csv(path, path.read_text()))
    chain = build_chain(base)
    assert chain is not None
    rows = base.take(chain.rows)
    rank = np.array([rows.recorders[w].global_rank for w in rows.who])
    place = np.concatenate(
        [np.arange(count) for count in np.unique(rows.who, return_counts=True)[1]]
    )
    gap, asleep = chain.gap_s.copy(), np.zeros(len(rows))
    running = chain.before >= 0
    for who, share in gpu.items():
        gap[(rank == who) & (place % PER_STEP != PER_STEP - 1) & running] *= 1 + share
    for who, seconds in host.items():
        asleep[
            (rank == who) & (place % PER_STEP == 0) & (place // PER_STEP % every == 0) & running
        ] = seconds
    gap += asleep
    end = replay_chain(chain, gap)
    previous = np.where(running, end[np.maximum(chain.before, 0)], 0.0)
    entry = previous + gap
    ahead = (rows.start_ns - rows.end_ns[np.maximum(chain.before, 0)]) / 1e9
    enqueue = np.minimum(np.where(running, previous + ahead + asleep, entry), entry)
    start_ns, entry_ns, end_ns = (
        (np.rint(t * 1e9)).astype(np.int64) + rows.start_ns.min() for t in (enqueue, entry, end)
    )
    return replace(
        rows, start_ns=start_ns, end_ns=end_ns, gpu_duration_ns=np.maximum(end_ns - entry_ns, 0)
    )


@pytest.mark.parametrize("exact_ends", [True, False])
@pytest.mark.parametrize("rank", range(8))
def test_three_percent_of_gpu_work_is_found_on_any_rank(rank: int, exact_ends: bool) -> None:
    answer = blame_records(_injected({rank: 0.03}, {}, 1), exact_ends, "test")
    assert [c.rank for c in answer.culprits] == [rank]
    if exact_ends:
        assert str(answer.culprits[0].cause) == "compute"


@pytest.mark.parametrize(
    ("gpu", "host", "every", "truth"),
    [
        ({}, {}, 1, set()),
        ({1: 0.05, 6: 0.05}, {}, 1, {(1, "compute", None), (6, "compute", None)}),
        ({}, {2: 0.001}, 1, {(2, "host", None)}),
        ({}, {5: 0.02}, 14, {(5, "host", 14)}),
        ({}, {5: 0.003}, 14, {(5, "host", 14)}),
        ({0: 0.1}, {7: 0.002}, 1, {(0, "compute", None), (7, "host", None)}),
    ],
)
def test_faults_of_every_kind_are_distinguished(
    gpu: Mapping[int, float],
    host: Mapping[int, float],
    every: int,
    truth: set[tuple[int, str, int | None]],
) -> None:
    answer = blame_records(_injected(gpu, host, every), True, "test")
    assert {(c.rank, str(c.cause), c.period) for c in answer.culprits} == truth
    if host and not gpu:
        (lost,) = host.values()
        assert answer.loss_s == pytest.approx(lost / every, rel=0.2)
