"""The provider of each node, by its address or labels, from an operator's `node_providers.yaml`."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingero.config.loader import load_file
from ingero.config.rates import canonical_provider
from ingero.core.setting import setting
from ingero.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRules:
    """The file: providers by address or network, and by label (`key=value`)."""

    addresses: dict[str, str] = setting({}, help="Provider of each address or network.")
    labels: dict[str, str] = setting({}, help="Provider of each label, written `key=value`.")


class ProviderLookup:
    """Finds a provider: the narrowest network wins, then labels, then what the agent reports."""

    def __init__(self, rules: ProviderRules | None = None) -> None:
        rules = rules or ProviderRules()
        self._labels = {label: canonical_provider(name) for label, name in rules.labels.items()}
        self._networks: list[tuple[Network, str]] = []
        for text, name in rules.addresses.items():
            try:
                self._networks.append(
                    (ipaddress.ip_network(text, strict=False), canonical_provider(name))
                )
            except ValueError:
                raise ConfigError(
                    f"addresses.{text}: not an address or network such as 10.1.0.0/16"
                ) from None
        self._networks.sort(key=lambda pair: -pair[0].prefixlen)
        for label in rules.labels:
            if "=" not in label:
                raise ConfigError(f"labels.{label}: write key=value")

    @property
    def is_empty(self) -> bool:
        """True when there are no rules, so that what agents report is used."""
        return not self._networks and not self._labels

    def find(
        self, address: str | None, labels: Mapping[str, Any] | None = None, said: str | None = None
    ) -> str | None:
        """Return the provider of a node; None when it is unknown."""
        if address is not None and self._networks:
            try:
                place = ipaddress.ip_address(address)
            except ValueError:
                place = None
            for network, name in self._networks:
                if place is not None and place.version == network.version and place in network:
                    return name
        for key, value in (labels or {}).items():
            name_by_label = self._labels.get(f"{key}={value}")
            if name_by_label is not None:
                return name_by_label
        return canonical_provider(said) if said else None


def load_providers(path: Path | None) -> ProviderLookup:
    """Return the rules of a file; without one, only what agents report is used."""
    return ProviderLookup(load_file(ProviderRules, path) if path is not None else None)
