"""Serving the node: whose certificate is shown, and when it changes."""

from dataclasses import replace
from pathlib import Path

import pytest

from ingero.agent.api.server import DashboardSettings, Serving, start_dashboard
from ingero.errors import Unavailable
from ingero.transport.local.machine_names import machine_addresses


async def served(settings: DashboardSettings) -> Serving:
    serving = await start_dashboard(settings)
    await serving.stop()
    serving.listener.listener.close()
    return serving


async def test_another_address_keeps_the_certificate_and_a_new_name_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SUDO_UID", raising=False)
    here = DashboardSettings(address=":0", db=tmp_path / "t.db", node="gpu-1")
    first = await served(here)
    assert (first.replaced, first.notice) == (None, "")
    for address in (
        "127.0.0.1:0",
        "[::1]:0",
        *(f"{each}:0" for each in machine_addresses() if ":" not in each),
    ):
        try:
            other = await served(replace(here, address=address))
        except Unavailable:  # this machine has no IPv6
            continue
        assert (other.fingerprint, other.notice) == (first.fingerprint, "")
    named = await served(
        DashboardSettings(
            address="127.0.0.1:0", db=here.db, node="gpu-1", host_names=("gpu.example",)
        )
    )
    assert named.replaced == first.fingerprint != named.fingerprint
    assert f"before: {first.fingerprint}" in named.notice
    assert f"ingero nodes trust {named.url.removeprefix('https://')}" in named.notice
    again = await served(here)
    assert (again.fingerprint, again.notice) == (named.fingerprint, ""), "widened once"
