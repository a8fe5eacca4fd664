"""Who may be enrolled as which node."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.enrolment import (
    LOCAL_NAMES,
    Enrolment,
    IssuedCode,
    Member,
    Wish,
    add_code,
    check_wish,
    enrolled,
    find_code,
    granted_names,
    is_host_name,
    revoked,
    without,
)
from ingero.errors import AuthError

CODE = IssuedCode(digest="c" * 64, created_s=100.0, expires_s=200.0, max_nodes=2)


def member(node: str, key: str = "k", names: tuple[str, ...] = ()) -> Member:
    return Member(node, key, "t", names or (node, *LOCAL_NAMES), CODE.id, 110.0, 1000.0)


def with_nodes(*nodes: Member) -> Enrolment:
    enrolment = Enrolment((CODE,))
    for each in nodes:
        enrolment = enrolled(enrolment, enrolment.codes[0], each)
    return enrolment


def test_a_code_is_found_until_it_expires() -> None:
    enrolment = Enrolment((CODE,))
    assert find_code(enrolment, CODE.digest, 199.9) == CODE
    assert find_code(enrolment, CODE.digest, 200.0) is None
    assert find_code(enrolment, "d" * 64, 150.0) is None
    assert find_code(enrolment, "", 150.0) is None


def test_the_cluster_of_a_fleet_stays_whatever_changes() -> None:
    enrolment = replace(with_nodes(member("a")), cluster="train")
    for changed in (
        add_code(enrolment, CODE, 150.0),
        enrolled(enrolment, CODE, member("b")),
        revoked(enrolment, "a", 150.0),
        without(enrolment, "a"),
    ):
        assert changed.cluster == "train"


def test_expired_codes_are_dropped_when_one_is_added() -> None:
    fresh = replace(CODE, digest="d" * 64, created_s=300.0, expires_s=400.0)
    assert add_code(Enrolment((CODE,)), fresh, 300.0).codes == (fresh,)


def test_a_code_is_used_up_by_different_nodes_only() -> None:
    enrolment = with_nodes(member("a"), member("b"))
    code = enrolment.codes[0]
    check_wish(enrolment, code, Wish("a", "k"))  # once more, with the same key
    with pytest.raises(AuthError, match="was for 2 nodes"):
        check_wish(enrolment, code, Wish("c", "k"))
    left = without(enrolment, "a")
    with pytest.raises(AuthError, match="was for 2 nodes"):
        check_wish(left, left.codes[0], Wish("c", "k"))


def test_nobody_takes_the_name_of_an_enrolled_node() -> None:
    enrolment = with_nodes(member("a"))
    with pytest.raises(AuthError, match="another key"):
        check_wish(enrolment, enrolment.codes[0], Wish("a", "other"))


def test_who_was_revoked_needs_a_code_that_was_made_afterwards() -> None:
    enrolment = revoked(with_nodes(member("a")), "a", 150.0)
    with pytest.raises(AuthError, match="was revoked"):
        check_wish(enrolment, enrolment.codes[0], Wish("a", "k"))
    check_wish(enrolment, replace(CODE, created_s=151.0), Wish("a", "other"))
    assert revoked(enrolment, "a", 170.0) is enrolment
    with pytest.raises(AuthError, match="no node x"):
        revoked(enrolment, "x", 150.0)


def test_a_code_may_be_limited_to_names() -> None:
    code = replace(CODE, pattern="gpu-*")
    check_wish(Enrolment((code,)), code, Wish("gpu-1", "k"))
    for name in ("fleet", "a-gpu-1", "a:b", "", " x", "x" * 300, "a\nb"):
        with pytest.raises(AuthError):
            check_wish(Enrolment((code,)), code, Wish(name, "k"))


def test_a_certificate_is_for_names_that_are_certainly_the_nodes_own() -> None:
    enrolment = with_nodes(member("b", names=("b", "10.0.0.2")))
    wish = Wish(
        "a",
        "k",
        names=("a.example", "b", "b.example", "fleet", "*.a", "a.*", "other", "a.9"),
        addresses=("10.0.0.1", "10.0.0.2", "10.0.0.3"),
        peer="10.0.0.1",
    )
    assert granted_names(enrolment, wish, ["fleet"]) == ("a", "a.example", "10.0.0.1", *LOCAL_NAMES)
    theirs = replace(wish, peer="10.0.0.2")
    assert "10.0.0.2" not in granted_names(enrolment, theirs, [])
    behind_a_proxy = replace(wish, peer="10.9.9.9")
    assert "10.9.9.9" not in granted_names(enrolment, behind_a_proxy, [])
    as_fleet = Wish("Fleet", "k", peer="10.0.0.1", addresses=("10.0.0.1",))
    assert granted_names(enrolment, as_fleet, ["fleet", "10.0.0.1"]) == LOCAL_NAMES


@given(st.lists(st.sampled_from(["a", "b", "c", "a.b", "b.a", "*", "10.0.0.1"]), max_size=20))
def test_no_name_is_granted_twice(names: list[str]) -> None:
    first = Wish("a", "1", tuple(names), tuple(names), "10.0.0.1")
    enrolment = with_nodes(member("a", "1", granted_names(Enrolment(), first, [])))
    second = Wish("b", "2", tuple(names), tuple(names), "10.0.0.1")
    own = set(enrolment.members["a"].names) - set(LOCAL_NAMES)
    assert own.isdisjoint(granted_names(enrolment, second, []))


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("gpu-1", True),
        ("gpu_1.example", True),
        ("*.example", False),
        ("10.0.0.1", False),
        ("127.1", False),
        ("::1", False),
        ("-a", False),
        ("a..b", False),
        ("a" * 64, False),
        ("a/b", False),
        ("ä", False),
        ("a\0b", False),
    ],
)
def test_names_of_certificates_are_host_names(name: str, is_one: bool) -> None:
    assert is_host_name(name) is is_one
