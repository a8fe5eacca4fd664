"""Attempts on enrolment: certificates of others, squatted names, races, floods, foreign pushes."""

import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.support.enrolment import add_secret, asked, enrolment_folder
from tests.support.pushes import NEVER_S, PB, post, protobuf, running
from tests.support.tokens import private

from ingero.contract.enrolment.messages import EnrolReply, EnrolRequest, RenewRequest
from ingero.core.enrolment import LOCAL_NAMES, revoked
from ingero.errors import AuthError
from ingero.fleet.app import FleetService
from ingero.fleet.enrolment.routes import CHANGES_AT_ONCE
from ingero.fleet.enrolment.service import EnrolmentService
from ingero.transport.enrolment.authority import key_digest, new_key, signing_request
from ingero.transport.http import HttpListener

SECRET = "5e" * 16
JSON = {"Content-Type": "application/json"}
SHARED = "0123456789abcdef" * 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return enrolment_folder(tmp_path / "enrolment")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def fleet(folder: Path, tick_s: float = NEVER_S) -> AsyncIterator[FleetService]:
    tokens = private(folder.parent / "tokens", SHARED)
    own = {"token_file": str(tokens)}
    extensions = {"ingero_threshold": own, "ingero_enrolment": {"dir": str(folder)}}
    protocols = {"grpc": own, "http": own}
    async with running(
        tick_s=tick_s, receivers={"otlp": {"protocols": protocols}}, extensions=extensions
    ) as service:
        yield service


async def join(
    service: FleetService, request: EnrolRequest, secret: str = SECRET
) -> tuple[int, bytes]:
    url = f"http://{service.addresses['threshold']}/api/v1/enrol"
    status, _, body = await post(url, msgspec.json.encode(request), JSON | bearer(secret))
    return status, body


async def test_a_code_is_not_used_up_while_fleet_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API is served first, and where nodes push is known only when all listeners are open."""
    add_secret(folder, SECRET)
    told: list[tuple[int, bytes]] = []
    start, services = HttpListener.start, list[FleetService]()
    listen = FleetService._open_listeners

    async def opening(service: FleetService) -> None:
        services.append(service)
        await listen(service)

    async def started(listener: HttpListener) -> None:
        await start(listener)
        if not told:
            services[0].addresses["threshold"] = listener.address
            told.append(await join(services[0], asked("gpu-1")))

    monkeypatch.setattr(FleetService, "_open_listeners", opening)
    monkeypatch.setattr(HttpListener, "start", started)
    async with fleet(folder) as service:
        assert [(status, b"Fleet is starting" in body) for status, body in told] == [(503, True)]
        status, body = await join(service, asked("gpu-1"))
        port = msgspec.json.decode(body, type=EnrolReply).push_port
        assert (status, str(port)) == (200, service.addresses["http"].rpartition(":")[2])


async def push(service: FleetService, node: str, token: str) -> int:
    url = f"http://{service.addresses['http']}/v1/metrics"
    return (await post(url, protobuf(node, 0.9), PB | bearer(token)))[0]


def hostile_request(node: str, key: ec.EllipticCurvePrivateKey) -> EnrolRequest:
    """A request that asks to be an authority, Fleet, and another node."""
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fleet")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("fleet"), x509.DNSName("*.example")]),
            critical=False,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
    )
    signed = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    return EnrolRequest(node, signed, names=["fleet", "gpu-2", "gpu-1.example"])


def test_of_a_signing_request_only_the_key_is_used(folder: Path) -> None:
    service = EnrolmentService(folder, ["fleet"])
    code, key = add_secret(folder, SECRET), new_key()
    issued = service.enrol(code, hostile_request("gpu-1", key), "10.0.0.7")
    found = x509.load_pem_x509_certificate(issued.certificate.encode())
    held = found.extensions
    assert held.get_extension_for_class(x509.BasicConstraints).value.ca is False
    names = held.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["gpu-1", "gpu-1.example", *LOCAL_NAMES]
    uses = held.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert found.subject.rfc4514_string() == "CN=gpu-1"
    assert key_digest(found.public_key()) == key_digest(key.public_key())  # type: ignore[arg-type]
    found.verify_directly_issued_by(service.authority.certificate)


def test_a_key_of_another_kind_or_without_its_owner_is_refused(folder: Path) -> None:
    service = EnrolmentService(folder, [])
    code = add_secret(folder, SECRET)
    weak = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    pem = builder.sign(weak, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    good = asked("gpu-1").signing_request.splitlines()
    changed = "\n".join([*good[:-2], good[-2][:-6] + "AAAA==", good[-1]])
    for request in (pem, changed, "", "x" * 1000, "\0", "ä"):
        with pytest.raises(AuthError):
            service.enrol(code, EnrolRequest("gpu-1", request), None)
    assert not service.file.read().members


def test_a_code_for_five_nodes_enrols_five_of_forty_that_come_at_once(folder: Path) -> None:
    services = [EnrolmentService(folder, []) for _ in range(4)]  # as replicas have
    code = add_secret(folder, SECRET, nodes=5)

    def try_one(number: int) -> bool:
        try:
            services[number % 4].enrol(code, asked(f"gpu-{number}"), None)
        except AuthError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(try_one, range(40))) == 5
    assert len(services[0].file.read().members) == 5


def test_a_certificate_is_renewed_for_its_own_key_only(folder: Path) -> None:
    service = EnrolmentService(folder, [])
    code, key = add_secret(folder, SECRET), new_key()
    service.enrol(code, asked("gpu-1", key), None)
    assert "CERTIFICATE" in service.renew("gpu-1", RenewRequest(signing_request(key, "x")), None)
    with pytest.raises(AuthError, match="the key it was made for"):
        service.renew("gpu-1", RenewRequest(signing_request(new_key(), "x")), None)
    service.file.change(lambda now: revoked(now, "gpu-1", time.time()))
    with pytest.raises(AuthError, match="not enrolled any more"):
        service.renew("gpu-1", RenewRequest(signing_request(key, "x")), None)


async def test_a_node_pushes_as_itself_until_it_is_revoked(folder: Path) -> None:
    add_secret(folder, SECRET, nodes=2)
    async with fleet(folder) as service:
        status, body = await join(service, asked("gpu-1"))
        assert status == 200
        token = msgspec.json.decode(body, type=EnrolReply).token
        assert await push(service, "gpu-1", token) == 200
        assert await push(service, "gpu-1", token) == 200  # also past the compiled path
        assert await push(service, "gpu-2", token) == 403
        for _ in range(3):  # until pushes of that node take the compiled path
            assert await push(service, "gpu-2", SHARED) == 200
            service.tick(time.monotonic())
        assert await push(service, "gpu-2", SHARED) == 200
        assert await push(service, "gpu-2", token) == 403
        for path in ("status", "silences", "enrol/nodes", "limits"):
            url = f"http://{service.addresses['threshold']}/api/v1/{path}"
            assert (await get_status(url, token)) == 403
        service.enrolment.file.change(  # type: ignore[union-attr]  # as a command does
            lambda now: revoked(now, "gpu-1", time.time())
        )
        service.tick(time.monotonic())
        assert await push(service, "gpu-1", token) == 401


async def test_a_node_that_joined_one_replica_is_known_and_refused_by_all(folder: Path) -> None:
    add_secret(folder, SECRET, nodes=1)
    async with fleet(folder) as one, fleet(folder) as other:
        _, body = await join(one, asked("gpu-1"))
        token = msgspec.json.decode(body, type=EnrolReply).token
        other.tick(time.monotonic())
        assert await push(other, "gpu-1", token) == 200
        one.enrolment.file.change(  # type: ignore[union-attr]  # as a command does
            lambda now: revoked(now, "gpu-1", time.time())
        )
        for replica in (one, other):
            replica.tick(time.monotonic())
            assert await push(replica, "gpu-1", token) == 401


async def get_status(url: str, token: str) -> int:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(url, headers=bearer(token)) as reply:
        return reply.status


async def test_the_code_is_checked_before_the_body_and_wrong_ones_are_limited(
    folder: Path,
) -> None:
    add_secret(folder, SECRET)
    async with fleet(folder) as service:
        url = f"http://{service.addresses['threshold']}/api/v1/enrol"
        body = b"x" * (32 << 10)
        found = [(await post(url, body, JSON | bearer("ab" * 16)))[0] for _ in range(30)]
        assert found.count(401) == 20
        assert found.count(429) == 10
        assert (await post(url, b"{}", JSON))[0] == 429, "also without a code"
        assert (await join(service, asked("gpu-1")))[0] == 200, "a valid code is never limited"
        assert (await post(url, b"{", JSON | bearer(SECRET)))[0] == 400
        assert (await post(url, b"x" * (33 << 10), JSON | bearer(SECRET)))[0] == 413
        assert (await post(url, b"{}", {"Content-Type": "text/plain", **bearer(SECRET)}))[0] == 415
        audit = service.enrolment.audit.path.read_text()  # type: ignore[union-attr]
        assert audit.count("wrong code") == 20
        assert SECRET not in audit
        assert service.enrolment.file.path.stat().st_mode & 0o777 == 0o600  # type: ignore[union-attr]


async def test_a_node_that_asks_again_and_again_leaves_room_for_others(folder: Path) -> None:
    """Each answer is signed and written to disk, so that one node could keep all others out."""
    add_secret(folder, SECRET, nodes=5)
    async with fleet(folder) as service:
        key = new_key()
        found = [await join(service, asked("gpu-1", key)) for _ in range(CHANGES_AT_ONCE + 1)]
        assert [status for status, _ in found] == [200] * CHANGES_AT_ONCE + [429]
        assert b"this node asks too often; try again in" in found[-1][1]
        token = msgspec.json.decode(found[-2][1], type=EnrolReply).token
        renew = f"http://{service.addresses['threshold']}/api/v1/enrol/renew"
        body = msgspec.json.encode(RenewRequest(signing_request(key, "gpu-1")))
        assert (await post(renew, body, JSON | bearer(token)))[0] == 429
        assert (await join(service, asked("gpu-2")))[0] == 200
        assert await push(service, "gpu-1", token) == 200, "its pushes are not limited"


async def test_a_name_that_is_taken_is_refused_with_what_to_do(folder: Path) -> None:
    add_secret(folder, SECRET, nodes=5)
    async with fleet(folder) as service:
        key = new_key()
        assert (await join(service, asked("gpu-1", key)))[0] == 200
        status, body = await join(service, asked("gpu-1"))
        assert status == 403
        assert b"ingero fleet revoke gpu-1" in body
        status, body = await join(service, asked("gpu-1", key))
        assert status == 200, "the same node may ask again"
        again = msgspec.json.decode(body, type=EnrolReply).token
        assert await push(service, "gpu-1", again) == 200


async def test_a_damaged_file_changes_nothing_and_is_said(folder: Path) -> None:
    add_secret(folder, SECRET, nodes=5)
    async with fleet(folder) as service:
        _, body = await join(service, asked("gpu-1"))
        token = msgspec.json.decode(body, type=EnrolReply).token
        assert service.enrolment is not None
        service.enrolment.file.path.write_bytes(b"{")
        service.tick(time.monotonic())
        assert await push(service, "gpu-1", token) == 200
        status, body = await join(service, asked("gpu-2"))
        assert status == 507
        assert b"cannot be read" in body
