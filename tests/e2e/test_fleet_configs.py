"""The two shipped configurations of Fleet, started as they are but on free ports."""

import contextlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fleet_process import ANY, fleet
from tests.support.waiting import PATIENCE_S

CONFIGS = Path(__file__).parents[2] / "configs"
pytestmark = pytest.mark.e2e


def own_copy(folder: Path) -> Path:
    """Return a copy of the shipped configuration whose files are in `folder`."""
    copy = folder / "fleet-config.yaml"
    text = (CONFIGS / "fleet-config.yaml").read_text()
    copy.write_text(text.replace("/etc/ingero-fleet", str(folder / "secrets of fleet")))
    return copy


def refusal(config: Path, *flags: str) -> str:
    command = [sys.executable, "-m", "ingero.cli.commands.services.fleet", "--config", str(config)]
    done = subprocess.run(
        [*command, *ANY, *flags],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    return done.stderr


def sample(address: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as reply:
        found = re.search(rf"^{name} (\S+)$", reply.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def answer(address: str, path: str, certificate: Path, token: str) -> tuple[int, str]:
    """Ask as a client that trusts the certificate and knows this machine's name."""
    context = ssl.create_default_context(cafile=str(certificate))
    host, port = "127.0.0.1", int(address.rpartition(":")[2])
    with (
        socket.create_connection((host, port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=socket.gethostname()) as connection,
    ):
        head = f"GET {path} HTTP/1.1\r\nHost: fleet\r\nAuthorization: Bearer {token}\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
        reply = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        return int(reply.split()[1]), reply


@contextlib.contextmanager
def started(config: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Start Fleet; the list holds its log once it has ended."""
    log: list[str] = []
    with fleet("--config", str(config), "--prometheus", "0") as (process, addresses):
        yield addresses, log
        process.send_signal(signal.SIGTERM)
        log += process.communicate(timeout=PATIENCE_S)[1].splitlines()


def test_missing_files_are_named_with_the_commands_that_make_them(tmp_path: Path) -> None:
    """The printed commands, run as they are, make a configuration that starts without a warning."""
    config = own_copy(tmp_path)
    told = refusal(config, "--check")
    assert refusal(config) == told
    for name in ("fleet.crt", "fleet.key", "fleet.token"):
        assert str(tmp_path / "secrets of fleet" / name) in told.splitlines()[0]
    assert "configs/fleet-config-plain.yaml" in told
    commands = [line for line in told.splitlines() if line.startswith("  ")]
    script = "set -euo pipefail\n" + "\n".join(commands)
    subprocess.run(["bash", "-c", script], check=True, capture_output=True, timeout=PATIENCE_S)
    with started(config) as (addresses, log):
        token = (tmp_path / "secrets of fleet" / "fleet.token").read_text().strip()
        certificate = tmp_path / "secrets of fleet" / "fleet.crt"
        status, page = answer(addresses["metrics"], "/metrics", certificate, token)
        assert status == 200
        assert "\ningero_fleet_plaintext_listeners 0" in page
        assert "\ningero_fleet_unguarded_listeners 0" in page
        expiry = f'ingero_fleet_certificate_expiry_timestamp_seconds{{file="{certificate}"}} (\\S+)'
        [at] = re.findall(expiry, page)
        assert 300 < (float(at) - time.time()) / 86400 < 400
        path = "/api/v1/threshold"
        assert answer(addresses["threshold"], path, certificate, token)[0] == 200
        assert answer(addresses["threshold"], path, certificate, "another-token-0123")[0] == 401
    assert not [line for line in log if "plaintext_listeners" in line or "without_token" in line]


def test_one_missing_file_asks_for_that_one_only(tmp_path: Path) -> None:
    config = own_copy(tmp_path)
    (tmp_path / "secrets of fleet").mkdir()
    for name in ("fleet.crt", "fleet.key"):
        (tmp_path / "secrets of fleet" / name).write_text("")
    told = refusal(config, "--check")
    assert "fleet.key" not in told
    assert "openssl rand -hex 32" in told
    assert "openssl req" not in told


def test_plain_configuration_starts_with_one_warning_and_gauges() -> None:
    with started(CONFIGS / "fleet-config-plain.yaml") as (addresses, log):
        reachable = [name for name, at in addresses.items() if at.startswith("0.0.0.0:")]
        assert sorted(reachable) == ["grpc", "http", "prometheus", "threshold"]
        assert sample(addresses["metrics"], "ingero_fleet_plaintext_listeners") == 4
        assert sample(addresses["metrics"], "ingero_fleet_unguarded_listeners") == 4
    warnings = [line for line in log if "plaintext_listeners" in line]
    assert len(warnings) == 1
    for name in reachable:
        assert name in warnings[0]
