"""Answers to pushes: threshold, quorum, verdict and question, kept until they change."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from ingero.contract.names import (
    ASK_HEADER,
    ASK_METADATA,
    QUORUM_HEADER,
    QUORUM_METADATA,
    QUORUM_REASON_HEADER,
    QUORUM_REASON_METADATA,
    THRESHOLD_HEADER,
    THRESHOLD_METADATA,
    VERDICT_HEADER,
    VERDICT_METADATA,
)
from ingero.contract.otlp.body import Encoding, PartialSuccess, encode_response
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.threshold import COLD_START, ServedThreshold, encode_quorum, encode_threshold
from ingero.transport.bearer import CHALLENGE, CHALLENGE_HEADER
from ingero.transport.otlp.server_http import Reply

Names = tuple[str, str, str, str, str]
Headers = tuple[tuple[str, str], ...]
HTTP_NAMES: Final[Names] = (
    THRESHOLD_HEADER,
    QUORUM_HEADER,
    QUORUM_REASON_HEADER,
    VERDICT_HEADER,
    ASK_HEADER,
)
GRPC_NAMES: Final[Names] = (
    THRESHOLD_METADATA,
    QUORUM_METADATA,
    QUORUM_REASON_METADATA,
    VERDICT_METADATA,
    ASK_METADATA,
)
# A cluster, and the verdict where a node has one: many nodes have that of their job.
_Key = str | tuple[str, str]
_Rendered = dict[_Key, tuple[ServedThreshold, bytes]]  # whole replies
_Replies = dict[_Key, tuple[ServedThreshold, Reply]]


class Answers:
    """Replies to pushes over both transports; compiled code reads what is kept here."""

    def __init__(self, served: Callable[[str], ServedThreshold]) -> None:
        self._served = served
        # by cluster and node, from the service; a node that is asked has a verdict, too
        self.verdict_texts: Mapping[tuple[str, str], str] = {}
        self.ask_texts: Mapping[tuple[str, str], str] = {}
        self.rendered: tuple[_Rendered, _Rendered] = ({}, {})  # protobuf, JSON
        self.replies: dict[Names, _Replies] = {HTTP_NAMES: {}, GRPC_NAMES: {}}

    def second_passed(self) -> None:
        """Forget all kept replies."""
        for rendered in self.rendered:
            rendered.clear()
        for replies in self.replies.values():
            replies.clear()

    def headers(self, names: Names, cluster: str) -> Headers:
        """Return the headers that concern no single node: the threshold of its cluster."""
        return self._about(names, cluster, "").headers

    def reply(self, names: Names, cluster: str, node: str, partial: PartialSuccess | None) -> Reply:
        """Return the reply to a push that was accepted."""
        text, ask = self._texts(cluster, node)
        reply = self._about(names, cluster, text)
        if ask:
            reply = reply._replace(headers=(*reply.headers, (names[-1], ask)))
        return reply if partial is None else reply._replace(partial=partial)

    def whole_reply(
        self,
        cluster: str,
        node: str,
        partial: PartialSuccess | None,
        encoding: Encoding,
        date: bytes,
    ) -> bytes:
        """Return the whole HTTP reply to a push: status line, headers and body."""
        served, kept = self._served(cluster), self.rendered[encoding is Encoding.JSON]
        text, ask = self._texts(cluster, node)
        key = _key(cluster, text)
        known = kept.get(key)
        is_usual = partial is None and not ask
        if is_usual and known is not None and known[0] is served:
            return known[1]
        reply = self.reply(HTTP_NAMES, cluster, node, partial)
        rendered = render(reply, encoding, date, encode_response(MetricsRequest, encoding, partial))
        if is_usual and served is not COLD_START:  # before the first threshold, any push may set it
            kept[key] = (served, rendered)
        return rendered

    def _texts(self, cluster: str, node: str) -> tuple[str, str]:
        about = (cluster, node)
        text = self.verdict_texts.get(about, "") if node else ""
        return text, self.ask_texts.get(about, "") if text else ""

    def _about(self, names: Names, cluster: str, text: str) -> Reply:
        served, kept, key = self._served(cluster), self.replies[names], _key(cluster, text)
        known = kept.get(key)
        if known is not None and known[0] is served:
            return known[1]
        reason = str(served.reason) if served.reason else ""
        texts = (encode_threshold(served.value), encode_quorum(served.quorum_met), reason, text)
        reply = Reply(headers=tuple(pair for pair in zip(names, texts, strict=False) if pair[1]))
        if served is not COLD_START:  # senders choose names of clusters, of which few are served
            kept[key] = (served, reply)
        return reply


def _key(cluster: str, text: str) -> _Key:
    return (cluster, text) if text else cluster


def render(reply: Reply, encoding: Encoding, date: bytes, content: bytes) -> bytes:
    """Return a reply as it is sent over HTTP."""
    status = HTTPStatus(reply.status)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    if date:
        lines.append(f"Date: {date.decode()}")
    lines += [f"{name}: {value}" for name, value in reply.headers]
    if reply.retry_after_s is not None:
        lines.append(f"Retry-After: {reply.retry_after_s}")
    if status is HTTPStatus.UNAUTHORIZED:
        lines.append(f"{CHALLENGE_HEADER}: {CHALLENGE}")
    lines += [f"Content-Type: {encoding}", f"Content-Length: {len(content)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + content
