"""Fleet renews the certificates that its own authority signed, and no others."""

import asyncio
import datetime
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.pushes import running
from tests.support.tokens import private
from tests.support.waiting import PATIENCE_S

from ingero.cli.fleet_files import NewFleet, make_fleet
from ingero.config.deploy.ports import FLEET, ports_alone
from ingero.config.fleet import FleetConfig
from ingero.config.loader import load_file
from ingero.fleet.enrolment.build import build_enrolment
from ingero.fleet.enrolment.own_certificates import CHECK_S, RETRY_S, Checked, OwnCertificates
from ingero.stopping import end_tasks
from ingero.transport.certificates import names_in, self_signed
from ingero.transport.enrolment.authority import (
    SERVER_DAYS,
    SigningAuthority,
    make_authority,
    new_key,
    private_pem,
)

NAMES = ["fleet.example", "10.0.0.1"]
DAY = datetime.timedelta(days=1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def signed(
    authority: SigningAuthority, key: ec.EllipticCurvePrivateKey, left: datetime.timedelta
) -> bytes:
    """A certificate that was signed a while ago, or for a short time."""
    long = x509.load_pem_x509_certificate(
        authority.sign_server(key.public_key(), NAMES, SERVER_DAYS).encode()
    )
    builder = x509.CertificateBuilder(
        long.issuer,
        long.subject,
        long.public_key(),
        long.serial_number,
        long.not_valid_before_utc,
        now() + left,
        list(long.extensions),
    )
    assert long.signature_hash_algorithm is not None
    text = builder.sign(authority.key, long.signature_hash_algorithm)
    return text.public_bytes(serialization.Encoding.PEM)


def load(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


@pytest.fixture
def authority(tmp_path: Path) -> SigningAuthority:
    return make_authority(tmp_path, "test")


def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left(
    authority: SigningAuthority, tmp_path: Path
) -> None:
    file, key = tmp_path / "fleet.crt", new_key()
    file.write_bytes(authority.sign_server(key.public_key(), NAMES, SERVER_DAYS).encode())
    before = load(file)
    mine, replica = (OwnCertificates(authority, [file, file]) for _ in range(2))
    assert mine.check(now() + 243 * DAY).is_new is False
    assert load(file) == before
    checked = mine.check(now() + 244 * DAY)
    assert (checked.is_new, checked.again_in_s) == (True, CHECK_S)
    after = load(file)
    assert after.serial_number != before.serial_number
    assert after.public_key() == before.public_key()
    assert names_in(file) == NAMES
    after.verify_directly_issued_by(authority.certificate)
    assert after.not_valid_after_utc > now() + (SERVER_DAYS - 1) * DAY
    assert mine.check(now()).is_new is False
    assert replica.check(now()).is_new is True, "a replica uses what another one renewed"


def test_the_certificate_of_the_operator_is_renewed_as_one_of_a_client(
    authority: SigningAuthority, tmp_path: Path
) -> None:
    file, key = tmp_path / "operator.crt", new_key()
    file.write_bytes(authority.sign_client(key.public_key(), "operator").encode())
    before = load(file)
    assert OwnCertificates(authority, [file]).check(now() + 244 * DAY).is_new
    after = load(file)
    assert after.serial_number != before.serial_number
    assert (after.subject, after.public_key()) == (before.subject, before.public_key())
    kind = x509.ExtendedKeyUsage
    uses = [each.extensions.get_extension_for_class(kind).value for each in (before, after)]
    assert uses[0] == uses[1]


def test_fleet_renews_the_operator_of_its_own_folder(tmp_path: Path) -> None:
    wanted = NewFleet(tmp_path / "fleet", ("localhost",), "127.0.0.1", ports_alone(FLEET), None)
    folder = make_fleet(wanted).folder
    service = build_enrolment(load_file(FleetConfig, folder.config))
    assert service is not None
    before = load(folder.operator_certificate)
    assert service.certificates.check(now() + 244 * DAY).is_new
    assert load(folder.operator_certificate).serial_number != before.serial_number


def test_a_check_comes_in_time(authority: SigningAuthority, tmp_path: Path) -> None:
    file = tmp_path / "fleet.crt"
    file.write_bytes(signed(authority, new_key(), datetime.timedelta(seconds=155)))
    checked = OwnCertificates(authority, [file]).check(now())
    assert checked.is_new is False
    assert 0 < checked.again_in_s < 5


def test_certificates_of_others_are_left_alone(authority: SigningAuthority, tmp_path: Path) -> None:
    file = tmp_path / "site.crt"
    certificate, _ = self_signed(NAMES, now(), days=1)
    for content in (certificate, b"no certificate"):
        file.write_bytes(content)
        checked = OwnCertificates(authority, [file, tmp_path / "missing"]).check(now() + 2 * DAY)
        assert (checked.is_new, file.read_bytes()) == (False, content)


def test_a_file_that_cannot_be_written_is_tried_again(
    authority: SigningAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tls" / "fleet.crt"
    file.parent.mkdir()
    file.write_bytes(signed(authority, new_key(), datetime.timedelta(seconds=1)))
    certificates = OwnCertificates(authority, [file])
    file.unlink()
    file.parent.rmdir()
    with caplog.at_level(logging.ERROR):
        assert certificates.check(now()).again_in_s == RETRY_S
        assert certificates.check(now()).again_in_s == RETRY_S
    assert caplog.text.count("certificate_not_renewed") == 1


async def test_renewing_goes_on_after_a_check_that_failed(
    authority: SigningAuthority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("ingero.fleet.enrolment.own_certificates.RETRY_S", 0.0)
    certificates, used = OwnCertificates(authority, []), asyncio.Event()
    found = [RuntimeError("a defect"), Checked(is_new=True, again_in_s=60.0)]

    def check(now: datetime.datetime) -> Checked:
        first = found.pop(0)
        if isinstance(first, Exception):
            raise first
        return first

    certificates.check = check  # type: ignore[method-assign] # on purpose
    renewing = asyncio.create_task(certificates.renew_forever(used.set))
    async with asyncio.timeout(PATIENCE_S):
        await used.wait()
    await end_tasks([renewing])
    assert "renewal_failed" in caplog.text


async def connect(address: str, authority: Path) -> tuple[asyncio.StreamReader, Any]:
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols(["h2", "http/1.1"])  # gRPC insists on it
    host, port = address.rsplit(":", 1)
    name = NAMES[0]
    return await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)


def serial(writer: asyncio.StreamWriter) -> int:
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(der).serial_number


async def until_another(first: int, address: str, authority: Path) -> None:
    """Wait until new connections get another certificate."""
    async with asyncio.timeout(PATIENCE_S):
        found = first
        while found == first:
            _, writer = await connect(address, authority)
            found = serial(writer)
            writer.close()
            await asyncio.sleep(0.05)


async def test_a_running_fleet_renews_and_keeps_its_connections(tmp_path: Path) -> None:
    """The certificate is due three seconds after it was made: a third of 5 min and 155 s."""
    folder = tmp_path / "enrolment"
    folder.mkdir(mode=0o700)
    authority, key = make_authority(folder, "test"), new_key()
    certificate, trusted = tmp_path / "fleet.crt", folder / "authority.crt"
    private(tmp_path / "fleet.key", private_pem(key).decode())
    certificate.write_bytes(signed(authority, key, datetime.timedelta(seconds=155)))
    first = load(certificate).serial_number
    tls = {"tls": {"cert_file": str(certificate), "key_file": str(tmp_path / "fleet.key")}}
    async with running(
        receivers={"otlp": {"protocols": {"grpc": tls, "http": tls}}},
        extensions={"ingero_threshold": tls, "ingero_enrolment": {"dir": str(folder)}},
    ) as service:
        reader, writer = await connect(service.addresses["http"], trusted)
        assert serial(writer) == first
        for name in ("http", "threshold", "grpc"):
            await until_another(first, service.addresses[name], trusted)
        writer.write(b"GET /v1/metrics HTTP/1.1\r\nHost: fleet\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(64), PATIENCE_S)
        assert answer.startswith(b"HTTP/1.1 "), "an open connection is not cut"
        writer.close()
    assert load(certificate).not_valid_after_utc > now() + (SERVER_DAYS - 1) * DAY
