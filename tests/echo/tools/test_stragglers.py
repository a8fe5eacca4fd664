"""F081: the order of slow nodes, and what is known about a node and its ranks as one row."""

from ingero.echo.tools.stragglers import _BELOW, _STATES, Straggler, _Ranking


def ranked(ranking: _Ranking) -> list[str]:
    return [found.node_id for found in ranking.ordered()]


def test_verdicts_come_first_then_scores_then_suspicions() -> None:
    ranking = _Ranking()
    for state in ("late", "recovering", "suspect", "straggler"):
        ranking.add(_STATES[state], state, None, reason="verdict", state=state)
    ranking.add(_BELOW, "below", None, reason="score")
    assert ranked(ranking) == ["straggler", "below", "suspect", "recovering", "late"]


def test_of_equal_ones_the_costliest_and_slowest_comes_first() -> None:
    ranking = _Ranking()
    ranking.add(0, "b", None, reason="verdict")
    ranking.add(0, "a", None, reason="verdict")
    ranking.add(0, "excess", None, reason="verdict", excess=0.2)
    ranking.add(0, "gap", None, reason="verdict", gap=0.1, excess=0.1)
    ranking.add(0, "cheap", None, reason="verdict", usd_per_hour=1.0, gap=0.5)
    ranking.add(0, "dear", None, reason="verdict", usd_per_hour=2.0)
    ranking.add(0, "twice", None, reason="verdict")
    ranking.add(1, "twice", None, reason="score")
    assert ranked(ranking) == ["twice", "dear", "cheap", "gap", "excess", "a", "b"]


def test_facts_about_a_node_and_its_rank_are_one_row_and_the_first_ones_stay() -> None:
    ranking = _Ranking()
    ranking.add(2, "n", 4, reason="verdict", state="suspect", evidence="first", gap=None)
    ranking.add(1, "n", None, reason="score", evidence="second", gap=0.3)
    ranking.add(1, "n", 5, reason="lateness", period=14)
    both, other = sorted(ranking.ordered(), key=lambda found: found.rank or 0)
    assert (both.rank, both.state, both.evidence, both.gap) == (4, "suspect", "first", 0.3)
    assert both.reasons == ["verdict", "score"]
    assert (other.rank, other.period, other.reasons) == (5, 14, ["lateness"])


def test_a_row_without_advice_says_where_to_look() -> None:
    ranking = _Ranking()
    ranking.add(0, "n", None, reason="verdict", next="drain it")
    ranking.add(1, "m", None, reason="score")
    advised, plain = ranking.ordered()
    assert isinstance(plain, Straggler)
    assert (advised.next, "ingero explain --nodes m:8080" in plain.next) == ("drain it", True)
