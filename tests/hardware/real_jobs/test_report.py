"""The page about real jobs shows the committed rows, and nothing else."""

import json
from xml.etree import ElementTree

from tests.hardware.real_jobs import report
from tests.hardware.real_jobs.pictures import last_runs, loss_picture, pace_picture
from tests.hardware.real_jobs.plan import FAULTS, Lengths, calm_wanted, lengths_for, phases_of
from tests.hardware.real_jobs.timetable import lengths_that_fit, seconds_of

KINDS = ("gpu", "host", "stall")
FAULT = {
    "commit": "abc1234",
    "job": "ddp",
    "phase": "rank_6_gpu",
    "kind": "gpu",
    "fault": {"rank": 6, "gpu": 0.06},
    "seconds": 30.0,
    "steps": 700,
    "step_ms_median": 41.57,
    "truth": 0.061,
    "truth_error": 0.002,
    "named_s": 9.0,
    "class": "compute",
    "state": "straggler",
    "loss": 0.058,
    "loss_error": 0.004,
    "others": [],
    "events": [],
    "pace_ms": [41.0, None, 42.0],
    "right": True,
    "remarks": [],
}
HEALTHY = {
    **{name: FAULT[name] for name in ("commit", "job", "steps", "step_ms_median", "pace_ms")},
    **{"phase": "healthy", "kind": "calm", "fault": {}, "seconds": 60.0, "right": False},
    **{"judged_s": 22.0},
    **{"others": [{"rank": 3, "after_s": 1.0}], "events": ["fleet_event: x"]},
}


def test_the_page_and_its_pictures_are_current() -> None:
    """`python -m tests.hardware.real_jobs.report` brings them up to date."""
    rows = json.loads(report.ROWS.read_text())
    text = report.PAGE.read_text()
    assert report.page(text, rows) == text
    assert report.PACE_PICTURE.read_text() == pace_picture(rows)
    assert report.LOSS_PICTURE.read_text() == loss_picture(rows)


def test_the_last_row_of_a_fault_is_shown() -> None:
    older = FAULT | {"named_s": None, "class": None, "loss": None, "right": False}
    lines = report.table([older | {"remarks": ["not named"]}, HEALTHY, FAULT]).splitlines()
    assert lines[2:] == [
        "| ddp | rank 6: 6% more GPU work | 41.6 ms | 6.1% ± 0.2% | 9 s | compute | 5.8% ± 0.4% "
        "| nobody | yes | abc1234 |"
    ]


def test_false_names_are_counted() -> None:
    assert report.calm_table([HEALTHY, FAULT]).splitlines()[2:] == [
        "| ddp | 60 | 38 | 60 | 41.6 ms | rank 3 | 1 |"
    ]
    assert "In 1.0 calm minutes, 1 rank was named" in report.summary([HEALTHY, FAULT])


def test_an_engine_that_blamed_somebody_is_not_counted_for_a_later_one() -> None:
    later = HEALTHY | {"commit": "def5678", "seconds": 100.0, "others": [], "events": []}
    other = HEALTHY | {"job": "pp"}
    lines = report.calm_table([HEALTHY, other, later, FAULT | {"commit": "def5678"}]).splitlines()
    assert lines[2:] == [
        "| ddp | 100 | 78 | 100 | 41.6 ms | nobody | none |",
        "| pp | 60 | 38 | 60 | 41.6 ms | rank 3 | 1 |",
        "",
        "Not counted: `ddp` with abc1234 (60 s); a rank that was not slow was named in that run.",
    ]
    assert calm_wanted([HEALTHY, later], "ddp") == 200.5


def test_what_a_slow_gpu_costs_its_host_is_shown() -> None:
    timed = FAULT | {"fault_gpu_ms": 3.0, "fault_host_ms": 0.06, "launched_late_ms": 0.1}
    assert report.host_table([FAULT, HEALTHY, timed]).splitlines()[2:] == [
        "| ddp | 3.00 ms | 0.06 ms | 2.0% | +0.10 ms |"
    ]
    assert "rank 6: GPU held up for 6% of a step" in report.table([timed])
    assert "No run" in report.host_table([FAULT])


def test_pictures_are_well_formed_and_show_the_last_run() -> None:
    rows = [HEALTHY, HEALTHY, FAULT]
    assert last_runs(rows) == {"ddp": [HEALTHY, FAULT]}
    for picture in (pace_picture(rows), loss_picture(rows), pace_picture([]), loss_picture([])):
        ElementTree.fromstring(picture)
    assert "rank 6 gpu" in pace_picture(rows)


def test_every_fault_has_a_calm_phase_before_and_after() -> None:
    for mode, faults in FAULTS.items():
        phases = phases_of(mode, lengths_for(mode, 180.0, 3), tuple(faults))
        kinds = [phase.kind for phase in phases]
        assert kinds == ["calm", "gpu", "calm", "host", "calm", "stall", "calm"]
        assert all(bool(phase.fault) == (phase.kind != "calm") for phase in phases)
        assert len({phase.name for phase in phases}) == len(phases)


def test_a_row_says_who_shared_the_gpu() -> None:
    assert "| ddp beside pp | rank 6" in report.table([FAULT | {"beside": ["pp"]}])


def test_runs_that_began_with_the_same_rows_are_merged_without_doubles() -> None:
    ours, first, second = HEALTHY, FAULT, FAULT | {"job": "pp"}
    assert report.merged([[ours], [ours, first], [ours, second]]) == [ours, first, second]


def test_every_fault_fits_before_any_job_gets_more_calm_time() -> None:
    modes = [(mode, KINDS) for mode in FAULTS]
    left_s, lengths = 1900.0, []
    for number, (mode, kinds) in enumerate(modes):
        found = lengths_that_fit(mode, kinds, modes[number + 1 :], [], left_s)
        assert found is not None
        lengths.append(found)
        left_s -= seconds_of(found, kinds)
    assert left_s >= 0
    assert lengths[0].healthy > 2 * lengths[-1].healthy
    assert lengths_that_fit("small", KINDS, [], [], 60.0) is None
    known = [HEALTHY | {"seconds": 400.0}]
    assert lengths_that_fit("ddp", (), [], known, 1000.0) is None
    assert lengths_that_fit("ddp", (), [], [HEALTHY], 1000.0) == Lengths(240.5, 16.0, 0.0)
