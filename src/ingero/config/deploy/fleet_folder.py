"""The files of a new Fleet as texts: configuration, scrape configuration, operator's file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

CONFIG_NAME: Final = "fleet-config.yaml"
SCOPES: Final = ("push", "read", "operate")


@dataclass(frozen=True, slots=True)
class FleetFolder:
    """Where each file of a Fleet is."""

    root: Path

    @property
    def config(self) -> Path:
        """Fleet's configuration."""
        return self.root / CONFIG_NAME

    @property
    def certificate(self) -> Path:
        """Fleet's certificate, signed by its authority."""
        return self.root / "tls" / "fleet.crt"

    @property
    def key(self) -> Path:
        """The key of Fleet's certificate."""
        return self.root / "tls" / "fleet.key"

    @property
    def tokens(self) -> Path:
        """The tokens that Fleet accepts, with their scopes."""
        return self.root / "tokens" / "fleet.tokens"

    def token(self, scope: str) -> Path:
        """One of those tokens, for a client."""
        return self.root / "tokens" / f"{scope}.token"

    @property
    def state(self) -> Path:
        """What Fleet keeps over a restart."""
        return self.root / "state"

    @property
    def enrolment(self) -> Path:
        """The authority, the join codes and the enrolled nodes."""
        return self.state / "enrolment"

    @property
    def operator(self) -> Path:
        """The files with which a person asks Fleet and nodes from another machine."""
        return self.root / "operator"

    @property
    def operator_certificate(self) -> Path:
        """The certificate with which that person asks nodes."""
        return self.operator / "operator.crt"

    @classmethod
    def around(cls, enrolment: Path) -> Self:
        """Return the folder whose `enrolment` this is."""
        return cls(enrolment.parent.parent)

    @property
    def prometheus(self) -> Path:
        """Scrape and rule files."""
        return self.root / "prometheus"

    @property
    def units(self) -> Path:
        """Units for systemd."""
        return self.root / "units"


_CONFIG: Final = """\
# Made by `ingero fleet init`. `ingero-fleet --config {folder.config} --check` validates it.
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: {host}:{grpc}
        tls: &tls
          cert_file: {folder.certificate}
          key_file: {folder.key}
        token_file: &tokens {folder.tokens}
      http:
        endpoint: {host}:{http}
        tls: *tls
        token_file: *tokens

processors:
  ingero:
    verdict:
      state_dir: {folder.state}      # open episodes keep their ids over a restart

extensions:
  ingero_threshold:                  # the page, and what `ingero status` asks
    agent_endpoint: {host}:{threshold}
    admin_endpoint: 127.0.0.1:{admin}
    tls: *tls
    token_file: *tokens
  ingero_enrolment:                  # `ingero join`
    dir: {folder.enrolment}
  zpages:
    endpoint: 127.0.0.1:{health}

exporters:
  prometheus:
    endpoint: {host}:{prometheus}
    tls: *tls
    token_file: *tokens

service:
  extensions: [ingero_threshold]
  pipelines:
    metrics:
      receivers: [otlp]
      processors: [ingero]
      exporters: [prometheus]
  telemetry:
    metrics:
      address: {host}:{metrics}
      tls: *tls
      token_file: *tokens
"""


def fleet_config_text(folder: FleetFolder, host: str, ports: dict[str, int]) -> str:
    """Return Fleet's configuration: TLS and tokens on every address, nodes may join."""
    return _CONFIG.format(folder=folder, host=host, **ports)


def scrape_text(folder: FleetFolder, name: str, ports: dict[str, int]) -> str:
    """Return a configuration of Prometheus that scrapes this Fleet with its read token."""
    jobs = "".join(
        f"""\
  - job_name: {job}
    scheme: https
    tls_config: {{ca_file: {folder.enrolment / "authority.crt"}}}
    authorization: {{credentials_file: {folder.token("read")}}}
    static_configs: [{{targets: ["{name}:{ports[listener]}"]}}]
"""
        for job, listener in (("ingero-fleet", "metrics"), ("ingero-nodes", "prometheus"))
    )
    return f"""\
# Made by `ingero fleet init`: add the jobs and rule files to your own prometheus.yml.
global: {{scrape_interval: 15s, evaluation_interval: 15s}}
rule_files: [ingero-rules.yml, ingero-cost-rules.yml]
scrape_configs:
{jobs}"""


def operator_text(folder: FleetFolder, url: str, endpoint: str, cluster: str | None) -> str:
    """Return the ingero.yaml of a person who asks this Fleet and its nodes."""
    named = f"  cluster_id: {json.dumps(cluster)}\n" if cluster else ""  # `no` is no boolean
    return f"""\
# Made by `ingero fleet init`: copy this folder to your machine, adapt the paths, and use it with
# INGERO_CONFIG, or as ~/.config/ingero/ingero.yaml.
fleet:
  url: {url}
  endpoint: {endpoint}
{named}  token_file: {folder.operator / "operate.token"}
  token_to_nodes: false              # nodes know us by the certificate below
  tls:
    ca: {folder.operator / "authority.crt"}
  ca_cert: {folder.operator / "authority.crt"}   # every node that Fleet vouches for is trusted
  client_cert: {folder.operator_certificate}
  client_key: {folder.operator / "operator.key"}
"""
