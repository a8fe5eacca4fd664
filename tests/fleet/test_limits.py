"""Limits change while jobs run: scores and smoothed thresholds are kept."""

from dataclasses import replace
from pathlib import Path

import aiohttp
from tests.support.pushes import loopback_config, running

from ingero.config.fleet import FleetConfig
from ingero.contract.api_paths import FLEET_LIMITS
from ingero.errors import ConfigError
from ingero.fleet.app import FleetService

READ, OPERATE, TENANT = (f"{name}-token-0123456789abcdef" for name in ("read", "op", "tenant"))


def changed(config: FleetConfig, k: float) -> FleetConfig:
    ingero = config.processors.ingero
    threshold = replace(ingero.threshold, k=k)
    processors = replace(config.processors, ingero=replace(ingero, threshold=threshold))
    return replace(config, processors=processors)


def test_a_reload_applies_other_limits_and_keeps_what_was_learned() -> None:
    config = loopback_config()
    answers = [changed(config, 3.0)]

    def reread() -> FleetConfig:
        if answers:
            return answers.pop()
        raise ConfigError("processors.ingero.threshold.k: 9 is out of range")

    service = FleetService(config)
    service.reread = reread
    clusters, before = service.processor.clusters, service.processor.policy
    service.reload()
    assert service.processor.policy == replace(before, k=3.0)
    assert service.processor.clusters is clusters
    service.reload()  # a file that is wrong changes nothing
    assert service.processor.policy.k == 3.0


async def test_limits_over_the_api_need_the_scope_operate(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(
        f"- {{key_name: r, token: {READ}, scopes: [read]}}\n"
        f"- {{key_name: o, token: {OPERATE}, scopes: [operate]}}\n"
        f"- {{key_name: t, token: {TENANT}, scopes: [operate], allowed_clusters: [a]}}\n"
    )
    tokens.chmod(0o600)
    extension = {"agent_endpoint": "127.0.0.1:0", "token_file": str(tokens)}
    async with running(extensions={"ingero_threshold": extension}) as fleet:
        url = f"http://{fleet.addresses['threshold']}{FLEET_LIMITS}"
        async with aiohttp.ClientSession() as session:

            async def ask(token: str, body: object = None) -> tuple[int, object]:
                headers = {"Authorization": f"Bearer {token}"}
                method = "GET" if body is None else "POST"
                async with session.request(method, url, json=body, headers=headers) as reply:
                    return reply.status, await reply.json()

            assert (await ask(READ))[1]["k"] == 2.0  # type: ignore[index]  # an object
            assert (await ask(READ, {"k": 3.0}))[0] == 403
            assert (await ask(TENANT, {"k": 3.0}))[0] == 403
            assert (await ask(OPERATE, {"k": 99.0}))[0] == 400
            assert (await ask(OPERATE, {"push_interval_s": 1.0}))[0] == 400
            assert fleet.processor.policy.k == 2.0
            status, limits = await ask(OPERATE, {"k": 3.0, "statistical_min": 3})
        assert status == 200
        assert limits["k"] == 3.0 and limits["statistical_min"] == 3  # type: ignore[index]  # same
        assert (fleet.processor.policy.k, fleet.processor.policy.statistical_min) == (3.0, 3)
