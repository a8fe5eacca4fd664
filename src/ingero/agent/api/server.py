"""Serves the node API until a signal: over HTTPS with a stored certificate by default."""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp

from ingero.agent.api.routes import NodeApi, NodeGuard
from ingero.contract.node_api import GpuInfo
from ingero.errors import ConfigError
from ingero.stopping import stop_on_signals
from ingero.storage.caller import home
from ingero.storage.trace.node_view import NodeView
from ingero.transport.access import Access
from ingero.transport.bearer import Key
from ingero.transport.file_limit import raise_file_limit
from ingero.transport.http import HttpListener
from ingero.transport.listen import EVERYWHERE, bind, parse_address
from ingero.transport.local.machine_names import local_names, machine_addresses
from ingero.transport.tls import (
    KEPT_CERTIFICATE,
    ServerTls,
    fingerprint_of_file,
    is_loopback,
    server_context,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """How to serve.

    Without `tls` and without `plaintext`, a certificate is created once and kept.
    """

    address: str = ":8080"
    db: Path
    node: str
    tls: ServerTls | None = None
    client_ca: Path | None = None
    plaintext: bool = False
    trusted_network: bool = False  # plaintext beyond this machine, without any token
    keys: tuple[Key, ...] | None = None  # None admits everybody
    host_names: tuple[str, ...] = ()
    certificate_names: tuple[str, ...] | None = None  # those in `tls`, where they are known
    gpu: GpuInfo | None = None


@dataclass(frozen=True, slots=True)
class UsedCertificate:
    """A certificate with the names it is for; `replaced` is the fingerprint of the one before."""

    tls: ServerTls
    names: tuple[str, ...]
    replaced: str | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """A running dashboard."""

    listener: HttpListener
    url: str
    fingerprint: str | None
    replaced: str | None = None  # fingerprint of the previous certificate, if this one is new

    @property
    def notice(self) -> str:
        """Return what users must do after a change of the certificate; empty without a change."""
        if self.replaced is None:
            return ""
        return (
            f"NOTICE: the certificate is new (before: {self.replaced}); where it was trusted, "
            f"compare the fingerprint and run `ingero nodes trust {self.url.partition('://')[2]}` "
            "again; where a copy of it is `ca_cert`, copy "
            f"{_certificate_folder() / KEPT_CERTIFICATE} there"
        )

    async def stop(self) -> None:
        await self.listener.stop()


async def start_dashboard(settings: DashboardSettings) -> Serving:
    """Start to serve. Raises before anything is served when the settings would be unsafe."""
    host, _ = parse_address(settings.address)
    if settings.plaintext and not is_loopback(settings.address):
        _check_plaintext(settings)
    # bound first: a name that cannot be bound must not get into a certificate
    bound = bind(settings.address)
    used = None if settings.plaintext else dashboard_certificate(settings)
    context = server_context(used.tls) if used else None
    own = local_names(settings.node, [host])
    names = [*settings.host_names, *own, *(used.names if used else ())]
    api = NodeApi(view=NodeView(settings.db), gpu=settings.gpu).app()
    guarded = NodeGuard(
        api, settings.node, Access(settings.keys), names, takes_tokens=not settings.trusted_network
    )
    return await _serve(guarded, bound, context, used)


def _check_plaintext(settings: DashboardSettings) -> None:
    if settings.trusted_network and settings.keys:
        raise ConfigError(
            "with --trusted-network no token is accepted, because everybody on the way could read "
            "it; remove the token or use TLS"
        )
    if not settings.trusted_network:
        token = ", and the token with it" if settings.keys else ""
        raise ConfigError(
            f"--no-tls on {settings.address} would send traces in plaintext{token}; "
            "bind 127.0.0.1, use TLS, or add --trusted-network"
        )


async def start_app(app: ASGIApp, address: str) -> Serving:
    """Serve another application of this node over HTTPS, with its stored certificate."""
    host, _ = parse_address(address)
    bound = bind(address)
    own = local_names(None, [host])
    kept = _kept(own, host, None)
    guarded = NodeGuard(app, socket.gethostname(), Access(None), [*own, *kept.names])
    return await _serve(guarded, bound, server_context(kept.tls), kept)


async def _serve(
    guarded: NodeGuard,
    bound: socket.socket,
    context: ssl.SSLContext | None,
    used: UsedCertificate | None,
) -> Serving:
    listener = HttpListener(guarded, bound, context)
    await listener.start()
    shown = listener.address
    for any_address in ("0.0.0.0", "[::]"):  # noqa: S104 - text
        shown = shown.replace(any_address, socket.gethostname())
    url, own = (
        f"{'https' if used else 'http'}://{shown}",
        fingerprint_of_file(used.tls.cert) if used else None,
    )
    return Serving(listener, url, own, used.replaced if used else None)


async def serve_until_signal(serving: Serving) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests finish."""
    raise_file_limit()
    await stop_on_signals().wait()
    await serving.stop()


def dashboard_certificate(settings: DashboardSettings) -> UsedCertificate:
    """Return the certificate of a dashboard; without one, it is created once and kept."""
    if settings.tls is None:
        host, _ = parse_address(settings.address)
        names = list(dict.fromkeys([*local_names(settings.node, [host]), *settings.host_names]))
        return _kept(names, host, settings.client_ca)
    tls = ServerTls(cert=settings.tls.cert, key=settings.tls.key, client_ca=settings.client_ca)
    if settings.certificate_names is not None:
        return UsedCertificate(tls, settings.certificate_names)
    from ingero.transport.certificates import names_in  # noqa: PLC0415 - 10 MB of memory

    return UsedCertificate(tls, tuple(names_in(tls.cert)))


def _kept(names: list[str], host: str, client_ca: Path | None) -> UsedCertificate:
    from ingero.transport.certificates import kept_certificate, names_in  # noqa: PLC0415 - 10 MB

    kept = kept_certificate(_certificate_folder(), names, _addresses(host))
    tls = ServerTls(cert=kept.cert, key=kept.key, client_ca=client_ca)
    return UsedCertificate(tls, tuple(names_in(kept.cert)), kept.replaced)


def _certificate_folder() -> Path:
    return home() / ".ingero" / "tls"


def _addresses(host: str) -> list[str]:
    """Return the addresses that a wildcard bind serves."""
    return machine_addresses() if host in EVERYWHERE else []
