"""Members of a job that is slower as a whole: by how much they are excused, and for how long."""

import numpy as np
import pytest
from tests.support.verdict_tables import POLICY
from tests.support.verdict_world import events, run_labelled, steady

from ingero.core.verdict.events.fleet_events import CLEAR, SLOWER
from ingero.core.verdict.events.job_events import ADOPT_S, JobEvents
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.table import RECENT_HISTORY

STAGES = ("pp0", "pp1")


class SlowJob:
    """Two stages of four ranks; since the event the last rank of each is slower by 4 %."""

    def __init__(self) -> None:
        self.registry = MemberRegistry(POLICY)
        for rank in range(8):
            role = STAGES[rank // 4]
            member = Member(cluster="c", node=f"n{rank}", rank=rank + 1, job="j", role=role)
            self.registry.rows.last_seen_s[self.registry.put(member, 0.0)] = 1.0
        rows, cohorts = self.registry.rows, self.registry.cohorts
        rows.baseline_samples[:8], rows.samples[:8] = 60, RECENT_HISTORY
        rows.latest[:8], rows.recent_excess[:8] = 0.0, 0.0
        rows.latest[[3, 7]], rows.recent_excess[[3, 7]] = 0.04, 0.04
        self.cohorts = np.unique(rows.cohort[:8])
        cohorts.high_since_s[self.cohorts] = 0.0
        self.events = JobEvents(self.registry, POLICY)

    def show(self, now_s: float, *kinds: int) -> None:
        """Let each stage show an event from now on."""
        cohorts, size = self.registry.cohorts, self.registry.rows.size
        kind = np.full(cohorts.size, CLEAR, np.int8)
        kind[self.cohorts] = kinds
        known = np.full(cohorts.size, 4.0)
        self.events._follow_fleet_events(kind, np.zeros(size, bool), known, known, now_s)

    def slower_by(self) -> list[float]:
        """Return what is expected of the ranks."""
        assert self.registry.rows.recent_excess[:8, 0] == pytest.approx(
            self.registry.rows.latest[:8, 0] - self.registry.rows.bias[:8], abs=1e-6
        )
        return [round(bias, 3) for bias in self.registry.rows.bias[:8].tolist()]


EXCUSED = [0, 0, 0, 0.04] * 2


def test_members_of_a_slower_job_are_excused_until_it_is_as_fast_as_before() -> None:
    job = SlowJob()
    job.show(100.0, SLOWER, CLEAR)
    assert job.slower_by() == EXCUSED
    job.show(200.0, CLEAR, CLEAR)
    assert job.slower_by() == [0.0] * 8


@pytest.mark.parametrize("first", [0, 1])
def test_they_stay_excused_whichever_stage_shows_the_event(first: int) -> None:
    """One event is said per job: where its stage is fast again, another one shows it."""
    job = SlowJob()
    kinds = [SLOWER, CLEAR]
    job.show(100.0, *(kinds if first == 0 else kinds[::-1]))
    job.show(200.0, *(kinds[::-1] if first == 0 else kinds))
    assert job.slower_by() == EXCUSED


def test_what_became_usual_is_not_taken_back_by_a_later_event() -> None:
    job = SlowJob()
    job.show(100.0, SLOWER, CLEAR)
    job.show(100.0 + ADOPT_S, CLEAR, CLEAR)
    assert job.slower_by() == EXCUSED
    rows = job.registry.rows
    rows.latest[2], rows.recent_excess[2] = 0.03, 0.03
    job.show(2000.0, SLOWER, CLEAR)
    assert job.slower_by() == [0, 0, 0.03, 0.04, 0, 0, 0, 0.04]
    job.show(2100.0, CLEAR, CLEAR)
    assert job.slower_by() == EXCUSED


@pytest.mark.parametrize("ends_s", [600, 2000])
def test_a_pipeline_that_is_slower_is_one_event_of_all_its_stages(ends_s: int) -> None:
    """Also when it is slower for the second time: no stage has got used to the first."""
    own = steady(2000, 16, 12, common=0.005)
    own[420:ends_s] += np.log1p(0.10)
    own[900:] += np.log1p(0.10)
    found = run_labelled(own, lambda rank: {"role": f"pp{rank // 4}"})
    said = [(event.evidence.partition(" are ")[0], event.shared) for event in events(found)]
    assert said == [("all 16 members together", "")] * 2
