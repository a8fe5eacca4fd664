"""Fleet's own certificate authority: who it signs for is decided elsewhere.

Of a signing request only the public key is used. What a certificate says, who it is for and what it
may do, comes from us.
"""

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ingero.errors import AuthError
from ingero.files import create_private
from ingero.transport.certificates import alternative_name, key_usage
from ingero.transport.private_files import check_private_file

AUTHORITY_CERTIFICATE, AUTHORITY_KEY = "authority.crt", "authority.key"
AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 365
NODE_DAYS: Final = 7  # agents renew after a third of it, so that a revoked node soon has none
OPERATOR_DAYS: Final = 365
_CLOCK_SLACK: Final = datetime.timedelta(minutes=5)
_MAX_COMMON_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class SigningAuthority:
    """The authority with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        """The certificate, for those who trust it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def fingerprint(self) -> bytes:
        """The SHA-256 fingerprint of the certificate."""
        return self.certificate.fingerprint(hashes.SHA256())

    def sign_server(
        self, public_key: ec.EllipticCurvePublicKey, names: Sequence[str], days: int
    ) -> str:
        """Return a certificate for a server with these names, and for nothing else (PEM)."""
        return self._sign(public_key, names[0], names, days, ExtendedKeyUsageOID.SERVER_AUTH)

    def sign_client(self, public_key: ec.EllipticCurvePublicKey, name: str) -> str:
        """Return a certificate for a client, which no server can use (PEM)."""
        return self._sign(public_key, name, (), OPERATOR_DAYS, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(
        self,
        public_key: ec.EllipticCurvePublicKey,
        subject: str,
        names: Sequence[str],
        days: int,
        use: x509.ObjectIdentifier,
    ) -> str:
        now = datetime.datetime.now(datetime.UTC)
        until = min(now + datetime.timedelta(days=days), self.certificate.not_valid_after_utc)
        builder = (
            _builder(public_key, subject, now, until)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if names:
            listed = x509.SubjectAlternativeName([alternative_name(name) for name in names])
            builder = builder.add_extension(listed, critical=False)
        signed = builder.sign(self.key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode()


def make_authority(folder: Path, name: str) -> SigningAuthority:
    """Create an authority in a folder; raise AuthError where there is one."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = f"Ingero Fleet {name}"
    certificate = (
        _builder(key.public_key(), subject, now, now + datetime.timedelta(days=AUTHORITY_DAYS))
        .issuer_name(_name(subject))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    try:
        create_private(folder / AUTHORITY_KEY, private_pem(key))
        create_private(folder / AUTHORITY_CERTIFICATE, pem)
    except FileExistsError as error:
        raise AuthError(f"{error.filename} exists; this folder has an authority") from None
    return SigningAuthority(certificate, key)


def load_authority(folder: Path) -> SigningAuthority:
    """Return the authority of a folder; raise AuthError where it cannot be used."""
    cert_path, key_path = folder / AUTHORITY_CERTIFICATE, folder / AUTHORITY_KEY
    check_private_file(key_path, "key file")
    try:
        certificate = x509.load_pem_x509_certificate(cert_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise AuthError(f"the authority in {folder} cannot be used: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or (
        key.public_key() != certificate.public_key()
    ):
        raise AuthError(f"{key_path} is not the key of {cert_path}")
    return SigningAuthority(certificate, key)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key of the one kind that is signed."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def kept_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file, and create it first where there is none."""
    if not path.exists():
        create_private(path, private_pem(new_key()))
    check_private_file(path, "key file")
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise AuthError(f"{path} holds no private key: {error}; move it away") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AuthError(f"{path} is not a key of ours; move it away")
    return key


def signing_request(key: ec.EllipticCurvePrivateKey, node: str) -> str:
    """Return a request that proves that we hold the key (PEM)."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(node))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def requested_key(request: str) -> ec.EllipticCurvePublicKey:
    """Return the public key of a signing request; raise AuthError unless its sender has the key."""
    try:
        parsed = x509.load_pem_x509_csr(request.encode("ascii"))
        is_signed = parsed.is_signature_valid
        public = parsed.public_key()
    except (ValueError, TypeError, InvalidSignature, UnicodeEncodeError):
        raise AuthError("the signing request cannot be read") from None
    if not is_signed:
        raise AuthError("the signing request is not signed with its own key")
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name != "secp256r1":
        raise AuthError("the signing request has a key of another kind than ECDSA P-256")
    return public


def key_digest(public_key: ec.EllipticCurvePublicKey) -> str:
    """Return what identifies a public key."""
    data = public_key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(data).hexdigest()


def pem_fingerprint(pem: str) -> bytes:
    """Return the SHA-256 fingerprint of a certificate; raise AuthError where it is none."""
    try:
        return x509.load_pem_x509_certificate(pem.encode()).fingerprint(hashes.SHA256())
    except ValueError:
        raise AuthError("what Fleet sent is not a certificate") from None


def _builder(
    public_key: ec.EllipticCurvePublicKey,
    subject: str,
    now: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_MAX_COMMON_NAME])])
