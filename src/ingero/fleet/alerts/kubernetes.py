"""Kubernetes as a target: an event on the node and, where configured, a condition of the node."""

import re
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ingero.config.fleet_alerts import KubernetesConfig
from ingero.core.alerts.alert import Message, MessageKind
from ingero.errors import AuthError
from ingero.fleet.alerts.post import NEEDLESS, Delivery, Poster
from ingero.fleet.alerts.targets import timestamp
from ingero.transport.bearer import authorization

CONDITION: Final = "GpuStraggler"
MANAGER: Final = "ingero-fleet"
_APPLY: Final = "application/apply-patch+yaml"  # server-side apply; JSON is YAML
_NODE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_encode = msgspec.json.Encoder().encode


class Kubernetes:
    """Sends alerts about nodes; a node must have the same name in Fleet and in Kubernetes."""

    def __init__(self, config: KubernetesConfig, public_url: str) -> None:
        self._config, self._public_url = config, public_url
        self._poster = Poster(config.timeout, config.ca_file)

    async def send(self, message: Message, now_s: float) -> Delivery:
        """Create an event, and set or clear the condition."""
        node = message.alert.verdict.node
        if not _NODE.fullmatch(node) or message.kind is MessageKind.ACKNOWLEDGE:
            return NEEDLESS  # whoever pushes chooses the name, and it becomes part of a path
        base, headers = self._config.url.rstrip("/"), self._headers()
        events = f"{base}/api/v1/namespaces/{quote(self._config.namespace, safe='')}/events"
        done = await self._poster.send(
            events, _encode(self._event(message, now_s)), headers, may_exist=True
        )
        is_clearing = message.kind is MessageKind.END
        if done.why or not self._config.node_condition or (is_clearing and message.others):
            return done
        url = f"{base}/api/v1/nodes/{quote(node, safe='')}/status"
        return await self._poster.send(
            f"{url}?fieldManager={MANAGER}&force=true",
            _encode(self._condition(message, now_s)),
            {**headers, "Content-Type": _APPLY},
            method="PATCH",
        )

    def _event(self, message: Message, now_s: float) -> dict[str, Any]:
        alert, at = message.alert, timestamp(now_s)[:-5] + "Z"  # whole seconds
        link = alert.link(self._public_url)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            # The same name for the same message: one that arrived before is a conflict.
            "metadata": {
                "name": f"ingero-{alert.verdict.episode}-{message.kind}",
                "namespace": self._config.namespace,
            },
            "involvedObject": {
                "kind": "Node",
                "name": alert.verdict.node,
                "uid": alert.verdict.node,
            },
            "reason": alert.name.removeprefix("Ingero"),
            "message": f"{alert.summary}{f' ({link})' if link else ''}"[:1024],
            "type": "Normal" if message.kind is MessageKind.END else "Warning",
            "source": {"component": MANAGER},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }

    def _condition(self, message: Message, now_s: float) -> dict[str, Any]:
        alert, is_slow = message.alert, message.kind is MessageKind.BEGIN
        at = timestamp(now_s)[:-5] + "Z"
        condition = {
            "type": CONDITION,
            "status": "True" if is_slow else "False",
            "reason": alert.name.removeprefix("Ingero") if is_slow else "BackAmongPeers",
            "message": alert.summary[:1024],
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": alert.verdict.node},
            "status": {"conditions": [condition]},
        }

    def _headers(self) -> dict[str, str]:
        """Read the token each time, because the kubelet replaces it every hour."""
        try:
            token = self._config.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise AuthError(f"cannot read {self._config.token_file}: {error.strerror}") from None
        if not token.isprintable() or " " in token:
            raise AuthError(f"{self._config.token_file} must hold just the token")
        return authorization(token)

    async def close(self) -> None:
        """Close the connections."""
        await self._poster.close()
