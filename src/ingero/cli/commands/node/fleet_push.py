"""`ingero fleet-push`: the health of this node, pushed to Fleet."""

import asyncio
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ingero.cli.params import Duration, log_level_option, stacked
from ingero.config.ingero import CollectivesFrom, IngeroConfig, load_ingero
from ingero.config.loader import check_limits
from ingero.contract.types import DetectionMode
from ingero.errors import ConfigError
from ingero.transport.endpoint import Protocol

FILE = click.Path(path_type=Path)
MODES = [mode.value for mode in DetectionMode]


FLEET = stacked(
    click.option("--fleet-endpoint", metavar="HOST:PORT|URL", help="Fleet to push to; port 4317 means gRPC."),
    click.option("--fleet-protocol", type=click.Choice([p.value for p in Protocol]), help="Instead of by port."),
    click.option("--fleet-cluster-id", metavar="NAME", help="Peers with the same name are compared."),
    click.option("--fleet-node-id", metavar="NAME", help="Name of this node.  [default: host name]"),
    click.option("--fleet-job-id", metavar="NAME", help="Training job this node works for."),
    click.option("--fleet-workload-type", metavar="NAME", help="training, inference, …  [default: unknown]"),
    click.option("--fleet-push-interval", type=Duration(), help="Between pushes, ±10 %.  [default: 5s]"),
    click.option("--fleet-timeout", type=Duration(), help="Of one push.  [default: 2s]"),
    click.option("--fleet-insecure", is_flag=True, default=None, help="Allow plain text, also to another machine."),
    click.option("--fleet-tls-ca", type=FILE, help="Authority that signed Fleet's certificate."),
    click.option("--fleet-tls-cert", type=FILE, help="Certificate of this agent (mutual TLS)."),
    click.option("--fleet-tls-key", type=FILE, help="Its key, readable by the owner only."),
    click.option("--fleet-token-file", type=FILE, help="Bearer token; also $INGERO_FLEET_TOKEN."),
    click.option("--fleet-persist-path", metavar="FILE", help="Saved baseline; empty keeps none."),
    click.option("--fleet-persist-stale-age", type=Duration(), help="An older baseline is not used.  [default: 10m]"),
    click.option("--fleet-detection-mode", type=click.Choice(MODES), help="Said while no threshold is known."),
    click.option("--fleet-world-size", type=click.IntRange(0), help="Ranks of the job; 0 is unknown."),
    click.option("--fleet-node-rank", type=click.IntRange(0), help="Rank of this node, below the world size."),
    click.option("--fleet-threshold-url", metavar="URL", help="Poll here while replies carry no threshold."),
    click.option("--fleet-poll-interval", type=Duration(), help="Time between those polls.  [default: 10s]"),
    click.option("--fleet-classifier-hysteresis", type=float, help="Recovered this far above.  [default: 0.02]"),
    click.option("--confirmations", type=int, help="Evaluations below the line before a node is named.  [default: 3]"),
)  # fmt: skip
LOCAL = stacked(
    click.option(
        "--remediate",
        is_flag=True,
        default=None,
        help="Open the Unix socket that says who is slow.",
    ),
    click.option(
        "--remediate-socket",
        type=FILE,
        help="Where.  [default: ingero-remediate.sock in the run directory]",
    ),
    click.option(
        "--remediate-gid",
        type=int,
        help="Group that may read it; below 0 is nobody.  [default: 65532]",
    ),
    click.option(
        "--signal-db-path", type=FILE, help="Trace database.  [default: ~/.ingero/ingero.db]"
    ),
    click.option(
        "--signal-window",
        type=Duration(),
        help="How far back a look at the database goes.  [default: 60s]",
    ),
    click.option("--signal-num-gpus", type=click.IntRange(0), help="0 asks the driver."),
    click.option(
        "--collectives",
        type=click.Choice([c.value for c in CollectivesFrom]),
        help="Where collectives of the ranks here are read.  [default: auto, rings and database]",
    ),
    click.option(
        "--warmup-samples",
        type=click.IntRange(0),
        help="Samples before a node counts.  [default: 30]",
    ),
    click.option("--otlp-enabled", is_flag=True, default=None, help="Send a span per episode."),
    click.option("--otlp-endpoint", metavar="HOST:PORT|URL", help="Where spans go, over HTTP."),
    click.option(
        "--otlp-insecure/--no-otlp-insecure",
        default=None,
        help="Spans in plain text.  [default: on this machine only]",
    ),
    click.option("--stub", is_flag=True, help="Constant signals, to try a Fleet without a GPU."),
    click.option(
        "--replay", type=FILE, help="Recorded signals, one JSON object per line and tick."
    ),
    click.option(
        "--metrics-listen", metavar="HOST:PORT", help="Serve agent metrics here.  [default: off]"
    ),
    click.option(
        "--config",
        "config_path",
        type=FILE,
        help="Settings.  [default: the first ingero.yaml found]",
    ),
    log_level_option(None),
)


@click.command()
@FLEET
@LOCAL
def command(
    config_path: Path | None, log_level: str | None, stub: bool, replay: Path | None, **flags: Any
) -> None:
    """Push this node's health to Fleet and learn from the reply whether it is slow.

    Settings come from ingero.yaml; a flag given here wins. Opens no TCP port unless --metrics-listen is given.

    \b
    Examples:
      ingero fleet-push --fleet-endpoint https://fleet:4317 --fleet-cluster-id train-a
      ingero fleet-push --fleet-endpoint 127.0.0.1:4318 --fleet-insecure --fleet-cluster-id try --stub
      ingero fleet-push --fleet-endpoint fleet:4318 --fleet-cluster-id train-a --remediate
    """
    from ingero.agent.push.app import Agent, AgentOptions
    from ingero.cli.show.logs import set_up_logging

    if stub and replay is not None:
        raise ConfigError("--stub and --replay exclude each other")
    config = apply_flags(load_ingero(config_path), flags)
    set_up_logging(log_level or config.agent.log_level)
    options = AgentOptions(
        stub=stub,
        replay=replay,
        metrics_listen=flags["metrics_listen"],
        persist=flags["fleet_persist_path"] != "",
    )
    asyncio.run(Agent(config, options).run())


def apply_flags(config: IngeroConfig, flags: dict[str, Any]) -> IngeroConfig:
    """The file's settings with every flag that was given; the same range checks apply. Raises ConfigError."""
    given = {name: value for name, value in flags.items() if value is not None}
    tls = _replaced(
        config.fleet.tls, given, ca="fleet_tls_ca", cert="fleet_tls_cert", key="fleet_tls_key"
    )
    fleet = _replaced(
        replace(config.fleet, tls=tls),
        given,
        endpoint="fleet_endpoint",
        cluster_id="fleet_cluster_id",
        node_id="fleet_node_id",
        job_id="fleet_job_id",
        workload_type="fleet_workload_type",
        push_interval_s="fleet_push_interval",
        timeout_s="fleet_timeout",
        insecure="fleet_insecure",
        token_file="fleet_token_file",  # noqa: S106 - a flag's name
        world_size="fleet_world_size",
        node_rank="fleet_node_rank",
        threshold_url="fleet_threshold_url",
        poll_interval_s="fleet_poll_interval",
    )
    if "fleet_protocol" in given:
        fleet = replace(fleet, protocol=Protocol(given["fleet_protocol"]))
    if "fleet_detection_mode" in given:
        fleet = replace(fleet, detection_mode=DetectionMode(given["fleet_detection_mode"]))
    signals = _replaced(config.signals, given, window_s="signal_window", num_gpus="signal_num_gpus")
    if "collectives" in given:
        signals = replace(signals, collectives=CollectivesFrom(given["collectives"]))
    return replace(
        config,
        fleet=fleet,
        health=_health(config, given),
        remediate=_replaced(
            config.remediate,
            given,
            enabled="remediate",
            socket="remediate_socket",
            gid="remediate_gid",
        ),
        signals=signals,
        otlp=_replaced(
            config.otlp,
            given,
            enabled="otlp_enabled",
            endpoint="otlp_endpoint",
            insecure="otlp_insecure",
        ),
        store=_replaced(config.store, given, path="signal_db_path"),
    )


def _health(config: IngeroConfig, given: dict[str, Any]) -> Any:
    health = config.health
    persistence = _replaced(health.persistence, given, stale_age_s="fleet_persist_stale_age")
    if given.get("fleet_persist_path"):
        persistence = replace(persistence, path=Path(given["fleet_persist_path"]))
    return replace(
        health,
        baseline=_replaced(health.baseline, given, warmup_samples="warmup_samples"),
        classifier=_replaced(
            health.classifier,
            given,
            hysteresis="fleet_classifier_hysteresis",
            confirmations="confirmations",
        ),
        persistence=persistence,
    )


def _replaced(block: Any, given: dict[str, Any], **flags: str) -> Any:
    """A settings block with the flags that were given."""
    changes = {field: given[flag] for field, flag in flags.items() if flag in given}
    for field in fields(block):
        if field.name in changes:
            check_limits(changes[field.name], field.metadata, partial(_refusal, flags[field.name]))
    return replace(block, **changes) if changes else block


def _refusal(flag: str, problem: str) -> ConfigError:
    return ConfigError(f"--{flag.replace('_', '-')}: {problem}")
