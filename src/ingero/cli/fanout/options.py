"""The options of every command that can ask other nodes."""

from dataclasses import dataclass
from typing import Any

import click

from ingero.cli.params import Decorator, Duration, stacked
from ingero.cli.settings import node_option
from ingero.config.ingero import load_ingero
from ingero.config.ingero_fleet import FleetBlockConfig
from ingero.contract.names import FLEET_TOKEN_VARIABLE
from ingero.core.units import format_duration
from ingero.transport.bearer import token_from
from ingero.transport.fanout.nodes import (
    FanoutPolicy,
    check_nodes,
    client_tls,
    distinct,
    parse_nodes,
    plain_nodes,
)


@dataclass(frozen=True, slots=True)
class FanoutOptions:
    """Which nodes are asked, and how."""

    nodes: list[str]
    policy: FanoutPolicy
    skew_threshold_ms: float
    fail_on_partial: bool = False


FAIL_ON_PARTIAL = click.option(
    "--fail-on-partial",
    is_flag=True,
    help="Exit with status 3 when a node is missing in the answer.",
)


def fanout_options(default_timeout_s: float) -> Decorator:
    """Add --nodes and the options of its connections; the command receives them as `**fanout`."""
    return stacked(
        node_option("fleet.nodes", "--nodes"),
        click.option(
            "--timeout",
            type=Duration(above_zero=True),
            show_default=format_duration(default_timeout_s),
            help="Timeout for each node.",
        ),
        node_option("fleet.ca_cert", "--ca-cert"),
        node_option("fleet.client_cert", "--client-cert"),
        node_option("fleet.client_key", "--client-key"),
        click.option(
            "--clock-skew-threshold",
            type=Duration(),
            default="10ms",
            show_default=True,
            help="Warn about clocks that differ by more than this.",
        ),
        click.option(
            "--fleet-require-tls/--no-fleet-require-tls",
            default=True,
            help="Refuse plaintext to other machines.",
        ),
        click.option(
            "--no-tls",
            is_flag=True,
            help="Ask nodes in plaintext (`ingero dashboard --no-tls`); on other machines together "
            "with --trusted-network.",
        ),
        click.option(
            "--trusted-network",
            is_flag=True,
            help="Allow --no-tls beyond this machine; no token is sent then.",
        ),
    )


def resolve_fanout(
    fanout: dict[str, Any], default_timeout_s: float, *, is_local: bool
) -> FanoutOptions | None:
    """Return the fan-out to the nodes of --nodes or ingero.yaml; None when a local file is read."""
    config = load_ingero().fleet
    if is_local and fanout["nodes"] is not None:
        raise click.UsageError("--db and --nodes exclude each other: name a file or nodes")
    if is_local or (fanout["nodes"] is None and not config.nodes):
        return None
    return fanout_of(fanout, config, default_timeout_s)


def fanout_of(
    fanout: dict[str, Any], config: FleetBlockConfig, default_timeout_s: float
) -> FanoutOptions:
    """Return the fan-out of these options; what they leave open comes from the configuration."""
    nodes = parse_nodes(fanout["nodes"]) if fanout["nodes"] is not None else distinct(config.nodes)
    if fanout["trusted_network"] and not fanout["no_tls"]:
        raise click.UsageError("--trusted-network goes with --no-tls; TLS needs no trusted network")
    if fanout["no_tls"]:
        nodes = plain_nodes(nodes, is_trusted=fanout["trusted_network"])
    policy = FanoutPolicy(
        timeout_s=fanout["timeout"] or default_timeout_s,
        tls=client_tls(
            fanout["ca_cert"] or config.ca_cert,
            fanout["client_cert"] or config.client_cert,
            fanout["client_key"] or config.client_key,
        ),
        trusted=config.trusted,
        require_tls=fanout["fleet_require_tls"] and not fanout["trusted_network"],
        token=None
        if fanout["trusted_network"] or not config.token_to_nodes
        else token_from(config.token_file, FLEET_TOKEN_VARIABLE),
    )
    check_nodes(nodes, policy)
    return FanoutOptions(
        nodes, policy, fanout["clock_skew_threshold"] * 1000, fanout.get("fail_on_partial", False)
    )
