"""How the store process ends when its memory is used up, and who is told."""

import threading
from typing import Any

import pytest
from tests.support.waiting import until

from ingero.echo.store import process
from ingero.echo.store.wire import RAN_OUT, REPLACE_ME, Answer, Ask


class Ended(BaseException):
    """Stands for the end of the process."""


class Sent(list[Answer]):
    """Takes answers as the channel does."""

    send = list.append


class Memory:
    """A loader whose statements wait, and whose other questions find no memory."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def address_space_left(self) -> float:
        return 0.5

    def answer(self, ask: Ask) -> Answer:
        if ask.what == "sql":
            self.has_begun.set()
            self.may_end.wait(60)
            return Answer(ask.id, value=1)
        return Answer(ask.id, error="out_of_memory", message="failed to allocate")


@pytest.mark.parametrize(
    ("runs_beside", "status", "told"),
    [
        (True, RAN_OUT, []),  # the parent then judges who ran a statement
        (False, REPLACE_ME, [("out_of_memory", True)]),
    ],
)
def test_a_statement_that_took_the_memory_of_our_own_question_is_at_fault(
    monkeypatch: pytest.MonkeyPatch, runs_beside: bool, status: int, told: list[Any]
) -> None:
    """Writing the audit log used to fail beside a statement, which then could be repeated."""

    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(process.os, "_exit", end)
    memory, sent = Memory(), Sent()
    service = process._Service(sent, memory)  # type: ignore[arg-type]
    limits = {"limits": {"seconds": 60}}
    for _ in range(2):
        service._waiting.acquire()
    statement = threading.Thread(target=service._answer, args=(Ask(1, "sql", limits),))
    if not runs_beside:
        memory.may_end.set()
    statement.start()
    until(memory.has_begun.is_set)
    if not runs_beside:
        statement.join()
        sent.clear()
    with pytest.raises(Ended) as ended:
        service._answer(Ask(2, "audit", {"rows": []}))
    memory.may_end.set()
    statement.join()
    assert ended.value.args == (status,)
    assert [(answer.error, answer.is_last) for answer in sent if answer.id == 2] == told
