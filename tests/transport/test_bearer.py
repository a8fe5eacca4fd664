"""Bearer tokens: parsing, comparison, files."""

from pathlib import Path

import pytest

from ingero.errors import AuthError
from ingero.transport.bearer import (
    parse_bearer,
    read_token_file,
    token_digest,
    token_from,
    tokens_equal,
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


def test_f095_comparison_goes_through_digests_and_empty_never_matches() -> None:
    assert tokens_equal("s3cret", token_digest("s3cret"))
    assert not tokens_equal("s3cret", token_digest("other"))
    assert not tokens_equal("", token_digest(""))
    assert not tokens_equal("", None)
    assert not tokens_equal(None, token_digest("x"))


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
