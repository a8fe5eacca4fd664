"""A small scoreboard: the gates on a few worlds, and the page it writes."""

import json
from pathlib import Path

import click
import numpy as np
import pytest
from bench.detection.clocks import run_clocks
from bench.detection.detectors import NAMES, run_threshold
from bench.detection.healthy import run_healthy, run_healthy_threshold
from bench.detection.live import run_verdict
from bench.detection.model import Noise
from bench.detection.reality import run_kind
from bench.detection.recorded import ask, recorded_cases
from bench.detection.report import REAL, REALITY, Row, check_gates, write_report
from bench.detection.scenarios import cases
from bench.detection.score import score
from bench.detection.seeds import parse_seeds, run_seeds
from bench.detection.traces import DATA, trace_rows
from bench.detection.world import World

from ingero.core.health.threshold import ThresholdPolicy, compute_threshold

SMALL = {
    "5%, 1 s pushes",
    "10%, 1 s pushes",
    "5%, 5 s pushes",
    "rank 0 does 30% more",
    "stage imbalance, roles unknown",
}
SMALL |= {"49% of the ranks +10%", "lost, late and doubled batches", "slow from birth by 15%"}
SMALL |= {
    "a NIC at half speed",
    "a lossy link",
    "links as ever, one rank +10%",
    "a rank hangs and all stop",
}
SMALL |= {
    "nodes get another name",
    "ranks are dealt to other nodes",
    "two replicas without a log, nodes pinned, one fails",
}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    found = []
    for number, name, make in cases(8, fleets=12):
        if name in SMALL:
            world = make(11)
            outcomes = (
                run_threshold(world, 2.0, 1),
                run_threshold(world, 3.5, 3),
                run_verdict(world, seed=11),
            )
            found += [
                Row(
                    number,
                    name,
                    8,
                    detector,
                    score(world, outcome, detector == "verdict").as_json(),
                )
                for detector, outcome in zip(NAMES, outcomes, strict=True)
            ]
    healthy = (run_healthy_threshold(2.0, 1, 11, 0.1), run_healthy_threshold(3.5, 3, 11, 0.1))
    healthy += (run_healthy(340, 11, lambda _: None),)
    found += [
        Row(1, "a healthy day", 0, name, s.as_json())
        for name, s in zip(NAMES, healthy, strict=True)
    ]
    found += [Row(n, name, 8, "blame", ask(q, 8, 11).as_json()) for n, name, q in recorded_cases(8)]
    found += [Row(REAL, what, size, "blame", figures) for what, size, figures in trace_rows()]
    name = "experts, 100 ms steps"
    found.append(Row(REALITY, name, 8, "verdict", run_kind(name, 11)))
    return found + [
        Row(10, variant, 8, "verdict", {"unchanged": same}) for variant, same in run_clocks(11)
    ]


def test_the_gates_hold_in_small(rows: list[Row]) -> None:
    gates = check_gates(rows)
    assert len(gates) == (16 if DATA.is_dir() else 15)
    assert [gate for gate in gates if not gate[1] and not gate[0].startswith("#1 ")] == []
    assert (
        next(row for row in rows if row.scenario == 1 and row.detector == "verdict").figures[
            "false_alarms"
        ]
        <= 2
    )


def test_the_threshold_rule_has_false_alarms_where_the_verdict_has_none(rows: list[Row]) -> None:
    rate = {
        r.detector: r.figures["false_alarms_per_1000_node_hours"] for r in rows if r.scenario == 1
    }
    assert rate["threshold k 2"] > 100 * max(rate["verdict"], 1.0)


def test_prices_and_classes_are_right(rows: list[Row]) -> None:
    """Prices are within 5 % of the known loss, and classes of a 10 % slowdown 90 % right."""
    row = next(r for r in rows if r.variant.startswith("10%,") and r.detector == "verdict").figures
    assert row["price_error"] < 0.05
    assert row["class_right"] >= 0.9 * row["class_known"]


def test_the_page_has_every_row_and_its_pictures(rows: list[Row], tmp_path: Path) -> None:
    write_report(tmp_path, rows, check_gates(rows), 11)
    page = (tmp_path / "scoreboard.md").read_text()
    assert page.count("\n| ") >= len(rows)
    assert all(
        (tmp_path / name).exists() for name in ("pictures/scoreboard-recall.svg", "scoreboard.json")
    )
    assert json.loads((tmp_path / "scoreboard.json").read_text())["seed"] == 11


def test_the_threshold_rule_of_the_bench_is_the_one_of_the_product() -> None:
    """On the first tick, before smoothing, it equals `compute_threshold` on the same scores."""
    world = World(8, Noise([8], 3).block(130))
    ticks = world.log_own.reshape(13, 10, 8).mean(axis=1)
    scores = np.clip(0.95 * np.exp(-(ticks - np.median(ticks[:12], axis=0))), 0, 1)
    raw = [compute_threshold(row, ThresholdPolicy()).value for row in scores]
    line = 0.8 * raw[0] + 0.2 * raw[12]
    expected = [(int(c), 130) for c in np.flatnonzero(scores[12] < line)]
    assert run_threshold(world, 2.0, 1).alarms == expected


def test_slow_links_and_hangs_are_answered_by_class_not_by_silence(rows: list[Row]) -> None:
    """Live, each fleet gets an event of that class and nobody is blamed.

    From records and dumps, the answer is the rank or the reason why it is unknown.
    """
    live = {r.variant: r.figures for r in rows if r.detector == "verdict" and r.scenario in (6, 14)}
    for variant in ("a NIC at half speed", "a lossy link", "a rank hangs and all stop"):
        figures = live[variant]
        assert (figures["fleet_events_right"], figures["false_alarms"]) == (
            figures["fleets_all"],
            0,
        )
    assert live["links as ever, one rank +10%"]["fleet_events_wrong"] == 0
    asked = [r.figures for r in rows if r.detector == "blame" and r.scenario in (6, 14)]
    assert all(f["right"] == f["jobs"] for f in asked)
    assert any(f["not_sure"] == f["jobs"] for f in asked)


def test_replicas_on_a_log_that_get_pushes_in_turns_say_what_one_says() -> None:
    """Fleet itself runs here, with its log in this process."""
    outcomes = []
    for replicas in (1, 2):
        world = World(8, Noise([8], 5).block(120), is_on_log=True, replicas=replicas)
        world.log_own[80:, 3] += np.log1p(0.2)
        outcomes.append(run_verdict(world))
    assert [column for column, _ in outcomes[0].alarms] == [3]
    assert outcomes[0] == outcomes[1]


def test_pushes_in_turns_are_a_row_for_each_size_of_fleet() -> None:
    on_log = [(name, make(1).replicas) for _, name, make in cases(8, fleets=2) if make(1).is_on_log]
    assert on_log == [
        ("one replica on a log", 1),
        ("two replicas on a log, pushes in turns", 2),
    ]


def test_ranks_that_move_and_fleets_that_fail_hide_nobody(rows: list[Row]) -> None:
    for variant in (
        "nodes get another name",
        "ranks are dealt to other nodes",
        "two replicas without a log, nodes pinned, one fails",
    ):
        figures = next(r.figures for r in rows if r.variant == variant and r.detector == "verdict")
        assert (figures["recall"], figures["false_alarms"]) == (1.0, 0)


def test_missing_real_traces_are_listed_as_skipped(tmp_path: Path) -> None:
    found = [(what, figures["skipped"]) for what, _, figures in trace_rows(tmp_path)]
    assert found == [
        (folder, "data absent") for folder in ("bytedance", "flight-recorder", "nccl-h200")
    ]
    page = tmp_path / "docs"
    page.mkdir()
    write_report(
        page, [Row(REAL, what, 0, "blame", {"skipped": why}) for what, why in found], [], 1
    )
    assert (
        "| real | bytedance |  | blame | skipped: data absent |"
        in (page / "scoreboard.md").read_text()
    )


def test_many_seeds_make_one_table_of_how_often_each_gate_held(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.detection.runs.ROOT", tmp_path)
    assert run_seeds(range(21, 23), [8], 0.0, [10, 14], fresh=False, write=False) == 0
    printed = capsys.readouterr().out
    assert "| #10 verdicts unchanged by clocks | 2 of 2 | 10 of 10 variants |  |" in printed
    assert "| #14 a job that stands still" in printed


@pytest.mark.parametrize("text", ["x", "5-x", "9-3", "1-5000"])
def test_ranges_of_seeds_that_make_no_sense_are_usage_errors(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_seeds(text)


def test_gates_of_several_seeds_are_pooled() -> None:
    """Counts add up over the seeds, and each size has one median."""
    healthy = [
        Row(1, "a healthy day", 0, "verdict", {"false_alarms": n, "node_hours": 1000.0})
        for n in (0, 1)
    ]
    slowed = [
        Row(2, "5%, 1 s pushes", size, "verdict", {"found": 2, "culprits": 2, "delays": delays})
        for size, delays in ((3, [8.0, 10.0]), (8, [7.0, 7.0]), (3, [12.0, 10.0]), (8, [9.0, 9.0]))
    ]
    measured = {name: said for name, _, said in check_gates([*healthy, *slowed])}
    assert measured["#1 at most 0.5 false alarms per 1000 node-hours"] == "0.50 (1 in 2,000 h)"
    assert (
        measured["#2 median delay at most 10 s at 5% with 1 s pushes"]
        == "9.0 s (by size 3: 10 s, 8: 8 s)"
    )
