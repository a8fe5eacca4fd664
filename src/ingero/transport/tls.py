"""TLS of every listener and client: contexts, fingerprints and the test for loopback."""

import hashlib
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from ingero.errors import AuthError, ConfigError
from ingero.transport.private_files import check_private_file

KEPT_CERTIFICATE, KEPT_KEY = "server.crt", "server.key"  # of certificates that Ingero creates


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The files of a listener; `client_ca` turns on mutual TLS."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The files of a client; without `ca`, the authorities of the system are trusted."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


def server_context(
    tls: ServerTls, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """Return the context of a listener; raise AuthError with the name of a wrong file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = minimum
    _load_pair(context, tls.cert, tls.key)
    if tls.client_ca is not None:
        _load_authorities(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # a resumed session would not be checked against a new authority
        context.num_tickets = 0
    return context


def renew_context(context: ssl.SSLContext, tls: ServerTls) -> None:
    """Make new connections to the listener of `context` use the files as they are now.

    Raises AuthError, and changes nothing, where a file is wrong. Loading the files into `context`
    itself would only add authorities and never remove one.
    """
    fresh = server_context(tls, context.minimum_version)

    def choose(
        connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, initial: ssl.SSLContext
    ) -> None:
        connection.context = fresh

    context.sni_callback = choose


def client_context(
    tls: ClientTls, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
) -> ssl.SSLContext:
    """Return a context that verifies names, and presents a certificate if both files are given."""
    context = _own_context(tls, minimum)
    if tls.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, tls.ca)
    return context


def unverified_context(
    tls: ClientTls, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
) -> ssl.SSLContext:
    """Return a context that accepts any certificate, for callers that compare the fingerprint."""
    context = _own_context(tls, minimum)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _own_context(tls: ClientTls, minimum: ssl.TLSVersion) -> ssl.SSLContext:
    """Return a context with the client's certificate and without any authority."""
    if (tls.cert is None) != (tls.key is None):
        raise AuthError("a client certificate and its key come together; give both or none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = minimum
    if tls.cert is not None and tls.key is not None:
        _load_pair(context, tls.cert, tls.key)
    return context


def fingerprint(certificate_der: bytes) -> str:
    """Return the SHA-256 fingerprint as upper-case hex pairs with colons."""
    digest = hashlib.sha256(certificate_der).hexdigest().upper()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


def fingerprint_bytes(text: str) -> bytes:
    """Decode a SHA-256 fingerprint, with or without colons; raise ConfigError."""
    try:
        digest = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ConfigError(
            f"{text!r} is not a SHA-256 fingerprint: 32 pairs of hex digits, as a node prints it"
        )
    return digest


def fingerprint_of_file(path: Path) -> str:
    """Return the fingerprint of the first certificate in a PEM file."""
    return fingerprint(ssl.PEM_cert_to_DER_cert(_first_pem(path)))


def is_loopback(address: str) -> bool:
    """True for localhost, 127/8 and ::1, with or without scheme and port.

    `:8080` means every address, so it is not loopback.
    """
    host = address.split("://", 1)[-1].split("/", 1)[0]
    if host.startswith("["):
        host = host[1:].split("]", 1)[0]
    elif host.count(":") == 1:
        host = host.rsplit(":", 1)[0]
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _first_pem(path: Path) -> str:
    text = path.read_text()
    end = "-----END CERTIFICATE-----"
    return text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    check_private_file(key, "key file")
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise AuthError(f"certificate {cert} and key {key} cannot be used: {error}") from None


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise AuthError(
            f"{path} holds no certificate that can be used as an authority: {error}"
        ) from None
