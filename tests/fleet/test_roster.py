import numpy as np

from ingero.contract.push.decode import NodeReport
from ingero.fleet.roster import Put, Roster


def report(node: str, score: float | None = 0.9, **more: object) -> NodeReport:
    return NodeReport(node, score=score, state="active", workload="training", **more)


def test_columns_grow_and_rows_are_used_again() -> None:
    roster = Roster(max_nodes=1000)
    for i in range(300):
        assert roster.put(report(f"n{i}", i / 300), 0.0) is Put.STORED
    assert sorted(roster.active_scores(1.0, 50.0).tolist()) == [i / 300 for i in range(300)]
    assert roster.forget(10_000.0, 50.0) == 300
    assert roster.rows == {} and roster.active_scores(10_000.0, 50.0).size == 0
    roster.put(report("again", 0.4), 10_000.0)
    assert roster.active_scores(10_000.0, 50.0).tolist() == [0.4]
    assert len(roster.score) == 512


def test_event_without_score_keeps_the_score_and_records_its_start() -> None:
    roster = Roster(max_nodes=10)
    roster.put(report("a", 0.4), 0.0)
    roster.put(NodeReport("a", straggling=True), 5.0)
    roster.put(NodeReport("a", straggling=True), 9.0)
    row = roster.row("a", 10.0)
    assert (row.score, row.straggling, row.straggling_for_s, row.age_s) == (0.4, True, 5.0, 1.0)
    roster.put(NodeReport("a", straggling=False), 11.0)
    assert not roster.row("a", 12.0).straggling


def test_a_node_known_only_by_an_event_has_no_score() -> None:
    roster = Roster(max_nodes=10)
    roster.put(NodeReport("a", straggling=True), 0.0)
    assert roster.row("a", 1.0).score is None
    assert roster.counts(1.0, 50.0)["unscored"] == 1
    assert not np.any(roster.state == 0)
