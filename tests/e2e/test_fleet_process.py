"""`ingero-fleet` as a real process: start, signals, certificates, restart."""

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from tests.support.fleet_process import fleet, push
from tests.support.pushes import protobuf
from tests.support.waiting import PATIENCE_S, until

from ingero.contract.otlp.values import MetricsRequest
from ingero.transport.otlp.server_grpc import PATHS

pytestmark = pytest.mark.e2e

FIRST, SECOND = "the-first-token-0123", "the-second-token-012"


def test_quorum_over_real_pushes_then_killed_and_back_again() -> None:
    """F015, F019, F106: after SIGKILL, a new process serves three nodes once they have pushed."""
    config = ("--prometheus", "0")
    with fleet(*config) as (process, addresses):
        for i in range(5):
            push(addresses["http"], f"n{i}", 0.9)
        until(lambda: push(addresses["http"], "n0", 0.9)[1]["X-Ingero-Quorum-Met"] == "true")
        process.kill()
        process.wait()
    with fleet(*config) as (process, addresses):
        alone = push(addresses["http"], "n0", 0.9)[1]
        assert alone["X-Ingero-Quorum-Met"] == "false"
        assert alone["X-Ingero-Quorum-Reason"] == "few_nodes"
        for i in range(5):
            push(addresses["http"], f"n{i}", 0.9)
        until(lambda: push(addresses["http"], "n0", 0.9)[1]["X-Ingero-Quorum-Met"] == "true")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def write_pair(folder: Path, issuer: trustme.CA) -> None:
    issued = issuer.issue_cert("localhost", "127.0.0.1")
    (folder / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    key = folder / "tls.key"
    key.touch(mode=0o600)
    key.write_bytes(issued.private_key_pem.bytes())


@pytest.fixture
def secured(tmp_path: Path) -> tuple[Path, trustme.CA, trustme.CA, Path]:
    """Mutual TLS and a token on both receivers.

    Returns the configuration, the authorities of server and clients, and the folder.
    """
    authority, clients = trustme.CA(), trustme.CA()
    write_pair(tmp_path, authority)
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(FIRST)
    files = {"cert_file": "tls.crt", "key_file": "tls.key", "client_ca_file": "clients.pem"}
    tls = {key: str(tmp_path / name) for key, name in files.items()}
    listener = {"endpoint": "127.0.0.1:0", "tls": tls, "token_file": str(token)}
    extension = {**listener, "agent_endpoint": "127.0.0.1:0", "admin_endpoint": "127.0.0.1:0"}
    del extension["endpoint"]
    mapping = {
        "receivers": {"otlp": {"protocols": {"http": listener, "grpc": listener}}},
        "extensions": {"ingero_threshold": extension, "zpages": listener},
        "exporters": {"prometheus": listener},
        "service": {"telemetry": {"metrics": {**listener, "address": "127.0.0.1:0"}}},
    }
    del mapping["service"]["telemetry"]["metrics"]["endpoint"]
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps(mapping))
    return path, authority, clients, tmp_path


def client_context(authority: trustme.CA, clients: trustme.CA | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if clients is not None:
        clients.issue_cert("agent@example.org").configure_cert(context)
    return context


GUARDED = {
    "threshold": "/api/v1/threshold",
    "admin": "/debug/clusters",
    "metrics": "/metrics",
    "prometheus": "/metrics",
    "health": "/",
}


def assert_guarded(url: str, good: ssl.SSLContext, stranger: ssl.SSLContext) -> None:
    """A page is for those with a certificate and a token, and for nobody else."""
    authorized = urllib.request.Request(url, headers={"Authorization": f"Bearer {FIRST}"})
    with urllib.request.urlopen(authorized, timeout=PATIENCE_S, context=good) as reply:
        assert reply.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(url, timeout=PATIENCE_S, context=good)
    refused.value.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=PATIENCE_S, context=stranger).read()


def test_mutual_tls_and_tokens_on_every_listener_and_their_reload(secured: tuple[Any, ...]) -> None:
    path, authority, clients, folder = secured
    good, stranger = client_context(authority, clients), client_context(authority, None)
    with fleet("--config", str(path), "--prometheus", "0") as (process, addresses):
        assert push(addresses["http"], "a", 0.9, "https", good, FIRST)[0] == 200
        assert push(addresses["http"], "a", 0.9, "https", good, "wrong")[0] == 401
        for name, page in GUARDED.items():
            assert_guarded(f"https://{addresses[name]}{page}", good, stranger)
        fresh = trustme.CA()
        (folder / "tls.crt").unlink(), (folder / "tls.key").unlink()
        write_pair(folder, fresh)
        (folder / "token").write_text(SECOND)
        process.send_signal(signal.SIGHUP)
        renewed = client_context(fresh, clients)

        def is_reloaded() -> bool:
            try:
                return push(addresses["http"], "a", 0.9, "https", renewed, SECOND)[0] == 200
            except OSError:
                return False

        until(is_reloaded)
        issued = clients.issue_cert("agent@example.org")
        credentials = grpc.ssl_channel_credentials(
            fresh.cert_pem.bytes(),
            issued.private_key_pem.bytes(),
            issued.cert_chain_pems[0].bytes(),
        )
        with grpc.secure_channel(addresses["grpc"], credentials) as channel:
            call = channel.unary_unary(PATHS[MetricsRequest])
            call(
                protobuf("b", 0.9),
                metadata=(("authorization", f"Bearer {SECOND}"),),
                timeout=PATIENCE_S,
            )
            with pytest.raises(grpc.RpcError) as unauthenticated:
                call(protobuf("b", 0.9), timeout=PATIENCE_S)
            assert unauthenticated.value.code() is grpc.StatusCode.UNAUTHENTICATED
        bare = grpc.ssl_channel_credentials(fresh.cert_pem.bytes())
        with grpc.secure_channel(addresses["grpc"], bare) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(PATHS[MetricsRequest])(protobuf("b", 0.9), timeout=3)


def reaches(
    addresses: dict[str, str], authority: trustme.CA, clients: trustme.CA
) -> dict[str, bool]:
    """Return the listeners that accept a client of `clients`, each on its own connection."""
    context, issued = client_context(authority, clients), clients.issue_cert("agent@example.org")
    found = {}
    for name, address in addresses.items():
        if name == "grpc":
            credentials = grpc.ssl_channel_credentials(
                authority.cert_pem.bytes(),
                issued.private_key_pem.bytes(),
                issued.cert_chain_pems[0].bytes(),
            )
            with grpc.secure_channel(address, credentials) as channel:
                call = channel.unary_unary(PATHS[MetricsRequest])
                try:
                    call(
                        protobuf("b", 0.9),
                        metadata=(("authorization", f"Bearer {FIRST}"),),
                        timeout=30,
                    )
                    found[name] = True
                except grpc.RpcError:
                    found[name] = False
            continue
        url = urllib.request.Request(
            f"https://{address}/", headers={"Authorization": f"Bearer {FIRST}"}
        )
        try:
            urllib.request.urlopen(url, timeout=30, context=context).close()
            found[name] = True
        except urllib.error.HTTPError as error:  # no such page, but somebody who answers
            error.close()
            found[name] = True
        except OSError:
            found[name] = False
    return found


def test_a_new_client_authority_replaces_the_old_one(secured: tuple[Any, ...]) -> None:
    path, authority, clients, folder = secured
    later = trustme.CA()
    with fleet("--config", str(path)) as (process, addresses):
        everywhere, nowhere = dict.fromkeys(addresses, True), dict.fromkeys(addresses, False)
        assert reaches(addresses, authority, clients) == everywhere
        assert reaches(addresses, authority, later) == nowhere
        (folder / "clients.pem").write_text("not a certificate")
        process.send_signal(signal.SIGHUP)
        assert reaches(addresses, authority, clients) == everywhere, (
            "a file that is wrong changes nothing"
        )
        later.cert_pem.write_to_path(folder / "clients.pem")
        process.send_signal(signal.SIGHUP)
        until(lambda: reaches(addresses, authority, later) == everywhere, 120.0)
        assert reaches(addresses, authority, clients) == nowhere


def test_check_print_and_mistakes(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "ingero.cli.commands.services.fleet", *arguments]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=PATIENCE_S, env=os.environ
        )
        return done.returncode, done.stdout + done.stderr

    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("processors:\n  ingero:\n    threshold:\n      k: 3\n")
    bad.write_text("processors:\n  ingero:\n    threshold:\n      kk: 3\n")
    assert run("--config", str(good), "--check") == (0, f"{good} is valid\n")
    status, text = run("--config", str(bad), "--check")
    assert (status, f"{bad}:4: processors.ingero.threshold.kk" in text) == (2, True)
    status, text = run(
        "--config", str(good), "--print-config", "--json", "--http", "0.0.0.0:9999", "--grpc", "off"
    )
    effective = json.loads(text)
    assert effective["processors"]["ingero"]["threshold"]["k"] == 3
    assert effective["receivers"]["otlp"]["protocols"] == {
        "http": {"endpoint": "0.0.0.0:9999", "max_body_bytes": 4194304, "max_requests_per_s": 0}
    }
    status, text = run("--admin", "0.0.0.0:8081", "--check")
    assert (status, "not a loopback address" in text) == (2, True)
    assert run("--http", "8080", "--agent", "4318", "--check")[0] == 0, (
        "flags count together, not one after the other"
    )
    good.write_text(
        f"receivers: {{otlp: {{protocols: {{http: {{token_file: {tmp_path / 'gone'}}}}}}}}}\n"
    )
    status, text = run("--config", str(good), "--check")
    assert (status, f"files that do not exist: {tmp_path / 'gone'}" in text) == (2, True)
