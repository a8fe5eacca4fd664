"""What replicas decide from the log alone (F058)."""

from ingero.core.replicas.agreement import ALIVE_S, MAX_REPLICAS, Agreement


def told(name: str, *others: str, at_s: float = 100.0) -> Agreement:
    agreement = Agreement(name)
    for author in (name, *others):
        agreement.hear(author, "rules", True, {}, at_s)
    return agreement


def test_the_first_by_name_sends_and_the_next_one_when_it_is_gone() -> None:
    agreement = told("b", "a", "c")
    agreement.settle_sender(100.0)
    assert not agreement.may_send(100.0, 100.0)
    agreement.hear("b", "rules", True, {}, 106.0)
    agreement.settle_sender(106.0)  # a was not heard of for longer than ALIVE_S
    assert agreement.may_send(106.0, 106.0)
    assert not agreement.may_send(105.9, 106.0)  # a may have sent that just before it died
    assert agreement.may_send(105.9, 105.9 + ALIVE_S)
    agreement.hear("a", "rules", True, {}, 108.0)
    agreement.settle_sender(108.0)
    assert not agreement.may_send(100.0, 108.0)


def test_one_that_leaves_or_is_not_ready_takes_no_part() -> None:
    agreement = told("b", "a")
    agreement.hear("a", "rules", False, {}, 100.5)
    assert agreement.alive(100.5) == ["b"]


def test_a_joiner_gives_way_to_other_rules_and_of_two_the_later_name() -> None:
    agreement = Agreement("b")
    agreement.hear("c", "other", True, {}, 100.0)
    assert agreement.conflict("mine", False, 100.0) == "c"
    assert agreement.conflict("mine", True, 100.0) == ""
    agreement.hear("a", "other", True, {}, 100.0)
    assert agreement.conflict("mine", True, 100.0) == "a"
    assert agreement.conflict("other", True, 100.0) == ""
    assert agreement.conflict("mine", True, 100.0 + ALIVE_S + 1) == ""


def judged(own: bytes, *others: bytes) -> bool:
    agreement = Agreement("me")
    for number, digest in enumerate((own, *others)):
        name = "me" if number == 0 else f"other{number}"
        agreement.hear(name, "rules", True, {100_000: digest}, 101.0)
    assert not agreement.is_mistaken(102.9)  # some may not have told theirs yet
    found = agreement.is_mistaken(103.0)
    assert agreement.mismatches == found
    assert not agreement.is_mistaken(104.0)  # judged once
    return found


def test_only_a_strict_majority_keeps_its_state() -> None:
    assert not judged(b"x")
    assert not judged(b"x", b"x", b"x")
    assert not judged(b"x", b"x", b"y")
    assert judged(b"y", b"x", b"x")
    assert judged(b"x", b"y")
    assert judged(b"x", b"y", b"z")
    assert judged(b"x", b"x", b"y", b"y")


def test_ticks_before_a_state_was_replaced_are_not_judged() -> None:
    agreement = told("me", "other")
    agreement.hear("me", "rules", True, {100_000: b"x"}, 101.0)
    agreement.hear("other", "rules", True, {100_000: b"y"}, 101.0)
    agreement.forget_digests(100.0)
    assert not agreement.is_mistaken(110.0)


def test_memory_is_bounded_whoever_writes_to_the_log() -> None:
    agreement = Agreement("me")
    for number in range(3 * MAX_REPLICAS):
        agreement.hear(f"r{number}", "rules", True, {number * 1000: b"x"}, float(number))
    assert len(agreement.peers) == MAX_REPLICAS
    assert len(agreement._digests) <= MAX_REPLICAS
