"""What a demo says to try next."""

import pytest

from ingero.cli.commands.demos.next_steps import next_steps


@pytest.mark.parametrize(
    ("scenario", "keep", "missing"),
    [
        ("rank", False, {"ingero demo"}),
        ("rank", True, {"ingero demo", "ingero demo --keep"}),
        ("fleet-outage", False, {"ingero demo --scenario fleet-outage"}),
        ("gradual", False, set()),
    ],
)
def test_what_was_just_shown_is_not_advised(scenario: str, keep: bool, missing: set[str]) -> None:
    every = {line.split("  ")[1] for line in next_steps("", keep=False).splitlines()[2:]}
    shown = {line.split("  ")[1] for line in next_steps(scenario, keep=keep).splitlines()[2:]}
    assert every - shown == missing
    assert len(every) == 5
