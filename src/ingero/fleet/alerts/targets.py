"""Targets that take JSON over HTTP: Alertmanager, PagerDuty and webhooks."""

import datetime
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from ingero.config.fleet_alerts import AlertmanagerConfig, PagerdutyConfig, WebhookConfig
from ingero.contract.names import SIGNATURE_HEADER
from ingero.core.alerts.alert import Alert, Message, MessageKind
from ingero.core.alerts.fingerprint import fingerprint_of
from ingero.fleet.alerts.post import NEEDLESS, Delivery, Poster
from ingero.transport.bearer import authorization, read_token_file

OPEN_FOR_S: Final = 240.0  # an Alertmanager ends an alert that it did not hear of for so long
_NEVER: Final = "0001-01-01T00:00:00Z"
_encode = msgspec.json.Encoder().encode


class Target(Protocol):
    """A receiver of alerts; `send` raises AuthError for a secret that cannot be read."""

    async def send(self, message: Message, now_s: float) -> Delivery:
        """Send one message."""

    async def close(self) -> None:
        """Close the connections."""


class Alertmanager:
    """An Alertmanager, which merges these alerts with those of the Prometheus rules."""

    def __init__(self, config: AlertmanagerConfig, public_url: str) -> None:
        self._config, self._public_url = config, public_url
        self._poster = Poster(config.timeout, config.ca_file)

    async def send(self, message: Message, now_s: float) -> Delivery:
        """Post an alert; one that has ended is posted with its end."""
        if message.kind is MessageKind.ACKNOWLEDGE:
            return NEEDLESS  # it has silences of its own
        return await self.refresh([message.alert], now_s)

    async def refresh(self, alerts: Sequence[Alert], now_s: float) -> Delivery:
        """Post open alerts again, so that they do not end by themselves."""
        body = _encode([self._body(alert, now_s) for alert in alerts])
        url = f"{self._config.url.rstrip('/')}/api/v2/alerts"
        return await self._poster.send(url, body, _bearer(self._config.token_file))

    def _body(self, alert: Alert, now_s: float) -> dict[str, Any]:
        ends_s = now_s + OPEN_FOR_S if alert.ended is None else alert.ended
        return {
            "labels": alert.labels,
            "annotations": alert.annotations(self._public_url),
            "startsAt": timestamp(min(alert.verdict.since, ends_s)),
            "endsAt": timestamp(ends_s),
            "generatorURL": alert.link(self._public_url),
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._poster.close()


class Pagerduty:
    """A PagerDuty service: an incident per episode."""

    _ACTIONS: Final = {
        MessageKind.BEGIN: "trigger",
        MessageKind.ACKNOWLEDGE: "acknowledge",
        MessageKind.END: "resolve",
    }

    def __init__(self, config: PagerdutyConfig, public_url: str) -> None:
        self._config, self._public_url = config, public_url
        self._poster = Poster(config.timeout)

    async def send(self, message: Message, now_s: float) -> Delivery:
        """Post one event."""
        alert, verdict = message.alert, message.alert.verdict
        body: dict[str, Any] = {
            "routing_key": read_token_file(self._config.routing_key_file),
            "event_action": self._ACTIONS[message.kind],
            "dedup_key": verdict.episode,
        }
        if message.kind is MessageKind.BEGIN:
            link = alert.link(self._public_url)
            body["links"] = [{"href": link, "text": "the episode"}] if link else []
            body["payload"] = {
                "summary": alert.summary[:1024],
                "source": verdict.node or alert.cluster,
                "severity": alert.labels["severity"],
                "timestamp": timestamp(verdict.since),
                "component": "" if verdict.rank is None else f"rank {verdict.rank}",
                "group": verdict.job or "",
                "class": str(verdict.cause_class),
                "custom_details": alert.labels | alert.annotations(self._public_url),
            }
        return await self._poster.send(self._config.url, _encode(body), {})

    async def close(self) -> None:
        """Close the connections."""
        await self._poster.close()


class Webhook:
    """A receiver of Alertmanager's webhooks, with a signature that it can check."""

    def __init__(self, config: WebhookConfig, name: str, public_url: str) -> None:
        self._config, self._name, self._public_url = config, name, public_url
        self._poster = Poster(config.timeout, config.ca_file)

    async def send(self, message: Message, now_s: float) -> Delivery:
        """Post one body of version 4."""
        if message.kind is MessageKind.ACKNOWLEDGE:
            return NEEDLESS
        body = _encode(self._body(message.alert))
        headers = _bearer(self._config.token_file)
        if self._config.secret_file is not None:
            secret = read_token_file(self._config.secret_file)
            headers[SIGNATURE_HEADER] = sign(body, secret, int(now_s))
        return await self._poster.send(self._config.url, body, headers, is_secret_url=True)

    def _body(self, alert: Alert) -> dict[str, Any]:
        status = "firing" if alert.ended is None else "resolved"
        labels, annotations = alert.labels, alert.annotations(self._public_url)
        one = {
            "status": status,
            "labels": labels,
            "annotations": annotations,
            "startsAt": timestamp(alert.verdict.since),
            "endsAt": _NEVER if alert.ended is None else timestamp(alert.ended),
            "generatorURL": alert.link(self._public_url),
            "fingerprint": fingerprint_of(labels),
        }
        return {
            "version": "4",
            "groupKey": f'{{}}:{{episode="{alert.verdict.episode}"}}',
            "truncatedAlerts": 0,
            "status": status,
            "receiver": self._name,
            "groupLabels": {"episode": alert.verdict.episode},
            "commonLabels": labels,
            "commonAnnotations": annotations,
            "externalURL": self._public_url,
            "alerts": [one],
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._poster.close()


def sign(body: bytes, secret: str, at_s: int) -> str:
    """Return the signature of a body: the time, and the HMAC of time and body."""
    signed = hmac.new(secret.encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={signed}"


def timestamp(at_s: float) -> str:
    """Return Unix seconds as RFC 3339."""
    at = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bearer(token_file: Path | None) -> dict[str, str]:
    return {} if token_file is None else authorization(read_token_file(token_file))
