"""Real jobs as the NCCL plugin recorded them, replayed through agent and Fleet."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from tests.support.replayed_rings import Replayed, Said, replay
from tests.support.ring_recordings import Recording, find_recordings
from tests.support.shared_data import shared

from ingero.contract import names
from ingero.contract.measurements.ranks import decode_ranks
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import CauseClass, VerdictState
from ingero.core.verdict.policy import VerdictPolicy
from ingero.fleet.verdicts import VerdictService

JOBS = ("ddp", "accum", "fsdp", "pp")


@dataclass
class Received:
    """What Fleet received of each rank: spans of steps, and the steps that were sent whole.

    `held` is how many own times wait for more after each tick.
    """

    spans_ms: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    whole: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    held: list[int] = field(default_factory=list)
    observed: int = 0

    def take(self, now_s: float, request: MetricsRequest) -> None:
        for measured in decode_ranks(request):
            rank = int(str(measured.resource[names.RANK]))
            self.spans_ms[rank] += [each.span_ms for each in measured.own_times]
            for each in measured.collectives:
                if each.step is not None:
                    self.whole[rank][each.step] = self.whole[rank].get(each.step, 0) + 1

    def look(self, now_s: float, service: VerdictService) -> None:
        for cluster in service.clusters.values():
            self.observed += 0 if cluster.observed is None else len(cluster.observed[0])
        self.held.append(sum(map(len, self.spans_ms.values())) - self.observed)


def recorded(job: str, name: str) -> Recording:
    folder = shared(f"data/nccl-jobs/{job}")
    return next(each for each in find_recordings([folder]) if each.name == f"{job}/{name}")


@cache
def healthy(job: str) -> tuple[Replayed, Received]:
    received = Received()
    result = replay(
        recorded(job, "healthy"), nodes=2, on_request=received.take, on_tick=received.look
    )
    return result, received


@cache
def slow_gpu() -> Replayed:
    return replay(recorded("ddp", "rank_6_gpu_6p"), nodes=2)


def named_in(result: Replayed) -> list[Said]:
    return [each for each in result.said if each.verdict.state is VerdictState.STRAGGLER]


@pytest.mark.parametrize("job", JOBS)
def test_nobody_is_named_in_a_healthy_job(job: str) -> None:
    """F067: and every record of the rings is read. A slow rank would be named."""
    assert {each.verdict.rank for each in named_in(slow_gpu())} == {6}
    result, _ = healthy(job)
    read = sum(agent.counters.records["nccl-plugin"] for agent in result.agents)
    assert read == sum(len(rank.records) for rank in result.recording.ranks)
    assert [each.verdict.evidence for each in result.said] == []


@pytest.mark.parametrize("job", JOBS)
def test_live_steps_are_as_long_as_the_job_says(job: str) -> None:
    result, received = healthy(job)
    assert set(received.spans_ms) == set(range(len(result.recording.ranks)))
    for spans in received.spans_ms.values():
        assert np.nanmean(spans) == pytest.approx(result.recording.truth["step_ms_mean"], rel=0.01)


@pytest.mark.parametrize("job", JOBS)
def test_own_times_are_judged_in_the_second_in_which_they_come(job: str) -> None:
    """Sends and receives of a pipeline are no reason to wait: stages send different steps."""
    _, received = healthy(job)
    assert received.observed > 1000
    assert np.mean(received.held) < 8  # one of each rank


@pytest.mark.parametrize("job", JOBS)
def test_all_ranks_send_the_same_steps_and_whole_ones(job: str) -> None:
    """Stages in the middle of a pipeline have more collectives, and send fewer of the steps."""
    _, received = healthy(job)
    begin = max(min(steps) for steps in received.whole.values()) + 40
    by_rank = [{step for step in steps if step >= begin} for steps in received.whole.values()]
    fewest = min(by_rank, key=len)
    assert len(fewest) > 20
    assert max(len(fewest - steps) for steps in by_rank) <= 0.05 * len(fewest)
    for steps in received.whole.values():
        assert len(set(steps.values())) == 1  # as many collectives in each of them


def test_stages_of_a_pipeline_become_roles() -> None:
    """Ranks 1, 2, 5 and 6 were recorded from 27 s on: roles known by then keep their names."""
    result, _ = healthy("pp")
    cluster = next(iter(result.service.clusters.values()))
    roles = {key[2]: cluster.role_of(key) for key in cluster.keys.values()}
    assert [roles[rank] for rank in range(8)] == ["stage0", "stage2", "stage3", "stage1"] * 2


def test_a_slow_gpu_in_an_overlapping_job_is_named_with_what_the_job_loses() -> None:
    """F067: rank 6 has 6 % more GPU work; its steps take 41.6 ms instead of 39.1."""
    result = slow_gpu()
    recording, named = result.recording, named_in(result)
    assert {each.verdict.rank for each in named} == {6}
    fault_s = recording.fault_start_s
    assert fault_s is not None and 0 < named[0].at_s - fault_s <= 12
    assert {each.verdict.cause_class for each in named} == {CauseClass.COMPUTE}
    assert [each.verdict.loss for each in named] == pytest.approx(
        [recording.loss] * len(named), rel=0.25
    )


def test_a_slow_gpu_in_a_sharded_job_is_named_although_its_hosts_jitter() -> None:
    """Rank 1 has 6 % more GPU work; the recording has 41 calm seconds, too few for the default."""
    recording = recorded("fsdp", "rank_1_gpu_6p")
    result = replay(recording, policy=VerdictPolicy(warmup_samples=30))
    named = [each for each in result.said if each.verdict.state is VerdictState.STRAGGLER]
    assert {each.verdict.rank for each in named} == {1}
    fault_s, loss = recording.fault_start_s, named[0].verdict.loss
    assert fault_s is not None and 0 < named[0].at_s - fault_s <= 12
    assert {each.verdict.cause_class for each in named} == {CauseClass.COMPUTE}
    # The first figure is "at most": a tenth of a point above the bar for recordings, three points.
    assert loss is not None and recording.loss * 0.75 <= loss <= 2 * recording.loss + 0.035


def test_a_node_whose_pushes_are_late_is_judged() -> None:
    """Those of ranks 6 and 7 come ten seconds later than the others; rank 6 is slow."""
    recording = recorded("ddp", "rank_6_gpu_6p")
    result = replay(recording, nodes=4, behind_s={"n3": 10.0})
    named = [each for each in result.said if each.verdict.state is VerdictState.STRAGGLER]
    assert {each.verdict.rank for each in named} == {6}
    fault_s = recording.fault_start_s
    assert fault_s is not None and 10 < named[0].at_s - fault_s <= 25
