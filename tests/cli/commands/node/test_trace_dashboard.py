"""Processes beside a command: without root, over a sample database."""

import asyncio
import gc
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.cli.commands.node.trace_dashboard import dashboard_beside
from ingero.errors import Unavailable
from ingero.sim.samples import write_samples
from ingero.transport.fanout.client import peer_fingerprint


def test_the_dashboard_beside_serves_and_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SUDO_USER", raising=False)
    with dashboard_beside("127.0.0.1:0", write_samples(tmp_path)[0], "gpu-1") as (
        where,
        certificate,
    ):
        name, address = where.split(": https://")
        shown = asyncio.run(peer_fingerprint(address, PATIENCE_S))
        gc.collect()  # a connection left open would be an error here
        assert (name, certificate) == ("gpu-1", f"certificate fingerprint {shown}")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), PATIENCE_S)


def test_a_warning_of_the_dashboard_says_what_to_do(tmp_path: Path) -> None:
    db = write_samples(tmp_path)[0]
    command = [sys.executable, "-m", "ingero", "dashboard", "--no-tls", "--db", str(db)]
    with subprocess.Popen(
        ["sh", "-c", 'ulimit -n 512; exec "$0" "$@"', *command, "--addr", "127.0.0.1:0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as dashboard:  # fmt: skip
        assert dashboard.stderr is not None
        warning = dashboard.stderr.readline()
        dashboard.terminate()
    assert "few_open_files limit=512" in warning
    assert "LimitNOFILE= of systemd" in warning


def test_a_dashboard_that_does_not_start_stops_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(Unavailable, match="the dashboard did not start"),
            dashboard_beside(address, tmp_path, "n"),
        ):
            pass
    assert "is already in use" in capfd.readouterr().err
