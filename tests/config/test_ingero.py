"""ingero.yaml: where it is found, what it means, and what it refuses; flags win over it."""

import os
import pwd
from pathlib import Path

import pytest

from ingero.cli.commands.node.fleet_push import command
from ingero.config.ingero import IngeroConfig, find_config, load_ingero, trace_database
from ingero.config.loader import load_text
from ingero.config.merge import merged
from ingero.errors import ConfigError
from ingero.transport.endpoint import Protocol

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("INGERO_CONFIG", raising=False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_search_order(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_ingero() == IngeroConfig()
    in_home = empty_home / ".config" / "ingero" / "ingero.yaml"
    in_home.parent.mkdir(parents=True)
    in_home.write_text("fleet: {cluster_id: home}")
    assert load_ingero().fleet.cluster_id == "home"
    Path("ingero.yaml").write_text("fleet: {cluster_id: here}")
    assert load_ingero().fleet.cluster_id == "here"
    monkeypatch.setenv("INGERO_CONFIG", str(empty_home / "named.yaml"))
    assert find_config() == empty_home / "named.yaml"
    with pytest.raises(ConfigError, match=r"named\.yaml"):
        load_ingero()


def test_published_snippets_load() -> None:
    config = load_text(IngeroConfig, "fleet:\n  endpoint: https://fleet.example.com:4317\n", "x")
    assert config.fleet.endpoint == "https://fleet.example.com:4317"
    nodes = load_text(
        IngeroConfig, "fleet:\n  nodes:\n    - gpu-node-01:8080\n    - gpu-node-02:8080\n", "x"
    ).fleet.nodes
    assert nodes == ("gpu-node-01:8080", "gpu-node-02:8080")


def test_example_file_is_valid() -> None:
    config = load_ingero(ROOT / "configs" / "ingero.yaml")
    assert config.fleet.push_interval_s == 5.0
    assert config.health.classifier.confirmations == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fleet:\n  push_interval: 500ms", r"x:2: fleet.push_interval: .* 1s to 1h"),
        ("fleet:\n  push_interval: 2s\n  timeout: 3s", "timeout"),
        ("fleet:\n  endpiont: a", r"x:2: fleet.endpiont: unknown key; did you mean endpoint"),
        ("fleeet: {}", "did you mean fleet"),
        ("fleet: {world_size: 4, node_rank: 4}", "node_rank"),
        ("fleet: {insecure: true, tls: {ca: /a}}", "insecure"),
        ('fleet: {cluster_id: "a\\nb"}', "cluster_id"),
        ("agent: {node: 'a:b'}", "colon"),
        ("health: {weights: {throughput: 0.9}}", "sum"),
        ("health: {penalty_floor: 0.5}", "penalty_floor"),
        ("health: {classifier: {hysteresis: 0.7}}", "hysteresis"),
        ("otlp: {enabled: true}", "endpoint"),
    ],
)
def test_wrong_settings_name_the_key(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_text(IngeroConfig, text, "x")


def test_blocks_of_others_are_accepted() -> None:
    assert load_text(
        IngeroConfig, "probes: {cuda: [a, b]}\nmcp: {x: {y: 1}}\nprometheus:\n", "x"
    ).fleet == (IngeroConfig().fleet)


def flags(**given: object) -> dict[str, object]:
    return {parameter.name: None for parameter in command.params if parameter.name} | given


def test_flags_win_only_when_given(tmp_path: Path) -> None:
    file = tmp_path / "ingero.yaml"
    file.write_text("fleet: {cluster_id: file, push_interval: 7s, insecure: true}")
    same = merged(IngeroConfig, file, {}, flags())
    assert same == load_ingero(file)
    changed = merged(
        IngeroConfig,
        file,
        {},
        flags(
            fleet_cluster_id="flag",
            fleet_protocol="grpc",
            confirmations=1,
            warmup_samples=0,
            remediate=True,
        ),
    )
    assert (changed.fleet.cluster_id, changed.fleet.push_interval_s, changed.fleet.insecure) == (
        "flag",
        7.0,
        True,
    )
    assert (changed.fleet.protocol, changed.health.classifier.confirmations) == (Protocol.GRPC, 1)
    assert (changed.health.baseline.warmup_samples, changed.remediate.enabled) == (0, True)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"fleet_push_interval": 0.5}, "--fleet-push-interval"),
        ({"fleet_timeout": 9.0}, "timeout"),
        ({"fleet_node_rank": 3, "fleet_world_size": 2}, "--fleet-node-rank: 3 must"),
        ({"fleet_insecure": True, "fleet_tls_ca": Path("/x")}, "insecure"),
        ({"confirmations": 0}, "confirmations"),
    ],
)
def test_flags_are_checked_like_the_file(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        merged(IngeroConfig, None, {}, flags(**given))


def test_every_published_flag_exists() -> None:
    published = """
        fleet-endpoint fleet-cluster-id fleet-node-id fleet-workload-type
        fleet-push-interval fleet-timeout fleet-insecure fleet-tls-ca fleet-tls-cert
        fleet-tls-key fleet-persist-path fleet-persist-stale-age fleet-detection-mode
        fleet-world-size fleet-node-rank fleet-threshold-url fleet-poll-interval
        fleet-classifier-hysteresis remediate remediate-socket remediate-gid
        signal-db-path signal-window signal-num-gpus warmup-samples otlp-enabled
        otlp-endpoint otlp-insecure stub
    """.split()
    ours = {option for parameter in command.params for option in parameter.opts}
    assert {f"--{name}" for name in published} <= ours


def test_every_command_means_the_same_trace_database(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path = empty_home
    monkeypatch.delenv("INGERO_DB", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert trace_database() == tmp_path / ".ingero" / "ingero.db"
    (tmp_path / "ingero.yaml").write_text("store: {path: /data/trace.db}\n")
    assert trace_database() == Path("/data/trace.db")
    monkeypatch.setenv("INGERO_DB", "/else/where.db")
    assert trace_database() == Path("/else/where.db")
    assert trace_database(Path("given.db")) == Path("given.db")


def test_a_tilde_is_the_home_of_the_caller_also_under_sudo_must_32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = pwd.struct_passwd(("ana", "x", 54321, 54321, "", "/home/ana", "/bin/sh"))
    monkeypatch.setattr("ingero.storage.caller.os.geteuid", lambda: 0)
    monkeypatch.setattr("ingero.storage.caller.pwd.getpwuid", lambda uid: person)
    monkeypatch.setenv("SUDO_UID", "54321")
    monkeypatch.setenv("HOME", "/root")
    file = tmp_path / "ingero.yaml"
    file.write_text("store: {path: ~/traces/t.db}\n")
    assert load_ingero(file).store.path == Path("/home/ana/traces/t.db")


def test_a_file_that_another_user_put_into_the_folder_is_refused(empty_home: Path) -> None:
    """It could send the token of whoever runs a command there to an address of its author."""
    here = Path("ingero.yaml")
    here.write_text("fleet: {cluster_id: here}")
    here.chmod(0o666)
    with pytest.raises(ConfigError, match=r"can be changed by everybody.*\$INGERO_CONFIG"):
        load_ingero()
    assert load_ingero(here).fleet.cluster_id == "here"  # named, so it is read
    here.chmod(0o644)
    assert load_ingero().fleet.cluster_id == "here"
    if os.geteuid() != 0:
        pytest.skip("needs root: files of other users")
    os.chown(here, 12345, 12345)
    with pytest.raises(ConfigError, match="is of user 12345, so it is not read by itself"):
        load_ingero()
    here.unlink()
    here.symlink_to(empty_home / "mine.yaml")
    (empty_home / "mine.yaml").write_text("")
    os.lchown(here, 12345, 12345)
    with pytest.raises(ConfigError, match="is of user 12345"):
        load_ingero()


def test_under_sudo_the_callers_file_is_read(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    here = Path("ingero.yaml")
    here.write_text("fleet: {cluster_id: here}")
    os.chown(here, 12345, 12345)
    monkeypatch.setenv("SUDO_UID", "12345")
    assert load_ingero().fleet.cluster_id == "here"
