"""F089, F092: of thinned collectives, the answers are those of all, and say that they estimate."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.echo_service import RunningEcho
from tests.support.questions_data import collective_bodies, collectives

from ingero.contract.collective import CollectiveRecord
from ingero.core.collectives.step_sample import Weights, is_chosen

STEPS, RANKS = 1200, 4
SHARES = {"half": 0.5, "few": 0.12, "hardly": 0.03}


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEcho]:
    with RunningEcho(
        tmp_path_factory.mktemp("echo"), bearer_rate=10_000, bearer_burst=100_000
    ) as running:
        constant = two_kinds(collectives(STEPS, RANKS, {s: {2: 30.0} for s in range(STEPS)}))
        for name, share in {"all": 1.0, **SHARES}.items():
            for body in collective_bodies(name, thinned(constant, share)):
                assert running.send(body).status == 200
        stalls = {step: {1: 290.0} for step in range(3, STEPS, 14)}
        stalling = collectives(STEPS, RANKS, stalls, is_gpu_timed=True)
        for name, share in (("stalls", 1.0), ("few-stalls", 0.25)):
            for body in collective_bodies(name, thinned(stalling, share)):
                assert running.send(body).status == 200
        yield running


def two_kinds(records: list[CollectiveRecord]) -> list[CollectiveRecord]:
    """Every sequence number is a step; in each third one the message is large."""
    return [
        replace(
            record,
            size_bytes=1 << 28 if (record.seq or 0) % 3 == 0 else 1 << 20,
            gpu_duration_ns=record.end_ns - record.start_ns,
        )
        for record in records
    ]


def thinned(records: list[CollectiveRecord], share: float) -> list[CollectiveRecord]:
    """Choose and weigh as the agent of each rank does, a hundred steps at a time."""
    sent = []
    for rank in range(RANKS):
        weights, own = Weights(), [each for each in records if each.rank == rank]
        for first in range(0, len(own), 100):
            part = own[first : first + 100]
            kinds = weights.codes(
                ("AllReduce",), np.zeros(len(part), int), np.array([r.size_bytes for r in part])
            )
            weights.seen(kinds)
            chosen = np.flatnonzero(is_chosen(np.array([r.seq for r in part]), share))
            pairs = zip(chosen.tolist(), weights.of(kinds[chosen]).tolist(), strict=True)
            sent += [replace(part[at], weight=weight) for at, weight in pairs]
    return sorted(sent, key=lambda each: each.end_ns)


def ask(echo: RunningEcho, tool: str, cluster: str, **arguments: Any) -> Any:
    return echo.answer(tool, cluster_id=cluster, window="all", **arguments)


@pytest.mark.parametrize("name", SHARES)
def test_f089_counts_and_bytes_are_those_of_all_collectives(echo: RunningEcho, name: str) -> None:
    whole, part = (ask(echo, "nccl_summary", cluster) for cluster in ("all", name))
    assert (whole["estimated"], part["estimated"]) == (False, True)
    assert part["records"] < 0.6 * whole["records"]
    assert any(note.startswith("estimated: agents sent") for note in part["notes"])
    assert part["truncated"] is False
    ((one,), (other,)) = whole["ops"], part["ops"]
    assert one["collectives"] == STEPS and one["bytes"] == exact_bytes()
    for field in ("collectives", "bytes", "waited_rank_seconds", "p50_ms"):
        assert other[field] == pytest.approx(one[field], rel=0.02), field
    ranks = {row["rank"]: row for row in part["ranks"]}
    for row in whole["ranks"]:
        for field in ("collectives", "bytes", "late_times", "caused_rank_seconds"):
            assert ranks[row["rank"]][field] == pytest.approx(row[field], rel=0.02), field
    assert (part["late"]["rank"], part["late"]["times"]) == (2, pytest.approx(STEPS, rel=0.02))


def exact_bytes() -> int:
    return sum(RANKS * (1 << 28 if step % 3 == 0 else 1 << 20) for step in range(STEPS))


@pytest.mark.parametrize("name", SHARES)
def test_f092_the_cost_is_that_of_all_collectives(echo: RunningEcho, name: str) -> None:
    whole, part = (
        ask(echo, "get_cost", cluster, usd_per_gpu_hour=4.0) for cluster in ("all", name)
    )
    assert (whole["estimated"], part["estimated"]) == (False, True)
    assert whole["amount"] == pytest.approx(STEPS * 0.030 * 3 * 4.0 / 3600, rel=1e-6)
    assert part["amount"] == pytest.approx(whole["amount"], rel=0.02)
    assert part["rows"][0]["name"] == whole["rows"][0]["name"] == "node-02"
    assert part["rows"][0]["collectives"] == pytest.approx(STEPS, rel=0.02)


def test_the_period_of_stalls_is_found_in_a_sample(echo: RunningEcho) -> None:
    whole, part = (ask(echo, "nccl_summary", name)["late"] for name in ("stalls", "few-stalls"))
    assert (whole["rank"], whole["period"]) == (part["rank"], part["period"]) == (1, 14)


def test_every_collective_has_its_lateness_in_sql(echo: RunningEcho) -> None:
    sql = """SELECT rank, median(lateness_ms), median(peer_lag_ms) FROM collective_lateness
      WHERE cluster_id = 'all' GROUP BY rank ORDER BY rank"""
    rows = echo.sql(sql).json["data"]["rows"]
    assert rows == [[rank, 30.0, -30.0] if rank == 2 else [rank, 0.0, 0.0] for rank in range(4)]
