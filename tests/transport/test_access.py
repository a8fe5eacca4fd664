"""Who may use a listener: tokens, their replacement, and a limit on wrong ones."""

from http import HTTPStatus

from ingero.transport.access import FAILURES_AT_ONCE, Access, Denied
from ingero.transport.bearer import Key, TokenScope, token_digest

A, B = "token-a-0123456789", "token-b-0123456789"


def key(token: str, *clusters: str) -> Key:
    return Key("k", token_digest(token), frozenset(clusters) or None)


def test_f095_only_the_exact_token_is_found() -> None:
    access = Access([key(A), key(B, "east")], grace_s=300)
    assert access.find(f"Bearer {A}", 0) == key(A)
    assert access.find(f"bearer  {B} ", 0) == key(B, "east")
    for header in (None, "", "Bearer", f"Basic {A}", f"Bearer {A}x", f"Bearer {A[:-1]}", A):
        assert access.find(header, 0) is None
    assert Access([], 300).find("Bearer ", 0) is None


class Opaque(bytes):
    """A digest that must not be compared byte by byte: the time would tell how much is right."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared with ==")


def test_f095_digests_are_compared_in_constant_time() -> None:
    access = Access([Key("k", Opaque(token_digest(A)))], grace_s=300)
    for _ in range(2):  # valid, then in its grace period
        assert access.find(f"Bearer {A}", 0) is not None
        assert access.find(f"Bearer {B}", 0) is None
        access.replace([], now_s=0)


def test_f097_a_replaced_token_is_good_through_the_grace_window() -> None:
    access = Access([key(A)], grace_s=300)
    access.replace([key(B)], now_s=1000)
    assert access.find(f"Bearer {A}", 1299.9) is not None
    assert access.find(f"Bearer {B}", 1000) is not None
    assert access.find(f"Bearer {A}", 1300) is None
    access.replace([key(B, "east")], now_s=1400)
    found = access.find(f"Bearer {B}", 1400)
    assert found is not None
    assert found.clusters == frozenset({"east"}), "a narrower scope holds at once"
    access.replace([key(A)], now_s=1500)
    access.replace([key(A)], now_s=1600)
    assert access.find(f"Bearer {B}", 1799) is not None, (
        "a second reload does not shorten or stretch the window"
    )
    assert access.find(f"Bearer {B}", 1801) is None


def test_wrong_tokens_are_limited_by_address_and_right_ones_are_not() -> None:
    access = Access([key(A)])

    def status(authorization: str | None, address: str) -> int:
        found = access.check(authorization, address, TokenScope.READ)
        return int(found.status) if isinstance(found, Denied) else 200

    tried = [
        status(f"Bearer guess-{number}", "10.0.0.1") for number in range(FAILURES_AT_ONCE + 70)
    ]
    assert tried == [401] * FAILURES_AT_ONCE + [429] * 70
    assert status(None, "10.0.0.1") == 429
    assert status(f"Bearer {A}", "10.0.0.1") == 200, "nobody locks out others behind an address"
    assert status(None, "10.0.0.2") == 401


def test_without_tokens_everybody_is_admitted() -> None:
    assert not Access(None).is_required
    assert isinstance(Access(None).check(None, None, TokenScope.PUSH), Key)
    assert isinstance(Access([]).check("Bearer x", None, TokenScope.PUSH), Denied)


def test_a_token_is_good_for_its_scopes_only() -> None:
    pushes = Key("agents", token_digest(A), frozenset({"east"}), frozenset({TokenScope.PUSH}))
    access = Access([pushes, key(B)])
    assert access.check(f"Bearer {A}", None, TokenScope.PUSH, TokenScope.READ) == pushes
    denied = access.check(f"Bearer {A}", None, TokenScope.OPERATE)
    assert denied == Denied(HTTPStatus.FORBIDDEN, "this token lacks the scope operate")
    assert not access.admits(f"Bearer {A}"), "the fast path knows no clusters"
    assert access.admits(f"Bearer {B}")


def test_tokens_of_nodes_are_valid_but_never_take_the_way_without_a_check_of_the_node() -> None:
    key = Key("node n", token_digest("t" * 32), scopes=frozenset({TokenScope.PUSH}), node="n")
    access = Access([])
    access.issued = lambda: {key.digest: key}
    header = f"Bearer {'t' * 32}"
    assert access.check(header, None, TokenScope.PUSH) == key
    assert not access.admits(header)
    access.issued = dict
    assert isinstance(access.check(header, None, TokenScope.PUSH), Denied)
