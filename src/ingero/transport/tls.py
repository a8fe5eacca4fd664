"""TLS for every listener and client of ours: contexts, kept self-signed certificates, fingerprints, loopback."""

import contextlib
import datetime
import fcntl
import hashlib
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ingero.errors import AuthError
from ingero.transport.auth import check_private_file

KEPT_CERTIFICATE_DAYS = 365
RENEW_BEFORE_DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Files of a listener; `client_ca` turns on mutual TLS."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Files of a client. Without `ca` the system's authorities are trusted; cert and key come together."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


def server_context(tls: ServerTls, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """A listener's context; raises AuthError naming the file that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = minimum
    _load_pair(context, tls.cert, tls.key)
    if tls.client_ca is not None:
        _load_authorities(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: ClientTls, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
    """A client's context: verifies names, presents a certificate when both files are given."""
    if (tls.cert is None) != (tls.key is None):
        raise AuthError("a client certificate and its key come together; give both or none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = minimum
    if tls.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, tls.ca)
    if tls.cert is not None and tls.key is not None:
        _load_pair(context, tls.cert, tls.key)
    return context


def kept_certificate(directory: Path, names: Sequence[str], now: datetime.datetime | None = None) -> ServerTls:
    """A self-signed P-256 certificate in `directory`: made once, renewed before it expires or when names change."""
    cert, key = directory / "server.crt", directory / "server.key"
    now = now or datetime.datetime.now(datetime.UTC)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _only_one(directory / ".lock"):
        if not _still_good(cert, key, names, now):
            cert_pem, key_pem = self_signed(names, now)
            _write_private(key, key_pem)
            _write_private(cert, cert_pem)
    return ServerTls(cert=cert, key=key)


def self_signed(names: Sequence[str], now: datetime.datetime, days: int = KEPT_CERTIFICATE_DAYS) -> tuple[bytes, bytes]:
    """Certificate and key as PEM; `names` may be host names or addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # a client's clock may be a little behind
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_alternative_name(name) for name in names]), critical=False)
        .add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )  # so it can be its own trust anchor
        .add_extension(_key_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key_pem


def local_names(node: str | None, bound: Sequence[str] = ()) -> list[str]:
    """What a certificate of this machine should be valid for: node, host name, loopback, bound addresses."""
    wildcard = {"0.0.0.0", "::", ""}  # noqa: S104 - names of the wildcard, not a bind
    names = [node or socket.gethostname(), socket.gethostname(), "localhost", "127.0.0.1", "::1", *bound]
    return list(dict.fromkeys(name for name in names if name not in wildcard))


def fingerprint(certificate_der: bytes) -> str:
    """SHA-256 as people compare it: upper-case hex pairs with colons."""
    digest = hashlib.sha256(certificate_der).hexdigest().upper()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


def fingerprint_of_file(path: Path) -> str:
    """Fingerprint of the first certificate in a PEM file."""
    return fingerprint(ssl.PEM_cert_to_DER_cert(_first_pem(path)))


def is_loopback(address: str) -> bool:
    """True for localhost, 127/8 and ::1, with or without scheme and port; `:8080` binds everything, so it is not."""
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


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _still_good(cert: Path, key: Path, names: Sequence[str], now: datetime.datetime) -> bool:
    if not (cert.exists() and key.exists()):
        return False
    certificate = x509.load_pem_x509_certificate(cert.read_bytes())
    held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {str(name.value) for name in held}
    renew_at = certificate.not_valid_after_utc - datetime.timedelta(days=RENEW_BEFORE_DAYS)
    return now < renew_at and set(names) <= known


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
        raise AuthError(f"{path} holds no certificate that can be used as an authority: {error}") from None


def _write_private(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(path.suffix + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
