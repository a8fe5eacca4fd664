"""Silences stop alerts but not measurements; they are set over HTTP and by `ingero silence`."""

import asyncio
import json
from pathlib import Path

import aiohttp
import msgspec
import pytest
from click.testing import CliRunner
from tests.support.pushes import PB, post, protobuf, running
from tests.support.verdict_pushes import START_S, verdicts_of_a_job

from ingero.cli.commands.silence import command
from ingero.cli.commands.status import command as status_command
from ingero.contract.exposition import render
from ingero.contract.silence import LiftRequest, SilenceRequest
from ingero.contract.verdict import VerdictState, decode_verdicts
from ingero.contract.verdict_otlp import encode_verdict_logs
from ingero.errors import ConfigError, StoreError, Unavailable
from ingero.fleet.silences.book import MAX_SILENCES, Silences
from ingero.fleet.verdict_metrics import verdict_families
from ingero.fleet.verdicts import VerdictService

NOW_S = 1_700_000_000.0


def asked(target: str = "n5", for_s: float = 7200.0, cluster: str | None = None) -> SilenceRequest:
    return SilenceRequest(target=target, for_s=for_s, why="fan is being replaced", cluster=cluster)


def test_a_silence_is_about_a_node_or_its_job_in_one_cluster_or_all_and_ends() -> None:
    silences = Silences()
    silences.put(asked("n5"), NOW_S)
    silences.put(asked("job-1", cluster="a"), NOW_S)
    assert (
        silences.about("b", "n5", None, NOW_S)
        == "until 2023-11-15 00:13 UTC: fan is being replaced"
    )
    assert silences.about("a", "n6", "job-1", NOW_S) and not silences.about(
        "b", "n6", "job-1", NOW_S
    )
    assert not silences.about("b", "n5", None, NOW_S + 7200)
    assert [s.target for s in silences.active(NOW_S)] == ["job-1", "n5"]
    assert silences.active(NOW_S + 7200) == []
    assert [s.target for s in silences.lift(LiftRequest(target="n5"))] == ["n5"]
    assert silences.lift(LiftRequest(target="n5")) == []


def test_silences_survive_a_restart_with_a_file_and_a_bad_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "silences.json"
    kept = Silences(path).put(asked(), NOW_S)
    assert Silences(path).active(NOW_S) == [kept]
    Silences(path).lift(LiftRequest(target="n5"))
    assert Silences(path).active(NOW_S) == []
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"silences\.json is not a file of silences"):
        Silences(path)


def test_a_silence_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    silences = Silences(tmp_path / "gone" / "silences.json")
    with pytest.raises(StoreError, match="cannot write"):
        silences.put(asked(), NOW_S)
    assert silences.active(NOW_S) == []


def test_silences_are_limited_and_ended_ones_do_not_count() -> None:
    silences = Silences()
    for number in range(MAX_SILENCES):
        silences.put(asked(f"n{number}", for_s=10), NOW_S)
    with pytest.raises(StoreError, match="silences are in force"):
        silences.put(asked("one more"), NOW_S)
    silences.put(asked("one more"), NOW_S + 10)
    assert len(silences.active(NOW_S + 10)) == 1


def test_a_silenced_straggler_is_still_measured_reported_and_counted_but_marked() -> None:
    service = VerdictService()
    service.silences.put(asked(for_s=86400), START_S)
    raised = [
        v for _, v in verdicts_of_a_job(service, seconds=160) if v.state is VerdictState.STRAGGLER
    ]
    assert [(v.node, v.silenced) for v in raised] == [
        ("n5", "")
    ]  # what replay compares knows no silences
    assert "fan is being replaced" in decode_verdicts(service.texts["c", "n5"])[0].silenced
    assert "fan is being replaced" in service.recent_verdicts("c")[0].silenced
    assert 'silenced="true"' in render(verdict_families(service)).decode()
    record = (
        encode_verdict_logs([("c", service.recent_verdicts("c")[0])], 1)
        .resource_logs[0]
        .scope_logs[0]
        .log_records[0]
    )
    assert record.body is not None and "fan is being replaced" in str(record.body.string_value)


async def test_the_api_starts_lists_and_lifts_with_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret-s3cret-s3cret")
    token.chmod(0o600)
    extension = {"ingero_threshold": {"token_file": str(token)}}
    async with running(extensions=extension) as fleet, aiohttp.ClientSession() as session:
        url = f"http://{fleet.addresses['threshold']}/api/v1/silences"
        body = msgspec.json.encode(msgspec.structs.replace(asked(), force=True))
        async with session.post(url, data=body) as reply:
            assert (reply.status, await reply.json()) == (
                401,
                {"error": "a bearer token is needed"},
            )
            assert reply.headers["WWW-Authenticate"] == "Bearer"
        session.headers["Authorization"] = "Bearer s3cret-s3cret-s3cret"
        session.headers["Content-Type"] = "application/json"
        async with session.post(url, data=body) as reply:
            assert (reply.status, (await reply.json())["target"]) == (200, "n5")
        for bad in (
            b"{}",
            b"x",
            b'{"target":"a","for_s":-1,"why":"w"}',
            b'{"target":"a","for_s":9e9,"why":"w"}',
        ):
            async with session.post(url, data=bad) as reply:
                assert reply.status == 400
        async with session.post(url, data=b" " * 5000) as reply:
            assert reply.status == 413
        async with session.get(url) as reply:
            assert [s["target"] for s in (await reply.json())["silences"]] == ["n5"]
        async with session.post(f"{url}/lift", data=b'{"target":"n5"}') as reply:
            assert len((await reply.json())["lifted"]) == 1


async def test_the_command_silences_and_status_shows_it() -> None:
    async with running() as fleet:
        await post(f"http://{fleet.addresses['http']}/v1/metrics", protobuf("n5", 0.9), PB)
        where = ["--fleet", f"http://{fleet.addresses['threshold']}"]

        async def run(*arguments: str, tool: object = command) -> tuple[int, str]:
            result = await asyncio.to_thread(
                CliRunner().invoke, tool, [*arguments, *where], standalone_mode=False
            )  # type: ignore[arg-type]  # a click command
            if result.exception is not None:
                raise result.exception
            return result.return_value, result.output

        assert (await run("list"))[1] == "nothing is silenced\n"
        code, text = await run("n5", "--for", "2h", "--why", "fan")
        assert code == 0 and "n5" in text and "fan" in text
        shown = json.loads((await run("--json", tool=status_command))[1])
        assert shown["clusters"][0]["nodes"][0]["silenced"].endswith(": fan")
        with pytest.raises(Unavailable, match=r"422: no node or job 'n55' reports in any cluster"):
            await run("n55", "--for", "2h", "--why", "misspelt")
        assert (await run("n55", "--for", "2h", "--why", "not here yet", "--force"))[0] == 0
        assert (await run("lift", "n5"))[0] == 0
        assert (await run("lift", "n5"))[0] == 1
