"""Self-signed certificates: created once, readable by their owner only, renewed in time."""

import contextlib
import datetime
import fcntl
import ipaddress
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ingero.files import replacing
from ingero.transport.tls import KEPT_CERTIFICATE, KEPT_KEY, ServerTls, fingerprint_of_file

KEPT_CERTIFICATE_DAYS = 365
RENEW_BEFORE_DAYS = 30
MAX_NAMES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTls(ServerTls):
    """A certificate that Ingero created; `replaced` is the fingerprint of the previous one."""

    replaced: str | None = None


def kept_certificate(
    directory: Path,
    names: Sequence[str],
    addresses: Sequence[str] = (),
    now: datetime.datetime | None = None,
) -> KeptTls:
    """Return a self-signed P-256 certificate in `directory`, created or renewed where needed.

    It is renewed before it expires, when a name is missing, and where it is an authority.
    `addresses` of interfaces change: a new certificate gets all of them, and a present one is kept
    if it holds at least one. Names of the last certificate stay; otherwise two services of one
    machine would keep replacing it.
    """
    cert, key = directory / KEPT_CERTIFICATE, directory / KEPT_KEY
    now = now or datetime.datetime.now(datetime.UTC)
    names = [name for name in names if name.isascii() and name.isprintable()] or ["localhost"]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    replaced = None
    with _only_one(directory / ".lock"):
        if not _still_good(cert, key, names, addresses, now):
            # there is none, or it is not a certificate
            with contextlib.suppress(OSError, ValueError):
                replaced = fingerprint_of_file(cert)
            every = [*names, *addresses, *_earlier_names(cert)]
            cert_pem, key_pem = self_signed(list(dict.fromkeys(every))[:MAX_NAMES], now)
            for path, data in ((key, key_pem), (cert, cert_pem)):
                with replacing(path) as file:
                    file.write(data)
    return KeptTls(cert=cert, key=key, replaced=replaced)


def self_signed(
    names: Sequence[str], now: datetime.datetime, days: int = KEPT_CERTIFICATE_DAYS
) -> tuple[bytes, bytes]:
    """Return certificate and key as PEM; `names` may be host names or addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # a client's clock may be a little behind
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(
            x509.SubjectAlternativeName([alternative_name(name) for name in names]), critical=False
        )
        # clients that trust this certificate trust nothing that its key signs
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key_pem


def names_in(certificate: Path) -> list[str]:
    """Return the names that a certificate is valid for; empty if it lists none."""
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    try:
        held = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in held]


def _earlier_names(certificate: Path) -> list[str]:
    try:
        return names_in(certificate)
    except (OSError, ValueError):  # no certificate yet, or half written
        return []


def alternative_name(name: str) -> x509.GeneralName:
    """Return a host name or an address as certificates list it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def key_usage(*, signs_certificates: bool = False) -> x509.KeyUsage:
    """Return what the key of a certificate may be used for."""
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs_certificates, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _still_good(
    cert: Path, key: Path, names: Sequence[str], addresses: Sequence[str], now: datetime.datetime
) -> bool:
    if not (cert.exists() and key.exists()):
        return False
    try:
        certificate = x509.load_pem_x509_certificate(cert.read_bytes())
        own_key = serialization.load_pem_private_key(key.read_bytes(), None).public_key()
    except ValueError:
        return False
    if own_key != certificate.public_key():
        return False  # the machine stopped between writing the one and the other
    if _is_authority(certificate):
        return False  # as certificates were made before
    renew_at = certificate.not_valid_after_utc - datetime.timedelta(days=RENEW_BEFORE_DAYS)
    held = set(names_in(cert))
    return (
        now < renew_at
        and held.issuperset(names)
        and (not addresses or not held.isdisjoint(addresses))
    )


def expiry_s(cert: Path) -> float | None:
    """Return the Unix time at which a certificate expires; None where it cannot be read."""
    try:
        return x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Let one process at a time create a certificate. A link in place of the lock is an error."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
