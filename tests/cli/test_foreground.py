"""Services tell systemd when they are up, that they live and that they stop."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

SERVICES = {
    "fleet": ["ingero.cli.commands.services.fleet", "--grpc", "off", "--http", "127.0.0.1:0"]
    + [
        word
        for name in ("agent", "admin", "health", "prometheus", "metrics")
        for word in (f"--{name}", "127.0.0.1:0")
    ],
    "echo": ["ingero.cli.commands.services.echo", "serve", "--insecure-no-tls"]
    + [
        word
        for name in ("otlp", "otlp-http", "mcp", "health")
        for word in (f"--{name}-addr", "127.0.0.1:0")
    ],
}


@pytest.mark.e2e
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_manager_hears_from_start_life_and_stop(service: str, tmp_path: Path) -> None:
    if service == "echo":
        pytest.importorskip("duckdb")
    module, *arguments = SERVICES[service]
    address = str(tmp_path / "notify")
    environment = os.environ | {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
    if service == "echo":
        arguments += ["--db-path", str(tmp_path / "echo.db")]
    script = f"from {module} import main; main()"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        command = [sys.executable, "-c", script, *arguments]
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
            heard = []
            while "READY=1" not in heard or heard[-1] != "WATCHDOG=1":
                heard.append(manager.recv(100).decode())
            process.send_signal(signal.SIGTERM)
            while heard[-1] != "STOPPING=1":
                heard.append(manager.recv(100).decode())
            assert process.wait(PATIENCE_S) == 0
    assert set(heard) == {"READY=1", "WATCHDOG=1", "STOPPING=1"}
