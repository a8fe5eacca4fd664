"""Recorded pushes of the reference agent, and how to compare the shape of ours with them."""

import json
from typing import Any

from tests.support.shared_data import shared

from ingero.contract import names

OURS = {
    names.RANK,
    names.PROVIDER,
}  # the rank also has our own name; the provider depends on the machine


def shape(value: Any) -> Any:
    """Return keys, order and types, with attribute keys; JSON numbers are all one type."""
    if isinstance(value, dict):
        if "key" in value and "value" in value:
            return (value["key"], shape(value["value"]))
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [
            shape(inner)
            for inner in value
            if not (isinstance(inner, dict) and inner.get("key") in OURS)
        ]
    return (
        "number"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else type(value).__name__
    )


def recorded() -> list[Any]:
    lines = shared("data/ingero-wire/requests.jsonl").read_text().splitlines()
    return [line["body"] for line in map(json.loads, lines) if "body" in line]


def is_event(body: Any) -> bool:
    return (
        body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["name"] == names.STRAGGLER_EVENT
    )
