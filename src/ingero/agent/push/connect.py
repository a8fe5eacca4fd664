"""The connections of an agent, from its settings: pushes, threshold polls and spans."""

import os
import random
from dataclasses import replace
from typing import Final

from ingero.config.ingero import IngeroConfig
from ingero.contract.names import FLEET_TOKEN_VARIABLE
from ingero.contract.types import Identity
from ingero.transport.bearer import RotatingToken
from ingero.transport.endpoint import Protocol, parse_endpoint, refuse_plaintext, threshold_url
from ingero.transport.otlp.client import ClientOptions, HttpPush
from ingero.transport.otlp.client_grpc import GrpcPems, GrpcPush
from ingero.transport.threshold_poll import ThresholdPoll
from ingero.transport.tls import ClientTls, client_context, is_loopback

MEASUREMENTS_TIMEOUT_S: Final = 10.0  # they can wait, and a busy Fleet must not get them twice


class Connections:
    """Makes the clients of one agent; making one opens no connection."""

    def __init__(self, config: IngeroConfig, address: str, identity: Identity) -> None:
        fleet = config.fleet
        self.chance = random.Random()  # noqa: S311 - only spreads load
        self._config = config
        self._names = (identity.cluster, identity.node)
        self._endpoint = parse_endpoint(address, insecure=fleet.insecure, protocol=fleet.protocol)
        if not self._endpoint.is_secure and not fleet.insecure:
            refuse_plaintext(self._endpoint.base, "--fleet-insecure or fleet.insecure: true")
        self._options = _client_options(config, self._endpoint.is_secure)

    def fleet(self) -> HttpPush | GrpcPush:
        """Return a client for pushes to Fleet, with its own connection."""
        return self._client(self._options)

    def measurements(self) -> HttpPush | GrpcPush:
        """Return a client for measurements, with a longer timeout than the client for scores."""
        timeout_s = max(self._options.timeout_s, MEASUREMENTS_TIMEOUT_S)
        return self._client(replace(self._options, timeout_s=timeout_s, is_patient=True))

    def _client(self, options: ClientOptions) -> HttpPush | GrpcPush:
        names = self._names
        if self._endpoint.protocol is Protocol.GRPC:
            return GrpcPush(self._endpoint, *names, options, _pems(self._config), self.chance)
        return HttpPush(self._endpoint, *names, options, self.chance)

    def poll(self) -> ThresholdPoll | None:
        """Return what asks for the threshold, where an address for it is configured."""
        fleet = self._config.fleet
        if not fleet.threshold_url:
            return None
        url = threshold_url(fleet.threshold_url, self._names[0], insecure=fleet.insecure)
        if url.startswith("http://") and not fleet.insecure:
            refuse_plaintext(url, "--fleet-insecure or fleet.insecure: true")
        options = _client_options(self._config, url.startswith("https://"))
        return ThresholdPoll(url, options, fleet.poll_interval_s)

    def spans(self) -> HttpPush | None:
        """Return the client for the spans of episodes, where they are exported."""
        otlp = self._config.otlp
        if not otlp.endpoint:
            return None
        may_be_plain = is_loopback(otlp.endpoint) if otlp.insecure is None else otlp.insecure
        endpoint = parse_endpoint(
            otlp.endpoint, insecure=may_be_plain, protocol=Protocol.HTTP_PROTOBUF
        )
        if not endpoint.is_secure and not may_be_plain:
            refuse_plaintext(endpoint.base, "--otlp-insecure or otlp.insecure: true")
        options = ClientOptions(timeout_s=self._config.fleet.timeout_s)
        return HttpPush(endpoint, *self._names, options, self.chance) if otlp.enabled else None


def _client_options(config: IngeroConfig, is_secure: bool) -> ClientOptions:
    fleet = config.fleet
    tls = ClientTls(ca=fleet.tls.ca, cert=fleet.tls.cert, key=fleet.tls.key)
    token = (
        RotatingToken(fleet.token_file)
        if fleet.token_file
        else lambda: os.environ.get(FLEET_TOKEN_VARIABLE)
    )
    return ClientOptions(
        timeout_s=fleet.timeout_s,
        tls=client_context(tls) if is_secure else None,
        headers=fleet.headers,
        token=token,
        is_compressed=fleet.compression == "gzip",
    )


def _pems(config: IngeroConfig) -> GrpcPems:
    tls = config.fleet.tls
    ca, key, cert = (path.read_bytes() if path else None for path in (tls.ca, tls.key, tls.cert))
    return GrpcPems(ca, key, cert)
