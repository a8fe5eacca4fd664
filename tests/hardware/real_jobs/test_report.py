"""The page about real jobs shows the committed rows, and nothing else."""

import json
from xml.etree import ElementTree

from tests.hardware.real_jobs import report
from tests.hardware.real_jobs.pictures import last_runs, loss_picture, pace_picture
from tests.hardware.real_jobs.plan import CALM, FAULTS, LENGTHS, phases_of, take_turns

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
        "| ddp | 60 | 41.6 ms | rank 3 | 1 |"
    ]
    assert "In 1.0 calm minutes, 1 rank was named" in report.summary([HEALTHY, FAULT])


def test_pictures_are_well_formed_and_show_the_last_run() -> None:
    rows = [HEALTHY, HEALTHY, FAULT]
    assert last_runs(rows) == {"ddp": [HEALTHY, FAULT]}
    for picture in (pace_picture(rows), loss_picture(rows), pace_picture([]), loss_picture([])):
        ElementTree.fromstring(picture)
    assert "rank 6 gpu" in pace_picture(rows)


def test_every_fault_has_a_calm_phase_before_and_after() -> None:
    for mode, faults in FAULTS.items():
        phases = phases_of(mode, LENGTHS["full"], tuple(faults))
        kinds = [phase.kind for phase in phases]
        assert kinds == ["calm", "gpu", "calm", "host", "calm", "stall", "calm"]
        assert all(bool(phase.fault) == (phase.kind != "calm") for phase in phases)
        assert len({phase.name for phase in phases}) == len(phases)


def test_jobs_side_by_side_are_slowed_in_turn_and_calm_together_around_each_fault() -> None:
    turns = take_turns({"ddp": ("lock", "read"), "pp": ("gpu", "host", "stall")}, LENGTHS["short"])
    ddp, pp = turns["ddp"], turns["pp"]
    assert [phase.seconds for phase in ddp] == [phase.seconds for phase in pp]
    slowed = [(a.kind, b.kind) for a, b in zip(ddp, pp, strict=True)]
    assert slowed[1::2] == [
        ("lock", CALM),
        (CALM, "gpu"),
        ("read", CALM),
        (CALM, "host"),
        (CALM, "stall"),
    ]
    assert slowed[::2] == [(CALM, CALM)] * 6
    for phases in (ddp, pp):
        assert len({phase.name for phase in phases}) == len(phases)


def test_a_row_says_who_shared_the_gpu() -> None:
    assert "| ddp beside pp | rank 6" in report.table([FAULT | {"beside": ["pp"]}])


def test_runs_that_began_with_the_same_rows_are_merged_without_doubles() -> None:
    ours, first, second = HEALTHY, FAULT, FAULT | {"job": "pp"}
    assert report.merged([[ours], [ours, first], [ours, second]]) == [ours, first, second]
