"""`ingero support-bundle`: what is in it, and what never is."""

import json
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ingero.cli.bundle import REMOVED, clean, collect, known_secrets, redacted
from ingero.cli.dispatch import run

TOKEN = "feedc0de" * 8
CODE = "ij1_" + "A" * 64
ODD = 'hunter"2/ with ö and %'
LISTED, HOOK, CHAT = "a11ce" * 8, "T000/B000/" + "x" * 24, "123456:bot-of-the-team"


def write_files_with_secrets(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Write what a person may have; return both configurations and the file of a token."""
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
    tokens, urls = tmp_path / "tokens", tmp_path / "urls"
    tokens.write_text(f"- {{key_name: a, token: {LISTED}}}\n- {{key_name: b, token: other}}\n")
    urls.write_text(f"# chat\ntgram://{CHAT}/42\n")
    fleet.write_text(
        f"alerts: {{targets: {{webhook: {{url: 'https://a:b@h/{CODE}'}}, "
        f"slack: {{url: 'https://hooks.example/services/{HOOK}'}}, apprise: {{urls_file: {urls}}}"
        f"}}}}\nextensions: {{ingero_threshold: {{token_file: {tokens}}}}}\n"
    )
    logs = tmp_path / ".ingero" / "up"
    logs.mkdir(parents=True)
    (logs / "fleet.log").write_text(f"push with {TOKEN} and {CODE}\n")
    (logs / "alerts.log").write_text(f"{LISTED}, https://hooks.example/services/{HOOK}, {CHAT}\n")
    shadow = tmp_path / "shadow"
    shadow.write_text("root:hash")
    (logs / "linked.log").symlink_to(shadow)
    return config, fleet, token


def texts_in(bundle: Path) -> dict[str, str]:
    texts = {}
    with tarfile.open(bundle) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            texts[member.name.partition("/")[2]] = content.read().decode()
    return texts


def test_a_bundle_has_everything_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, fleet, token = write_files_with_secrets(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("INGERO_CONFIG", str(config))
    monkeypatch.setenv("INGERO_RUNTIME_DIR", str(tmp_path / "run"))
    out = tmp_path / "bundle.tar.gz"
    assert run(["support-bundle", "-o", str(out), "--fleet-config", str(fleet)]) == 0
    assert out.stat().st_mode & 0o777 == 0o600
    texts = texts_in(out)
    for name, text in texts.items():
        assert TOKEN not in text, name
        for secret in (CODE, LISTED, HOOK, CHAT, "root:hash"):
            assert secret not in text, name
    assert texts["logs/up-alerts.log"] == f"{REMOVED}, https://hooks.example/{REMOVED}, {REMOVED}\n"
    assert texts["logs/up-linked.log"].startswith("not available: ")
    assert "numpy" in texts["versions.txt"]
    assert "privileges" in texts["checks.json"]
    assert yaml.safe_load(texts["ingero.yaml"])["fleet"]["token_file"] == str(token)
    assert texts["fleet-status.json"].startswith("not available: ")
    assert texts["logs/up-fleet.log"] == f"push with {REMOVED} and {REMOVED}\n"


SECRETS = (
    "token", "bearer_token", "password", "routing_key", "api_key", "AWS_SECRET_ACCESS_KEY",
    "tokens", "Authorization", "passwords_of_users", "client_secret_value", "sessionCookie",
    "headers", "x-api-key", "privateKey", "signing_key", "pwd", "MYSQL_PWD", "basic-auth", "dsn",
    "slack_webhook_url", "jwt", "connectionString",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("shape", ["{}", "[{}]", "{{x: [{{y: {}}}]}}"])
def test_secrets_are_removed_wherever_they_are(
    name: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In lists and mappings, under misspelled names, and as logs of JSON and URLs have them."""
    config = tmp_path / "ingero.yaml"
    config.write_text(f"fleet: {{{name}: {shape.format(yaml.dump(ODD).split(chr(10))[0])}}}\n")
    monkeypatch.setenv("INGERO_CONFIG", str(config))
    secrets = known_secrets()
    for form in (ODD, json.dumps(ODD), quote(ODD, safe="")):
        assert ODD[:4] not in clean(f"log {form} end", secrets)
    assert ODD[:4] not in yaml.dump(redacted(yaml.safe_load(config.read_text())))


@given(st.sampled_from(["token", "bearer_token", "password", "routing_key", "api_key"]), st.text())
def test_values_of_secret_settings_are_removed(name: str, value: str) -> None:
    assert redacted({"a": [{name: value, "token_file": "f"}]}) == {
        "a": [{name: REMOVED, "token_file": "f"}]
    }


def test_names_of_folders_and_files_stay() -> None:
    names = {"tls_key": "k.pem", "client_key": "k.pem", "token_file": "t", "compass": "n"}
    assert redacted(names) == names


def test_credentials_in_addresses_are_removed() -> None:
    assert clean("see https://me:pw@host/x", []) == f"see https://{REMOVED}@host/x"


@pytest.mark.parametrize(
    "before, after",
    [
        ("Authorization: Bearer ", ""),
        ("postgres://me:", "/x@host/db"),
        ("postgres://me:a@", "@host/db"),
        ("proxy //me:", "@host"),
        ("GET /x?access_token=", "&a=1"),
        ("host=db password=", " dbname=x"),
        ('{"api-key": "', '"}'),
        (r'{"body": "{\"secret\":\"', r'\"}"}'),
        ("-----BEGIN EC PRIVATE KEY-----\n", "\n-----END EC PRIVATE KEY-----"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.", " end"),
    ],
)
def test_secrets_that_no_setting_names_are_known_by_what_is_before_them(
    before: str, after: str
) -> None:
    cleaned = clean(before + TOKEN + after, [])
    assert TOKEN not in cleaned
    assert cleaned.endswith(after[-3:])
    assert clean(cleaned, []) == cleaned


def test_what_names_a_file_is_no_secret() -> None:
    for text in ("token_file=/etc/ingero/token", '"secrets_file": "/etc/ingero/lake"'):
        assert clean(text, []) == text


@pytest.mark.parametrize("part", ["a", "token", "://", "eyJ", "-----BEGIN PRIVATE KEY-----"])
def test_a_long_word_in_a_log_is_searched_once(part: str) -> None:
    """A pattern that begins with a repetition tries each suffix, which would take an hour."""
    word = part * (500_000 // len(part))
    assert clean(word, []) == word


@pytest.mark.parametrize(
    "text", ["- {}", "tokens: [{{token: {}}}]", "a: {{b: [{}]}}", "TOKEN={}", "token = '{}'"]
)
def test_files_of_secrets_of_any_shape(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets, config = tmp_path / "tokens", tmp_path / "ingero.yaml"
    secrets.write_text(text.format(LISTED) + "\n")
    config.write_text(f"fleet: {{token_file: {secrets}}}\n")
    monkeypatch.setenv("INGERO_CONFIG", str(config))
    assert LISTED in known_secrets()


def test_a_configuration_that_is_no_yaml_is_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the error of the parser reads the line, too."""
    config = tmp_path / "ingero.yaml"
    config.write_text(f'fleet:\n  headers:\n    key: "{TOKEN}\n')
    monkeypatch.setenv("INGERO_CONFIG", str(config))
    texts = dict(collect(None))
    assert texts["ingero.yaml"].startswith("not available: no valid YAML, line ")
    assert not [name for name, text in texts.items() if TOKEN in text]


def test_secrets_of_a_lake_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets, config = tmp_path / "lake", tmp_path / "ingero.yaml"
    secrets.write_text(f"password: {TOKEN}\ns3_secret: {LISTED}\n")
    config.write_text(f"echo: {{store_secrets_file: {secrets}}}\n")
    monkeypatch.setenv("INGERO_CONFIG", str(config))
    assert {TOKEN, LISTED} <= set(known_secrets())
