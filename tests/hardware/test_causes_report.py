"""The page about causes shows the committed rows, and what was said is judged by its words."""

import json
from typing import Any

from tests.hardware.causes_report import PAGE, PART, ROWS, table
from tests.hardware.host_causes import is_cause_known, told
from tests.hardware.real_jobs.plan import CAUSES, Phase
from tests.hardware.real_jobs.rows import Heard

PHASE = Phase("rank_2_lock", "lock", 24.0, CAUSES["lock"])
LOCK = "waits for a lock 13 % of the time in `wait_for_lock` (host_faults.py:39), peers 0 %"


def heard(at_s: float, **more: Any) -> Heard:
    verdict = {"state": "straggler", "rank": 2, "since": 103.0, "class": "host", "loss": 0.1}
    return Heard(at_s, [verdict | more])


def test_the_page_shows_the_rows() -> None:
    found = PART.search(PAGE.read_text())
    assert found is not None
    assert found[0] == found[1] + table(json.loads(ROWS.read_text())) + found[2]


def test_a_cause_is_right_by_its_words_and_ends_its_phase() -> None:
    calm, named = Heard(100.0, []), heard(106.0)
    wrong = heard(110.0, cause="waits for a CPU 15 % of the time, peers 5.9 %")
    right = heard(112.0, cause=LOCK)
    assert told(PHASE, [calm, named, wrong])["right"] is False
    said = told(PHASE, [calm, named, right])
    assert (said["named_s"], said["cause_s"], said["right"], said["loss"]) == (6.0, 12.0, True, 0.1)
    assert not is_cause_known(PHASE, [calm, named, right])
    assert is_cause_known(PHASE, [calm, named, right, heard(114.0, cause=LOCK)])


def test_unknown_is_no_cause_and_verdicts_of_others_are_not_about_the_rank() -> None:
    unknown = heard(110.0, cause="unknown: nothing that was looked at sets this rank apart")
    other = heard(111.0, cause=LOCK, rank=5)
    old = heard(112.0, cause=LOCK, since=60.0)
    said = told(PHASE, [Heard(100.0, []), unknown, other, old])
    assert (said["cause_s"], said["right"]) == (None, False)
