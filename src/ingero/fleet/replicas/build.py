"""Builds what a Fleet of several replicas adds to a Fleet alone."""

import hashlib
import logging
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec

from ingero.config.fleet import FleetConfig
from ingero.config.rates import RateTable, encode_rates
from ingero.config.replicas.cluster_log import ClusterLogConfig, ClusterLogTlsConfig
from ingero.contract.replicas.entries import LOG_VERSION
from ingero.core.replicas.agreement import Agreement
from ingero.errors import ConfigError
from ingero.fleet.processor import FleetProcessor
from ingero.fleet.replicas.intake import Intake
from ingero.fleet.replicas.replica import Replica
from ingero.fleet.replicas.shared import SharedState
from ingero.transport.cluster_log.address import parse_log_address
from ingero.transport.cluster_log.port import ClusterLog
from ingero.transport.tls import ClientTls, is_loopback

if TYPE_CHECKING:
    from ingero.fleet.judgement import Judgement

log = logging.getLogger(__name__)


def open_log(config: ClusterLogConfig) -> ClusterLog:
    """Return the log of a configuration; it connects when it is used. Raises ConfigError."""
    assert config.url is not None
    address = parse_log_address(config.url)
    try:
        # the client of the engine, which only a Fleet of several replicas needs
        from ingero.transport.cluster_log.valkey import ValkeyLog  # noqa: PLC0415 - see above
    except ImportError:
        raise ConfigError(
            "cluster_log needs a client for Valkey: pip install 'ingero[replicas]'"
        ) from None
    if not address.is_tls and not all(is_loopback(host) for host, _ in address.hosts):
        log.warning("plaintext_cluster_log", extra={"next": "use valkeys:// on other machines"})
    files = config.tls or ClusterLogTlsConfig()
    tls = ClientTls(ca=files.ca_file, cert=files.cert_file, key=files.key_file)
    return ValkeyLog(
        address, config.shard, user=config.user, password_file=config.password_file, tls=tls
    )


def build_replica(
    config: FleetConfig,
    cluster_log: ClusterLog,
    processor: FleetProcessor,
    judgement: "Judgement",
    rates: RateTable,
    on_tick: Callable[[float], None],
) -> Replica:
    """Return the replica of this process; `processor` and `judgement` become the shared state."""
    agreement = Agreement(config.cluster_log.name, time.time_ns())
    shared = SharedState(processor, judgement, agreement, on_tick)
    replica = Replica(cluster_log, shared, Intake(shared), rules_of(config, processor, rates))
    if judgement.alerts is not None:
        judgement.alerts.may_send = replica.may_send
        judgement.alerts.on_delivered = replica.alert_sent
    return replica


def rules_of(config: FleetConfig, processor: FleetProcessor, rates: RateTable) -> str:
    """Return a digest of all that decides what the same entries lead to."""
    settings = config.processors.ingero
    rules = (
        LOG_VERSION,
        version("ingero"),
        settings.policy(),
        processor.max_nodes,
        processor.max_clusters,
        processor.expected_nodes,
        settings.verdict.enabled,
        settings.verdict.warmup_samples,
        encode_rates(rates),
    )
    return hashlib.sha256(msgspec.json.encode(rules)).hexdigest()[:16]
