"""The sockets that Fleet serves: HTTP and gRPC, each with its own token and certificates."""

import asyncio
import ipaddress
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from starlette.types import ASGIApp

from ingero.config.fleet import Listener
from ingero.config.fleet_listeners import ListenerTlsConfig, ProxyConfig
from ingero.errors import AuthError
from ingero.fleet.receive import Receiver
from ingero.fleet.zpages.operations import Operations, Timed
from ingero.transport.access import Access
from ingero.transport.admission import Admission
from ingero.transport.bearer import Key, read_keys, read_token_file, token_digest
from ingero.transport.browsers import BrowserGuard
from ingero.transport.http import HttpListener, TimedProtocol
from ingero.transport.listen import bind
from ingero.transport.local.proxy import SignedInUsers
from ingero.transport.tls import is_loopback, renew_context, server_context

if TYPE_CHECKING:
    from ingero.transport.otlp.server_grpc import GrpcListener

log = logging.getLogger(__name__)


def signed_in_users(proxy: ProxyConfig | None) -> SignedInUsers | None:
    """Return how users of a reverse proxy are known; raises AuthError for its secret."""
    if proxy is None:
        return None
    secret = read_token_file(proxy.secret_file) if proxy.secret_file else None
    return SignedInUsers(
        proxy.user_header,
        tuple(ipaddress.ip_network(address) for address in proxy.addresses),
        token_digest(secret) if secret else None,
        frozenset(proxy.operators),
    )


@dataclass(slots=True)
class ListenerSecrets:
    """The token and certificates of one listener, which SIGHUP reads again."""

    access: Access
    token_file: Path | None
    context: ssl.SSLContext | None
    tls: ListenerTlsConfig | None

    @classmethod
    def read(cls, listener: Listener) -> Self:
        """Read the files of a listener; raise AuthError naming a file that is wrong."""
        keys = read_keys(listener.token_file) if listener.token_file else None
        context = server_context(listener.tls.files()) if listener.tls else None
        return cls(Access(keys), listener.token_file, context, listener.tls)

    def reload(self) -> None:
        """Read the files again; raise AuthError and keep what was read before."""
        try:
            if self.token_file is not None:
                self.access.replace(read_keys(self.token_file), time.monotonic())
        finally:  # a wrong token file must not keep an old certificate
            self.renew_certificate()

    def renew_certificate(self) -> None:
        """Use the certificate files as they are now for new connections; raises AuthError."""
        if self.context is not None and self.tls is not None:
            renew_context(self.context, self.tls.files())


@dataclass(slots=True)
class FleetListeners:
    """Every open listener. `addresses` holds the address that each was bound to.

    `issued` returns the tokens of enrolled nodes, which every listener accepts as well.
    """

    addresses: dict[str, str] = field(default_factory=dict)
    secrets: list[ListenerSecrets] = field(default_factory=list)
    # listeners that other machines can reach: those without TLS, and those that admit everybody
    plaintext: list[str] = field(default_factory=list)
    unguarded: list[str] = field(default_factory=list)
    admission: Admission = field(default_factory=Admission)
    operations: Operations = field(default_factory=Operations)
    issued: Callable[[], Mapping[bytes, Key]] = dict
    _http: list[HttpListener] = field(default_factory=list)
    _grpc: "GrpcListener | None" = None

    async def serve_http(
        self,
        listener: Listener,
        app: Callable[[Access], ASGIApp],
        protocol: type[TimedProtocol] = TimedProtocol,
    ) -> None:
        """Bind a listener and serve the application for who may use it."""
        secrets = self._read_secrets(listener)
        served: ASGIApp = Timed(app(secrets.access), self.operations, listener.name)
        if listener.name != "http":  # OTLP is for senders that are no browser
            is_local = is_loopback(listener.endpoint) and not secrets.access.is_required
            served = BrowserGuard(served, is_local=is_local)
        serving = HttpListener(
            served,
            bind(listener.endpoint),
            secrets.context,
            protocol,
            self.admission,
        )
        self._http.append(serving)
        await serving.start()
        self.addresses[listener.name] = serving.address

    async def serve_grpc(self, listener: Listener, receiver: Receiver) -> None:
        """Bind the OTLP listener over gRPC."""
        # 11 MB, which a Fleet with `--grpc off` need not have
        from ingero.transport.otlp.server_grpc import grpc_listener  # noqa: PLC0415 - see above

        secrets = self._read_secrets(listener)
        tls = listener.tls.files() if listener.tls else None
        self._grpc = grpc_listener(
            listener.endpoint,
            tls,
            receiver.grpc_service(secrets.access),
            admission=self.admission,
        )
        await self._grpc.start()
        self.addresses[listener.name] = self._grpc.address

    def warn(self) -> None:
        """Log once what other machines can reach without TLS or without a token."""
        extra = {
            "listeners": ", ".join(self.plaintext),
            "without_token": ", ".join(self.unguarded),
            "next": "configs/fleet-config.yaml has certificates and tokens",
        }
        if self.plaintext:
            log.warning("plaintext_listeners", extra=extra)
        elif self.unguarded:
            log.warning("listeners_without_token", extra=extra)

    def _read_secrets(self, listener: Listener) -> ListenerSecrets:
        if not is_loopback(listener.endpoint):
            described = f"{listener.name} {listener.endpoint}"
            is_mutual = listener.tls is not None and listener.tls.client_ca_file is not None
            if listener.tls is None:
                self.plaintext.append(described)
            if listener.token_file is None and not is_mutual:
                self.unguarded.append(described)
        secrets = ListenerSecrets.read(listener)
        secrets.access.issued = self.issued
        self.secrets.append(secrets)
        return secrets

    def renew_certificates(self) -> None:
        """Use new certificate files for new connections; gRPC notices them by itself."""
        for secrets in self.secrets:
            try:
                secrets.renew_certificate()
            except AuthError as error:
                log.error("reload_failed", extra={"why": str(error)})

    async def drain(self) -> None:
        """Stop accepting and answer what is under way, except on the health listener."""
        if self._grpc is not None:
            await self._grpc.stop()
        health = self.addresses.get("health")
        await asyncio.gather(
            *(listener.stop() for listener in self._http if listener.address != health)
        )

    async def close(self) -> None:
        """Stop every HTTP listener and close its socket."""
        for listener in self._http:
            await listener.stop()
            listener.listener.close()
