"""What a node reports: every chain at once when it is new, then rarely, and never too much."""

from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from, tuples

from ingero.contract.chain import Severity
from ingero.core.chains.reports import Finding, ReportBook, ReportPolicy

SECOND = 10**9


def finding(name: str = "a", at_s: int = 0, severity: Severity = Severity.MEDIUM) -> Finding:
    return Finding(name, at_s * SECOND, severity)


def test_a_new_chain_is_due_until_it_was_accepted() -> None:
    book = ReportBook()
    assert book.due([finding()], 0.0) == [finding()]
    assert book.due([finding()], 1.0) == [finding()]  # not accepted yet: it is offered again
    book.sent([finding()], 1.0)
    assert book.due([finding()], 1000.0) == []  # the same detection is never sent twice


def test_a_chain_that_goes_on_is_due_again_after_a_while_or_when_it_gets_worse() -> None:
    book = ReportBook()
    book.sent([finding(at_s=1)], 1.0)
    later = finding(at_s=20)
    assert book.due([later], 20.0) == []
    assert book.due([later], 301.0) == [later]
    worse = finding(at_s=20, severity=Severity.HIGH)
    assert book.due([worse], 20.0) == [worse]


def test_the_worst_come_first_and_no_more_than_the_limit() -> None:
    book = ReportBook(ReportPolicy(at_once=2))
    low, old, new = (
        finding("low", 9, Severity.LOW),
        finding("old", 1, Severity.HIGH),
        finding("new", 2, Severity.HIGH),
    )
    assert book.due([low, old, new], 10.0) == [new, old]


@given(lists(tuples(sampled_from("abcdefgh"), integers(0, 50), integers(0, 400)), max_size=60))
def test_one_detection_is_sent_at_most_once_and_memory_is_bounded(
    steps: list[tuple[str, int, int]],
) -> None:
    book = ReportBook(ReportPolicy(remembered=8))
    sent: set[Finding] = set()
    now_s = 0.0
    for name, at_s, passed_s in steps:
        now_s += passed_s
        due = book.due([finding(name, at_s)], now_s)
        assert not sent & set(due)
        book.sent(due, now_s)
        sent |= set(due)
    assert len(book._sent) <= 8
