"""What to try after a demo."""

from typing import Final

_STEPS: Final = {
    "rank": ("ingero demo", "the slow rank of a training job"),
    "keep": ("ingero demo --keep", "look around, slow and heal ranks with keys"),
    "sudden": ("ingero demo --scenario sudden", "a slow node, found by its health score"),
    "fleet-outage": ("ingero demo --scenario fleet-outage", "agents without Fleet"),
    "incident": ("ingero demo --no-gpu incident", "why a node is slow, on one machine"),
}


def next_steps(scenario: str, *, keep: bool) -> str:
    """Return the demos that were not just shown; `keep` says that the cluster still runs."""
    done = {scenario, "keep"} if keep else {scenario}
    lines = [f"  {line:<38}  {why}" for name, (line, why) in _STEPS.items() if name not in done]
    return "\n".join(["", "Next:", *lines])
