"""`ingero-fleet`: the service that compares nodes and replies with the threshold."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ingero.cli.dispatch import run_click
from ingero.cli.settings import LOG_LEVEL, options_of
from ingero.config.fleet import FleetConfig
from ingero.config.fleet_files import require_files
from ingero.config.loader import load_file, to_mapping
from ingero.config.merge import entries_of, merged

DEFAULT_HOST = "127.0.0.1:0"
EPILOG = """\b
Examples:
  ingero-fleet                                     loopback, default ports
  ingero-fleet --config fleet-config.yaml          with a configuration file
  ingero-fleet --config fleet-config.yaml --check  validate that file
  ingero-fleet --http 0.0.0.0:14318 --grpc off     other ports, no gRPC
"""


@click.command("ingero-fleet", epilog=EPILOG)
@click.option(
    "--config", "path", type=click.Path(path_type=Path), help="Configuration file (YAML)."
)
@click.option(
    "--check", is_flag=True, help="Validate the configuration and the files it names, and exit."
)
@click.option("--print-config", is_flag=True, help="Show the effective configuration and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print configuration and addresses as JSON.")
@LOG_LEVEL
@options_of(FleetConfig)
def fleet(
    path: Path | None, check: bool, print_config: bool, as_json: bool, log_level: str, **flags: Any
) -> int:
    """Compare the nodes of each cluster and reply to every push with the cluster's threshold.

    Agents push OTLP to port 4317 (gRPC) or 4318 (HTTP). Without --config everything listens on
    loopback. An address without a host keeps the host of the configuration file; `off` closes the
    gRPC or HTTP receiver.

    SIGTERM answers open requests and stops. SIGHUP reads tokens, certificates and the limits of
    the threshold and the quorum again, without forgetting scores or baselines.
    docs/configuration.md describes the file, docs/api.md the interfaces, docs/metrics.md the
    metrics.
    """
    config = effective_config(path, dict(flags))
    if print_config:
        _print_config(config, as_json)
        return 0
    require_files(config)
    if check:
        from ingero.fleet.serve import check_files

        check_files(config)
        name = str(path or "the built-in configuration")
        click.echo(
            json.dumps({"configuration": name, "valid": True}) if as_json else f"{name} is valid"
        )
        return 0
    return _serve(config, lambda: effective_config(path, dict(flags)), as_json, log_level)


def effective_config(path: Path | None, flags: dict[str, Any]) -> FleetConfig:
    """Return the file's settings with flags laid over them. Raises ConfigError.

    A flag with only a port keeps the host of the file; `off` disables a receiver.
    """
    file = to_mapping(load_file(FleetConfig, path) if path is not None else FleetConfig())
    without = {}
    for entry in entries_of(FleetConfig):
        name = entry.setting.parameter or ""
        value = flags.get(name)
        if value == "off" and name in ("grpc", "http"):
            without[entry.key.removesuffix(".endpoint")] = f"--{name}"
            flags[name] = None
        elif isinstance(value, str) and ":" not in value:
            host = str(_at(file, entry.key) or DEFAULT_HOST).rpartition(":")[0]
            flags[name] = f"{host}:{value}"
    return merged(FleetConfig, path, os.environ, flags, without)


def _at(mapping: Any, key: str) -> Any:
    """Return what a configuration file has at a dotted key; None where it has nothing."""
    for name in key.split("."):
        mapping = mapping.get(name) if isinstance(mapping, dict) else None
    return mapping


def _print_config(config: FleetConfig, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(to_mapping(config), indent=2))
        return
    import yaml

    click.echo(yaml.safe_dump(to_mapping(config), sort_keys=False).rstrip())


def _serve(
    config: FleetConfig, reread: Callable[[], FleetConfig], as_json: bool, log_level: str
) -> int:
    from ingero.cli.foreground import run_service
    from ingero.fleet.serve import serve

    return run_service(
        "ingero-fleet",
        lambda started: serve(config, started, reread),
        as_json=as_json,
        log_level=log_level,
    )


def main() -> int:
    """Run the console script."""
    return run_click(fleet, sys.argv[1:], "ingero-fleet")


if __name__ == "__main__":
    sys.exit(main())
