"""The price of a GPU hour by provider and model: a dated table, overridden by an own file."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from ingero.config.loader import MAX_CONFIG_BYTES, yaml_complaint
from ingero.errors import ConfigError, ForeignFile, TooLarge
from ingero.files import read_regular

_MEMORY = re.compile(r"\d+gb")
ALIASES = {
    "aws": "ec2",
    "amazon": "ec2",
    "google": "gcp",
    "microsoft": "azure",
    "on-prem": "onprem",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTable:
    """Prices per GPU hour; `as_of` and `sources` are their date and where they come from."""

    currency_name: str
    currency_symbol: str
    providers: Mapping[str, Mapping[str, float]]
    fallback_rate: float
    as_of: str = ""
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def models(self) -> int:
        """The number of prices in the table."""
        return sum(len(rates) for rates in self.providers.values())

    def find(self, provider: str | None, gpu_model: str | None) -> float | None:
        """Return the rate of a model as drivers print it, else the fallback; None if that is 0."""
        rows = self.providers.get(canonical_provider(provider or ""), {})
        known = rows.get(gpu_model or "")
        if known is None and gpu_model:
            alike = [rate for model, rate in rows.items() if _is_same_model(model, gpu_model)]
            known = alike[0] if len(alike) == 1 else None
        return known if known is not None else (self.fallback_rate or None)

    def hint(self, provider: str | None, gpu_model: str | None, setting: str) -> str:
        """Return what to set so that a GPU gets a price; `setting` names the file of own prices."""
        if not gpu_model:
            return "the GPU model is unknown, so there is no price"
        if not provider:
            return (
                f"{gpu_model} has no price, because its provider is unknown: set fleet.provider in "
                "the ingero.yaml of its node"
            )
        return (
            f"no price is known for {gpu_model} at {canonical_provider(provider)}: put it into "
            f"the file of {setting} (`ingero rates check FILE` checks the file)"
        )

    def guess(self, provider: str | None, gpu_model: str) -> float | None:
        """Return the lowest rate of a model that people shorten, of one provider or of any.

        `A100 40GB` is `A100-SXM4-40GB`; `H200` is not `GH200 480GB`.
        """
        wanted = [canonical_provider(provider)] if provider else list(self.providers)
        rates = [
            rate
            for name in wanted
            for model, rate in self.providers.get(name, {}).items()
            if _is_short_for(gpu_model, model)
        ]
        return min(rates) if rates else (self.fallback_rate or None)

    def overridden_by(self, other: "RateTable") -> "RateTable":
        """Return this table with the rows of another added or replaced."""
        merged = {name: dict(rates) for name, rates in self.providers.items()}
        for name, rates in other.providers.items():
            merged[name] = {**merged.get(name, {}), **rates}
        return replace(other, providers=merged, sources={**self.sources, **other.sources})


def _is_same_model(row: str, printed: str) -> bool:
    """Return whether a row is about a model that a driver prints, such as `NVIDIA L4`.

    Case and spaces do not matter, and one of the two may lack the size of the memory. Anything else
    is another product with another price: `H100 PCIe` is not `H100 80GB HBM3`.
    """
    one, other = (_words(name) for name in (row, printed))
    shorter, longer = sorted((one, other), key=len)
    rest = longer[len(shorter) :]
    return longer[: len(shorter)] == shorter and (
        not rest or (len(rest) == 1 and _MEMORY.fullmatch(rest[0]) is not None)
    )


def _is_short_for(typed: str, row: str) -> bool:
    """Return whether whole words of a row were typed, its first one among them."""
    short, long = (_words(name.replace("-", " ")) for name in (typed, row))
    return short[:1] == long[:1] and set(short) <= set(long)


def _words(name: str) -> list[str]:
    return [word for word in name.lower().split() if word != "nvidia"]


def canonical_provider(name: str) -> str:
    """Return the one name of a provider that has several, such as `ec2` for `aws`."""
    plain = name.strip().lower()
    return ALIASES.get(plain, plain)


def load_rates(override: Path | None = None) -> RateTable:
    """Return the shipped table, with the rows of an own file added or replaced."""
    shipped = parse_rates(
        files("ingero.config").joinpath("gpu_rates.yaml").read_text("utf-8"), "gpu_rates.yaml"
    )
    return shipped if override is None else shipped.overridden_by(read_rates(override))


def encode_rates(table: RateTable) -> bytes:
    """Encode the table as YAML that `parse_rates` reads."""
    fields = ("currency_name", "currency_symbol", "as_of", "fallback_rate")
    plain: dict[str, Any] = {name: getattr(table, name) for name in fields}
    plain["providers"] = {name: dict(rates) for name, rates in table.providers.items()}
    return yaml.safe_dump(plain).encode()


def read_rates(path: Path) -> RateTable:
    """Read and validate one file."""
    try:
        data = read_regular(path, MAX_CONFIG_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ForeignFile, TooLarge) as error:
        raise ConfigError(f"{error}; this is no rate table") from None
    return parse_rates(data, str(path))


def parse_rates(text: str | bytes, source: str) -> RateTable:
    """Decode a table from YAML; unknown keys are ignored, anything unclear is refused."""
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"{source} is larger than {MAX_CONFIG_BYTES} bytes; it is not a rate table"
        )
    try:
        root = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise yaml_complaint(source, error) from None
    if not isinstance(root, dict):
        raise ConfigError(
            f"{source}: a rate table is a mapping with the keys "
            "currency_name, providers and fallback_rate"
        )
    providers = root.get("providers")
    if not isinstance(providers, dict) or not providers:
        raise ConfigError(f"{source}: providers: needs at least one provider with its models")
    return RateTable(
        currency_name=_text(root, "currency_name", source),
        currency_symbol=_text(root, "currency_symbol", source),
        providers={
            canonical_provider(str(name)): _rates(rates, str(name), source)
            for name, rates in providers.items()
        },
        fallback_rate=_rate(root.get("fallback_rate"), "fallback_rate", source),
        as_of=str(root.get("as_of", "")),
        sources=_sources(root.get("sources")),
    )


def _text(root: Mapping[str, Any], key: str, source: str) -> str:
    value = root.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{source}: {key}: missing or empty")
    return value


def _rates(rates: Any, provider: str, source: str) -> dict[str, float]:
    if not isinstance(rates, dict):
        raise ConfigError(f"{source}: providers.{provider}: write one `GPU model: rate` per line")
    return {
        str(model): _rate(rate, f"providers.{provider}.{model}", source)
        for model, rate in rates.items()
    }


def _rate(value: Any, key: str, source: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < 0
    ):
        raise ConfigError(f"{source}: {key}: {value!r} is not a rate; write a number of 0 or more")
    return float(value)


def _sources(value: Any) -> dict[str, dict[str, str]]:
    if not isinstance(value, dict):
        return {}
    return {
        canonical_provider(str(name)): {str(key): str(text) for key, text in entry.items()}
        for name, entry in value.items()
        if isinstance(entry, dict)
    }
