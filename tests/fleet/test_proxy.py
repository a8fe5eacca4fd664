"""Users that a reverse proxy signs in: only the proxy is believed."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.pushes import NEVER_S, loopback_config, running
from tests.support.tokens import private

from ingero.errors import ConfigError
from ingero.fleet.app import FleetService

SECRET = "s3cret-of-the-proxy-0123456789"
USER, SENT = "X-Forwarded-User", "X-Ingero-Proxy-Secret"


@asynccontextmanager
async def fleet(folder: Path, **proxy: Any) -> AsyncIterator[FleetService]:
    own = {
        "token_file": str(private(folder / "tokens", "0123456789abcdef" * 2)),
        "proxy": {"user_header": USER, "operators": ["ann"], **proxy},
    }
    async with running(tick_s=NEVER_S, extensions={"ingero_threshold": own}) as service:
        yield service


async def ask(service: FleetService, headers: Any, *, operate: bool = False) -> int:
    url = f"http://{service.addresses['threshold']}/api/v1/"
    async with aiohttp.ClientSession() as session:
        if operate:
            asked = session.post(url + "limits", json={"k": 2.5}, headers=headers)
        else:
            asked = session.get(url + "status", headers=headers)
        async with asked as reply:
            return reply.status


async def test_the_proxy_is_known_by_its_address(tmp_path: Path) -> None:
    async with fleet(tmp_path, addresses=["127.0.0.0/8"]) as service:
        assert await ask(service, {USER: "bob"}) == 200
        assert await ask(service, {USER: "bob"}, operate=True) == 403
        assert await ask(service, {USER: "ann"}, operate=True) == 200
        assert await ask(service, {}) == 401
        twice = [(USER, "bob"), (USER, "ann")]
        assert await ask(service, twice, operate=True) == 401
        both: Mapping[str, str] = {USER: "ann", "Authorization": "Bearer wrong"}
        assert await ask(service, both) == 401, "a token that is sent must be valid"
        assert await ask(service, {USER: ""}) == 401
        push = f"http://{service.addresses['threshold']}/api/v1/threshold"
        async with aiohttp.ClientSession() as s, s.get(push, headers={USER: "bob"}) as reply:
            assert reply.status == 200


async def test_others_who_send_the_header_are_nobody(tmp_path: Path) -> None:
    async with fleet(tmp_path, addresses=["10.0.0.5"]) as service:
        assert await ask(service, {USER: "ann"}) == 401
        assert await ask(service, {USER: "ann", "X-Forwarded-For": "10.0.0.5"}) == 401


async def test_the_proxy_is_known_by_its_secret(tmp_path: Path) -> None:
    secret = str(private(tmp_path / "secret", SECRET))
    async with fleet(tmp_path, secret_file=secret) as service:
        assert await ask(service, {USER: "bob", SENT: SECRET}) == 200
        assert await ask(service, {USER: "bob"}) == 401
        assert await ask(service, {USER: "bob", SENT: "wrong"}) == 401
        assert await ask(service, [(USER, "bob"), (SENT, SECRET), (SENT, "x")]) == 401
    async with fleet(tmp_path, secret_file=secret, addresses=["10.0.0.5"]) as service:
        assert await ask(service, {USER: "bob", SENT: SECRET}) == 401, "both must hold"


@pytest.mark.parametrize(
    "proxy",
    [
        {"user_header": "X-User"},
        {"user_header": "Authorization", "addresses": ["10.0.0.1"]},
        {"user_header": "X-User", "addresses": ["nonsense"]},
        {"user_header": "a b", "addresses": ["10.0.0.1"]},
    ],
)
def test_a_proxy_that_anybody_could_be_is_refused(proxy: dict[str, Any], tmp_path: Path) -> None:
    own = {"token_file": str(tmp_path / "t"), "proxy": proxy}
    with pytest.raises(ConfigError):
        loopback_config(extensions={"ingero_threshold": own})
    with pytest.raises(ConfigError, match="everybody is admitted"):
        good = {"user_header": "X-User", "addresses": ["10.0.0.1"]}
        loopback_config(extensions={"ingero_threshold": {"proxy": good}})
