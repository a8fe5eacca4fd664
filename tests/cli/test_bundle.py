"""`ingero support-bundle`: what is in it, and what never is."""

import tarfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ingero.cli.bundle import REMOVED, clean, redacted
from ingero.cli.dispatch import run

TOKEN = "feedc0de" * 8
CODE = "ij1_" + "A" * 64


def test_a_bundle_has_everything_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    config = tmp_path / "ingero.yaml"
    config.write_text(
        f"fleet:\n  endpoint: https://me:{TOKEN}@127.0.0.1:9\n  url: https://127.0.0.1:9\n"
        f"  token_file: {token}\n  headers: {{x-key: {TOKEN}}}\n"
        f"alerter:\n  pagerduty: {{routing_key: {TOKEN}}}\n"
    )
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"alerts: {{targets: {{webhook: {{url: 'https://a:b@h/{CODE}'}}}}}}\n")
    logs = tmp_path / ".ingero" / "up"
    logs.mkdir(parents=True)
    (logs / "fleet.log").write_text(f"push with {TOKEN} and {CODE}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("INGERO_CONFIG", str(config))
    monkeypatch.setenv("INGERO_RUNTIME_DIR", str(tmp_path / "run"))
    out = tmp_path / "bundle.tar.gz"
    assert run(["support-bundle", "-o", str(out), "--fleet-config", str(fleet)]) == 0
    assert out.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as archive:
        texts = {}
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            texts[member.name.partition("/")[2]] = content.read().decode()
    for name, text in texts.items():
        assert TOKEN not in text, name
        assert CODE not in text, name
    assert "numpy" in texts["versions.txt"]
    assert "privileges" in texts["checks.json"]
    assert yaml.safe_load(texts["ingero.yaml"])["fleet"]["token_file"] == str(token)
    assert texts["fleet-status.json"].startswith("not available: ")
    assert texts["logs/up-fleet.log"] == f"push with {REMOVED} and {REMOVED}\n"


@given(st.sampled_from(["token", "bearer_token", "password", "routing_key", "api_key"]), st.text())
def test_values_of_secret_settings_are_removed(name: str, value: str) -> None:
    assert redacted({"a": [{name: value, "token_file": "f"}]}) == {
        "a": [{name: REMOVED, "token_file": "f"}]
    }


def test_credentials_in_addresses_are_removed() -> None:
    assert clean("see https://me:pw@host/x", []) == f"see https://{REMOVED}@host/x"
