"""Bearer tokens: parsing, comparison, files."""

from pathlib import Path

import pytest
from tests.support.tokens import private

from ingero.errors import AuthError
from ingero.transport.bearer import (
    TokenScope,
    keys_from,
    parse_bearer,
    read_keys,
    read_token_file,
    token_from,
)


@pytest.mark.parametrize(
    "header", ["Bearer abc", "bearer abc", "BEARER abc", "Bearer  abc  ", "Bearer\tabc"]
)
def test_v11_accepted_spellings(header: str) -> None:
    assert parse_bearer(header) == "abc"


@pytest.mark.parametrize(
    "header", [None, "", "Bear", "Bearer", "Bearer   ", "Basic abc", "BeerAbc123"]
)
def test_v11b_everything_else_is_no_token(header: str | None) -> None:
    assert parse_bearer(header) is None


def test_token_file_must_be_private_and_hold_one_word(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc\n")
    path.chmod(0o644)
    with pytest.raises(AuthError, match="chmod 600"):
        read_token_file(path)
    path.chmod(0o600)
    assert read_token_file(path) == "abc"
    path.write_text("")
    with pytest.raises(AuthError, match="is empty"):
        read_token_file(path)
    path.write_text("a b")
    with pytest.raises(AuthError, match="one word"):
        read_token_file(path)
    path.write_text("schlüssel")  # no header can carry it
    with pytest.raises(AuthError, match="ASCII"):
        read_token_file(path)
    with pytest.raises(AuthError, match="not a regular file"):
        read_token_file(tmp_path)


def test_file_wins_over_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGERO_TEST_TOKEN", "from-env")
    path = tmp_path / "token"
    path.write_text("from-file")
    path.chmod(0o600)
    assert token_from(path, "INGERO_TEST_TOKEN") == "from-file"
    assert token_from(None, "INGERO_TEST_TOKEN") == "from-env"
    assert token_from(None, "INGERO_TEST_ABSENT") is None


def test_one_file_format_for_servers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One token alone, or a list with scopes; what has no scopes may do everything, as before."""
    alone = private(tmp_path / "one", "0123456789abcdef\n")
    (key,) = read_keys(alone)
    assert (key.name, key.clusters, key.scopes) == ("default", None, frozenset(TokenScope))
    assert [record.message for record in caplog.records] == ["tokens_without_scopes"]
    caplog.clear()
    listed = private(
        tmp_path / "list",
        "- {key_name: agents, token: 0123456789abcdef, allowed_clusters: [east], scopes: [push]}\n"
        "- {key_name: ops, token: fedcba9876543210, scopes: [read, operate]}\n",
    )
    agents, ops = read_keys(listed)
    assert (agents.clusters, agents.scopes) == ({"east"}, {TokenScope.PUSH})
    assert (ops.clusters, ops.may(TokenScope.PUSH)) == (None, False)
    assert not caplog.records


def test_short_tokens_are_refused_by_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AuthError, match="at least 16 characters"):
        read_keys(private(tmp_path / "short", "x"))
    monkeypatch.setenv("INGERO_TEST_TOKEN", "x")
    with pytest.raises(AuthError, match=r"\$INGERO_TEST_TOKEN must be at least 16 characters"):
        keys_from(None, "INGERO_TEST_TOKEN")
    assert keys_from(None, "INGERO_TEST_ABSENT") is None
