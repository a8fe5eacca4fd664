"""Contexts of ingero.yaml: which Fleet is asked, with which token, and who decides that."""

from pathlib import Path

import pytest

from ingero.cli.dispatch import run
from ingero.cli.fleet_options import fleet_client
from ingero.config import ingero as ingero_config
from ingero.config.contexts import chosen_file, find_context, use_context
from ingero.config.ingero import IngeroConfig, find_config
from ingero.config.loader import load_text
from ingero.errors import ConfigError

TWO = """
fleet: {endpoint: "https://prod:4317", cluster_id: train-a, token_file: FOLDER/prod}
contexts:
  lab: {url: "http://127.0.0.1:9000", token_file: FOLDER/lab, insecure: true}
"""


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home with a configuration of two Fleets."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("INGERO_CONFIG", "INGERO_FLEET_TOKEN", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("prod", "lab"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(f"token-of-{name}-0123456789")
    folder = tmp_path / ".config" / "ingero"
    folder.mkdir(parents=True)
    (folder / "ingero.yaml").write_text(TWO.replace("FOLDER", str(tmp_path)))
    return tmp_path


def test_the_fleet_block_is_asked_until_another_context_is_chosen(configured: Path) -> None:
    client = fleet_client(None, None)
    assert (client.url, client.token) == ("https://prod:8080", "token-of-prod-0123456789")
    assert find_context().settings.cluster_id == "train-a"
    use_context("lab")
    client = fleet_client(None, None)
    assert (client.url, client.token, client.may_send_plaintext) == (
        "http://127.0.0.1:9000",
        "token-of-lab-0123456789",
        True,
    )
    assert find_context().settings.cluster_id is None
    assert fleet_client(None, None, "default").token == "token-of-prod-0123456789"
    use_context("default")
    assert find_context().url == "https://prod:8080"


def test_a_flag_wins_over_the_variable_and_the_variable_over_the_file(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGERO_FLEET_TOKEN", "token-of-variable-0123456789")
    assert fleet_client(None, None).token == "token-of-variable-0123456789"
    use_context("lab")
    assert fleet_client(None, None).token == "token-of-variable-0123456789"
    assert fleet_client(None, None, "lab").token == "token-of-lab-0123456789"
    assert fleet_client("http://127.0.0.1:1", None).url == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("fleet", "api", "push"),
    [
        ("{}", "http://127.0.0.1:8080", "http://127.0.0.1:4318"),
        ("{endpoint: 'https://f:4317'}", "https://f:8080", "https://f:4318"),
        ("{endpoint: 'f:4318'}", "https://f:8080", "https://f:4318"),
        ("{endpoint: 'f:9', insecure: true}", "http://f:8080", "http://f:9"),
        ("{endpoint: '127.0.0.1:4317'}", "http://127.0.0.1:8080", "http://127.0.0.1:4318"),
        ("{endpoint: 'http://[::1]:4317'}", "http://[::1]:8080", "http://[::1]:4318"),
        ("{url: 'https://f:8080'}", "https://f:8080", "https://f:4318"),
        ("{url: 'https://a:1', endpoint: 'https://b:4317'}", "https://a:1", "https://b:4318"),
    ],
)
def test_one_address_is_enough(configured: Path, fleet: str, api: str, push: str) -> None:
    """An agent knows where to push; the API is on the same machine, unless `url` says else."""
    (configured / "ingero.yaml").write_text(f"fleet: {fleet}")
    found = find_context()
    assert (found.url, found.push_url, found.is_configured) == (api, push, fleet != "{}")


def test_the_configuration_of_a_user_comes_before_that_of_the_machine(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = configured / "system.yaml"
    system.write_text("fleet: {url: 'https://of-the-machine:8080'}")
    monkeypatch.setattr(ingero_config, "SYSTEM_CONFIG", system)
    assert find_context().url == "https://prod:8080"
    (configured / ".config" / "ingero" / "ingero.yaml").unlink()
    assert find_config() == system
    assert find_context().url == "https://of-the-machine:8080"


def test_an_unknown_context_is_told_with_those_that_exist(configured: Path) -> None:
    with pytest.raises(ConfigError, match="no context 'prod'; there are: default, lab"):
        use_context("prod")
    assert not chosen_file().exists()
    chosen_file().write_text("gone\n")
    with pytest.raises(ConfigError, match=r"ingero/context: .* no context 'gone'"):
        find_context()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("contexts: {a: {}}", "contexts.a"),
        ("contexts: {default: {url: 'https://f:8080'}}", "the name of the `fleet` block"),
        ("contexts: {a: {urll: x}}", "did you mean url"),
    ],
)
def test_a_wrong_context_names_its_key(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_text(IngeroConfig, text, "x")


def test_list_marks_the_context_in_use(
    configured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["context", "use", "lab"]) == 0
    assert capsys.readouterr().out == "commands ask http://127.0.0.1:9000 now\n"
    assert run(["context", "list"]) == 0
    *_, default, lab = capsys.readouterr().out.splitlines()
    assert default.split() == ["default", "https://prod:8080", "train-a"]
    assert lab.split() == ["*", "lab", "http://127.0.0.1:9000", "all"]
    assert run(["context", "use", "nobody"]) != 0
