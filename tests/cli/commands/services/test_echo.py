"""The settings of `ingero-echo serve`: a file, flags that win over it, and what is refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from ingero.cli.commands.services.echo_ask import connect, to_text
from ingero.config.echo import (
    CA_VARIABLE,
    DEFAULT_DATABASE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    EchoConfig,
    token_beside,
)
from ingero.config.merge import merged
from ingero.errors import ConfigError
from ingero.files import create_private
from ingero.storage.runtime import RunningService, note_services


def effective_config(path: Path | None, flags: dict[str, str | bool | None]) -> EchoConfig:
    return merged(EchoConfig, path, {}, flags)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "echo.yaml"
    file.write_text("otlp_addr: 127.0.0.1:5317\nretention: 2d\nstore_memory: 2g\n")
    config = effective_config(
        file, {"otlp_addr": "127.0.0.1:6317", "insecure_no_tls": True, "mcp_addr": None}
    )
    assert (config.otlp_addr, config.retention, config.store_memory) == (
        "127.0.0.1:6317",
        2 * 86400,
        2 << 30,
    )
    assert config.otlp_http_addr == "127.0.0.1:4318"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({}, "Echo needs TLS"),
        ({"insecure_no_tls": True, "create_certificate": True}, "contradicts a certificate"),
        ({"tls_cert": "a.pem"}, "belong together"),
        (
            {"insecure_no_tls": True, "retention": "yesterday"},
            "--retention: 'yesterday' is not a duration",
        ),
        (
            {"insecure_no_tls": True, "store_memory": "10m"},
            "--store-memory: 10m is out of range; allowed: 1g or more",
        ),
        (
            {"insecure_no_tls": True, "otlp_addr": "nowhere"},
            "^--otlp-addr: 'nowhere' is not an address",
        ),
    ],
)
def test_wrong_settings_are_named(flags: dict[str, str | bool | None], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        effective_config(None, flags)


def test_an_unknown_key_in_the_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "echo.yaml"
    file.write_text("insecure_no_tls: true\nretentoin: 2d\n")
    with pytest.raises(
        ConfigError, match=r"echo.yaml:2: retentoin: unknown key; did you mean retention\?"
    ):
        effective_config(file, {})


def test_a_missing_file_is_an_error_also_with_flags(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        effective_config(tmp_path / "none.yaml", {"insecure_no_tls": True})


def test_an_answer_without_rows_says_so() -> None:
    assert (
        to_text({"cluster_id": "c", "stragglers": [], "notes": ["n"]})
        == "cluster_id  c\nstragglers: none\nnote: n"
    )


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"insecure_no_tls": True, "certificate_names": ("a",)}, "'a' needs create_certificate"),
        ({"create_certificate": True, "certificate_names": ("a b",)}, "'a b' is not a host name"),
    ],
)
def test_names_of_a_certificate_need_one_and_must_be_names(
    settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        EchoConfig(**settings)


def test_a_question_goes_to_the_echo_that_runs_here_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGERO_RUNTIME_DIR", str(tmp_path))
    for variable in (URL_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    database = tmp_path / "echo.db"
    create_private(token_beside(database), b"a-token-of-twenty\n")
    here = RunningService(os.getpid(), {"mcp": "127.0.0.1:18081"}, str(database))
    note_services({"echo": here})
    found = connect(None, None, None, DEFAULT_DATABASE)
    assert (found.url, found.token) == ("https://127.0.0.1:18081", "a-token-of-twenty")
    other = connect("https://echo.example:8081", None, None, DEFAULT_DATABASE)
    assert other.url == "https://echo.example:8081"
    assert other.token != found.token, "a token is sent to its own Echo only"
