"""Moments without a question: only then memory is taken from the cache of the store."""

import threading

from ingero.echo.store.memory import QuietMoments


def test_nothing_is_taken_while_a_question_is_under_way() -> None:
    quiet, ran = QuietMoments(), []
    with quiet.question():
        with quiet.question():
            assert not quiet.use(lambda: ran.append(1))
        assert not quiet.use(lambda: ran.append(2))
    assert quiet.use(lambda: ran.append(3))
    assert ran == [3]


def test_a_question_waits_until_memory_was_taken() -> None:
    quiet, order = QuietMoments(), []

    def ask() -> None:
        with quiet.question():
            order.append("asked")

    question = threading.Thread(target=ask)

    def take() -> None:
        question.start()
        question.join(0.05)
        order.append("taken")

    assert quiet.use(take)
    question.join()
    assert order == ["taken", "asked"]


def test_a_question_that_failed_is_no_longer_under_way() -> None:
    quiet = QuietMoments()
    try:
        with quiet.question():
            raise ValueError
    except ValueError:
        pass
    assert quiet.use(lambda: None)
