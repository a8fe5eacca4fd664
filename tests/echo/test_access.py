"""Bearer tokens of Echo: their sources and scopes."""

from pathlib import Path

import pytest

from ingero.echo.access import echo_keys
from ingero.errors import AuthError
from ingero.transport.bearer import TokenScope, read_keys

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


def test_an_acl_file_gives_keys_with_scopes(tmp_path: Path) -> None:
    first, second = read_keys(acl(tmp_path, GOOD), "ACL file")
    assert (first.name, first.clusters, first.may_see("anything")) == ("a", None, True)
    assert (second.may_see("west"), second.may_see("north")) == (True, False)
    assert first.scopes == second.scopes == frozenset(TokenScope), "as before there were scopes"
    json_form = f'[{{"key_name": "j", "token": "{A}", "allowed_clusters": [], "scopes": []}}]'
    (none,) = read_keys(acl(tmp_path, json_form), "ACL file")
    assert (none.clusters, none.scopes, none.may_see("east")) == (frozenset(), frozenset(), False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a list of key_name, token"),
        ("[]", "has 0 entries"),
        ("a: 1", "expected a list of key_name, token"),
        (f"- {{key_name: a, token: {A}, admin: true}}", "unknown field `admin`"),
        (f"- {{key_name: a, token: {A}, allowed_clusters: null}}", "Expected `array`, got `null`"),
        (f"- {{key_name: a, token: {A}, scopes: [admin]}}", "Invalid enum value 'admin'"),
        (f"- {{token: {A}}}", "missing required field `key_name`"),
        (f"- {{key_name: '', token: {A}}}", "empty key_name"),
        ("- {key_name: a, token: short-secret}", "at least 16 characters"),
        ("- {key_name: a, token: 'sixteen plus but spaces'}", "without spaces"),
        (f"- key_name: a\n  token: {A}\n bad", "line 3: not valid YAML"),
    ],
)
def test_a_bad_acl_file_is_named_without_its_tokens(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(AuthError, match="ACL file") as caught:
        read_keys(acl(tmp_path, text), "ACL file")
    assert reason in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (A, "short-secret", "sixteen plus"))


def test_files_others_can_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="chmod 600"):
        read_keys(acl(tmp_path, GOOD, 0o644), "ACL file")
    with pytest.raises(AuthError, match="cannot read ACL file"):
        read_keys(tmp_path / "nowhere", "ACL file")


def test_two_bearers_cannot_share_a_token_or_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INGERO_ECHO_TOKEN", raising=False)
    for text in (GOOD.replace(B, A), GOOD.replace("key_name: b", "key_name: a")):
        with pytest.raises(AuthError, match="two entries have the same"):
            echo_keys(None, acl(tmp_path, text), tmp_path / "echo.db")
    monkeypatch.setenv("INGERO_ECHO_TOKEN", "from-the-environment")
    keys = echo_keys(None, acl(tmp_path, GOOD), tmp_path / "echo.db")
    assert [found.name for found in keys] == ["a", "b", "default"]
    assert not (tmp_path / "echo.db.token").exists(), "with an ACL file no token is made"
