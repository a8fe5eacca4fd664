"""The threshold poll: what each answer means."""

import pytest
from tests.support.scripted_fleet import Answer, scripted_fleet
from tests.support.waiting import PATIENCE_S

from ingero.contract import names
from ingero.contract.threshold import ServedThreshold
from ingero.transport.otlp.client import ClientOptions
from ingero.transport.threshold_poll import PollOutcome, PollReply, ThresholdPoll

GOOD = {names.THRESHOLD_HEADER: "0.82", names.QUORUM_HEADER: "true"}


async def poll(answer: Answer, interval_s: float = 1.0) -> PollReply:
    async with scripted_fleet() as fleet:
        fleet.answer = lambda _: answer
        client = ThresholdPoll(
            f"{fleet.url}/api/v1/threshold?cluster_id=c",
            ClientOptions(timeout_s=PATIENCE_S),
            interval_s,
        )
        try:
            return await client.ask()
        finally:
            await client.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            Answer(body=b'{"threshold": 0.88, "quorum_met": true}'),
            PollReply(PollOutcome.OK, ServedThreshold(0.88, True)),
            id="64",
        ),
        pytest.param(
            Answer(body=b'{"threshold":0,"quorum_met":false}'),
            PollReply(PollOutcome.OK),
            id="cold-start",
        ),
        pytest.param(
            Answer(503, {"Retry-After": "12"}),
            PollReply(PollOutcome.SERVER_ERROR, None, 12.0, "HTTP 503"),
            id="63",
        ),
        pytest.param(
            Answer(500), PollReply(PollOutcome.SERVER_ERROR, None, None, "HTTP 500"), id="63-silent"
        ),
        pytest.param(
            Answer(429, {"Retry-After": "x"}),
            PollReply(PollOutcome.RATE_LIMITED, None, 2.0, "HTTP 429"),
            id="61",
        ),
        pytest.param(
            Answer(302, {"Location": "/x"}),
            PollReply(PollOutcome.CLIENT_ERROR, detail="HTTP 302"),
            id="redirect",
        ),
    ],
)
async def test_polls(answer: Answer, expected: PollReply) -> None:
    assert await poll(answer) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"error": "x"}',
        b'{"threshold": true, "quorum_met": true}',
        b'{"threshold": "0.9", "quorum_met": true}',
        b'{"threshold": 0.9}',
        b'{"threshold": 0.05, "quorum_met": true}',
        b'{"threshold": NaN, "quorum_met": true}',
        b'{"threshold": 1e400, "quorum_met": true}',
        b'{"threshold": 0.9, "quorum_met": true' + b" " * 9000 + b"}",
        b"not json",
        b'{"deep":' + b"[" * 8000,
    ],
)
async def test_bug_an_answer_without_both_keys_is_no_threshold(body: bytes) -> None:
    """The reference read `{}` and error bodies as a cold start and overwrote a valid threshold."""
    assert (await poll(Answer(body=body))).outcome is PollOutcome.CLIENT_ERROR
