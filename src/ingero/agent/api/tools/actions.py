"""Tools that check the machine or act: readiness, demo, hardware test report, paging."""

import asyncio
import uuid
from typing import Annotated, Any

import aiohttp
import msgspec

from ingero.agent.api.tools.context import AgentContext, Compact, ToolAnswer, make_answer
from ingero.agent.checks import run_checks
from ingero.config.ingero import PAGERDUTY_VARIABLE
from ingero.core.sanitise import PREAMBLE, traced
from ingero.transport.bounded import read_reply_beginning
from ingero.transport.tools.tool import ToolRefused

MAX_DETAIL_BYTES = 256 * 1024
MAX_REPLY_BYTES = 64 * 1024
PAGE_TIMEOUT_S = 10.0
MAX_REPORT_BYTES = 1 << 20
SEVERITIES = ("info", "warning", "error", "critical")
SCENARIOS = (
    "incident",
    "cold-start",
    "memcpy-bottleneck",
    "periodic-spike",
    "cpu-contention",
    "gpu-steal",
)


class Nothing(msgspec.Struct):
    """A question without arguments."""


async def get_check(context: AgentContext, question: Nothing) -> ToolAnswer:
    """Whether this node can be traced, one line per check.

    Kernel, privileges, probes, driver, libraries and processes are checked.
    """
    lines = [PREAMBLE]
    for check in await asyncio.to_thread(run_checks, context.db):
        mark = "PASS" if check.passed else "INFO" if check.optional else "FAIL"
        # the path is chosen by the process
        value = traced(check.value) if check.name.startswith("lib") else check.value
        advice = f" - {check.recommendation}" if check.recommendation and not check.passed else ""
        lines.append(f"[{mark}] {check.name}: {value}{advice}")
    return ToolAnswer(text="\n".join(lines))


class DemoQuestion(msgspec.Struct):
    scenario: Annotated[
        str,
        msgspec.Meta(
            description="which scenario to simulate", extra_json_schema={"enum": SCENARIOS}
        ),
    ]
    tsc: Compact = True


async def run_demo(context: AgentContext, question: DemoQuestion) -> ToolAnswer:
    """Simulate a single-node scenario, to see what a finding looks like.

    The events pass through the ordinary statistics.
    """
    if context.play_scenario is None:
        raise ToolRefused("unavailable", "scenarios are not available here", status=503)
    return make_answer(
        await asyncio.to_thread(context.play_scenario, question.scenario), question.tsc
    )


async def get_test_report(context: AgentContext, question: Nothing) -> ToolAnswer:
    """The figures of the last run of `tests/hardware/run.sh` on this node, if there was one."""
    path = context.report
    if not path.is_file():
        return ToolAnswer(
            text=f"no hardware test report at {path}; `tests/hardware/run.sh` writes one"
        )
    try:
        with path.open("rb") as file:
            content = file.read(MAX_REPORT_BYTES + 1)
        report = msgspec.json.decode(content, type=dict[str, Any])
    except OSError as error:
        raise ToolRefused(
            "unavailable", f"{path} cannot be read: {error.strerror}", status=503
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        if len(content) > MAX_REPORT_BYTES:
            raise ToolRefused("too_large", f"{path} is larger than 1 MiB", status=413) from None
        raise ToolRefused("bad_report", f"{path} is not a report: {error}") from None
    return ToolAnswer(data=report)


class PageQuestion(msgspec.Struct):
    summary: Annotated[
        str, msgspec.Meta(min_length=1, max_length=1024, description="what the person must know")
    ]
    severity: Annotated[
        str, msgspec.Meta(description="how bad", extra_json_schema={"enum": SEVERITIES})
    ]
    source: Annotated[
        str, msgspec.Meta(min_length=1, max_length=255, description="what is affected")
    ] = "ingero"
    dedup_key: Annotated[
        str,
        msgspec.Meta(
            max_length=255, description="reuse it to update one incident; fresh when empty"
        ),
    ] = ""
    custom_details: Annotated[
        dict[str, Any], msgspec.Meta(description="evidence, at most 256 KiB")
    ] = {}


async def pagerduty_trigger(context: AgentContext, question: PageQuestion) -> ToolAnswer:
    """Page the on-call person through PagerDuty.

    Use it only when a person asked for it: it wakes somebody up.
    """
    if question.severity not in SEVERITIES:
        raise ToolRefused("bad_argument", f"severity must be one of {', '.join(SEVERITIES)}")
    if not context.may_page:
        raise ToolRefused(
            "not_allowed",
            "paging requires an authenticated caller: use stdio or a bearer token",
            status=403,
        )
    key = context.pagerduty_key()
    if not key:
        raise ToolRefused(
            "not_configured",
            f"no PagerDuty key; set ${PAGERDUTY_VARIABLE} where the server runs",
            status=503,
        )
    if len(msgspec.json.encode(question.custom_details)) > MAX_DETAIL_BYTES:
        raise ToolRefused("too_large", "custom_details is larger than 256 KiB", status=413)
    dedup = question.dedup_key or str(uuid.uuid4())
    event = {
        "routing_key": key,
        "event_action": "trigger",
        "dedup_key": dedup,
        "payload": {
            "summary": question.summary,
            "severity": question.severity,
            "source": question.source,
            "custom_details": question.custom_details,
        },
    }
    await _send(context.pagerduty_url, event)
    return ToolAnswer(data={"dedup_key": dedup, "status": "accepted"})


async def _send(url: str, event: dict[str, Any]) -> None:
    """Post to PagerDuty; the key never appears in an error."""
    timeout = aiohttp.ClientTimeout(total=PAGE_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json=event, allow_redirects=False) as reply,
        ):
            text = (await read_reply_beginning(reply, MAX_REPLY_BYTES)).decode(errors="replace")
            status = reply.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ToolRefused(
            "unavailable",
            f"PagerDuty was not reached ({type(error).__name__}); try again",
            status=503,
        ) from None
    if status != 202:
        safe = text.replace(str(event["routing_key"]), "…")[:200]
        raise ToolRefused("refused", f"PagerDuty answered {status}: {safe}", status=502)
