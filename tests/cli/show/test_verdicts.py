"""Verdicts as `ingero status` prints them."""

import pytest
from msgspec.structs import replace

from ingero.cli.show import wrap
from ingero.cli.show.verdicts import verdict_table
from ingero.contract.verdict import CauseClass, Verdict, VerdictState

SLOW = Verdict(
    episode="5f0c",
    state=VerdictState.STRAGGLER,
    node="gpu07",
    rank=61,
    cause_class=CauseClass.COMPUTE,
    loss=0.0523,
    loss_error=0.006,
    cause="SM clock 1410 MHz, peers 1980",
    since=1000.0,
    usd_per_hour=13.9,
    evidence="own time +5.2%",
    next_step="check clocks",
)


def test_one_row_says_who_why_how_much_since_when_and_what_next() -> None:
    assert verdict_table([SLOW], 1012.0).splitlines() == [
        "node   rank  state  class    job loses   since  cost      episode",
        "-----  ----  -----  -------  ----------  -----  --------  -------",
        "gpu07  61    SLOW   compute  5.2% ±0.6%  12 s   $13.90/h  5f0c",
        "  rank 61: SM clock 1410 MHz, peers 1980",
        "  rank 61: own time +5.2%",
        "    next: check clocks",
    ]


def test_stalls_have_a_period_silenced_ones_are_marked_and_the_worst_come_first() -> None:
    stalls = replace(
        SLOW,
        rank=5,
        cause_class=CauseClass.STALL,
        loss=0.116,
        period=14,
        silenced="until 9: ticket 7",
    )
    over = replace(SLOW, state=VerdictState.RESOLVED, node="gpu01", episode="0")
    everybody = Verdict(
        episode="f",
        state=VerdictState.FLEET_EVENT,
        node="",
        since=0.0,
        cause_class=CauseClass.FLEET,
        evidence="all slower",
    )
    lines = verdict_table([over, everybody, stalls], 9000.0).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["gpu07", "all", "gpu01"]
    assert "11.6% ±0.6%, every 14 steps" in lines[2]
    assert lines[2].endswith("silenced until 9: ticket 7")
    assert [line for line in lines[5:] if "gpu01" in line] == []


def test_an_upper_bound_says_so_and_a_late_rank_costs_nothing() -> None:
    bound = replace(SLOW, at_most=True, loss_error=None)
    late = replace(SLOW, state=VerdictState.LATE, node="gpu09", loss=0.001, usd_per_hour=None)
    lines = verdict_table([late, bound], 1012.0).splitlines()
    assert "  ≤ 5.2%  " in lines[2]
    assert "  ≤ $13.90/h  " in lines[2]
    assert lines[3].split() == ["gpu09", "61", "late", "compute", "nothing", "12", "s", "5f0c"]


def test_a_slow_link_and_a_group_are_named() -> None:
    group = replace(
        SLOW, state=VerdictState.FLEET_EVENT, node="", rank=None, shared="rack r12", cause=""
    )
    lines = verdict_table([replace(SLOW, link="rank 3 ↔ rank 7", cause=""), group], 1012.0)
    assert "  rank 61: link rank 3 ↔ rank 7" in lines.splitlines()
    assert lines.splitlines()[3].startswith("rack r12")


def test_on_a_narrow_terminal_evidence_is_broken_between_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = replace(SLOW, evidence="own time +5.2% against the median of 63 peers")
    wide = verdict_table([said], 1012.0)
    monkeypatch.setattr(wrap, "screen_columns", lambda: 40)
    narrow = verdict_table([said], 1012.0)
    assert narrow.split() == wide.split()
    below = narrow.splitlines()[3:]
    assert len(below) > len(wide.splitlines()[3:])
    assert max(map(len, below)) <= 40


def test_text_of_others_cannot_move_the_cursor() -> None:
    assert "\x1b" not in verdict_table([replace(SLOW, evidence="\x1b[2J", next_step="\x1b[H")], 0.0)


def test_an_engine_that_hangs_is_stalled_and_one_that_is_full_is_overloaded() -> None:
    """F159 and F162."""
    hung = Verdict(
        episode="e1",
        state=VerdictState.STRAGGLER,
        node="gpu07",
        job="llama",
        cause_class=CauseClass.HANG,
        loss=1.0,
        since=90.0,
        cause="VLLM::Worker (pid 2) is stopped by a signal",
        evidence="no step",
        engine="vllm on port 8000, pid 1",
    )
    full = replace(
        hung, episode="e2", state=VerdictState.OVERLOADED, cause_class=CauseClass.KV_CACHE,
        cause="", evidence="the KV cache is 97% full", loss=None, rank=3,
    )  # fmt: skip
    text = verdict_table([full, hung], 100.0)
    assert [line.split()[0:3] for line in text.split("\n")[2:4]] == [
        ["gpu07", "STALLED", "hang"],
        ["gpu07", "3", "overloaded"],
    ]
    assert text.endswith(
        "  gpu07, llama, vllm on port 8000, pid 1: VLLM::Worker (pid 2) is stopped by a signal\n"
        "  gpu07, llama, vllm on port 8000, pid 1: no step\n"
        "  gpu07, llama, vllm on port 8000, pid 1, rank 3: the KV cache is 97% full"
    )
