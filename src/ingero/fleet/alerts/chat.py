"""Chat, e-mail and other services as a target, by the optional package apprise."""

import asyncio
import re
from typing import Any, Final

from ingero.config.fleet_alerts import AppriseConfig
from ingero.core.alerts.alert import Message, MessageKind
from ingero.core.csv_cell import printed
from ingero.errors import AuthError, ConfigError
from ingero.fleet.alerts.post import ARRIVED, NEEDLESS, Delivery
from ingero.transport.private_files import check_private_file

_LINKS: Final = ("link", "runbook_url")
# Whoever pushes chooses names of nodes and jobs. In chats these characters would make links,
# mentions of everybody and markup of them; e-mail that takes HTML is escaped by apprise.
_LOOKALIKES: Final = str.maketrans("<>@[]`*|~&", "‹›＠［］ˋ∗∣∼＆")
_BARE_LINK: Final = re.compile(r"(?<!\w)(www)\.", re.I)  # what chats make a link without a scheme


class Chat:
    """All services in a file of apprise URLs; if one fails, all of them get the message again."""

    def __init__(self, config: AppriseConfig, public_url: str) -> None:
        self._config, self._public_url = config, public_url
        try:
            import apprise  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError("targets of apprise need `pip install 'ingero[alerts]'`") from None
        self._apprise: Any = apprise

    async def send(self, message: Message, now_s: float) -> Delivery:
        """Send one message to every URL."""
        if message.kind is MessageKind.ACKNOWLEDGE:
            return NEEDLESS
        services = self._apprise.Apprise()
        for url in self._urls():
            if not services.add(url):
                return Delivery("a URL of the file is not one that apprise knows", is_final=True)
        begins = message.kind is MessageKind.BEGIN
        kind = self._apprise.NotifyType.WARNING if begins else self._apprise.NotifyType.SUCCESS
        title, body = as_text(message.alert.annotations(self._public_url))
        # plain text: apprise escapes it for services that take HTML, such as e-mail
        text = self._apprise.NotifyFormat.TEXT
        try:
            async with asyncio.timeout(self._config.timeout):
                sent = await services.async_notify(
                    body=body, title=title, notify_type=kind, body_format=text
                )
        except TimeoutError:
            return Delivery("no answer in time")
        return ARRIVED if sent else Delivery("apprise could not deliver it; its log says why")

    def _urls(self) -> list[str]:
        path = self._config.urls_file
        check_private_file(path, "file of apprise URLs")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise AuthError(f"cannot read {path}: {error.strerror}") from None
        urls = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not urls:
            raise AuthError(f"{path} has no URL")
        return urls

    async def close(self) -> None:
        """Do nothing: no connection stays open."""


def as_text(annotations: dict[str, str]) -> tuple[str, str]:
    """Return title and body of a message; only our own links stay links."""
    plain = {
        name: text if name in _LINKS else _harmless(text) for name, text in annotations.items()
    }
    title = plain.pop("summary")
    return title, "\n".join(f"{name}: {text}" for name, text in plain.items())


def _harmless(text: str) -> str:
    # first the escapes: an invisible character must not hide what a chat would read as a link
    visible = printed(" ".join(text.split())).translate(_LOOKALIKES)
    return _BARE_LINK.sub("\\1․", visible.replace("://", ":∕∕"))
