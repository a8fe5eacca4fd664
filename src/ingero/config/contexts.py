"""Contexts: the Fleets that a person asks, by name, and which of them commands ask now."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from ingero.config.ingero import IngeroConfig, load_ingero
from ingero.config.ingero_fleet import OWN_CONTEXT, ContextConfig
from ingero.contract.names import FLEET_TOKEN_VARIABLE
from ingero.errors import ConfigError
from ingero.files import replace_file
from ingero.storage.caller import give_to_caller, home
from ingero.storage.runtime import running_service
from ingero.transport.tls import is_loopback

API_PORT = 8080
OTLP_HTTP_PORT = 4318
NOT_CONFIGURED = f"http://127.0.0.1:{API_PORT}"


@dataclass(frozen=True, slots=True)
class Context:
    """The Fleet to ask: `is_configured` is false where only the address on this machine is left."""

    name: str
    settings: ContextConfig
    is_configured: bool = True

    @property
    def url(self) -> str:
        """The address of the API and of the page."""
        return self.settings.url or self._at(API_PORT)

    @property
    def push_url(self) -> str:
        """The address for pushes over HTTP."""
        address = self._address
        port = urlsplit(address if "://" in address else f"//{address}").port
        known = port not in (None, API_PORT, OTLP_HTTP_PORT - 1)
        return self._at(port if known and port else OTLP_HTTP_PORT)

    @property
    def _address(self) -> str:
        return self.settings.endpoint or self.settings.url or ""

    def _at(self, port: int) -> str:
        """Return another port of the machine that is configured."""
        scheme, _, rest = self._address.rpartition("://")
        host = urlsplit(f"//{rest}").hostname or ""
        if not scheme:
            scheme = "http" if self.settings.insecure or is_loopback(rest) else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def chosen_file() -> Path:
    """Return the file that holds the name of the context in use."""
    return home() / ".config" / "ingero" / "context"


def use_context(name: str) -> None:
    """Ask the Fleet of this context from now on; raise ConfigError for an unknown one."""
    _named(load_ingero(), name, "")
    path = chosen_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, f"{name}\n".encode())
    give_to_caller(path)


def all_contexts(config: IngeroConfig) -> list[Context]:
    """Return the `fleet` block and every context of ingero.yaml."""
    return [_named(config, name, "") for name in (OWN_CONTEXT, *config.contexts)]


def find_context(name: str | None = None) -> Context:
    """Return the context that a command named, else the one in use.

    The token in $INGERO_FLEET_TOKEN wins over the file of the configuration, and the file of a
    context that a command names wins over both, as flags do.
    """
    config = load_ingero()
    if name is not None:
        return _named(config, name, "")
    try:
        used = chosen_file().read_text(encoding="utf-8", errors="replace").strip() or OWN_CONTEXT
    except OSError:
        used = OWN_CONTEXT
    found = _named(config, used, f"{chosen_file()}: ")
    if os.environ.get(FLEET_TOKEN_VARIABLE):
        found = replace(found, settings=replace(found.settings, token_file=None))
    return found


def _on_this_machine() -> ContextConfig | None:
    """Return the Fleet that `ingero up` runs here, if it does."""
    found = running_service("fleet")
    if found is None or not {"threshold", "http"} <= found.addresses.keys():
        return None
    url, endpoint = (f"http://{found.addresses[name]}" for name in ("threshold", "http"))
    return ContextConfig(url=url, endpoint=endpoint)


def _named(config: IngeroConfig, name: str, where: str) -> Context:
    fleet = config.fleet
    if name == OWN_CONTEXT:
        here = None if fleet.url or fleet.endpoint else _on_this_machine()
        if here is not None:
            return Context(name, replace(here, token_file=fleet.token_file), is_configured=False)
        own = ContextConfig(
            url=fleet.url or (None if fleet.endpoint else NOT_CONFIGURED),
            endpoint=fleet.endpoint,
            cluster_id=fleet.cluster_id,
            token_file=fleet.token_file,
            insecure=fleet.insecure,
            tls=fleet.tls,
        )
        return Context(name, own, is_configured=bool(fleet.url or fleet.endpoint))
    if name not in config.contexts:
        known = ", ".join((OWN_CONTEXT, *config.contexts))
        raise ConfigError(
            f"{where}ingero.yaml has no context {name!r}; there are: {known}; "
            "choose one with `ingero context use NAME`"
        )
    return Context(name, config.contexts[name])
