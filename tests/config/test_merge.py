"""File, environment variables and flags become one configuration; errors name what was wrong."""

from pathlib import Path

import pytest

from ingero.cli.commands.services.fleet import effective_config
from ingero.config.echo import EchoConfig
from ingero.config.fleet import FleetConfig
from ingero.config.ingero import IngeroConfig
from ingero.config.loader import load_file, load_text
from ingero.config.merge import entries_of, merged
from ingero.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text("store: {path: /file.db}\nfleet:\n  timeout: 3s\n")
    return path


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(file: Path) -> None:
    variable = {"INGERO_DB": "/variable.db"}
    flag = {"signal_db_path": Path("/flag.db")}
    found = [
        merged(IngeroConfig, file, environ, flags).store.path
        for environ, flags in (({}, {}), (variable, {}), (variable, flag))
    ]
    assert found == [Path("/file.db"), Path("/variable.db"), Path("/flag.db")]


@pytest.mark.parametrize(
    ("config", "key", "variable", "parameter"),
    [
        (IngeroConfig, "fleet: {token_file: /file}", "INGERO_FLEET_TOKEN", "fleet_token_file"),
        (
            EchoConfig,
            "{auth_token_file: /file, create_certificate: true}",
            "INGERO_ECHO_TOKEN",
            "auth_token_file",
        ),
    ],
)
def test_a_token_follows_the_same_rule(
    config: type, key: str, variable: str, parameter: str, tmp_path: Path
) -> None:
    """The variable holds the token itself, so that no file is read where it wins."""
    file = tmp_path / "x.yaml"
    file.write_text(key)
    token, flag = {variable: "a-token-0123456789"}, {parameter: Path("/flag")}
    found = [
        merged(config, file, environ, flags)
        for environ, flags in (({}, {}), (token, {}), (token, flag))
    ]
    files = [each.fleet if config is IngeroConfig else each for each in found]
    names = "token_file" if config is IngeroConfig else "auth_token_file"
    assert [getattr(each, names) for each in files] == [Path("/file"), None, Path("/flag")]


def test_what_is_not_given_is_as_the_file_states_it(file: Path) -> None:
    assert merged(IngeroConfig, file, {}, {}) == load_file(IngeroConfig, file)
    nothing = {entry.setting.parameter: None for entry in entries_of(IngeroConfig)}
    assert merged(IngeroConfig, None, {}, nothing) == IngeroConfig()  # type: ignore[arg-type] # settings without a flag have no name


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"fleet_timeout": "0s"}, "--fleet-timeout: 0s is out of range; allowed: 100ms to 5m"),
        ({"fleet_timeout": 9.0}, "--fleet-timeout: 9s is longer than push_interval 5s"),
        ({"fleet_push_interval": 2.0}, "x.yaml:3: fleet.timeout: 3s is longer than push_interval"),
        ({"fleet_timeout": "soon"}, "--fleet-timeout: 'soon' is not a duration"),
        ({"fleet_node_id": " a"}, "--fleet-node-id: ' a' must be 1 to 253"),
        (
            {"fleet_insecure": True, "fleet_tls_ca": "/a"},
            "fleet: insecure and tls exclude each other; remove one "
            "(with --fleet-insecure, --fleet-tls-ca)",
        ),
    ],
)
def test_an_error_names_the_flag_or_the_line(
    file: Path, flags: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        merged(IngeroConfig, file, {}, flags)
    assert complaint in str(caught.value)


def test_a_wrong_value_of_the_file_is_refused_even_where_a_flag_replaces_it(file: Path) -> None:
    file.write_text("fleet: {push_interval: soon}")
    with pytest.raises(ConfigError, match=r"x\.yaml:1: fleet\.push_interval: 'soon'"):
        merged(IngeroConfig, file, {}, {"fleet_push_interval": 5.0})


def test_a_flag_can_complete_a_file(file: Path) -> None:
    file.write_text("retention: 2d")
    with pytest.raises(ConfigError, match="Echo needs TLS"):
        merged(EchoConfig, file, {}, {})
    assert merged(EchoConfig, file, {}, {"insecure_no_tls": True}).retention == 2 * 86400


def test_sections_that_the_file_leaves_out_keep_their_defaults(file: Path) -> None:
    file.write_text("processors: {ingero: {ttl_multiplier: 7}}")
    config = effective_config(file, {"http": "14318", "prometheus": ":9091"})
    protocols = config.receivers.otlp.protocols
    assert protocols.grpc is not None and protocols.http is not None
    assert (protocols.grpc.endpoint, protocols.http.endpoint) == (
        "127.0.0.1:4317",
        "127.0.0.1:14318",
    )
    assert config.listeners()[-1].endpoint == ":9091"
    assert config.processors.ingero.ttl_multiplier == 7


def test_a_port_alone_keeps_the_host_of_the_file_and_off_disables_a_receiver(file: Path) -> None:
    file.write_text("receivers: {otlp: {protocols: {http: {endpoint: '0.0.0.0:4318'}}}}")
    config = effective_config(file, {"http": "14318"})
    assert config.receivers.otlp.protocols.http is not None
    assert config.receivers.otlp.protocols.http.endpoint == "0.0.0.0:14318"
    assert effective_config(None, {"grpc": "off"}).receivers.otlp.protocols.grpc is None
    turned_on = effective_config(file, {"grpc": "5317"}).receivers.otlp.protocols.grpc
    assert turned_on is not None and turned_on.endpoint == "127.0.0.1:5317"


def test_ports_that_collide_name_the_flag() -> None:
    with pytest.raises(ConfigError, match=r"port 8080 is taken by .* \(with --http\)"):
        effective_config(None, {"http": "8080"})


@pytest.mark.parametrize("config", [IngeroConfig, EchoConfig, FleetConfig])
def test_every_setting_has_a_help_text_and_flags_are_unique(config: type) -> None:
    entries = [entry for entry in entries_of(config) if entry.type is not object]
    assert [entry.key for entry in entries if not entry.setting.help] == []
    flags = [entry.setting.flag for entry in entries if entry.setting.flag]
    assert len(flags) == len(set(flags))


def test_defaults_are_inside_their_ranges() -> None:
    for config in (IngeroConfig, EchoConfig, FleetConfig):
        for entry in entries_of(config):
            values = entry.default if isinstance(entry.default, tuple) else (entry.default,)
            for value in values:
                assert value is None or entry.setting.problem(value) is None, entry.key


def test_text_and_nothing_give_the_defaults() -> None:
    assert load_text(FleetConfig, "", "x") == FleetConfig() == effective_config(None, {})
