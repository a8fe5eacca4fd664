"""Learns the processes of the ranks on this node from the collectives that are read anyway."""

import time
from collections.abc import Sequence

from ingero.agent.causes.look import RankProcess
from ingero.agent.causes.watch import CauseWatch
from ingero.agent.push.collective_feed import CollectiveFeed, RankBatch
from ingero.contract.otlp.values import MetricsRequest
from ingero.transport.otlp.client import PushClient, PushReply


class WatchedFeed:
    """A feed of collectives that tells a watch which process is which rank."""

    def __init__(self, feed: CollectiveFeed, watch: CauseWatch, job: str | None) -> None:
        self.lost, self.problem = feed.lost, feed.problem
        self._feed, self._watch, self._job = feed, watch, job

    def poll(self) -> list[RankBatch]:
        """Return what the feed returns."""
        batches = self._feed.poll()
        self.lost, self.problem = self._feed.lost, self._feed.problem
        now_s = time.monotonic()
        for batch in batches:
            if batch.pid:
                self._watch.note((batch.pid, batch.job), self._process(batch), now_s)
        return batches

    def close(self) -> None:
        """Close the feed."""
        self._feed.close()

    def _process(self, batch: RankBatch) -> RankProcess:
        rows, rank = batch.collectives, batch.rank
        if rank is None and len(rows):  # the rank in the widest communicator, as in reports
            rank = int(rows.rank[rows.nranks.argmax()])
        return RankProcess(
            batch.pid, batch.job or self._job, rank, batch.local_rank, batch.world_size
        )


class AskedClient:
    """A push client that hands the asks of replies to a watch."""

    def __init__(self, client: PushClient, watch: CauseWatch) -> None:
        self._client, self._watch = client, watch

    async def push(self, request: MetricsRequest, *, retry: bool = True) -> PushReply:
        """Push like the client, and take the asks of the reply."""
        reply = await self._client.push(request, retry=retry)
        self._watch.receive(reply.asks)
        return reply

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()


def watched(
    feeds: Sequence[CollectiveFeed], watch: CauseWatch, job: str | None
) -> list[CollectiveFeed]:
    """Return the feeds, each telling the watch about its ranks."""
    return [WatchedFeed(feed, watch, job) for feed in feeds]
