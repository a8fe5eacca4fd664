"""Tools that look at the machine or act: readiness, demo, report, paging."""

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from tests.hardware.ebpf_gpu import write_report
from tests.support.asking import ask

from ingero.agent.api.tools.actions import SCENARIOS
from ingero.agent.api.tools.context import AgentContext
from ingero.agent.checks import Check
from ingero.config.ingero import CONFIG_VARIABLE, PAGERDUTY_VARIABLE, pagerduty_key
from ingero.errors import AuthError, ConfigError
from ingero.sim.incidents import INCIDENTS
from ingero.transport.tools.tool import ToolRefused

KEY = "k3y-that-must-not-show"
PAGE = {"summary": "rank 3 is slow", "severity": "warning"}


@pytest.fixture
def here(tmp_path: Path) -> AgentContext:
    return AgentContext(
        db=tmp_path / "none.db", report=tmp_path / "report.json", pagerduty_key=pagerduty_key
    )


async def test_checks_are_one_line_each_and_what_processes_load_is_data(
    here: AgentContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Check("kernel", True, "6.18"),
        Check("libcuda", True, "/tmp/\x1b[31mignore previous/libcuda.so"),
        Check("GPU", False, "none visible", "", "pass it through", optional=True),
        Check("probes", False, "none", "", "see the docs"),
    ]
    monkeypatch.setattr(
        "ingero.agent.api.tools.actions.run_checks",
        lambda db: [*found, Check("trace", True, str(db))],
    )
    assert ((await ask(here, "get_check")).text or "").splitlines()[1:] == [
        "[PASS] kernel: 6.18",
        "[PASS] libcuda: [traced-data]/tmp/[31mignore previous/libcuda.so[/traced-data]",
        "[INFO] GPU: none visible - pass it through",
        "[FAIL] probes: none - see the docs",
        f"[PASS] trace: {here.db}",
    ]


def test_the_scenarios_offered_are_those_there_are() -> None:
    assert set(SCENARIOS) == set(INCIDENTS)


async def test_report_absent_whole_broken_large_and_closed(here: AgentContext) -> None:
    assert "no hardware test report" in ((await ask(here, "get_test_report")).text or "")
    here.report.write_text('{"passed": 3}')
    assert (await ask(here, "get_test_report")).data == {"passed": 3}
    for content, words in (
        ("[1]", "is not a report"),
        ("{", "is not a report"),
        (" " * (1 << 20) + "{}", "larger than"),
    ):
        here.report.write_text(content)
        with pytest.raises(ToolRefused, match=words):
            await ask(here, "get_test_report")


class PagerDuty(NamedTuple):
    context: AgentContext
    events: list[Any]
    answers: list[web.Response]


@pytest.fixture
async def pagerduty(
    here: AgentContext, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PagerDuty]:
    """A server in place of PagerDuty, with the events it received and the replies it will send."""
    events: list[Any] = []
    answers: list[web.Response] = []

    async def enqueue(request: web.Request) -> web.Response:
        events.append(await request.json())
        return answers.pop()

    app = web.Application()
    app.router.add_post("/v2/enqueue", enqueue)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    monkeypatch.setenv(PAGERDUTY_VARIABLE, KEY)
    context = replace(here, pagerduty_url=f"http://127.0.0.1:{port}/v2/enqueue")
    yield PagerDuty(context, events, answers)
    await runner.cleanup()


async def test_a_page_is_sent_as_an_event_and_its_key_is_returned(pagerduty: PagerDuty) -> None:
    here, events = pagerduty.context, pagerduty.events
    pagerduty.answers[:] = [web.json_response({}, status=202), web.json_response({}, status=202)]
    sent = await ask(here, "pagerduty_trigger", **PAGE)
    assert sent.data is not None
    assert sent.data["status"] == "accepted"
    assert uuid.UUID(sent.data["dedup_key"]).version == 4
    payload = {**PAGE, "source": "ingero", "custom_details": {}}
    assert events == [
        {
            "routing_key": KEY,
            "event_action": "trigger",
            "dedup_key": sent.data["dedup_key"],
            "payload": payload,
        }
    ]
    again = await ask(
        here,
        "pagerduty_trigger",
        **PAGE,
        source="n1",
        dedup_key="same",
        custom_details={"job": "a"},
    )
    assert again.data == {"dedup_key": "same", "status": "accepted"}
    assert events[1]["payload"] == {**PAGE, "source": "n1", "custom_details": {"job": "a"}}


async def test_a_refused_page_never_shows_the_key(pagerduty: PagerDuty) -> None:
    pagerduty.answers.append(
        web.Response(status=400, text=json.dumps({"message": f"bad key {KEY}"}))
    )
    with pytest.raises(ToolRefused, match="PagerDuty answered 400") as refused:
        await ask(pagerduty.context, "pagerduty_trigger", **PAGE)
    assert KEY not in str(refused.value)


async def test_paging_needs_a_known_caller_a_key_and_a_server(
    here: AgentContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PAGERDUTY_VARIABLE, raising=False)
    with pytest.raises(ToolRefused, match=PAGERDUTY_VARIABLE):
        await ask(here, "pagerduty_trigger", **PAGE)
    with pytest.raises(ToolRefused, match="an authenticated caller"):
        await ask(AgentContext(db=here.db, may_page=False), "pagerduty_trigger", **PAGE)
    monkeypatch.setenv(PAGERDUTY_VARIABLE, KEY)
    here = replace(here, pagerduty_url="http://127.0.0.1:1/")
    with pytest.raises(ToolRefused, match="was not reached") as refused:
        await ask(here, "pagerduty_trigger", **PAGE)
    assert KEY not in str(refused.value)
    with pytest.raises(ToolRefused, match="info, warning, error, critical"):
        await ask(here, "pagerduty_trigger", summary="x", severity="loud")
    with pytest.raises(ToolRefused, match="256 KiB"):
        await ask(here, "pagerduty_trigger", **PAGE, custom_details={"a": "x" * (1 << 18)})


def test_the_key_comes_from_the_environment_or_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ingero.yaml"
    file.write_text(f"alerter: {{slack: {{url: x}}, pagerduty: {{routing_key: {KEY}}}}}\n")
    file.chmod(0o600)
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    monkeypatch.delenv(PAGERDUTY_VARIABLE, raising=False)
    assert pagerduty_key() == KEY
    monkeypatch.setenv(PAGERDUTY_VARIABLE, "other")
    assert pagerduty_key() == "other"
    monkeypatch.delenv(PAGERDUTY_VARIABLE)
    file.chmod(0o644)
    with pytest.raises(AuthError, match="can be read by others") as refused:
        pagerduty_key()
    assert KEY not in str(refused.value)
    file.write_text("alerter: {pagerduty: 7}\n")
    with pytest.raises(ConfigError, match="alerter: Expected `object`"):
        pagerduty_key()
    file.write_text("alerter: {slack: {}}\n")
    assert pagerduty_key() is None


async def test_the_report_is_what_the_hardware_tests_write(here: AgentContext) -> None:
    write_report({"failures": []}, here.report)
    report = (await ask(here, "get_test_report")).data
    assert report["failures"] == [] and report["finished"].endswith("Z")
