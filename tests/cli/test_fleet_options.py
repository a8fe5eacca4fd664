"""Commands that ask a Fleet with mutual TLS and a token."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.support.pushes import ANY_PORT, running
from tests.support.tls_files import write_pair

from ingero.cli.commands.node.check_fleet import check_fleet
from ingero.cli.commands.services.echo_ask import connect
from ingero.cli.dispatch import run
from ingero.cli.fleet_options import fleet_client
from ingero.contract.api_paths import FLEET_STATUS
from ingero.contract.fleet_api import NodeStatus, Status
from ingero.errors import AuthError, ConfigError, Unavailable


def ask(url: str) -> Status[NodeStatus]:
    """Ask with time enough for a loaded machine."""
    return replace(fleet_client(url, None), timeout_s=60.0).get(FLEET_STATUS, Status[NodeStatus])


@pytest.fixture
def secured(tmp_path: Path) -> dict[str, Any]:
    authority, clients = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    own = write_pair(tmp_path, "client", clients.issue_cert("me@example.org"))
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a-s3cret-0123456789")
    tls = {
        **write_pair(tmp_path, "server", authority.issue_cert("127.0.0.1")),
        "client_ca_file": str(tmp_path / "clients.pem"),
    }
    material = {
        "ca": str(tmp_path / "authority.pem"),
        "cert": own["cert_file"],
        "key": own["key_file"],
    }
    return {"tls": tls, "token_file": str(token), "material": material}


async def test_they_show_what_the_agent_shows(
    secured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F107: commands use the certificate and token of ingero.yaml, or report what is missing."""
    material, config = secured.pop("material"), tmp_path / "ingero.yaml"
    monkeypatch.setenv("INGERO_CONFIG", str(config))
    monkeypatch.delenv("INGERO_FLEET_TOKEN", raising=False)
    changes = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": ANY_PORT, **secured}}}},
        "extensions": {"ingero_threshold": secured},
    }
    async with running(**changes) as fleet:
        api, otlp = f"https://{fleet.addresses['threshold']}", f"https://{fleet.addresses['http']}"

        config.write_text(f"fleet:\n  tls: {{ca: {material['ca']}}}\n")
        with pytest.raises(
            Unavailable, match=r"fleet\.tls in ingero\.yaml|closed the connection|does not answer"
        ):
            await asyncio.to_thread(ask, api)
        files = ", ".join(f"{key}: {path}" for key, path in material.items())
        config.write_text(f"fleet:\n  tls: {{{files}}}\n")
        with pytest.raises(AuthError, match="wants a token"):
            await asyncio.to_thread(ask, api)
        config.write_text(f"fleet:\n  tls: {{{files}}}\n  token_file: {secured['token_file']}\n")
        assert await asyncio.to_thread(ask, api) == Status([])
        checks = await asyncio.to_thread(check_fleet, fleet_client(otlp, None), "default")
        assert [(check.name, check.passed) for check in checks][:3] == [
            ("reach", True),
            ("TLS", True),
            ("push", True),
        ]
        with pytest.raises(Unavailable, match=r"does not answer"):
            await asyncio.to_thread(ask, api.replace("https", "http"))


def test_a_token_goes_to_another_machine_in_plain_text_only_where_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before anything is sent; without a token, or on this machine, it is allowed."""
    config = tmp_path / "ingero.yaml"
    config.write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(config))
    monkeypatch.setenv("INGERO_FLEET_TOKEN", "secret-token-0123456789")
    monkeypatch.setenv("INGERO_ECHO_TOKEN", "secret-token-0123456789")
    with pytest.raises(
        ConfigError, match=r"plain text; use https://, or allow it with fleet\.insecure"
    ):
        fleet_client("http://fleet.example:8080", None).connection()
    with pytest.raises(ConfigError, match="allow it with --insecure"):
        connect("http://echo.example:8081", None, None, tmp_path / "none.db")
    fleet_client("http://127.0.0.1:8080", None).connection()
    config.write_text("fleet:\n  insecure: true\n")
    fleet_client("http://fleet.example:8080", None).connection()
    connect("http://echo.example:8081", None, None, tmp_path / "none.db", insecure=True)
    monkeypatch.delenv("INGERO_FLEET_TOKEN")
    config.write_text("")
    fleet_client("http://fleet.example:8080", None).connection()


async def test_a_wrong_port_or_scheme_is_told_with_what_to_write_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mistakes of the first hour; what a port that speaks no HTTP sends is never shown."""
    async with running() as fleet:
        api, otlp, grpc = (fleet.addresses[name] for name in ("threshold", "http", "grpc"))

        async def refused(url: str) -> str:
            with pytest.raises(Unavailable) as caught:
                await asyncio.to_thread(ask, url)
            return str(caught.value)

        assert (await refused(f"http://{otlp}")).endswith(
            "Not Found; is it the address of its threshold API (port 8080)?"
        )
        assert "write http://" in await refused(f"https://{api}")
        told = await refused(f"http://{grpc}")
        assert "does not answer in HTTP" in told and told.isprintable()
        assert [
            check.name
            for check in await asyncio.to_thread(
                check_fleet, fleet_client(f"http://{api}", None), "c"
            )
        ] == [
            "reach",
            "push",
        ]
        (_, tls) = await asyncio.to_thread(check_fleet, fleet_client(f"https://{otlp}", None), "c")
        assert (tls.passed, "write http://" in tls.recommendation) == (False, True)
        (*_, quorum) = await asyncio.to_thread(
            check_fleet, fleet_client(f"http://{otlp}", None), "c"
        )
        assert (quorum.name, quorum.passed, quorum.optional) == ("quorum", False, True)
        with pytest.raises(ConfigError, match="write http://host:4318"):
            check_fleet(fleet_client(otlp, None), "c")


async def test_a_cluster_nobody_pushes_for_is_an_error_not_good_news(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running() as fleet:
        url = f"http://{fleet.addresses['threshold']}"
        assert await asyncio.to_thread(run, ["status", "--fleet", url, "--cluster", "tpyo"]) == 3
        assert "no cluster 'tpyo' has pushed; there are: none yet" in capsys.readouterr().err
        assert await asyncio.to_thread(run, ["silence", "lift", "n1", "--fleet", url]) == 1
        assert "n1 was not silenced; `ingero silence list` shows who is" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "silence", "services.echo_ask"])
def test_commands_that_send_one_request_load_no_web_framework(command: str) -> None:
    """Importing aiohttp and Starlette takes longer than the request."""
    script = f"import sys, ingero.cli.commands.{command}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert {"aiohttp", "starlette", "uvicorn"}.isdisjoint(done.stdout.split())
