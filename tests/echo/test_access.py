"""Bearer tokens: their sources, scopes, replacement and rate limits."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.echo.access import Access, Key, RateLimit, read_acl, read_keys
from ingero.errors import AuthError
from ingero.transport.bearer import token_digest

A, B = "token-a-0123456789", "token-b-0123456789"
GOOD = (
    f"- {{key_name: a, token: {A}}}\n"
    f"- {{key_name: b, token: {B}, allowed_clusters: [east, west]}}\n"
)


def acl(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "acl.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


def key(token: str, *clusters: str) -> Key:
    return Key("k", token_digest(token), frozenset(clusters) or None)


def test_an_acl_file_gives_keys_with_scopes(tmp_path: Path) -> None:
    first, second = read_acl(acl(tmp_path, GOOD))
    assert (first.name, first.clusters, first.may_see("anything")) == ("a", None, True)
    assert (second.may_see("west"), second.may_see("north")) == (True, False)
    json_form = f'[{{"key_name": "j", "token": "{A}", "allowed_clusters": []}}]'
    assert read_acl(acl(tmp_path, json_form))[0].clusters is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a list of key_name, token"),
        ("[]", "has 0 entries"),
        ("a: 1", "expected a list of key_name, token"),
        (f"- {{key_name: a, token: {A}, admin: true}}", "unknown field `admin`"),
        (f"- {{token: {A}}}", "missing required field `key_name`"),
        (f"- {{key_name: '', token: {A}}}", "empty key_name"),
        ("- {key_name: a, token: short-secret}", "at least 16 characters"),
        ("- {key_name: a, token: 'sixteen plus but spaces'}", "without spaces"),
        (f"- key_name: a\n  token: {A}\n bad", "line 3: not valid YAML"),
    ],
)
def test_a_bad_acl_file_is_named_without_its_tokens(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(AuthError, match="ACL file") as caught:
        read_acl(acl(tmp_path, text))
    assert reason in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (A, "short-secret", "sixteen plus"))


def test_files_others_can_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="chmod 600"):
        read_acl(acl(tmp_path, GOOD, 0o644))
    with pytest.raises(AuthError, match="cannot read ACL file"):
        read_acl(tmp_path / "nowhere")


def test_two_bearers_cannot_share_a_token_or_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INGERO_ECHO_TOKEN", raising=False)
    for text in (GOOD.replace(B, A), GOOD.replace("key_name: b", "key_name: a")):
        with pytest.raises(AuthError, match="two entries have the same"):
            read_keys(None, acl(tmp_path, text), tmp_path / "echo.db")
    monkeypatch.setenv("INGERO_ECHO_TOKEN", "from-the-environment")
    keys = read_keys(None, acl(tmp_path, GOOD), tmp_path / "echo.db")
    assert [found.name for found in keys] == ["a", "b", "default"]
    assert not (tmp_path / "echo.db.token").exists(), "with an ACL file no token is made"


def test_f095_only_the_exact_token_is_found() -> None:
    access = Access([key(A), key(B, "east")], grace_s=300)
    assert access.find(f"Bearer {A}", 0) == key(A)
    assert access.find(f"bearer  {B} ", 0) == key(B, "east")
    for header in (None, "", "Bearer", f"Basic {A}", f"Bearer {A}x", f"Bearer {A[:-1]}", A):
        assert access.find(header, 0) is None
    assert Access([], 300).find("Bearer ", 0) is None


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


def test_f099_burst_plus_one_waits_and_another_caller_does_not() -> None:
    limit = RateLimit(20, 40)
    assert [limit.take("a", 0.0) for _ in range(40)] == [0.0] * 40
    assert limit.take("a", 0.0) == pytest.approx(0.05)
    assert limit.take("b", 0.0) == 0.0
    assert limit.take("a", 0.05) == 0.0
    assert limit.take("a", 0.05) > 0


@given(st.lists(st.floats(0, 2), max_size=200))
def test_no_caller_exceeds_rate_times_time_plus_burst(gaps: list[float]) -> None:
    limit, now, allowed = RateLimit(5, 10), 0.0, 0
    for gap in gaps:
        now += gap
        allowed += limit.take("a", now) == 0.0
    assert allowed <= 5 * now + 10 + 1e-6


def test_callers_are_forgotten_oldest_first() -> None:
    limit = RateLimit(1, 1, max_callers=2)
    for caller in ("a", "b", "c"):
        assert limit.take(caller, 0) == 0
    assert limit.take("c", 0) > 0
    assert limit.take("a", 0) == 0, "forgotten, so it starts anew"
