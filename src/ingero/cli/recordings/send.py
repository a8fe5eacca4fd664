"""Send recorded collectives and causal chains over OTLP, waiting where the receiver asks to."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ingero.contract.chain_otlp import ReportedChain, encode_chain_logs
from ingero.contract.collective import CollectiveRecord
from ingero.contract.measurements.collectives import encode_batches
from ingero.core.health.modes import PushOutcome
from ingero.errors import Unavailable
from ingero.transport.bearer import authorization, read_token_file
from ingero.transport.endpoint import Protocol, parse_endpoint, refuse_plaintext
from ingero.transport.otlp.client import ClientOptions, HttpPush, PushReply
from ingero.transport.tls import ClientTls, client_context

PUSH_TIMEOUT_S = 30.0
MAX_WAITS, MAX_WAIT_S = 10, 30.0
CHAINS_PER_REQUEST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to send, and as what."""

    address: str
    cluster: str
    node: str
    token_file: Path | None = None
    ca_cert: Path | None = None
    insecure: bool = False

    def client(self) -> HttpPush:
        """Return a client for the address; plaintext to another machine is refused."""
        endpoint = parse_endpoint(
            self.address, insecure=self.insecure, protocol=Protocol.HTTP_PROTOBUF
        )
        if not endpoint.is_secure and not self.insecure:
            refuse_plaintext(endpoint.base, "--insecure")
        headers = authorization(read_token_file(self.token_file)) if self.token_file else {}
        tls = client_context(ClientTls(ca=self.ca_cert)) if endpoint.is_secure else None
        options = ClientOptions(timeout_s=PUSH_TIMEOUT_S, tls=tls, headers=headers)
        chance = random.Random()  # noqa: S311  # jitter only
        return HttpPush(endpoint, self.cluster, self.node, options, chance)


async def send(
    target: Target, records: Sequence[CollectiveRecord], chains: Sequence[ReportedChain]
) -> tuple[int, int]:
    """Send everything; return how many records and chains were accepted."""
    client = target.client()
    sent = sent_chains = 0
    try:
        for request, points in encode_batches(records, target.cluster, target.node):
            state = f"{sent} of {len(records)} records"
            reply = await _accepted(partial(client.push, request), target, state)
            sent += points - reply.rejected_points
        for first in range(0, len(chains), CHAINS_PER_REQUEST):
            part = chains[first : first + CHAINS_PER_REQUEST]
            logs = encode_chain_logs(target.cluster, target.node, part)
            state = f"{sent_chains} of {len(chains)} causal chains"
            reply = await _accepted(partial(client.push_logs, logs), target, state)
            sent_chains += len(part) - reply.rejected_points
    finally:
        await client.close()
    return sent, sent_chains


async def _accepted(
    push: Callable[[], Awaitable[PushReply]], target: Target, state: str
) -> PushReply:
    """Return the reply that accepts a request; `state` is what was accepted before it."""
    reply = await push()
    for _ in range(MAX_WAITS):
        if reply.outcome is not PushOutcome.SHED:
            break
        await asyncio.sleep(min(reply.retry_after_s or 1.0, MAX_WAIT_S))  # the reply asked to wait
        reply = await push()
    if reply.outcome is not PushOutcome.OK:
        raise Unavailable(
            f"{target.address} accepted {state}, then: {reply.detail or reply.outcome}"
        )
    return reply
