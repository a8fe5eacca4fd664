"""`ingero-fleet`: the service that compares peers and sends the threshold back."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from ingero.cli.dispatch import run_click
from ingero.cli.params import log_level_option, stacked
from ingero.config.fleet import FleetConfig
from ingero.config.loader import load_file, load_text, to_mapping
from ingero.errors import ConfigError

ENDPOINTS = {
    "grpc": "receivers.otlp.protocols.grpc.endpoint",
    "http": "receivers.otlp.protocols.http.endpoint",
    "agent": "extensions.ingero_threshold.agent_endpoint",
    "admin": "extensions.ingero_threshold.admin_endpoint",
    "health": "extensions.zpages.endpoint",
    "metrics": "service.telemetry.metrics.address",
    "prometheus": "exporters.prometheus.endpoint",
}
EPILOG = """\b
Examples:
  ingero-fleet                                     loopback, default ports
  ingero-fleet --config fleet-config.yaml          as the file says
  ingero-fleet --config fleet-config.yaml --check  is the file right?
  ingero-fleet --http 0.0.0.0:14318 --grpc off     other ports, no gRPC
"""


_endpoint_options = stacked(
    *(
        click.option(f"--{name}", metavar="[HOST:]PORT", help=f"Instead of {key}.")
        for name, key in ENDPOINTS.items()
    )
)


@click.command("ingero-fleet", epilog=EPILOG)
@click.option(
    "--config", "path", type=click.Path(path_type=Path), help="Configuration file (YAML)."
)
@click.option(
    "--check", is_flag=True, help="Validate the configuration and the files it names, and exit."
)
@click.option("--print-config", is_flag=True, help="Show the effective configuration and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print configuration and addresses as JSON.")
@log_level_option()
@click.option(
    "--record-inputs", type=click.Path(path_type=Path), help="Keep inputs for `ingero replay`."
)
@click.option(
    "--silences", type=click.Path(path_type=Path), help="Keep silences in this file over restarts."
)
@_endpoint_options
def fleet(
    path: Path | None,
    check: bool,
    print_config: bool,
    as_json: bool,
    log_level: str,
    record_inputs: Path | None,
    silences: Path | None,
    **endpoints: str | None,
) -> int:
    """Compare the nodes of each cluster and answer every push with the line between healthy and slow.

    Agents push OTLP to :4317 (gRPC) or :4318 (HTTP). Without --config everything listens on loopback.
    """
    config = load_file(FleetConfig, path) if path is not None else FleetConfig()
    addresses = {name: value for name, value in endpoints.items() if value is not None}
    config = _override(
        config, addresses, {"record_inputs": record_inputs, "silences_file": silences}
    )
    if print_config:
        _print_config(config, as_json)
        return 0
    if check:
        from ingero.fleet.app import check_files

        check_files(config)
        name = str(path or "the built-in configuration")
        click.echo(
            json.dumps({"configuration": name, "valid": True}) if as_json else f"{name} is valid"
        )
        return 0
    return _serve(config, as_json, log_level)


def _override(
    config: FleetConfig, addresses: dict[str, str], files: dict[str, Path | None]
) -> FleetConfig:
    """The same configuration with what flags change in it, checked by the same rules once all of them are in."""
    mapping = to_mapping(config)
    for name, value in addresses.items():
        *sections, field = ENDPOINTS[name].split(".")
        if value == "off" and name in ("grpc", "http"):
            mapping["receivers"]["otlp"]["protocols"].pop(name, None)
            continue
        node: dict[str, Any] = mapping
        for section in sections:
            node = node.setdefault(section, {})
        host = str(node.get(field) or "127.0.0.1:0").rpartition(":")[0]
        node[field] = value if ":" in value else f"{host}:{value}"
    for key, file in files.items():
        if file is not None:
            mapping["processors"]["ingero"]["verdict"][key] = str(file)
    try:
        return load_text(FleetConfig, json.dumps(mapping), "")
    except ConfigError as error:
        given = " ".join(f"--{name} {value}" for name, value in addresses.items())
        raise ConfigError(f"{given}: {str(error).split(': ', 1)[-1]}") from None


def _print_config(config: FleetConfig, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(to_mapping(config), indent=2))
        return
    import yaml

    click.echo(yaml.safe_dump(to_mapping(config), sort_keys=False).rstrip())


def _serve(config: FleetConfig, as_json: bool, log_level: str) -> int:
    from ingero.cli.foreground import run_service
    from ingero.fleet.app import serve

    return run_service(
        "ingero-fleet", lambda started: serve(config, started), as_json=as_json, log_level=log_level
    )


def main() -> int:
    """Console script."""
    return run_click(fleet, sys.argv[1:], "ingero-fleet")


if __name__ == "__main__":
    sys.exit(main())
