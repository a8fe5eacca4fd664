"""Contexts and certificates, tested with real handshakes on loopback."""

import contextlib
import datetime
import fcntl
import ipaddress
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ingero.errors import AuthError
from ingero.transport.certificates import kept_certificate, names_in
from ingero.transport.local.machine_names import machine_addresses
from ingero.transport.tls import (
    ClientTls,
    ServerTls,
    client_context,
    fingerprint,
    fingerprint_of_file,
    is_loopback,
    server_context,
)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> str:
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        connection, _ = listener.accept()
        with connection, server.wrap_socket(connection, server_side=True) as tls:
            tls.sendall(b"x")

    def tolerant() -> None:
        with contextlib.suppress(OSError):  # what the server saw is not the question
            accept()

    thread = threading.Thread(target=tolerant)
    thread.start()
    try:
        with (
            socket.create_connection(listener.getsockname()) as raw,
            client.wrap_socket(raw, server_hostname=name) as tls,
        ):
            assert tls.recv(1) == b"x"
            return tls.version() or ""
    finally:
        thread.join()
        listener.close()


def test_f136_kept_certificate_serves_tls_13_only(tmp_path: Path) -> None:
    tls = kept_certificate(tmp_path, ["node-1", "localhost", "127.0.0.1"])
    server = server_context(tls)
    assert handshake(server, client_context(ClientTls(ca=tls.cert))) == "TLSv1.3"
    assert handshake(server, client_context(ClientTls(ca=tls.cert)), "127.0.0.1") == "TLSv1.3"
    old = client_context(ClientTls(ca=tls.cert))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(server, old)
    key = x509.load_pem_x509_certificate(tls.cert.read_bytes()).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"


def test_certificate_is_kept_then_renewed_before_it_expires(tmp_path: Path) -> None:
    first = kept_certificate(tmp_path, ["a"]).cert.read_bytes()
    assert kept_certificate(tmp_path, ["a"]).cert.read_bytes() == first
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=340)
    assert kept_certificate(tmp_path, ["a"], now=later).cert.read_bytes() != first
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600


def test_a_new_name_makes_a_new_certificate(tmp_path: Path) -> None:
    first = kept_certificate(tmp_path, ["a"]).cert.read_bytes()
    second = kept_certificate(tmp_path, ["a", "b"])
    assert second.cert.read_bytes() != first
    assert second.replaced == fingerprint(ssl.PEM_cert_to_DER_cert(first.decode()))
    assert kept_certificate(tmp_path, ["a", "b"]).replaced is None


def test_earlier_names_stay_and_addresses_join_without_asking_for_a_new_one(tmp_path: Path) -> None:
    """Two services of one machine must not keep replacing the certificate that clients trust."""
    first = kept_certificate(tmp_path, ["a"], ["192.0.2.1"]).cert.read_bytes()
    assert kept_certificate(tmp_path, ["a"], ["192.0.2.2", "192.0.2.1"]).cert.read_bytes() == first
    both = kept_certificate(tmp_path, ["b"], ["192.0.2.2"]).cert
    assert names_in(both) == ["b", "192.0.2.2", "a", "192.0.2.1"]
    kept = both.read_bytes()
    assert (
        kept_certificate(tmp_path, ["a"]).cert.read_bytes()
        == kept_certificate(tmp_path, ["b"]).cert.read_bytes()
    )
    assert both.read_bytes() == kept
    moved = kept_certificate(tmp_path, ["a"], ["192.0.2.9"]).cert
    assert "192.0.2.9" in names_in(moved), "this machine is nowhere it was before"


def test_addresses_of_this_machine_are_those_others_can_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interfaces = {"lo": "127.0.0.1", "eth0": "192.0.2.7", "usb0": "169.254.3.4"}
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate([*interfaces, "down0"])))

    def address_of(_: object, __: int, name: bytes) -> bytes:
        if name.rstrip(b"\0") == b"down0":
            raise OSError("no address")
        return bytes(20) + socket.inet_aton(interfaces[name.rstrip(b"\0").decode()])

    monkeypatch.setattr(fcntl, "ioctl", address_of)
    found = [a for a in machine_addresses() if ipaddress.ip_address(a).version == 4]
    assert found == ["192.0.2.7"]


def test_f137_server_with_client_authority_refuses_strangers(tmp_path: Path) -> None:
    mine = kept_certificate(tmp_path / "server", ["localhost"])
    theirs = kept_certificate(tmp_path / "client", ["client"])
    server = server_context(ServerTls(cert=mine.cert, key=mine.key, client_ca=theirs.cert))
    with pytest.raises(ssl.SSLError):
        handshake(server, client_context(ClientTls(ca=mine.cert)))


def test_fingerprint_is_upper_case_hex_with_colons(tmp_path: Path) -> None:
    assert fingerprint(b"x").startswith("2D:71:16:42:")
    tls = kept_certificate(tmp_path, ["a"])
    assert len(fingerprint_of_file(tls.cert)) == 32 * 3 - 1


def test_wrong_files_are_named(tmp_path: Path) -> None:
    tls = kept_certificate(tmp_path, ["a"])
    tls.key.chmod(0o644)
    with pytest.raises(AuthError, match=r"server\.key can be read by others; run `chmod 600"):
        server_context(tls)
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(AuthError, match=r"empty\.pem holds no certificate"):
        client_context(ClientTls(ca=empty))
    with pytest.raises(AuthError, match="come together"):
        client_context(ClientTls(cert=tls.cert))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8080",
        "127.42.0.1:8080",
        "localhost",
        "[::1]:8080",
        "https://localhost:8443",
        "::1",
    ],
)
def test_v12_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", [":8080", "0.0.0.0:8080", "10.0.0.5:8080", "prod-01.example.com:8080", ""]
)
def test_v12b_not_loopback(address: str) -> None:
    assert not is_loopback(address)


def test_a_kept_certificate_is_no_authority_and_earlier_ones_are_replaced(tmp_path: Path) -> None:
    kept = kept_certificate(tmp_path, ["localhost"])
    certificate = x509.load_pem_x509_certificate(kept.cert.read_bytes())
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (constraints.ca, usage.key_cert_sign) == (False, False)
    key = serialization.load_pem_private_key(kept.key.read_bytes(), None)
    earlier = (
        x509.CertificateBuilder()
        .subject_name(certificate.subject)
        .issuer_name(certificate.subject)
        .public_key(certificate.public_key())
        .serial_number(1)
        .not_valid_before(certificate.not_valid_before_utc)
        .not_valid_after(certificate.not_valid_after_utc)
        .add_extension(
            certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value, False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    kept.cert.write_bytes(earlier.public_bytes(serialization.Encoding.PEM))
    assert kept_certificate(tmp_path, ["localhost"]).replaced is not None
    assert kept_certificate(tmp_path, ["localhost"]).replaced is None


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    folder = tmp_path / "tls"
    folder.mkdir()
    (folder / ".lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        kept_certificate(folder, ["localhost"])
    assert target.read_text() == "kept"
