"""Links are closed beside the poll, and slots wait for them."""

import threading

from tests.support.waiting import until

from ingero.agent.ebpf.loader.links import Link, LinkCloser


class SlowLink(Link):
    """Goes when the test says so."""

    def __init__(self) -> None:
        super().__init__([])
        self.may_go, self.is_gone = threading.Event(), False

    def close(self) -> None:
        self.may_go.wait()
        self.is_gone = True


def test_slots_are_free_when_every_link_that_uses_them_is_gone() -> None:
    closer, slow, other = LinkCloser(), SlowLink(), SlowLink()
    closer.close_later([slow, other], [1, 2])
    closer.close_later([], [3])
    other.may_go.set()
    assert closer.freed() == [3]
    until(lambda: other.is_gone)
    assert closer.freed() == []
    slow.may_go.set()
    freed: list[int] = []
    until(lambda: freed.extend(closer.freed()) or freed == [1, 2])
    closer.close()
    assert slow.is_gone and closer.freed() == []
