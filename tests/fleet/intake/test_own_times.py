"""Own times of known ranks: the short way leaves the same state as the full decoder."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compiled import needs_codecs
from tests.support.own_times import encode_reports, rank_push

from ingero.config.fleet import FleetConfig
from ingero.config.rates import load_rates
from ingero.contract.collective import CollectiveSource
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.measurements.ranks import RankReport
from ingero.contract.otlp.body import Encoding
from ingero.contract.types import Identity
from ingero.core.health.threshold import ThresholdPolicy
from ingero.core.verdict.policy import VerdictPolicy
from ingero.errors import MalformedPush
from ingero.fleet.episodes.book import EpisodeBook
from ingero.fleet.episodes.preamble import encode_preamble
from ingero.fleet.episodes.state_codec import encode_state
from ingero.fleet.intake import known_ranks, known_reports
from ingero.fleet.judgement import Judgement
from ingero.fleet.processor import FleetProcessor
from ingero.fleet.replay import replay
from ingero.storage.input_log import InputLog, write_recording

START_S = 1.8e9


class Fleet:
    """A processor with verdicts; the short way is off where `decodes_all`."""

    def __init__(self, *, decodes_all: bool, inputs: InputLog | None = None) -> None:
        self.processor = FleetProcessor(ThresholdPolicy())
        self.intake = Judgement(FleetConfig(), load_rates(None))
        self.verdicts, self.episodes = self.intake.verdicts, self.intake.episodes
        self.intake.inputs = inputs
        self.processor.on_measurements = lambda request, cluster, now_s, _: self.intake.take(
            request, cluster, now_s
        )
        if not decodes_all:
            self.processor.on_own_times = self.intake.take_own_times

    def push(self, body: bytes, at_s: float, cluster: str | None = None) -> object:
        try:
            return self.processor.push(body, Encoding.PROTOBUF, cluster, at_s, int(at_s * 1e9))
        except MalformedPush as error:
            return str(error)

    def tick(self, at_s: float) -> object:
        self.processor.tick(at_s)
        changed = self.verdicts.tick(at_s)
        self.episodes.tick(self.verdicts, changed, [b""] * len(changed), at_s)
        return changed

    def state(self) -> dict[str, Any]:
        """Return everything that pushes of own times change."""
        causes = self.verdicts.causes
        for cluster in self.verdicts.clusters.values():
            cluster.own_times._gather()  # however many parts they came in
        return {
            "verdicts": {
                name: encode_state(cluster) for name, cluster in self.verdicts.clusters.items()
            },
            "counters": repr((self.verdicts.counters, self.processor.counters, causes.counters)),
            "causes": [(key, one.step_ms) for key, one in causes._ranks.items()],
            "rosters": {
                name: (cluster.roster.rows, cluster.roster.pushes.tolist(), cluster.roster.reports)
                for name, cluster in self.processor.clusters.items()
            },
        }


@dataclass(frozen=True)
class Step:
    """A push of some ranks of a node, and how long after the one before."""

    node: int
    ranks: tuple[int, ...]
    source: CollectiveSource
    role: str | None
    gpu_model: str
    job: str
    cluster: str | None
    after_s: float

    def body(self, number: int) -> bytes:
        own = OwnTime(
            step=number, own_ms=100.0 + number, span_ms=120.0, end_ns=10**18, source=self.source
        )
        return encode_reports(
            [
                RankReport(
                    Identity(
                        node=f"n{self.node}", cluster="train", job=self.job, rank=rank,
                        world_size=8, role=self.role, gpu_model=self.gpu_model,
                    ),
                    (own,), (),
                )
                for rank in self.ranks
            ]
        )  # fmt: skip


steps = st.builds(
    Step,
    node=st.integers(0, 1),
    ranks=st.sampled_from([(0,), (0, 1), (1, 0), (0, 1, 2), (0, 0)]),
    source=st.sampled_from([CollectiveSource.PLUGIN] * 3 + [CollectiveSource.EBPF]),
    role=st.sampled_from([None, None, None, "stage-0", " role"]),
    gpu_model=st.sampled_from(["H100"] * 3 + ["B200"]),
    job=st.sampled_from(["job-1"] * 3 + ["job-2", " job"]),
    cluster=st.sampled_from([None, None, None, "other"]),
    after_s=st.sampled_from([0.0, 0.5, 0.5, 1.0, 40.0, 700.0, 4000.0]),
)


def assert_same(sequence: list[Step]) -> None:
    """Send pushes both ways, and compare after each."""
    short, full = Fleet(decodes_all=False), Fleet(decodes_all=True)
    at_s = START_S
    for number, step in enumerate(sequence):
        if step.after_s:
            at_s += step.after_s
            assert short.tick(at_s) == full.tick(at_s)
        body = step.body(number)
        assert short.push(body, at_s, step.cluster) == full.push(body, at_s, step.cluster)
        assert short.state() == full.state()


@needs_codecs
@settings(max_examples=60)
@given(st.lists(st.tuples(steps, st.integers(1, 4)), min_size=2, max_size=6))
def test_both_ways_leave_the_same_state(runs: list[tuple[Step, int]]) -> None:
    assert_same([step for step, times in runs for _ in range(times)])


USUAL = Step(
    node=0, ranks=(0, 1), source=CollectiveSource.PLUGIN, role=None, gpu_model="H100",
    job="job-1", cluster=None, after_s=1.0,
)  # fmt: skip


@needs_codecs
@pytest.mark.parametrize(
    "other",
    [
        replace(USUAL, gpu_model="B200"),
        replace(USUAL, source=CollectiveSource.EBPF),
        replace(USUAL, role="stage-0"),
        replace(USUAL, role=" role"),
        replace(USUAL, job="job-2", after_s=4000.0),  # the rows of job-1 are free by then
        replace(USUAL, node=1, after_s=700.0),  # the ranks moved to another node
        replace(USUAL, after_s=700.0),
    ],
)
def test_ranks_that_change_and_change_back_are_registered_again(other: Step) -> None:
    assert_same([*[USUAL] * 4, other, other, other, *[replace(USUAL, after_s=700.0), USUAL] * 2])


@needs_codecs
def test_the_third_push_of_a_rank_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(decodes_all=False)
    for second in range(3):
        fleet.push(rank_push(0, 10 * second), START_S + second)
        fleet.tick(START_S + second + 0.5)
    taken = fleet.verdicts.counters.own_times

    def refuse(*_: object) -> None:
        raise AssertionError("decoded in full")

    monkeypatch.setattr(fleet.intake, "take", refuse)
    monkeypatch.setattr("ingero.fleet.processor.decode", refuse)
    fleet.push(rank_push(0, 30), START_S + 3)
    assert fleet.verdicts.counters.own_times == taken + 80


@needs_codecs
def test_a_kept_segment_replays_to_the_same_verdicts(tmp_path: Path) -> None:
    """F133: pushes kept as they were received give the same verdicts again."""
    inputs = InputLog(tmp_path / "recorded", encode_preamble(load_rates(None), VerdictPolicy()))
    fleet = Fleet(decodes_all=False, inputs=inputs)
    seen = []
    for second in range(90):
        for node in range(4):
            slow = 0.5 if node == 2 and second > 60 else 0.0
            fleet.push(rank_push(node, 10 * second, ranks=2, nodes=4, slow=slow), START_S + second)
        inputs.write("tick", START_S + second + 0.5)
        seen += fleet.verdicts.tick(START_S + second + 0.5)
    inputs.close()
    assert {verdict.rank for _, verdict in seen} == {4}
    again = replay(tmp_path / "recorded")
    assert [each.verdict for each in again.verdicts] == [verdict for _, verdict in seen]


@needs_codecs
def test_an_episode_keeps_pushes_as_they_were_received(tmp_path: Path) -> None:
    book = EpisodeBook()
    fleet = Fleet(decodes_all=False)
    fleet.intake.episodes = book
    bodies = [rank_push(0, 10 * second, ranks=2) for second in range(4)]
    for second, body in enumerate(bodies):
        fleet.push(body, START_S + second)
        fleet.verdicts.tick(START_S + second + 0.5)
    (segment,) = book.inputs._open.values()
    folder = tmp_path / "episode"
    folder.mkdir()
    write_recording(folder, book.inputs.join([segment.copy()]))
    assert replay(folder).pushes == 4


@needs_codecs
def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_reports, "RANKS_PER_NODE", 1)
    monkeypatch.setattr(known_ranks, "MAX_RANKS", 20)
    fleet = Fleet(decodes_all=False)
    fleet.processor._known = known_reports.KnownReports(20)
    for second in range(4):
        for node in range(9):
            fleet.push(rank_push(node, 10 * second, ranks=8), START_S + second)
        fleet.tick(START_S + second + 0.5)
        assert len(fleet.processor._known._reports) <= 20
        kept = fleet.intake._known
        assert sum(map(len, kept._ranks.values())) == kept._size <= 20


@needs_codecs
def test_long_resources_are_never_remembered() -> None:
    fleet = Fleet(decodes_all=False)
    identity = Identity(node="n0", cluster="c", job="j", rank=0, gpu_model="x" * 2000)
    own = OwnTime(step=1, own_ms=1.0, source=CollectiveSource.PLUGIN)
    for second in range(3):
        fleet.push(encode_reports([RankReport(identity, (own,), ())]), START_S + second)
    assert not fleet.processor._known._reports
    assert fleet.verdicts.counters.own_times == 3
