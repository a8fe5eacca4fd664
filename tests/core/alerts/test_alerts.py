"""One message at each end of an episode; silences and fleet events hold alerts back."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.alerts import NOW_S, SLOW, changed

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.alerts.alert import Message, MessageKind, alert_of
from ingero.core.alerts.decisions import GRACE_S, AlertDecisions, OpenAlert
from ingero.core.alerts.queue import KEPT_KEYS, MAX_WAITING, AlertQueue

EVENT = msgspec.structs.replace(
    SLOW, episode="f1", state=VerdictState.FLEET_EVENT, node="", rank=None
)


def kinds(messages: list[Message]) -> list[tuple[str, str]]:
    return [(each.alert.verdict.episode, str(each.kind)) for each in messages]


def test_an_alert_says_who_what_it_costs_and_what_next() -> None:
    alert = alert_of("c", SLOW)
    assert alert is not None
    assert alert.labels == {
        "alertname": "IngeroRankStraggler", "cluster_id": "c", "episode": "e1",
        "ingero_job": "j", "node_id": "n5", "rank": "5", "severity": "warning",
    }  # fmt: skip
    assert alert.annotations("https://fleet:8080/") == {
        "summary": "n5 rank 5 job j holds the others up (host, the job loses 9.1%)",
        "description": "20% slower", "class": "host", "loss": "9.1%",
        "price": "12.50 USD per hour", "cause": "its CPU quota", "next": "raise the quota",
        "link": "https://fleet:8080/episode/e1",
        "runbook_url": alert.annotations("")["runbook_url"],
    }  # fmt: skip
    assert "link" not in alert.annotations("")


@pytest.mark.parametrize(
    ("verdict", "name"),
    [(changed(rank=None), "IngeroNodeStraggler"), (EVENT, "IngeroFleetEvent"),
     (changed(state=VerdictState.NOT_SURE, cause_class=CauseClass.HANG), "IngeroStopped"),
     (changed(state=VerdictState.NOT_SURE), None), (changed(state=VerdictState.LATE), None),
     (changed(state=VerdictState.SUSPECT), None), (changed(node=""), None)],
)  # fmt: skip
def test_which_verdicts_are_alerts(verdict: Verdict, name: str | None) -> None:
    assert getattr(alert_of("c", verdict), "name", None) == name


def test_an_episode_has_one_beginning_and_one_end_whatever_happens_in_between() -> None:
    book, said = AlertDecisions(), []
    for second, state in enumerate(
        ["suspect", "straggler", "straggler", "recovering", "straggler", "late", "recovering"]
    ):
        said += book.step([("c", changed(state=VerdictState(state)))], NOW_S + second)
    said += book.step([], NOW_S + 7)
    said += book.step([], NOW_S + 8)
    assert kinds(said) == [("e1", "begin"), ("e1", "end")]
    assert said[-1].alert.ended == NOW_S + 7
    assert said[-1].alert.summary == "n5 rank 5 job j is over: back among its peers"


def test_a_fleet_event_holds_back_members_of_its_job_until_it_ends() -> None:
    book = AlertDecisions()
    other = changed(episode="e2", job="another")
    both = [("c", SLOW), ("c", EVENT), ("c", other), ("d", changed(episode="e3"))]
    assert kinds(book.step(both, NOW_S)) == [("f1", "begin"), ("e2", "begin"), ("e3", "begin")]
    assert book.step(both, NOW_S + 1) == []
    assert book.held_back == {"fleet_event": 1}
    without = [each for each in both if each[1] is not EVENT]
    assert kinds(book.step(without, NOW_S + 2)) == [("e1", "begin"), ("f1", "end")]


def test_a_silence_holds_back_and_acknowledges_what_has_begun() -> None:
    book, quiet = AlertDecisions(), changed(silenced="until tomorrow")
    assert book.step([("c", quiet)], NOW_S) == []
    assert kinds(book.step([("c", SLOW)], NOW_S + 1)) == [("e1", "begin")]
    assert kinds(book.step([("c", quiet)], NOW_S + 2)) == [("e1", "acknowledge")]
    assert book.step([("c", quiet)], NOW_S + 3) == []
    assert kinds(book.step([], NOW_S + 4)) == [("e1", "end")]
    assert book.held_back == {"silence": 1}


def test_after_a_restart_an_alert_goes_on_or_ends_after_a_while() -> None:
    alert = alert_of("c", SLOW)
    assert alert is not None
    for seen in (True, False):
        book = AlertDecisions([OpenAlert(alert=alert, unseen_since=NOW_S)])
        assert book.step([("c", SLOW)] if seen else [], NOW_S + 1) == []
        ended = book.step([], NOW_S + GRACE_S)
        assert kinds(ended) == [("e1", "end")]
        assert ("restarted" in ended[0].alert.summary) is not seen


def test_the_last_alert_of_a_node_knows_that_it_is_the_last() -> None:
    book = AlertDecisions()
    two = [("c", SLOW), ("c", changed(episode="e2", rank=6))]
    book.step(two, NOW_S)
    assert [each.others for each in book.step(two[1:], NOW_S + 1)] == [1]
    assert [each.others for each in book.step([], NOW_S + 2)] == [0]


def message(episode: str = "e1", kind: MessageKind = MessageKind.BEGIN) -> Message:
    alert = alert_of("c", changed(episode=episode))
    assert alert is not None
    return Message(kind=kind, alert=alert)


def test_a_target_that_is_away_for_ten_minutes_gets_both_messages_once() -> None:
    queue, tries, arrived = AlertQueue(60), 0, []
    queue.put(message(), NOW_S)
    for second in range(700):
        now_s = NOW_S + second
        if second == 300:
            queue.put(message(kind=MessageKind.END), now_s)
        while (due := queue.due(now_s)) is not None:
            tries += 1
            if second < 600:
                queue.failed(now_s, is_final=False)
            else:
                arrived.append(str(due.kind))
                queue.delivered(now_s)
    assert arrived == ["begin", "end"]
    assert tries < 25, "pauses grow to a minute"
    queue = AlertQueue(
        60, msgspec.convert(msgspec.to_builtins(queue.stored()), type(queue.stored()))
    )
    queue.put(message(), NOW_S + 700)
    assert len(queue) == 0, "also after a restart"


@given(st.integers(1, 30), st.integers(1, 80))
def test_the_rate_is_never_exceeded_and_nothing_is_lost(rate: int, alerts: int) -> None:
    queue, sent = AlertQueue(rate), []
    for number in range(alerts):
        queue.put(message(f"e{number}"), NOW_S)
    for second in range(0, 60 * (alerts // rate + 2), 5):
        while queue.due(NOW_S + second) is not None:
            queue.delivered(NOW_S + second)
            sent.append(second)
    assert len(sent) == alerts
    assert all(sum(s <= x < s + 60 for x in sent) <= rate for s in sent)


def test_a_full_queue_and_refused_and_old_messages_are_counted() -> None:
    queue = AlertQueue(10_000)
    for number in range(MAX_WAITING + 3):
        queue.put(message(f"e{number}"), NOW_S)
    assert (len(queue), queue.counters.dropped_full) == (MAX_WAITING, 3)
    queue.due(NOW_S)
    queue.failed(NOW_S, is_final=True)
    assert queue.due(NOW_S + 86401) is None
    assert (queue.counters.dropped_refused, queue.counters.dropped_old) == (1, MAX_WAITING - 1)


def test_pauses_after_failures_double_from_a_second_to_a_minute() -> None:
    queue, now_s, pauses = AlertQueue(60), NOW_S, []
    queue.put(message(), now_s)
    for _ in range(8):
        assert queue.due(now_s) is not None
        queue.failed(now_s, is_final=False)
        assert queue.last_ok is False
        began_s = now_s
        while queue.due(now_s) is None:
            now_s += 0.5
        pauses.append(now_s - began_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert queue.counters.failed == 8
    queue.delivered(now_s)
    assert (queue.last_ok, queue.counters.sent) == (True, 1)
    queue.put(message("e2"), now_s)
    assert queue.due(now_s) is not None, "the next one does not wait"


def test_as_many_delivered_messages_are_remembered_as_it_says() -> None:
    queue = AlertQueue(600)
    for number in range(KEPT_KEYS + 1):
        queue.put(message(f"e{number}"), NOW_S + number)
        assert queue.due(NOW_S + number) is not None
        queue.delivered(NOW_S + number)
    assert len(queue.stored().delivered) == KEPT_KEYS
    queue.put(message(f"e{KEPT_KEYS}"), NOW_S)
    assert len(queue) == 0
    queue.put(message("e0"), NOW_S)
    assert len(queue) == 1, "the oldest is forgotten"
