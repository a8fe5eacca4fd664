"""Fleet asks the agent of a slow rank why, and its answer becomes part of the verdict."""

from dataclasses import replace
from unittest.mock import Mock

import msgspec
import pytest
from tests.support.verdict_pushes import START_S, verdicts_of_a_job

from ingero.contract import names
from ingero.contract.causes import (
    Ask,
    CauseKind,
    Finding,
    PeerValue,
    Signal,
    decode_asks,
    encode_findings,
    encode_signals,
)
from ingero.contract.exposition import render
from ingero.contract.otlp.values import MetricsRequest, Resource, attributes
from ingero.contract.types import Identity
from ingero.contract.verdict import CauseClass, Verdict, VerdictState, decode_verdicts
from ingero.core.places.links import LinkPlace
from ingero.fleet.causes import book as module
from ingero.fleet.causes.book import AGAIN_S, ASKED_S, KEPT_S, MAX_ASKS, UNKNOWN_TEXT, CauseBook
from ingero.fleet.causes.metrics import cause_families
from ingero.fleet.cluster_verdicts import ClusterVerdicts
from ingero.fleet.episodes.state_codec import decode_any_state, encode_state
from ingero.fleet.verdicts import VerdictService

SLOW = Verdict(
    episode="e1",
    state=VerdictState.SUSPECT,
    node="n5",
    rank=5,
    job="j",
    cause_class=CauseClass.HOST,
    loss=0.2,
    since=1.0,
    next_step="look at the host",
)


def who(rank: int) -> Identity:
    return Identity(node=f"n{rank}", cluster="c", job="j", rank=rank)


def signals(rank: int, values: dict[Signal, float]) -> MetricsRequest:
    return MetricsRequest((encode_signals(who(rank), values, 1),))


def answer(number: int = 1, rank: int = 5, **values: object) -> MetricsRequest:
    given = {"kind": CauseKind.LOCK, "text": "waits for a lock", "explains": 0.5} | values
    finding = Finding(episode="e1", number=number, **given)  # type: ignore[arg-type]
    return MetricsRequest((encode_findings(who(rank), [finding], 1),))


def asked(book: CauseBook, now_s: float, verdict: Verdict = SLOW) -> Ask | None:
    book.tick([("c", verdict)], now_s)
    text = book.texts.get(("c", verdict.node))
    return decode_asks(text)[0] if text else None


def test_an_ask_carries_lateness_class_and_the_medians_of_the_other_ranks() -> None:
    book = CauseBook()
    for rank in range(8):
        values = {Signal.SM_CLOCK: 1410.0 if rank == 5 else 1980.0, Signal.POWER: 600.0 + rank}
        book.take(signals(rank, values), "c", 10.0)
    book.take(MetricsRequest((encode_signals(who(9), {Signal.SM_CLOCK: 1.0}, 1),)), "other", 10.0)
    assert asked(book, 11.0) == Ask(
        episode="e1",
        job="j",
        rank=5,
        cause_class="host",
        late=0.2,
        peers={"sm_clock": PeerValue(1980.0, 0.0, 7), "power": PeerValue(603.0, 2.97, 7)},
    )


def test_gpus_are_compared_with_those_of_their_model_and_hosts_with_all() -> None:
    """An A100 among H100s has a lower clock in health; that is not why its host is late."""
    book = CauseBook()
    for rank, clock in enumerate((1980.0, 1980.0, 1980.0, 1410.0, 1405.0, 1400.0)):
        model = "H100" if clock > 1500 else "A100"
        values = {Signal.SM_CLOCK: clock, Signal.RUNQUEUE_SHARE: 0.01 * rank}
        sent = encode_signals(replace(who(rank), gpu_model=model), values, 1)
        book.take(MetricsRequest((sent,)), "c", 10.0)
    ask = asked(book, 11.0)
    assert ask is not None
    assert ask.peers["sm_clock"] == PeerValue(1407.5, 3.71, 2)
    assert ask.peers["runqueue_share"].count == 5


def test_an_ask_carries_the_period_of_stalls() -> None:
    book = CauseBook()
    book.tick([("c", msgspec.structs.replace(SLOW, period=10))], 11.0)
    (ask,) = decode_asks(book.texts["c", "n5"])
    assert ask.period == 10


def test_old_signals_of_a_stopped_agent_are_not_compared() -> None:
    book = CauseBook()
    book.take(signals(1, {Signal.POWER: 1.0}), "c", 0.0)
    ask = asked(book, 100.0)
    assert ask is not None
    assert ask.peers == {}


@pytest.mark.parametrize(
    "wrong", [{names.NODE_ID: "n\n1"}, {names.NODE_ID: ""}, {names.JOB_ID: "j" * 300}]
)
def test_signals_of_invalid_names_are_not_kept(wrong: dict[str, str]) -> None:
    named = {names.NODE_ID: "n1", names.JOB_ID: "j"} | wrong
    sent = encode_signals(who(1), {Signal.POWER: 1.0}, 1)
    resource = Resource(attributes=attributes(dict(named)))
    book = CauseBook()
    book.take(MetricsRequest((msgspec.structs.replace(sent, resource=resource),)), "c", 0.0)
    assert book.counters.signals == 0


def test_the_ask_stays_the_same_until_it_is_answered() -> None:
    book = CauseBook()
    assert asked(book, 1.0) == asked(book, 2.0)
    book.take(answer(), "c", 3.0)
    assert book.tick([("c", SLOW)], 4.0) == [("c", "e1")]
    assert book.texts == {}
    marked = book.mark("c", SLOW)
    assert marked.cause == "waits for a lock"
    assert "lock" in marked.next_step
    assert marked == msgspec.structs.replace(SLOW, cause=marked.cause, next_step=marked.next_step)
    assert book.tick([("c", SLOW)], 5.0) == []
    assert asked(book, 500.0) is None, "a cause that was found is not asked for again"


def test_unknown_is_an_answer_and_is_asked_again_a_few_times() -> None:
    book, now_s = CauseBook(), 0.0
    for number in range(1, MAX_ASKS + 1):
        ask = asked(book, now_s)
        assert ask is not None
        assert ask.number == number
        book.take(answer(number, kind=CauseKind.UNKNOWN, text=""), "c", now_s)
        assert asked(book, now_s + 1) is None
        now_s += AGAIN_S + 1
    assert asked(book, now_s) is None
    marked = book.mark("c", SLOW)
    assert (marked.cause, marked.next_step) == (UNKNOWN_TEXT, SLOW.next_step)


def test_unknown_says_what_was_not_read() -> None:
    book = CauseBook()
    assert asked(book, 1.0) is not None
    book.take(answer(kind=CauseKind.UNKNOWN, text="its Python frames were not read"), "c", 2.0)
    assert book.mark("c", SLOW).cause == f"{UNKNOWN_TEXT}; its Python frames were not read"


def test_an_agent_that_does_not_answer_is_asked_again_later() -> None:
    book = CauseBook()
    first, second = asked(book, 0.0), asked(book, ASKED_S + 1)
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 2)


def test_what_was_found_stays_when_a_later_look_finds_nothing() -> None:
    book = CauseBook()
    asked(book, 0.0)
    book.take(answer(), "c", 1.0)
    book.take(answer(kind=CauseKind.UNKNOWN, text=""), "c", 2.0)
    assert book.mark("c", SLOW).cause == "waits for a lock"


@pytest.mark.parametrize(
    "push",
    [answer(rank=4), answer(number=2), MetricsRequest(())],
    ids=["another node", "another ask", "nothing"],
)
def test_only_the_node_that_was_asked_can_answer(push: MetricsRequest) -> None:
    book = CauseBook()
    asked(book, 0.0)
    book.take(push, "c", 1.0)
    assert book.mark("c", SLOW).cause == ""
    book.take(answer(), "elsewhere", 1.0)
    assert book.mark("c", SLOW).cause == ""
    assert book.counters.refused >= 1


@pytest.mark.parametrize(
    "verdict",
    [
        msgspec.structs.replace(SLOW, state=VerdictState.RESOLVED),
        msgspec.structs.replace(SLOW, state=VerdictState.FLEET_EVENT, node=""),
    ],
)
def test_nobody_is_asked_about_what_is_over_or_has_no_node(verdict: Verdict) -> None:
    assert asked(CauseBook(), 0.0, verdict) is None


def test_lateness_without_a_known_loss_is_that_of_the_rank() -> None:
    def late(**values: object) -> float | None:
        ask = asked(CauseBook(), 0.0, msgspec.structs.replace(SLOW, loss=None, **values))
        return ask.late if ask else None

    assert late(excess=0.25) == 0.2
    assert late(excess=1.0, period=10) == pytest.approx(0.0909)
    assert late(excess=None) is None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RANKS", 2)
    monkeypatch.setattr(module, "MAX_EPISODES", 1)
    book = CauseBook()
    for rank in range(4):
        book.take(signals(rank, {Signal.POWER: 1.0}), "c", 0.0)
    assert book.counters.dropped_ranks == 2
    assert asked(book, 0.0) is not None
    assert asked(book, 0.0, msgspec.structs.replace(SLOW, episode="e2")) is None
    book.tick([], KEPT_S + 1)
    assert book.mark("c", SLOW) == SLOW


def test_a_verdict_of_the_engine_is_shown_with_its_cause_and_recorded_without() -> None:
    service = VerdictService()
    raised = verdicts_of_a_job(service, seconds=150)[-1][1]
    now_s = START_S + 150
    shown = service.with_causes([], now_s)
    assert shown == []
    ask = decode_asks(service.causes.texts["c", "n5"])[0]
    assert (ask.rank, ask.episode) == (5, raised.episode)
    finding = Finding(
        episode=ask.episode, number=1, kind=CauseKind.GC, text="garbage collection", explains=0.9
    )
    service.causes.take(MetricsRequest((encode_findings(who(5), [finding], 1),)), "c", now_s)
    ((cluster, verdict),) = service.with_causes(service.tick(now_s + 1), now_s + 1)
    assert (cluster, verdict.rank, verdict.cause) == ("c", 5, "garbage collection")
    assert "gc.freeze" in verdict.next_step
    assert service.recent_verdicts("c")[0].cause == "garbage collection"
    service.tick(now_s + 2)
    assert decode_verdicts(service.texts["c", "n5"])[0].cause == "garbage collection"
    assert all(not each.cause for each in service.clusters["c"].engine.current())
    page = render(cause_families(service)).decode()
    assert 'ingero_fleet_verdict_cause{cause="gc",cluster_id="c"' in page
    assert 'ingero_fleet_cause_answers_total{cause="gc"} 1' in page


EVENT = Verdict(
    episode="e9", state=VerdictState.FLEET_EVENT, node="", job="j",
    cause_class=CauseClass.NETWORK, since=1.0, next_step="read counters",
)  # fmt: skip


def with_retransmits(ranks: int = 8, slow: int = 5) -> CauseBook:
    book = CauseBook()
    for rank in range(ranks):
        share = 0.03 if rank == slow else 0.0001
        book.take(signals(rank, {Signal.RETRANSMIT_SHARE: share}), "c", 10.0)
    return book


def test_a_network_event_names_the_node_whose_counters_differ() -> None:
    book = with_retransmits()
    assert book.tick([("c", EVENT)], 11.0) == [("c", "e9")]
    marked = book.mark("c", EVENT)
    assert marked.cause == "node n5: TCP retransmits 3.0 %, peers 0.0 %"
    assert marked.link == "node n5's NIC"
    assert "cable" in marked.next_step
    known = msgspec.structs.replace(EVENT, link="rank 5 ↔ rank 6")
    assert book.mark("c", known).link == "rank 5 ↔ rank 6"
    stale = with_retransmits()
    assert stale.tick([("c", EVENT)], 100.0) == [], "the signals are too old"
    assert stale.mark("c", EVENT) == EVENT


def test_a_node_that_is_no_end_of_the_link_is_not_its_cause() -> None:
    book, here = with_retransmits(), LinkPlace("rank 5 ↔ rank 6", (5, 6))
    book.tick([("c", EVENT)], 11.0, {("c", "e9"): here})
    assert book.mark("c", EVENT).cause
    elsewhere = LinkPlace("node n2's NIC", (2,), "n2")
    book.tick([("c", EVENT)], 12.0, {("c", "e9"): elsewhere})
    assert book.mark("c", EVENT) == EVENT


@pytest.mark.parametrize(("rank", "cause"), [(5, "node n5: TCP"), (2, "")])
def test_a_job_that_a_link_makes_slow_gets_the_cause_at_its_ends(rank: int, cause: str) -> None:
    event = msgspec.structs.replace(EVENT, cause_class=CauseClass.FLEET)
    engine = Mock(current=lambda: [event])
    place = LinkPlace(f"the links of rank {rank}", (rank,))
    service = VerdictService()
    service.causes = with_retransmits()
    service.clusters["c"] = ClusterVerdicts(engine, links={"e9": place})
    ((_, shown),) = service.with_causes([("c", event)], 11.0)
    assert (shown.cause_class, shown.link) == (CauseClass.NETWORK, place.text)
    assert shown.cause[: len("node n5: TCP")] == cause


def test_the_cause_of_a_network_event_stays_until_it_is_no_longer_shown() -> None:
    book = with_retransmits()
    book.tick([("c", EVENT)], 11.0)
    assert book.tick([("c", EVENT)], 100.0) == [], "signals are old, and nothing is new"
    resolved = msgspec.structs.replace(EVENT, state=VerdictState.RESOLVED)
    book.restore(*decode_any_state(encode_state(book.stored())))
    book.tick([], 101.0)
    assert book.mark("c", resolved).cause == book.mark("c", EVENT).cause != ""
    book.tick([], 101.0 + KEPT_S)
    assert book.mark("c", resolved) == resolved


def test_the_last_of_many_nodes_is_named_after_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    find = module.find_slow_node
    monkeypatch.setattr(module, "find_slow_node", lambda *given: looks.append(1) or find(*given))
    book = with_retransmits(600, slow=599)
    book.tick([("c", EVENT)], 11.0)
    for _ in range(3):
        assert book.mark("c", EVENT).link == "node n599's NIC"
    book.tick([("c", EVENT)], 12.0)
    assert len(looks) == 1


def test_signals_of_a_replica_that_knows_others_are_left_out() -> None:
    book = CauseBook()
    book.take(signals(1, {Signal.POWER: 1.0}), "c", 10.0)
    book.take(signals(2, {Signal.POWER: 1.0}), "c", 10.0)
    ranks, *others = book.stored()
    short = next(iter(ranks.values()))
    short.values = short.values[:-1]
    other = CauseBook()
    other.restore(ranks, *others)
    assert [key[3] for key in other.stored()[0]] == [2]
