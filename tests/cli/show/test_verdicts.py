"""Verdicts as `ingero status` prints them."""

from msgspec.structs import replace

from ingero.cli.show.verdicts import verdict_table
from ingero.contract.verdict import CauseClass, Verdict, VerdictState

SLOW = Verdict(
    episode="5f0c",
    state=VerdictState.STRAGGLER,
    node="gpu07",
    rank=61,
    cause=CauseClass.COMPUTE,
    excess=0.0523,
    error=0.006,
    since=1000.0,
    usd_per_hour=13.9,
    evidence="own time +5.2%",
    next_step="check clocks",
)


def test_one_row_says_who_why_how_much_since_when_and_what_next() -> None:
    assert verdict_table([SLOW], 1012.0).splitlines() == [
        "node   rank  state  class    excess       since  cost at most  episode",
        "-----  ----  -----  -------  -----------  -----  ------------  -------",
        "gpu07  61    SLOW   compute  +5.2% ±0.6%  12 s   $13.90/h      5f0c",
        "  rank 61: own time +5.2%",
        "    next: check clocks",
    ]


def test_stalls_have_a_period_silenced_ones_are_marked_and_the_worst_come_first() -> None:
    stalls = replace(
        SLOW,
        rank=5,
        cause=CauseClass.STALL,
        excess=1.16,
        period=14,
        silenced="until 9: ticket 7",
    )
    over = replace(SLOW, state=VerdictState.RESOLVED, node="gpu01", episode="0")
    everybody = Verdict(
        episode="f",
        state=VerdictState.FLEET_EVENT,
        node="",
        since=0.0,
        cause=CauseClass.FLEET,
        evidence="all slower",
    )
    lines = verdict_table([over, everybody, stalls], 9000.0).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["gpu07", "all", "gpu01"]
    assert "+116.0% ±0.6% every 14 steps" in lines[2]
    assert lines[2].endswith("silenced until 9: ticket 7")
    assert [line for line in lines[5:] if "gpu01" in line] == []


def test_text_of_others_cannot_move_the_cursor() -> None:
    assert "\x1b" not in verdict_table([replace(SLOW, evidence="\x1b[2J", next_step="\x1b[H")], 0.0)
